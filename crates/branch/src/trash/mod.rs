//! What clients have removed, kept on its branch for a while.
//!
//! A file goes by a rename, to `.canopy-trash/BATCH/` and its path in the pool. The name of the batch says when, who and by which
//! program ([`batch`]), and its directories have the owners, modes, ACLs and times of those that they stand for. So what is
//! there can be read, and brought back by mv(1), without the pool and without any record of it. The reserved directory itself is
//! the daemon's alone: nobody reads below it what he could not read before.
//!
//! The trash never shares a file with the pool: of a file with several names only the last one goes there. Otherwise a change
//! of what the pool still shows would change what is kept.

pub mod batch;
mod copy;
mod holds;
mod keep;
mod mirror;
pub mod sweep;

pub use batch::{Batch, Who};
pub use copy::Copied;
pub use holds::holds;
pub use keep::{Gone, Linked, RemovedDir};

use crate::branch::Branch;
use crate::branch::space::{Space, millis};
use crate::fs::reserved::TRASH;
use crate::fs::stat::{self, Attr, Time};
use canopy_base::error::is_full;
use canopy_base::hash::HashMap;
use canopy_base::ids::BranchId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Mutex, RwLock};
use keep::Places;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use sweep::{Sweep, Trashed, Verdict};

/// What is known of the trash of all branches.
pub struct Trash {
    /// When this was made, by the clock that filesystems use: before its process has put anything into the trash.
    began: Time,
    known: RwLock<HashMap<BranchId, Arc<OnBranch>>, rank::Leaf>,
    /// Some branch has trash, as far as is known.
    any: AtomicBool,
}

/// What is known of the trash of a branch.
#[derive(Default)]
pub struct OnBranch {
    bytes: AtomicU64,
    /// So many bytes are wanted on the branch; 0 if there are enough.
    wanted: AtomicU64,
    /// When it was looked through last, in seconds since the clock began; 0 if it was not.
    aged: AtomicU64,
    /// It is being swept because its time is up.
    ageing: AtomicBool,
    /// The errno for which it could not be used last; 0 if it could.
    unusable: AtomicI32,
    places: Mutex<Places, rank::Leaf>,
    /// Held to decide whether a name is the last one of a file, and while it goes.
    last_name: Mutex<(), rank::TrashName>,
    /// Held while old trash makes room.
    sweeping: Mutex<(), rank::Trash>,
}

impl Default for Trash {
    fn default() -> Trash {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let began = Time { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or(0) };
        Trash { began, known: RwLock::default(), any: AtomicBool::default() }
    }
}

impl Trash {
    /// Returns what is known of the trash of a branch.
    pub fn of(&self, branch: BranchId) -> Arc<OnBranch> {
        if let Some(known) = self.known.read().get(&branch) {
            return Arc::clone(known);
        }
        Arc::clone(self.known.write().entry(branch).or_default())
    }

    /// Returns how many bytes a branch gets back when its trash goes.
    pub fn bytes(&self, branch: BranchId) -> u64 {
        if !self.any.load(Ordering::Relaxed) {
            return 0;
        }
        self.known.read().get(&branch).map_or(0, |known| known.bytes.load(Ordering::Relaxed))
    }

    /// Returns why the trash of a branch could not be used when something was to come there last, or when it was looked through.
    pub fn unusable(&self, branch: BranchId) -> Option<Errno> {
        let errno = self.known.read().get(&branch)?.unusable.load(Ordering::Relaxed);
        (errno != 0).then(|| canopy_sys::errno::from_raw(errno))
    }

    /// Forgets branches that are no longer there.
    pub fn retain(&self, stays: impl Fn(BranchId) -> bool) {
        self.known.write().retain(|id, _| stays(*id));
    }

    /// Closes the directories of the trash that nobody has used for a moment. Comes about once a second.
    pub fn close_idle(&self) {
        let all: Vec<Arc<OnBranch>> = self.known.read().values().cloned().collect();
        all.iter().for_each(|known| known.close_idle());
    }

    fn count(&self, known: &OnBranch, blocks: u64) {
        known.bytes.fetch_add(blocks * 512, Ordering::Relaxed);
        self.any.store(true, Ordering::Relaxed);
    }

    fn discount(&self, known: &OnBranch, blocks: u64) {
        let less = |bytes: u64| Some(bytes.saturating_sub(blocks * 512));
        let _ = known.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Removes the oldest trash of a branch until so many bytes are available there, or all of it is gone. Returns whether
    /// anything went.
    ///
    /// # Errors
    /// That of the branch, if not all could be removed.
    pub fn make_room(&self, branch: &Branch, wanted: u64) -> Result<bool, Errno> {
        let known = self.of(branch.id);
        let _alone = known.sweeping.lock();
        let mut removed = 0;
        // Blocks that several files share, and those of a file that is open, come back later or never.
        for _ in 0..ROUNDS {
            let avail = || Space::of(branch.root()).map(|space| (space.avail, space.inodes));
            let (before, inodes) = branch.reads(avail)?;
            if before >= wanted && inodes != Some(0) {
                return Ok(removed > 0);
            }
            let counted = known.bytes.load(Ordering::Relaxed);
            let (mut freed, mut files) = (0, 0);
            let swept = branch.changes(|| {
                sweep::sweep(branch.root(), &mut |found: &Trashed<'_>| {
                    if before.saturating_add(freed) >= wanted && (files > 0 || inodes != Some(0)) {
                        return Verdict::Ends;
                    }
                    freed += found.attr.blocks * 512;
                    files += 1;
                    Verdict::Goes
                })
            })?;
            known.settle(&swept, counted, &self.any);
            removed += files;
            if files == 0 {
                return Ok(removed > 0);
            }
            // Some filesystems give blocks back only with their next commit.
            if let Ok(root) = opened(branch.root()) {
                let _ = branch.changes(|| rustix::fs::syncfs(&root));
            }
        }
        Ok(removed > 0)
    }

    /// Looks through the trash of a branch, and removes what has been there for as long as it is kept, of which `keep` tells
    /// the seconds, given its path. Counts the rest. One call at a time, for each branch; the others return at once.
    ///
    /// A file of before this process that has another name is what one has left that ended before a rename: it goes too.
    ///
    /// # Errors
    /// That of the branch.
    pub fn age(&self, branch: &Branch, now: i64, keep: impl Fn(&[u8]) -> Option<i64>) -> Result<(), Errno> {
        let known = self.of(branch.id);
        if known.ageing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let counted = known.bytes.load(Ordering::Relaxed);
        let is_left = |attr: &Attr| !attr.is_dir() && attr.nlink > 1 && attr.ctime < self.began;
        let drop_left = |found: &Trashed<'_>| {
            let (dir, name) = found.at;
            let _alone = known.last_name.lock();
            let goes = stat::at(dir, name).is_ok_and(|attr| is_left(&attr));
            goes && rustix::fs::unlinkat(dir, name, AtFlags::empty()).is_ok()
        };
        let swept = branch.changes(|| {
            sweep::sweep(branch.root(), &mut |found: &Trashed<'_>| {
                let is_over =
                    keep(found.path).is_some_and(|keep| found.removed().saturating_add(keep) <= now);
                if is_over {
                    Verdict::Goes
                } else if is_left(found.attr) && drop_left(found) {
                    Verdict::Taken
                } else {
                    Verdict::Stays
                }
            })
        });
        known.ageing.store(false, Ordering::Release);
        known.note_use(swept.as_ref().err().copied());
        known.settle(&swept?, counted, &self.any);
        Ok(())
    }

    /// Notes that a branch is to have so many bytes available.
    pub fn wants_room(&self, branch: BranchId, bytes: u64) {
        self.of(branch).wanted.fetch_max(bytes.max(1), Ordering::Relaxed);
    }

    /// Takes what was noted of a branch by [`Trash::wants_room`].
    pub fn wanted(&self, branch: BranchId) -> u64 {
        self.of(branch).wanted.swap(0, Ordering::Relaxed)
    }

    /// Returns whether somebody is to look at the trash of a branch.
    pub fn is_due(&self, branch: BranchId) -> bool {
        let known = self.of(branch);
        known.wanted.load(Ordering::Relaxed) > 0 || known.is_old(millis() / 1000)
    }

    /// Has the trash of all branches looked through soon: others have changed it.
    pub fn recount(&self) {
        self.known.read().values().for_each(|known| known.aged.store(0, Ordering::Relaxed));
    }

    /// Returns true once in a while, for who then looks through the trash of a branch.
    pub fn takes_turn(&self, branch: BranchId) -> bool {
        let (known, now) = (self.of(branch), millis() / 1000);
        let old = known.is_old(now);
        if old {
            known.aged.store(now.max(1), Ordering::Relaxed);
        }
        old
    }
}

impl OnBranch {
    fn is_old(&self, now: u64) -> bool {
        let aged = self.aged.load(Ordering::Relaxed);
        let is_unusable = self.unusable.load(Ordering::Relaxed) != 0;
        aged == 0 || now.saturating_sub(aged) >= if is_unusable { TRIED_EVERY } else { LOOKED_AT_EVERY }
    }

    /// Notes whether it could be used. What is full, or was swept away meanwhile, says nothing.
    fn note_use(&self, failed: Option<Errno>) {
        match failed {
            Some(errno) if is_full(errno) || errno == Errno::NOENT => {}
            failed => self.unusable.store(failed.map_or(0, Errno::raw_os_error), Ordering::Relaxed),
        }
    }

    /// Takes over what a sweep has found, before which so many bytes were counted. What has come meanwhile may be counted twice,
    /// until the next sweep, but not be missed: what counts as room can be made.
    fn settle(&self, swept: &Sweep, before: u64, any: &AtomicBool) {
        if swept.whole {
            let came = self.bytes.load(Ordering::Relaxed).saturating_sub(before);
            self.bytes.store(swept.left + came, Ordering::Relaxed);
        } else {
            let less = |bytes: u64| Some(bytes.saturating_sub(swept.freed));
            let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        if self.bytes.load(Ordering::Relaxed) > 0 {
            any.store(true, Ordering::Relaxed);
        }
    }
}

/// Seconds between two looks through the trash of a branch.
const LOOKED_AT_EVERY: u64 = 3600;

/// As [`LOOKED_AT_EVERY`], of one that could not be used: somebody may have mended it.
const TRIED_EVERY: u64 = 60;

/// How often more trash goes because the filesystem has not given back what it was to.
const ROUNDS: usize = 8;

fn opened(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(root, c".", flags, Mode::empty())
}

/// Opens the trash of a branch, given its root. `None` if it has none.
///
/// Errors: `EPERM` if somebody else has made it, or could have put something into it: he could read what comes there, and plant
/// what is restored.
fn open_trash(root: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(root, TRASH, flags, Mode::empty()) {
        Ok(dir) if !stat::of(dir.as_fd())?.is_daemons_alone() => Err(Errno::PERM),
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests;
