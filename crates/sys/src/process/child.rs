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
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use super::clone::Clone;

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

/// A child process that makes a system call, perhaps for ever.
#[derive(Debug)]
pub struct Caller(Pid);

impl Caller {
    /// Starts a child that asks for the length of an extended attribute (getxattr(2)). It runs on the processors of this
    /// thread, and is killed when this thread ends.
    ///
    /// # Errors
    /// Those of clone(2).
    pub fn getxattr(path: &CStr, name: &CStr) -> Result<Caller, Errno> {
        let call = || {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let mut nothing: [u8; 0] = [];
            rustix::fs::getxattr(path, name, &mut nothing).map(drop)
        };
        start(call).map(Caller)
    }

    /// Returns whether the call has returned, or the child was killed. To be asked until it has: the kernel keeps the
    /// entry of a process in its table until somebody has asked how it ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !matches!(waitpid(Some(self.0), wait_options(WaitOptions::NOHANG)), Ok(None) | Err(Errno::INTR))
    }
}

/// Runs `call` in a child process and returns its result. Where there can be no child, this thread calls.
///
/// `call` must make system calls and nothing else: other threads may have held any lock, that of the allocator too, when
/// memory was copied.
fn in_child(call: impl FnOnce() -> Result<(), Errno> + Copy) -> Result<(), Errno> {
    let Ok(child) = start(call) else { return call() };
    let status = loop {
        match waitpid(Some(child), wait_options(WaitOptions::empty())) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(errno) => Err(crate::errno::from_raw(errno)),
        None => Err(Errno::INTR),
    }
}

/// Returns options with which a process can be waited for that sends no signal at its exit.
fn wait_options(others: WaitOptions) -> WaitOptions {
    others | WaitOptions::from_bits_retain(libc::__WALL as u32)
}

/// Starts a child process that makes this call and exits with its errno.
fn start(call: impl FnOnce() -> Result<(), Errno>) -> Result<Pid, Errno> {
    // No signal meant for the process may reach its handlers in the child, which would pass it on to this process a second
    // time. The child keeps the mask.
    let before = block_signals();
    // The table of descriptors is shared first: close_range(2) then gives the child an empty one of its own and closes
    // nothing, while closing copies would wait for a branch that hangs (a network filesystem's flush). Without a signal at
    // its exit the child is no concern of whoever waits for other children, and is not lost where SIGCHLD is ignored.
    let clone = Clone { flags: libc::CLONE_FILES, ..Clone::default() };
    // SAFETY: the child makes system calls alone and then exits.
    let child = unsafe { clone.start() };
    if child == Ok(None) {
        // SAFETY: the child uses no descriptor from before, and exits without running anything of this process.
        unsafe {
            libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE);
            libc::_exit(call().map_or_else(Errno::raw_os_error, |()| 0));
        }
    }
    restore_signals(&before);
    child?.ok_or(Errno::CHILD)
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
    fn a_child_calls_while_this_thread_goes_on() {
        let began = std::time::Instant::now();
        let child = Caller::getxattr(c"/proc/self", c"security.canopy").unwrap();
        while !child.has_ended() {
            assert!(began.elapsed().as_secs() < 60);
            std::thread::yield_now();
        }
        // There is no such process any more.
        let again = waitpid(Some(child.0), wait_options(WaitOptions::NOHANG));
        assert_eq!(again.map(|_| ()), Err(Errno::CHILD));
    }

    #[test]
    fn the_child_has_no_descriptors_and_blocks_signals() {
        let mut file = File::open("/proc/self/exe").unwrap();
        // Not that of the process: its first thread blocks all signals while it starts another one.
        let status = || rustix::fs::open(c"/proc/thread-self/status", OFlags::RDONLY, Mode::empty());
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
