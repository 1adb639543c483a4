//! Redirects descriptors to files on branches.

use crate::identity::{self, File};
use crate::location::{Location, location};
use crate::syscalls::{self, Buffer, Descriptor};
use libc::{c_int, c_uint};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The attribute with the location of a file of a pool: `MAJOR:MINOR INODE PATH`, with decimal numbers and an absolute
/// path.
const PLACE_KEY: &CStr = c"user.mergerfs.place";

/// `FUSE_SUPER_MAGIC`, include/uapi/linux/magic.h.
const FUSE: libc::c_long = 0x6573_5546;

/// With these flags an open is not for the data of a named file. `O_TMPFILE` includes `O_DIRECTORY`.
const NOT_DATA: c_int = libc::O_PATH | libc::O_TMPFILE;

/// Makes a descriptor refer to the file on its branch. It was just opened, and the program does not know it yet. In case of
/// failure or doubt it stays as it is.
pub(crate) fn redirect(fd: c_int) {
    if fd >= 0 {
        syscalls::keeping_errno(|| {
            let _ = try_redirect(fd);
        });
    }
}

fn try_redirect(fd: c_int) -> Option<()> {
    identity::forget(fd);
    // Only what the kernel has cached: otherwise it might have to ask a server over the network.
    let seen = syscalls::statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE | libc::STATX_INO)?;
    if !identity::can_hold(fd) || !is_regular(&seen) || !on_fuse(fd, &seen)? {
        return None;
    }
    let flags = syscalls::flags(fd).filter(|flags| flags & NOT_DATA == 0)?;
    // Locks on the branch do not conflict with locks on the pool. And closing the pool's descriptor would release the
    // locks that this process holds on the file through another descriptor.
    if syscalls::locked(fd)? {
        return None;
    }
    let mut buffer = Buffer::new()?;
    let Location { dev, ino, path } = location(syscalls::attribute(fd, PLACE_KEY, buffer.bytes())?)?;
    let file = File { dev, ino };
    let is_it = |found: &Descriptor| {
        syscalls::statx(found.number(), libc::AT_STATX_SYNC_AS_STAT, libc::STATX_TYPE | libc::STATX_INO)
            .filter(|found| is_regular(found) && File::of(found) == file)
    };
    // The pool's descriptor keeps the file alive, so no other file can have its inode number. This detects both a replaced
    // name and a file of another mount namespace at the same path. Whatever else is there, or whatever a symlink above leads
    // to, must not be opened: a device may act on that.
    let pinned = Descriptor::open(path, libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)?;
    is_it(&pinned)?;
    // The pool has already created and truncated the file. An open that would wait for a lease fails.
    let done = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    let careful = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let branch = pinned.reopened((flags & !done) | careful)?;
    // The file again, and not something that a chroot has in the place of /proc.
    is_it(&branch)?;
    if flags & libc::O_NONBLOCK == 0 {
        syscalls::set_flags(branch.number(), flags)?;
    }
    syscalls::copy_offset(fd, branch.number())?;
    let close_on_exec = syscalls::closes_on_exec(fd)?;
    identity::remember(fd, File::of(&seen), file);
    syscalls::replace(fd, &branch, close_on_exec)
}

/// Returns whether a file is on a FUSE filesystem.
fn on_fuse(fd: c_int, seen: &libc::statx) -> Option<bool> {
    // FUSE filesystems have no block device, so their major number is 0.
    if seen.stx_dev_major != 0 {
        return Some(false);
    }
    // statfs(2) may ask a server over the network, or a pool's daemon, so the result is cached by device number. A number
    // may be reused for another filesystem. The wrong result then only costs a system call, or means no redirection.
    static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    let known = &KNOWN[seen.stx_dev_minor as usize % KNOWN.len()];
    // The minor number, a bit for "cached", a bit for "FUSE".
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
