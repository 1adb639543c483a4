//! How a pool may differ from a plain directory. Everything else is a failure.
//!
//! | the pool | when | why |
//! | --- | --- | --- |
//! | SEEK_DATA and SEEK_HOLE give other results | always | filesystems allocate ahead in their own ways |
//! | a link count of 1 for directories | always | so do btrfs and others |
//! | another time of a directory | always | it is the newest of those on the disks that are there |
//! | ENOTEMPTY where the plain directory says EEXIST | rename over a directory that is not empty | POSIX allows both |
//! | another time of a file after fallocate(2) | always | filesystems differ in whether it counts as a change |
//! | the attribute `user.canopy.blake3` is listed | always | docs/upkeep.md, *verify* |
//! | attributes stay as they were | what a read-only disk holds | docs/reliability.md, *When a branch fails* |
//! | ENOSPC, or fewer bytes written | a disk is small | docs/reliability.md, *What still meets ENOSPC* |
//! | EROFS | a disk is, or was, read-only | docs/reliability.md, *When a branch fails* |
//! | EINVAL for an exchange of two names | copies | docs/copies.md, *Good to know* |
//! | success where the plain directory says EEXIST, ENOENT or ENODATA | the server dies meanwhile | docs/survival.md, *What is not* |
//! | a listing has another inode number than stat(2) | `survive=true`, copies | a file keeps its number when another copy is shown, or it has moved; listings compute it |
//! | two names of a file have different inode numbers | `survive=true` | the same, after another process took over |
//! | EOPNOTSUPP for O_TMPFILE | a disk is a mirror | FUSE filesystems may lack it |
//! | EAGAIN for an open with O_NONBLOCK | a command of upkeep runs | it holds a lease on the file (fcntl(2)) |
//! | EBADMSG | attributes cannot be read | the disk says so |
//! | EIO for reading what is open | a disk fails | the disk says so; what another disk has must be read by name |
//! | EIO, or EROFS, for a change | a disk refuses changes | the disk says so; the driver knows what must succeed elsewhere |
//! | attributes stay as they were | what that disk holds | docs/reliability.md, *When a branch fails* |
//!
//! What the pool refuses has no effect: the plain directory does not do it either, and the trees are still compared.

use canopy_testkit::model::{Access, Change, Create, Op, Outcome, RenameHow, Shown, XattrHow};
use rustix::fs::FileType;
use rustix::io::Errno;

/// What reigns while an operation runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conditions {
    pub(crate) small: bool,
    pub(crate) read_only: bool,
    pub(crate) copies: bool,
    pub(crate) dying: bool,
    pub(crate) upkeep: bool,
    pub(crate) mirror: bool,
    pub(crate) survives: bool,
    pub(crate) unreadable: bool,
    pub(crate) failing: bool,
    pub(crate) refusing: bool,
}

impl Conditions {
    /// Whether the pool cannot be compared as a whole.
    pub(crate) fn is_sick(self) -> bool {
        self.unreadable || self.failing
    }

    /// Whether some disk does not take every change.
    pub(crate) fn cannot_change(self) -> bool {
        self.read_only || self.refusing || self.is_sick()
    }
}

/// What the plain directory does when the pool has given an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Then {
    Same,
    /// Nothing: the pool may refuse the operation.
    Nothing,
    /// What the pool has done of it.
    Part(Op),
}

pub(crate) fn then(op: &Op, pool: &Outcome, now: Conditions) -> Then {
    let refused = match pool {
        Outcome::Failed(Errno::NOSPC | Errno::DQUOT) => now.small,
        Outcome::Failed(Errno::ROFS) => now.read_only || (now.refusing && changes(op)),
        Outcome::Failed(Errno::BADMSG) => now.unreadable,
        Outcome::Failed(Errno::IO) => {
            now.failing && matches!(op, Op::Read { .. } | Op::CopyRange { .. }) || now.refusing && changes(op)
        }
        Outcome::Failed(Errno::AGAIN) => {
            now.upkeep && matches!(op, Op::Open { .. } | Op::Change { change: Change::Size(_), .. })
        }
        Outcome::Failed(Errno::OPNOTSUPP) => now.mirror && matches!(op, Op::Tmpfile { .. }),
        Outcome::Failed(Errno::INVAL) => {
            now.copies && matches!(op, Op::Rename { how: RenameHow::Exchange, .. })
        }
        _ => false,
    };
    match (*op, pool) {
        _ if refused => Then::Nothing,
        (Op::Write { slot, offset, len, seed }, Outcome::Number(done))
            if now.small && (*done as usize) < len =>
        {
            Then::Part(Op::Write { slot, offset, len: *done as usize, seed })
        }
        _ => Then::Same,
    }
}

/// Whether an operation changes anything.
fn changes(op: &Op) -> bool {
    match op {
        Op::Open { access, create, truncate, .. } => {
            *access != Access::Read || *create != Create::No || *truncate
        }
        Op::Xattr { how, .. } => !matches!(how, XattrHow::Get(_) | XattrHow::List),
        Op::Read { .. }
        | Op::Seek { .. }
        | Op::Close { .. }
        | Op::Readlink { .. }
        | Op::Stat { .. }
        | Op::Same { .. }
        | Op::OpenDir { .. }
        | Op::CloseDir { .. }
        | Op::List { .. }
        | Op::Statfs { .. }
        | Op::Forget => false,
        _ => true,
    }
}

pub(crate) fn differ(op: &Op, plain: &Outcome, pool: &Outcome, now: Conditions) -> bool {
    match (op, plain, pool) {
        (_, Outcome::Stat(plain), Outcome::Stat(pool)) if is_dir(plain.mode) => {
            let alike = |shown: &Shown| Outcome::Stat(Shown { mtime: None, ..*shown });
            alike(plain).allows(&alike(pool))
        }
        (Op::Seek { .. }, _, _) => true,
        (Op::Same { .. }, Outcome::Yes(true), Outcome::Yes(false)) => now.survives,
        (Op::Xattr { .. }, Outcome::Names(plain), Outcome::Names(pool)) => {
            plain.iter().eq(pool.iter().filter(|(name, _)| !name.starts_with(b"user.canopy.blake3")))
        }
        (Op::Rename { .. }, Outcome::Failed(Errno::EXIST), Outcome::Failed(Errno::NOTEMPTY)) => true,
        (Op::List { .. }, Outcome::Names(_), Outcome::Broken(why)) => {
            (now.survives || now.copies) && why.contains("is listed with type and inode number")
                || now.unreadable && why.ends_with(&Errno::BADMSG.to_string())
        }
        (_, Outcome::Failed(Errno::EXIST | Errno::NOENT | Errno::NODATA), Outcome::Done) => now.dying,
        _ => false,
    }
}

fn is_dir(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::Directory
}
