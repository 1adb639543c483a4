//! Whether a descriptor may be exchanged for one on a branch, and the exchange.

use crate::identity::{self, File};
use crate::sys::{self, Buffers, Descriptor};
use libc::{c_int, c_uint};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The attribute with which a pool tells where a file lies: an absolute path.
const PATH_KEY: &CStr = c"user.mergerfs.fullpath";

/// `FUSE_SUPER_MAGIC`, include/uapi/linux/magic.h.
const FUSE: libc::c_long = 0x6573_5546;

/// Flags of an open that is about a name rather than the data of a file: `O_TMPFILE` contains `O_DIRECTORY`.
const NOT_DATA: c_int = libc::O_PATH | libc::O_TMPFILE;

/// Makes a descriptor which was opened just now, and which nobody knows yet, refer to the file on its branch.
/// Leaves it alone where that cannot be done, or is in doubt.
pub(crate) fn redirect(fd: c_int) {
    if fd >= 0 {
        sys::keeping_errno(|| {
            let _ = try_redirect(fd);
        });
    }
}

fn try_redirect(fd: c_int) -> Option<()> {
    if !identity::can_hold(fd) || !on_fuse(fd)? {
        return None;
    }
    let flags = sys::flags(fd).filter(|flags| flags & NOT_DATA == 0)?;
    // Locks on the branch and locks in the pool do not see each other. And closing the pool's descriptor would
    // give up the locks that this process holds on the file by way of another one.
    if sys::locked(fd)? {
        return None;
    }
    let mut buffers = Buffers::new()?;
    let (first, second) = buffers.both();
    let path = sys::attribute(fd, PATH_KEY, first).filter(|path| path.to_bytes().starts_with(b"/"))?;
    // Something else may have taken that name meanwhile: a FIFO must not block, nor a terminal take over.
    // The pool has created and truncated.
    let careful = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let created = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
    let branch = Descriptor::open(path, (flags & !created) | careful)?;
    let (shown, held) = same_file(fd, branch.number())?;
    // With the pool's word that the name still leads there, now that it is open, no change of names that the pool
    // knows of can have come in between.
    if sys::attribute(fd, PATH_KEY, second)? != path {
        return None;
    }
    if flags & libc::O_NONBLOCK == 0 {
        sys::set_flags(branch.number(), flags)?;
    }
    sys::copy_offset(fd, branch.number())?;
    identity::remember(fd, shown, held);
    sys::replace(fd, &branch, sys::closes_on_exec(fd)?)
}

/// Whether it is a regular file on a FUSE filesystem.
fn on_fuse(fd: c_int) -> Option<bool> {
    // What disks hold is known without asking anybody: FUSE filesystems have no device, so their major number is 0.
    let stat = sys::statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE)?;
    if !is_regular(&stat) || stat.stx_dev_major != 0 {
        return Some(false);
    }
    // statfs(2) may go over a network, or to a pool's daemon, so the answer is kept for each device. A number may
    // come to stand for another filesystem: then this answer is wrong, which only costs a question or the exchange.
    static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    let known = &KNOWN[stat.stx_dev_minor as usize % KNOWN.len()];
    // The minor number, "is known", "is FUSE".
    let (key, value) = (u64::from(stat.stx_dev_minor) << 2 | 2, known.load(Ordering::Relaxed));
    if value & !1 == key {
        return Some(value & 1 == 1);
    }
    let fuse = sys::filesystem(fd)? == FUSE;
    known.store(key | u64::from(fuse), Ordering::Relaxed);
    Some(fuse)
}

fn is_regular(stat: &libc::statx) -> bool {
    c_uint::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG
}

/// Both identities, if what the pool shows is what lies on the branch.
///
/// Device and inode number differ as a rule. A file's time of birth tells it from what replaces it, and from what
/// lies at the same path in another mount namespace or root directory. Without one all times and the size must be
/// alike, which a file being written to may not fulfil.
fn same_file(pool: c_int, branch: c_int) -> Option<(File, File)> {
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    // The pool's answer must not be one that the kernel keeps: it may be a second old.
    let shown = sys::statx(pool, libc::AT_STATX_FORCE_SYNC, mask)?;
    let held = sys::statx(branch, libc::AT_STATX_SYNC_AS_STAT, mask)?;
    let time = |time: &libc::statx_timestamp| (time.tv_sec, time.tv_nsec);
    let alike = is_regular(&held)
        && (shown.stx_mode, shown.stx_uid, shown.stx_gid) == (held.stx_mode, held.stx_uid, held.stx_gid)
        && shown.stx_nlink == held.stx_nlink
        && held.stx_nlink > 0;
    let same = if shown.stx_mask & held.stx_mask & libc::STATX_BTIME != 0 {
        time(&shown.stx_btime) == time(&held.stx_btime)
    } else {
        shown.stx_size == held.stx_size
            && time(&shown.stx_mtime) == time(&held.stx_mtime)
            && time(&shown.stx_ctime) == time(&held.stx_ctime)
    };
    (alike && same).then(|| (File::of(&shown), File::of(&held)))
}
