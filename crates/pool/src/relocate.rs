//! Bringing onto a branch what it lacks: the directories above a new entry.
//!
//! A missing chain of directories is built aside under a temporary name, with owner, mode (setgid too),
//! extended attributes, ACLs, flags and times, and then renamed into place: nobody ever sees a directory
//! half made, and a crash leaves nothing under a real name.
//!
//! The caller holds the tree lock, so no directory on the way can be renamed meanwhile.

use crate::Error;
use crate::beneath::{self, Dir, ProcPath};
use crate::stat::{self, Attr};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that begin so are directories and symlinks under construction, or what a crash left of one. Never shown.
const UNDER_CONSTRUCTION: &[u8] = b".canopy-clone.";

/// The pool keeps such names to itself: to its users they do not exist.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(UNDER_CONSTRUCTION)
}

/// Errors for a name that users must not give.
pub(crate) fn may_be_made(name: &[u8]) -> Result<(), Error> {
    if is_reserved(name) { Err(Error::Invalid) } else { Ok(()) }
}

/// A name for something under construction that nothing else has.
/// A pool does not show what has such a name.
pub fn name_aside() -> Vec<u8> {
    [UNDER_CONSTRUCTION, unique().as_bytes()].concat()
}

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The directory `path` below `to` (the root of a branch, as a rule), which gets what it lacks of it from the
/// same path below `from`.
///
/// Errors: `ENOTDIR` when `to` holds something else under one of the names; whatever mkdir(2) gives.
pub(crate) fn clone_dirs<'b>(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'b>,
    path: &[u8],
) -> Result<Dir<'b>, Errno> {
    loop {
        match beneath::dir(to, path) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(|e| if e == Errno::LOOP { Errno::NOTDIR } else { e }),
        }
        match build(from, to, path) {
            // Somebody else was faster with one of them.
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(errno) => return Err(errno),
            Ok(()) => {}
        }
    }
}

fn build(from: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &[u8]) -> Result<(), Errno> {
    canopy_sys::creds::as_daemon()?;
    let mut source = open_dir(from, b".")?;
    let mut target = open_dir(to, b".")?;
    let mut parts = path.split(|&b| b == b'/');
    let missing = loop {
        let part = parts.next().ok_or(Errno::EXIST)?;
        source = open_dir(source.as_fd(), part)?;
        match open_dir(target.as_fd(), part) {
            Ok(dir) => target = dir,
            Err(Errno::NOENT) => break part,
            Err(errno) => return Err(errno),
        }
    };
    let before = stat::of(target.as_fd())?;
    let aside = name_aside();
    let mut made: Vec<(OwnedFd, Vec<u8>, Attr)> = Vec::new();
    let result = (|| {
        let mut name: &[u8] = &aside;
        let mut next = Some(missing);
        while next.is_some() {
            let parent = made.last().map_or(target.as_fd(), |(fd, ..)| fd.as_fd());
            rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
            let dir = open_dir(parent, name).inspect_err(|_| {
                let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
            })?;
            let attr = stat::of(source.as_fd())?;
            made.push((dir, name.to_vec(), attr));
            dress(source.as_fd(), made[made.len() - 1].0.as_fd(), &attr)?;
            next = parts.next();
            if let Some(part) = next {
                source = open_dir(source.as_fd(), part)?;
                name = part;
            }
        }
        // Times last and from below: making an entry changed its parent's.
        for (dir, _, attr) in made.iter().rev() {
            set_times(dir.as_fd(), attr)?;
        }
        move_into_place(target.as_fd(), &aside, missing)
    })();
    if result.is_err() {
        for index in (0..made.len()).rev() {
            let parent = index.checked_sub(1).map_or(target.as_fd(), |above| made[above].0.as_fd());
            let _ = rustix::fs::unlinkat(parent, made[index].1.as_slice(), AtFlags::REMOVEDIR);
        }
    }
    // To the pool nothing has happened in the directory that was there already.
    let _ = set_times(target.as_fd(), &before);
    result
}

fn open_dir(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// Removes what a crash left under construction in `dir`, as far as it can: nothing but symlinks, and
/// directories, one in the other.
pub(crate) fn sweep(dir: BorrowedFd<'_>) {
    let sweep_name = |name: &[u8]| {
        if stat::at(dir, name)?.is_symlink() {
            return rustix::fs::unlinkat(dir, name, AtFlags::empty());
        }
        let mut chain = vec![open_dir(dir, name)?];
        let mut names = vec![name.to_vec()];
        while let Some(below) = first_name(chain[chain.len() - 1].as_fd())? {
            chain.push(open_dir(chain[chain.len() - 1].as_fd(), &below)?);
            names.push(below);
        }
        for depth in (0..names.len()).rev() {
            let parent = depth.checked_sub(1).map_or(dir, |above| chain[above].as_fd());
            rustix::fs::unlinkat(parent, names[depth].as_slice(), AtFlags::REMOVEDIR)?;
        }
        Ok::<(), Errno>(())
    };
    while let Ok(Some(name)) = first_name(dir) {
        if !is_reserved(&name) || sweep_name(&name).is_err() {
            return;
        }
    }
}

/// Some entry of a directory.
fn first_name(dir: BorrowedFd<'_>) -> Result<Option<Vec<u8>>, Errno> {
    let dir = beneath::open(dir, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry?.file_name().to_bytes() {
            b"." | b".." => {}
            name => return Ok(Some(name.to_vec())),
        }
    }
    Ok(None)
}

fn unique() -> String {
    format!("{:x}.{:x}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

fn move_into_place(dir: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        // Filesystems without the flag: renaming over a directory works only while it is empty.
        Err(Errno::INVAL) => rustix::fs::renameat(dir, from, dir, to),
        other => other,
    }
}

/// Everything of a directory but its name and its times. What the other filesystem cannot hold is left out.
fn dress(source: BorrowedFd<'_>, target: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    let owner = (rustix::fs::Uid::from_raw(attr.uid), rustix::fs::Gid::from_raw(attr.gid));
    let owned = rustix::fs::chownat(target, c"", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH);
    let now = stat::of(target)?;
    if (now.uid, now.gid) != (attr.uid, attr.gid) {
        owned?;
    }
    copy_xattrs(source, target);
    // After the owner, whose change clears setgid, and after the ACL, which repeats the group's bits.
    rustix::fs::chmod(ProcPath::of(target).as_bytes(), Mode::from_raw_mode(attr.mode & 0o7777))?;
    copy_flags(source, target);
    Ok(())
}

fn copy_xattrs(source: BorrowedFd<'_>, target: BorrowedFd<'_>) {
    let (source, target) = (ProcPath::of(source), ProcPath::of(target));
    let (source, target) = (source.as_bytes(), target.as_bytes());
    let wanted = list_xattrs(source);
    for inherited in list_xattrs(target) {
        // The new directory got the default ACL of its parent, whether the original has one or not.
        if inherited.starts_with(b"system.posix_acl") && !wanted.contains(&inherited) {
            let _ = rustix::fs::removexattr(target, inherited.as_slice());
        }
    }
    let mut value = vec![0u8; 65536];
    for name in wanted {
        if let Ok(len) = rustix::fs::getxattr(source, name.as_slice(), value.as_mut_slice()) {
            let _ = rustix::fs::setxattr(target, name.as_slice(), &value[..len], XattrFlags::empty());
        }
    }
}

/// XFS shows ACLs a second time under names of its own. Whoever compares attributes with those of another disk
/// removes these as surplus (rsync -X does), and the ACL goes with them, on that one branch.
pub(crate) fn is_shadow(name: &[u8]) -> bool {
    name.starts_with(b"trusted.SGI_ACL_")
}

fn list_xattrs(path: &[u8]) -> Vec<Vec<u8>> {
    let mut names = vec![0u8; 65536];
    let len = rustix::fs::listxattr(path, names.as_mut_slice()).unwrap_or(0);
    names[..len].split(|&b| b == 0).filter(|n| !n.is_empty() && !is_shadow(n)).map(<[u8]>::to_vec).collect()
}

/// chattr flags, without the two that would keep anything from being created in the copy.
fn copy_flags(source: BorrowedFd<'_>, target: BorrowedFd<'_>) {
    use canopy_sys::inode_flags::{FS_APPEND_FL, FS_IMMUTABLE_FL, FlagIoctl, flag_ioctl};
    let open = |fd| beneath::reopen(fd, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK);
    let (Ok(source), Ok(target)) = (open(source), open(target)) else { return };
    let (mut wanted, mut present) = ([0u8; 28], [0u8; 28]);
    if flag_ioctl(source.as_fd(), FlagIoctl::GetFlags, &mut wanted).is_err()
        || flag_ioctl(target.as_fd(), FlagIoctl::GetFlags, &mut present).is_err()
    {
        return;
    }
    // What chattr(1) lets a user change (FS_FL_USER_MODIFIABLE in include/uapi/linux/fs.h); the rest,
    // such as ext4's extents flag, describes the file's own layout.
    const MODIFIABLE: u32 = 0x0003_80ff;
    let word = |buffer: &[u8; 28]| u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    let chosen = word(&wanted) & MODIFIABLE & !(FS_IMMUTABLE_FL | FS_APPEND_FL);
    let flags = (word(&present) & !MODIFIABLE) | chosen;
    if flags != word(&present) {
        present[..4].copy_from_slice(&flags.to_ne_bytes());
        let _ = flag_ioctl(target.as_fd(), FlagIoctl::SetFlags, &mut present);
    }
}

pub(crate) fn set_times(fd: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
    let spec = |t: stat::Time| Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) as _ };
    let times = Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) };
    rustix::fs::utimensat(rustix::fs::CWD, ProcPath::of(fd).as_bytes(), &times, AtFlags::empty())
}
