//! The system call that a thread of this process is blocked in, and the files that it names.
//!
//! A thread that waits for a disk can tell nobody where it waits. The kernel can: `/proc/self/task/TID/syscall` has the
//! number and the arguments of the call (proc_pid_syscall(5)). Reading it touches no disk, and is always allowed
//! within a process. It needs CONFIG_HAVE_ARCH_TRACEHOOK, which x86-64 and aarch64 have.

use crate::fd::SYS_FCHMODAT2;
use crate::xattr::{SYS_GETXATTRAT, SYS_LISTXATTRAT, SYS_REMOVEXATTRAT, SYS_SETXATTRAT};
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt as _;

/// A system call that has not returned yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockedCall {
    number: libc::c_long,
    arguments: [u64; 6],
}

/// A file that a system call was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A descriptor: of the file itself, or of the directory that a path starts from.
    Descriptor(RawFd),
    /// An absolute path.
    Path(Vec<u8>),
}

/// Where a call takes a file from, by the position of the argument.
#[derive(Clone, Copy)]
enum Parameter {
    Descriptor(usize),
    /// A path. A relative one starts from the working directory.
    Path(usize),
    /// A descriptor, and after it a path that starts from it unless it is absolute.
    At(usize),
}

/// Returns the call that a thread of this process is blocked in; `None` if it runs, or is not in a call.
///
/// # Errors
/// `ENOENT` if there is no such thread, or the kernel does not offer this. `EACCES` under Landlock.
pub fn of(thread: Pid) -> io::Result<Option<BlockedCall>> {
    let text = fs::read_to_string(format!("/proc/self/task/{}/syscall", thread.as_raw_nonzero()))?;
    Ok(parse(&text))
}

/// See [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(text: &str) {
    // Its targets are of this process: only what was read is looked at.
    std::hint::black_box(parse(text).map(|call| call.waits_for_a_thread()));
}

fn parse(text: &str) -> Option<BlockedCall> {
    let mut words = text.split_ascii_whitespace();
    // `running`, or -1 outside of a call, as in a page fault.
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(BlockedCall { number, arguments })
}

impl BlockedCall {
    /// Returns whether the thread waits for another thread and not for a file.
    pub fn waits_for_a_thread(&self) -> bool {
        self.number == libc::SYS_futex
    }

    /// Returns the files that the call was given: usually one, and two for calls such as copy_file_range(2). Empty for
    /// calls that this table does not have.
    ///
    /// close(2) is left out: its descriptor is free for another file before it waits.
    pub fn targets(&self) -> Vec<Target> {
        parameters(self.number).iter().filter_map(|parameter| self.target(*parameter)).collect()
    }

    fn target(&self, parameter: Parameter) -> Option<Target> {
        // The kernel passes descriptors as int: the upper half of the register has no meaning.
        let descriptor = |at: usize| self.arguments[at] as u32 as RawFd;
        match parameter {
            Parameter::Descriptor(at) => Some(Target::Descriptor(descriptor(at))),
            Parameter::Path(at) => named(&path_at(self.arguments[at]).ok()?),
            Parameter::At(at) => path_at(self.arguments[at + 1])
                .ok()
                .and_then(|path| named(&path))
                .or_else(|| Some(Target::Descriptor(descriptor(at))).filter(|_| descriptor(at) >= 0)),
        }
    }
}

/// Returns what an absolute path names; `None` for any other path.
fn named(path: &[u8]) -> Option<Target> {
    // The magic links of this process: a descriptor in disguise.
    let number = path
        .strip_prefix(b"/proc/self/fd/")
        .and_then(|number| std::str::from_utf8(number).ok()?.parse::<RawFd>().ok());
    match number {
        Some(number) => Some(Target::Descriptor(number)),
        None => path.starts_with(b"/").then(|| Target::Path(path.to_vec())),
    }
}

/// Reads a path from the memory of this process. The thread that passed it is blocked, but may be so no longer: then
/// these are any bytes, or none.
///
/// # Errors
/// Those of reading `/proc/self/mem`; `EFAULT` for a null pointer.
fn path_at(address: u64) -> io::Result<Vec<u8>> {
    if address == 0 {
        return Err(Errno::FAULT.into());
    }
    let memory = File::open("/proc/self/mem")?;
    let mut path = vec![0; libc::PATH_MAX as usize];
    let mut length = 0;
    // Not beyond the end of a page at a time: the next one may not be mapped.
    let page = rustix::param::page_size();
    while length < path.len() {
        let at = address + length as u64;
        let end = path.len().min(length + page - at as usize % page);
        let read = memory.read_at(&mut path[length..end], at)?;
        if let Some(zero) = path[length..length + read].iter().position(|byte| *byte == 0) {
            path.truncate(length + zero);
            return Ok(path);
        }
        if read == 0 {
            break;
        }
        length += read;
    }
    Err(Errno::NAMETOOLONG.into())
}

/// Which arguments of a call name files. These are the calls that rustix, the standard library and this crate make on
/// files.
fn parameters(number: libc::c_long) -> &'static [Parameter] {
    use Parameter::{At, Descriptor, Path};
    match number {
        libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev => &[Descriptor(0)],
        libc::SYS_pread64 | libc::SYS_pwrite64 | libc::SYS_preadv | libc::SYS_pwritev => &[Descriptor(0)],
        libc::SYS_preadv2 | libc::SYS_pwritev2 | libc::SYS_getdents64 | libc::SYS_lseek => &[Descriptor(0)],
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_syncfs | libc::SYS_sync_file_range => {
            &[Descriptor(0)]
        }
        libc::SYS_ftruncate | libc::SYS_fallocate | libc::SYS_fadvise64 | libc::SYS_ioctl => &[Descriptor(0)],
        libc::SYS_fstat | libc::SYS_fstatfs | libc::SYS_fchmod | libc::SYS_fchown => &[Descriptor(0)],
        libc::SYS_fcntl | libc::SYS_flock | libc::SYS_fchdir | libc::SYS_open_by_handle_at => {
            &[Descriptor(0)]
        }
        libc::SYS_fgetxattr | libc::SYS_fsetxattr | libc::SYS_flistxattr | libc::SYS_fremovexattr => {
            &[Descriptor(0)]
        }
        libc::SYS_copy_file_range | libc::SYS_splice => &[Descriptor(0), Descriptor(2)],
        libc::SYS_sendfile => &[Descriptor(0), Descriptor(1)],

        libc::SYS_openat | libc::SYS_openat2 | libc::SYS_statx | libc::SYS_newfstatat => &[At(0)],
        libc::SYS_unlinkat | libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_readlinkat => &[At(0)],
        libc::SYS_fchmodat | SYS_FCHMODAT2 | libc::SYS_fchownat | libc::SYS_utimensat => &[At(0)],
        libc::SYS_faccessat | libc::SYS_faccessat2 | libc::SYS_name_to_handle_at => &[At(0)],
        libc::SYS_open_tree => &[At(0)],
        SYS_SETXATTRAT | SYS_GETXATTRAT | SYS_LISTXATTRAT | SYS_REMOVEXATTRAT => &[At(0)],
        libc::SYS_symlinkat => &[At(1)],
        libc::SYS_fanotify_mark => &[At(3)],
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => &[At(0), At(2)],

        libc::SYS_getxattr | libc::SYS_setxattr | libc::SYS_listxattr | libc::SYS_removexattr => &[Path(0)],
        libc::SYS_lgetxattr | libc::SYS_lsetxattr | libc::SYS_llistxattr | libc::SYS_lremovexattr => {
            &[Path(0)]
        }
        libc::SYS_truncate | libc::SYS_statfs | libc::SYS_chdir => &[Path(0)],
        // The C library still uses these where they exist.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_stat | libc::SYS_lstat | libc::SYS_access | libc::SYS_readlink => {
            &[Path(0)]
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink | libc::SYS_rmdir | libc::SYS_mkdir | libc::SYS_mknod | libc::SYS_creat => {
            &[Path(0)]
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod | libc::SYS_chown | libc::SYS_lchown | libc::SYS_utimes => &[Path(0)],
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_link => &[Path(0), Path(1)],
        #[cfg(target_arch = "x86_64")]
        libc::SYS_symlink => &[Path(1)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::{AsFd as _, AsRawFd as _};
    use std::path::PathBuf;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    /// Runs `block` on a thread, waits until it is in a call of this number, and returns that call. `unblock` lets the
    /// thread go on.
    fn call_of(
        number: libc::c_long,
        block: impl FnOnce() + Send + 'static,
        unblock: impl FnOnce(),
    ) -> (BlockedCall, Vec<Target>) {
        let (send, receive) = channel();
        let thread = std::thread::spawn(move || {
            send.send(rustix::thread::gettid()).unwrap();
            block();
        });
        let id = receive.recv().unwrap();
        let began = Instant::now();
        let found = loop {
            let call = of(id).unwrap().filter(|call| call.number == number);
            if call.is_some() || began.elapsed() > Duration::from_secs(30) {
                break call;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let targets = found.as_ref().map(BlockedCall::targets);
        unblock();
        thread.join().unwrap();
        (found.expect("the thread never blocked"), targets.unwrap())
    }

    fn fifo(dir: &tempfile::TempDir) -> PathBuf {
        let path = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RWXU).unwrap();
        path
    }

    #[test]
    fn a_thread_in_an_open_is_found_by_the_directory_or_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(&dir);
        let root = File::open(dir.path()).unwrap();
        let number = root.as_raw_fd();
        let open_fifo = |write: bool| {
            let path = path.clone();
            move || drop(File::options().read(!write).write(write).open(path).unwrap())
        };
        let at = move || {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            drop(rustix::fs::openat(root, "fifo", flags, Mode::empty()).unwrap());
        };
        let (_, targets) = call_of(libc::SYS_openat, at, open_fifo(true));
        assert_eq!(targets, [Target::Descriptor(number)]);
        let (_, targets) = call_of(libc::SYS_openat, open_fifo(false), open_fifo(true));
        assert_eq!(targets, [Target::Path(path.as_os_str().as_encoded_bytes().to_vec())]);
    }

    #[test]
    fn a_magic_link_is_the_descriptor_that_it_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(&dir);
        let pinned =
            File::from(rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap());
        let number = pinned.as_raw_fd();
        let reopen = move || drop(File::open(format!("/proc/self/fd/{}", pinned.as_raw_fd())).unwrap());
        let unblock = || drop(File::options().write(true).open(&path).unwrap());
        let (_, targets) = call_of(libc::SYS_openat, reopen, unblock);
        assert_eq!(targets, [Target::Descriptor(number)]);
    }

    #[test]
    fn a_thread_in_a_read_is_found_by_its_descriptor() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let number = reader.as_raw_fd();
        let read = move || assert_eq!(rustix::io::read(reader.as_fd(), &mut [0_u8; 1]), Ok(0));
        let (call, targets) = call_of(libc::SYS_read, read, || drop(writer));
        assert!(!call.waits_for_a_thread());
        assert_eq!(targets, [Target::Descriptor(number)]);
    }

    #[test]
    fn a_thread_that_waits_for_another_names_no_file() {
        let (send, receive) = channel::<()>();
        let (call, targets) =
            call_of(libc::SYS_futex, move || assert!(receive.recv().is_err()), || drop(send));
        assert!(call.waits_for_a_thread());
        assert_eq!(targets, []);
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        assert_eq!(parse("running\n"), None);
        assert_eq!(parse("-1 0x7ffc 0x7f2a\n"), None);
        let line = "0 0x3 0x7f2a7d544000 0x20000 0x0 0xffffffff 0x0 0x7ffcf36f1168 0x7f2a7d6bf2ad\n";
        let call = parse(line).unwrap();
        assert_eq!((call.number, call.arguments[2]), (0, 0x20000));
        let relative = BlockedCall { number: libc::SYS_openat, arguments: [u64::MAX - 99, 0, 0, 0, 0, 0] };
        assert_eq!(relative.targets(), [], "AT_FDCWD and no path");
    }

    #[test]
    fn a_path_that_ends_with_its_page_is_read() {
        let page = rustix::param::page_size();
        let mut bytes = crate::page_buf::PageBuf::new(2 * page).unwrap();
        bytes[page - 3..page + 2].copy_from_slice(b"/ab/\0");
        assert_eq!(path_at(bytes[page - 3..].as_ptr() as u64).unwrap(), b"/ab/");
        assert_eq!(path_at(bytes[page - 1..].as_ptr() as u64).unwrap(), b"b/");
        assert!(path_at(0).is_err() && path_at(8).is_err());
    }
}
