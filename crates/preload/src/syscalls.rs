//! System calls as this library needs them: straight to the kernel, since the C library's functions of the same
//! name are those that are replaced here, or are points at which a thread may be cancelled.

use libc::{c_int, c_long, c_uint, c_void};
use std::ffi::CStr;
use std::ptr::{NonNull, null_mut};

/// A descriptor that is closed on drop.
pub(crate) struct Descriptor(c_int);

impl Descriptor {
    /// Opens an absolute path. `flags` must not ask for creation.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Option<Self> {
        // SAFETY: the path is a C string; without creation there is no mode.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        c_int::try_from(fd).ok().filter(|&fd| fd >= 0).map(Self)
    }

    pub(crate) fn number(&self) -> c_int {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was opened here, and nobody else knows of it.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Room for a path and a little more. Not on the stack: a signal handler's may have no more than two pages.
pub(crate) struct Buffer(NonNull<c_void>);

const ROOM: usize = 2 * libc::PATH_MAX as usize;

impl Buffer {
    pub(crate) fn new() -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(null_mut(), ROOM, access, kind, -1, 0) };
        NonNull::new(start).filter(|_| start != libc::MAP_FAILED).map(Self)
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is that long, filled with zeros, and borrowed as long as the slice is.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast::<u8>(), ROOM) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no slice of it is left.
        unsafe { libc::munmap(self.0.as_ptr(), ROOM) };
    }
}

/// statx(2) of an open descriptor.
pub(crate) fn statx(fd: c_int, flags: c_int, mask: c_uint) -> Option<libc::statx> {
    // SAFETY: all of its fields are numbers, for which zeros stand.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let flags = flags | libc::AT_EMPTY_PATH;
    // SAFETY: an empty C string, and a place for the answer.
    let done = unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, mask, &raw mut stat) };
    (done == 0).then_some(stat)
}

/// The magic number of the filesystem that a descriptor lies on.
pub(crate) fn filesystem(fd: c_int) -> Option<c_long> {
    // SAFETY: all of its fields are numbers, for which zeros stand.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a place for the answer.
    let done = unsafe { libc::fstatfs(fd, &raw mut stat) };
    #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
    (done == 0).then_some(stat.f_type as c_long)
}

/// An extended attribute that is text: not empty, without NUL, and with room for one after it.
pub(crate) fn attribute<'a>(fd: c_int, name: &CStr, buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let room = buffer.len() - 1;
    // SAFETY: a C string, and a buffer of at least that length.
    let length = unsafe { libc::fgetxattr(fd, name.as_ptr(), buffer.as_mut_ptr().cast(), room) };
    let length = usize::try_from(length).ok().filter(|&length| (1..=room).contains(&length))?;
    *buffer.get_mut(length)? = 0;
    CStr::from_bytes_with_nul(buffer.get(..=length)?).ok()
}

/// The access mode and status flags of a descriptor.
pub(crate) fn flags(fd: c_int) -> Option<c_int> {
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    (flags >= 0).then_some(flags)
}

/// Sets those status flags that can be changed.
pub(crate) fn set_flags(fd: c_int, flags: c_int) -> Option<()> {
    // SAFETY: numbers only.
    (unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } == 0).then_some(())
}

pub(crate) fn closes_on_exec(fd: c_int) -> Option<bool> {
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (flags >= 0).then_some(flags & libc::FD_CLOEXEC != 0)
}

/// Whether anybody, this process too, holds a record lock on the file.
pub(crate) fn locked(fd: c_int) -> Option<bool> {
    // SAFETY: all of its fields are numbers; zeros stand for the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    // An open file description of its own is in conflict with locks of its process as well.
    // SAFETY: a place for the answer.
    let done = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) };
    (done == 0).then_some(c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Gives one descriptor the offset of another.
pub(crate) fn copy_offset(from: c_int, to: c_int) -> Option<()> {
    // SAFETY: numbers only.
    let offset = unsafe { libc::lseek(from, 0, libc::SEEK_CUR) };
    // SAFETY: numbers only.
    (offset == 0 || (offset > 0 && unsafe { libc::lseek(to, offset, libc::SEEK_SET) } == offset))
        .then_some(())
}

/// Makes `fd` refer to what `new` does, at once for all threads.
pub(crate) fn replace(fd: c_int, new: &Descriptor, close_on_exec: bool) -> Option<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: numbers only. What `fd` was is known to nobody yet.
    (unsafe { libc::dup3(new.number(), fd, flags) } == fd).then_some(())
}

/// Runs something that must not change `errno`.
pub(crate) fn keeping_errno(run: impl FnOnce()) {
    // SAFETY: the calling thread's own variable.
    let before = unsafe { *libc::__errno_location() };
    run();
    set_errno(before);
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}
