//! Whether a descriptor may be exchanged for one on a branch, and the exchange.

use crate::identity::{self, File};
use crate::syscalls::{self, Buffer, Descriptor};
use libc::{c_int, c_uint};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The attribute with which a pool tells where a file lies: `MAJOR:MINOR INODE PATH`, the numbers in decimal, the
/// path absolute.
const PLACE_KEY: &CStr = c"user.mergerfs.place";

/// `FUSE_SUPER_MAGIC`, include/uapi/linux/magic.h.
const FUSE: libc::c_long = 0x6573_5546;

/// Flags of an open that is about a name rather than the data of a file: `O_TMPFILE` contains `O_DIRECTORY`.
const NOT_DATA: c_int = libc::O_PATH | libc::O_TMPFILE;

/// Makes a descriptor which was opened just now, and which nobody knows yet, refer to the file on its branch.
/// Leaves it alone where that cannot be done, or is in doubt.
pub(crate) fn redirect(fd: c_int) {
    if fd >= 0 {
        syscalls::keeping_errno(|| {
            let _ = try_redirect(fd);
        });
    }
}

fn try_redirect(fd: c_int) -> Option<()> {
    // What the kernel knows without asking anybody, for it may have to ask over a network.
    let seen = syscalls::statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE | libc::STATX_INO)?;
    if !identity::can_hold(fd) || !is_regular(&seen) || !on_fuse(fd, &seen)? {
        return None;
    }
    let flags = syscalls::flags(fd).filter(|flags| flags & NOT_DATA == 0)?;
    // Locks on the branch and locks in the pool do not see each other. And closing the pool's descriptor would
    // give up the locks that this process holds on the file by way of another one.
    if syscalls::locked(fd)? {
        return None;
    }
    let mut buffer = Buffer::new()?;
    let (file, path) = place(syscalls::attribute(fd, PLACE_KEY, buffer.bytes())?)?;
    // Something else may have taken that name meanwhile: a FIFO must not block, nor a terminal take over.
    // The pool has created and truncated.
    let careful = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let created = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
    let branch = Descriptor::open(path, (flags & !created) | careful)?;
    // The pool's descriptor keeps the file alive, so that no other one can have its inode number. Neither a name
    // that was replaced nor another mount namespace's file at the same path is taken for it.
    let found =
        syscalls::statx(branch.number(), libc::AT_STATX_SYNC_AS_STAT, libc::STATX_TYPE | libc::STATX_INO)?;
    if !is_regular(&found) || File::of(&found) != file {
        return None;
    }
    if flags & libc::O_NONBLOCK == 0 {
        syscalls::set_flags(branch.number(), flags)?;
    }
    syscalls::copy_offset(fd, branch.number())?;
    let close_on_exec = syscalls::closes_on_exec(fd)?;
    identity::remember(fd, File::of(&seen), file);
    syscalls::replace(fd, &branch, close_on_exec)
}

/// The file, and the path at which it is to be found.
fn place(told: &CStr) -> Option<(File, &CStr)> {
    let (major, rest) = decimal(told.to_bytes_with_nul(), b':')?;
    let (minor, rest) = decimal(rest, b' ')?;
    let (ino, path) = decimal(rest, b' ')?;
    let path = CStr::from_bytes_with_nul(path).ok().filter(|path| path.to_bytes().starts_with(b"/"))?;
    Some((File { dev: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?), ino }, path))
}

/// A number that ends with the given byte, and what comes after that.
fn decimal(text: &[u8], end: u8) -> Option<(u64, &[u8])> {
    let length = text.iter().position(|&byte| byte == end).filter(|&length| length > 0)?;
    let (digits, rest) = (text.get(..length)?, text.get(length + 1..)?);
    let number = digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    Some((number, rest))
}

/// Whether what was seen lies on a FUSE filesystem.
fn on_fuse(fd: c_int, seen: &libc::statx) -> Option<bool> {
    // Those have no device, so their major number is 0.
    if seen.stx_dev_major != 0 {
        return Some(false);
    }
    // statfs(2) may go over a network, or to a pool's daemon, so the answer is kept for each device. A number may
    // come to stand for another filesystem: then this answer is wrong, which only costs a question or the exchange.
    static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    let known = &KNOWN[seen.stx_dev_minor as usize % KNOWN.len()];
    // The minor number, "is known", "is FUSE".
    let (key, value) = (u64::from(seen.stx_dev_minor) << 2 | 2, known.load(Ordering::Relaxed));
    if value & !1 == key {
        return Some(value & 1 == 1);
    }
    let fuse = syscalls::filesystem(fd)? == FUSE;
    known.store(key | u64::from(fuse), Ordering::Relaxed);
    Some(fuse)
}

fn is_regular(stat: &libc::statx) -> bool {
    c_uint::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG
}
