//! Looking through the trash of a branch, the oldest first, and removing from it.

use super::batch::Batch;
use super::open_trash;
use crate::fs::stat::{self, Attr};
use canopy_base::path::{PoolPath, join};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Something in the trash: a file, or a directory that was removed empty.
pub struct Trashed<'a> {
    pub batch: &'a Batch,
    /// The name of the batch.
    pub kept_in: &'a [u8],
    /// Its path in the pool.
    pub path: &'a [u8],
    pub attr: &'a Attr,
    /// The directory that it is in, and its name there.
    pub at: (BorrowedFd<'a>, &'a [u8]),
}

impl Trashed<'_> {
    /// Returns when it was removed, in seconds since 1970.
    pub fn removed(&self) -> i64 {
        self.batch.removed(self.attr.ctime.sec)
    }
}

/// What becomes of what was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Stays,
    Goes,
    /// The caller has taken it away itself.
    Taken,
    /// It stays, and nothing more is looked at.
    Ends,
}

/// What a sweep has done.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sweep {
    /// Bytes of what was removed.
    pub freed: u64,
    /// Bytes of what was looked at and stays.
    pub left: u64,
    /// All was looked at.
    pub whole: bool,
}

/// Looks at all that is in the trash of a branch, given its root, in the order of the batches, and does what `judge` says.
/// Directories that become empty by that go as well.
///
/// # Errors
/// The first one; what others remove meanwhile is none.
pub fn sweep(root: BorrowedFd<'_>, judge: &mut dyn FnMut(&Trashed<'_>) -> Verdict) -> Result<Sweep, Errno> {
    let mut walk = Walk { judge, sweep: Sweep { whole: true, ..Sweep::default() } };
    let Some(trash) = open_trash(root)? else { return Ok(walk.sweep) };
    let mut batches = names(&trash)?;
    batches.sort_unstable();
    for name in batches {
        // What is not the pool's is left alone.
        let Some(batch) = Batch::parse(&name) else { continue };
        let Some(dir) = absent_is_none(open_dir(trash.as_fd(), &name))? else { continue };
        let (is_empty, removed) = walk.dir(&dir, (&batch, &name), &PoolPath::new())?;
        if is_empty && (removed || walk.is_over(&batch)) {
            remove_empty(trash.as_fd(), &name)?;
        }
        if !walk.sweep.whole {
            break;
        }
    }
    Ok(walk.sweep)
}

struct Walk<'j> {
    judge: &'j mut dyn FnMut(&Trashed<'_>) -> Verdict,
    sweep: Sweep,
}

impl Walk<'_> {
    /// Looks at a directory. Returns whether it is empty now, and whether something was removed.
    fn dir(
        &mut self,
        dir: &OwnedFd,
        (batch, kept_in): (&Batch, &[u8]),
        path: &[u8],
    ) -> Result<(bool, bool), Errno> {
        let (mut is_empty, mut removed) = (true, false);
        for name in names(dir)? {
            if !self.sweep.whole {
                return Ok((false, removed));
            }
            let Some(attr) = absent_is_none(stat::at(dir, &name))? else { continue };
            let path = join(path, &name);
            let mut is_leaf = true;
            if attr.is_dir() {
                let Some(below) = absent_is_none(open_dir(dir.as_fd(), &name))? else { continue };
                let (is_bare, emptied) = self.dir(&below, (batch, kept_in), &path)?;
                removed |= emptied;
                if is_bare && emptied {
                    remove_empty(dir.as_fd(), &name)?;
                    continue;
                }
                is_leaf = is_bare;
            }
            if !is_leaf || !self.sweep.whole {
                is_empty = false;
                continue;
            }
            let found = Trashed { batch, kept_in, path: &path, attr: &attr, at: (dir.as_fd(), &name) };
            let bytes = attr.blocks * 512;
            match (self.judge)(&found) {
                Verdict::Goes => {
                    let flags = if attr.is_dir() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                    match absent_is_none(rustix::fs::unlinkat(dir, name.as_slice(), flags)) {
                        // Something has come into the directory.
                        Err(Errno::NOTEMPTY | Errno::EXIST) => is_empty = false,
                        other => {
                            other?;
                            self.sweep.freed += bytes;
                            removed = true;
                        }
                    }
                }
                Verdict::Taken => removed = true,
                verdict => {
                    is_empty = false;
                    self.sweep.left += bytes;
                    self.sweep.whole &= verdict != Verdict::Ends;
                }
            }
        }
        Ok((is_empty, removed))
    }

    /// Returns whether an empty batch is not in use.
    fn is_over(&self, batch: &Batch) -> bool {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(now.as_secs()).is_ok_and(|now| batch.began + 2 * super::batch::LASTS < now)
    }
}

/// Removes a directory, unless something has come into it.
fn remove_empty(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn open_dir(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

fn absent_is_none<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the names in a directory; none if that has been removed.
pub(super) fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut buffer: Box<[MaybeUninit<u8>]> = Box::new([MaybeUninit::uninit(); 32768]);
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let Some(entry) = absent_is_none(entry)? else { break };
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}
