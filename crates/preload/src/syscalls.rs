//! System calls, made without the C library's wrappers where this library replaces these or they are cancellation points.

use libc::{c_int, c_long, c_uint, c_void};
use std::ffi::CStr;
use std::ptr::{NonNull, null_mut};

/// A descriptor that is closed on drop.
pub(crate) struct Descriptor(c_int);

impl Descriptor {
    /// Opens an absolute path. `flags` must not include `O_CREAT`.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Option<Self> {
        // SAFETY: the path is a C string; without creation there is no mode.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        c_int::try_from(fd).ok().filter(|&fd| fd >= 0).map(Self)
    }

    /// Opens the file again, for other purposes, without looking at its name.
    pub(crate) fn reopened(&self, flags: c_int) -> Option<Self> {
        // Of this thread, which may share descriptors with no other.
        const DIRECTORY: &[u8] = b"/proc/thread-self/fd/";
        let mut path = [0; DIRECTORY.len() + 11];
        path[..DIRECTORY.len()].copy_from_slice(DIRECTORY);
        let mut number = u32::try_from(self.0).ok()?;
        let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
        for place in path[DIRECTORY.len()..][..digits].iter_mut().rev() {
            *place = b'0' + (number % 10) as u8;
            number /= 10;
        }
        Self::open(CStr::from_bytes_until_nul(&path).ok()?, flags)
    }

    pub(crate) fn number(&self) -> c_int {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was opened by this type, which alone owns it.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// A buffer for a location. It is not on the stack, because that of a signal handler may have only two pages.
pub(crate) struct Buffer(NonNull<c_void>);

const ROOM: usize = 2 * libc::PATH_MAX as usize;

impl Buffer {
    pub(crate) fn new() -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(null_mut(), ROOM, access, kind, -1, 0) };
        NonNull::new(start).filter(|_| start != libc::MAP_FAILED).map(Self)
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, is initialised, and is borrowed as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast::<u8>(), ROOM) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no slice of it exists.
        unsafe { libc::munmap(self.0.as_ptr(), ROOM) };
    }
}

/// Returns the attributes of an open file, by statx(2).
pub(crate) fn statx(fd: c_int, flags: c_int, mask: c_uint) -> Option<libc::statx> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let flags = flags | libc::AT_EMPTY_PATH;
    // SAFETY: an empty C string and a writable buffer.
    let done = unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, mask, &raw mut stat) };
    (done == 0).then_some(stat)
}

/// Returns the magic number of the filesystem of an open file.
pub(crate) fn filesystem(fd: c_int) -> Option<c_long> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a writable buffer.
    let done = unsafe { libc::fstatfs(fd, &raw mut stat) };
    #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
    (done == 0).then_some(stat.f_type as c_long)
}

/// Reads an extended attribute as a C string. Returns `None` if it is empty, contains a NUL or is too long.
pub(crate) fn attribute<'a>(fd: c_int, name: &CStr, buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let room = buffer.len() - 1;
    // SAFETY: a C string and a buffer of at least this length.
    let length = unsafe { libc::fgetxattr(fd, name.as_ptr(), buffer.as_mut_ptr().cast(), room) };
    let length = usize::try_from(length).ok().filter(|&length| (1..=room).contains(&length))?;
    *buffer.get_mut(length)? = 0;
    CStr::from_bytes_with_nul(buffer.get(..=length)?).ok()
}

/// Returns the access mode and status flags of a descriptor.
pub(crate) fn flags(fd: c_int) -> Option<c_int> {
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    (flags >= 0).then_some(flags)
}

/// Sets the status flags that can be changed.
pub(crate) fn set_flags(fd: c_int, flags: c_int) -> Option<()> {
    // SAFETY: numbers only.
    (unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } == 0).then_some(())
}

/// Returns whether the descriptor is close-on-exec.
pub(crate) fn closes_on_exec(fd: c_int) -> Option<bool> {
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (flags >= 0).then_some(flags & libc::FD_CLOEXEC != 0)
}

/// Returns whether any process, including this one, holds a record lock on the file.
pub(crate) fn locked(fd: c_int) -> Option<bool> {
    // SAFETY: all fields are numbers, for which zero is valid; zeros mean the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    // A lock of an open file description also conflicts with those of its own process.
    // SAFETY: a writable buffer.
    let done = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) };
    (done == 0).then_some(c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Sets the file offset of `to` to that of `from`.
pub(crate) fn copy_offset(from: c_int, to: c_int) -> Option<()> {
    // SAFETY: numbers only.
    let offset = unsafe { libc::lseek(from, 0, libc::SEEK_CUR) };
    // SAFETY: numbers only.
    (offset == 0 || (offset > 0 && unsafe { libc::lseek(to, offset, libc::SEEK_SET) } == offset))
        .then_some(())
}

/// Makes `fd` refer to the same file as `new`, atomically for all threads.
pub(crate) fn replace(fd: c_int, new: &Descriptor, close_on_exec: bool) -> Option<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: numbers only. The program does not know `fd` yet.
    (unsafe { libc::dup3(new.number(), fd, flags) } == fd).then_some(())
}

/// Calls `run` and restores `errno`.
pub(crate) fn keeping_errno(run: impl FnOnce()) {
    // SAFETY: the calling thread's own variable.
    let before = unsafe { *libc::__errno_location() };
    run();
    set_errno(before);
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}
