//! System calls in a short-lived child process that holds neither descriptors nor memory mappings of this process's files.
//!
//! umount(2) on a FUSE mount waits, unkillably, until all requests have ended (fs/fuse/inode.c, `fuse_wait_aborted`), and
//! over io_uring a request may end only when its ring is closed. If the process is killed then, its rings stay open
//! while one of its threads, which share the table of descriptors, still waits: for ever. So a process that serves a mount
//! must neither unmount it nor close what may be the last file in it. A child can: the rings close when the
//! server ends, and then the child's call ends too.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{WaitOptions, waitpid};

use super::clone::CloneArgs;

/// umount2(2), called by a child process.
///
/// # Errors
/// Those of umount2(2), and `EINTR` when the child was killed.
pub fn unmount(path: &CStr, flags: UnmountFlags) -> Result<(), Errno> {
    in_child(|| rustix::mount::unmount(path, flags))
}

/// syncfs(2) of the filesystem that a directory is on, called by a child process.
///
/// # Errors
/// Those of open(2) and syncfs(2), and `EINTR` when the child was killed.
pub fn sync_filesystem(directory: &CStr) -> Result<(), Errno> {
    in_child(|| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::syncfs(rustix::fs::open(directory, flags, Mode::empty())?)
    })
}

/// Runs `call` in a child process and returns its result. Where there can be no child, this thread calls.
///
/// `call` must make system calls and nothing else: other threads may have held any lock, that of the allocator too, when
/// memory was copied.
fn in_child(call: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // No signal meant for the process may reach its handlers in the child, which would pass it on to this process a second
    // time. The child keeps the mask.
    let before = block_signals();
    // The table of descriptors is shared first: close_range(2) then gives the child an empty one of its own and closes
    // nothing, while closing copies would wait for a branch that hangs (a network filesystem's flush). Without a signal at
    // its exit the child is no concern of whoever waits for other children, and is not lost where SIGCHLD is ignored.
    let args = CloneArgs { flags: libc::CLONE_FILES as u64, ..CloneArgs::default() };
    // SAFETY: the child makes system calls alone and then exits.
    let child = unsafe { args.start() };
    if child == Ok(None) {
        // SAFETY: the child uses no descriptor from before, and exits without running anything of this process.
        unsafe {
            libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE);
            libc::_exit(call().map_or_else(Errno::raw_os_error, |()| 0));
        }
    }
    restore_signals(&before);
    let Ok(child) = child else { return call() };
    // `__WALL`: also for a child without a signal.
    let options = WaitOptions::from_bits_retain(libc::__WALL as u32);
    let status = loop {
        match waitpid(child, options) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(errno) => Err(Errno::from_raw_os_error(errno)),
        None => Err(Errno::INTR),
    }
}

/// `CLOSE_RANGE_UNSHARE` of linux/close_range.h.
const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;

/// Blocks all signals for this thread. Returns those that were blocked before.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initializes the first set, pthread_sigmask reads it and writes the second. Neither fails with valid
    // arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: pthread_sigmask reads the set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn the_result_is_that_of_the_call() {
        assert_eq!(sync_filesystem(c"/no/such/directory"), Err(Errno::NOENT));
        assert_eq!(sync_filesystem(c"/proc/self/exe"), Err(Errno::NOTDIR));
        sync_filesystem(c"/proc").unwrap();
        // No mount point: EINVAL, or EPERM without privileges.
        let here = rustix::mount::unmount(c"/proc/self", UnmountFlags::NOFOLLOW);
        assert!(here.is_err());
        assert_eq!(unmount(c"/proc/self", UnmountFlags::NOFOLLOW), here);
    }

    #[test]
    fn the_child_has_no_descriptors_and_blocks_signals() {
        let mut file = File::open("/proc/self/exe").unwrap();
        let status = || rustix::fs::open(c"/proc/self/status", OFlags::RDONLY, Mode::empty());
        // The lowest free number is 0.
        in_child(|| if status()?.as_raw_fd() == 0 { Ok(()) } else { Err(Errno::EXIST) }).unwrap();
        let blocks_sigterm = || {
            let mut text = [0; 4096];
            let len = rustix::io::read(status()?, &mut text)?;
            let name = b"SigBlk:\t";
            let at = text[..len].windows(name.len()).position(|part| part == name).ok_or(Errno::NODATA)?;
            // A digit for four signals, the first ones at the end: this one has 13 to 16.
            if text[at + name.len() + 12] == b'f' { Ok(()) } else { Err(Errno::PERM) }
        };
        assert_eq!(blocks_sigterm(), Err(Errno::PERM), "the test needs signals that are not blocked");
        assert_eq!(in_child(blocks_sigterm), Ok(()));
        assert_eq!(blocks_sigterm(), Err(Errno::PERM), "this thread's mask is restored");
        file.read_exact(&mut [0]).unwrap();
    }
}
