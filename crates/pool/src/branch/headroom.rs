//! How much free space a branch must have for files on it to be written by passthrough (`passthrough.io=auto`).
//!
//! A file with a passthrough writer cannot move when its branch is full. Only the client sees the write fail; the
//! kernel cannot be given another backing file, and its writes cannot be redirected to the daemon. So a writer gets
//! passthrough only where the branch has room for all that this and the other passthrough writers may write. Nobody
//! knows that amount in advance. The estimate for each writer is a part of the disk's size, since files are as large
//! as disks allow (`ample`), plus the most that any one writer has written since the mount.
//!
//! When a file moves, passthrough readers keep the old file, and a new writer gets a separate node beside them
//! (`ops/data/detach.rs`). So where room is short, a file that may be in use is not read by passthrough either: then
//! all its open handles move with it. A file that has not changed for a day is unlikely to be written today.

use super::Branch;
use super::space::{Space, millis};
use crate::hash::HashMap;
use crate::ids::BranchId;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use canopy_sys::sched;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Returns the bytes that must be free for each writer on a disk of this size, whatever others have written: an
/// eighth of the disk, but at least 4 GiB and at most 64 GiB.
fn ample(size: u64) -> u64 {
    (size / 8).clamp(4 << 30, 64 << 30)
}

/// A writer that was open for less cannot have written a sixty-fourth of the least allowance: 64 MiB, at 16 GiB a
/// second.
const BRIEF: Duration = Duration::from_millis(4);

/// How often free space is checked while there are passthrough writers, and for readers.
const INTERVAL: Duration = Duration::from_secs(1);

/// Seconds after which an unchanged file counts as idle.
const AT_REST: i64 = 24 * 60 * 60;

#[derive(Default)]
pub(crate) struct Headroom {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The most that a file has grown through one passthrough writer, in bytes.
    most: AtomicU64,
    branches: Mutex<Branches, rank::Headroom>,
}

#[derive(Default)]
struct Branches {
    known: HashMap<BranchId, Watched>,
    /// A thread is checking the space.
    watching: bool,
}

#[derive(Default)]
struct Watched {
    /// Open files keep the branch alive.
    branch: Weak<Branch>,
    /// The number of handles that write by passthrough.
    writers: u64,
    /// The branch had too little room at the last check.
    scarce: bool,
    /// The warning about its passthrough writers has been logged.
    warned: bool,
}

/// A handle that writes by passthrough, for as long as it is open.
pub(crate) struct PassthroughWriter {
    shared: Arc<Shared>,
    branch: BranchId,
    /// The size of the file when it was opened, and the time of the open.
    before: u64,
    since: Instant,
}

impl Headroom {
    /// Admits a writer of a file of `size` bytes to passthrough, if the branch has ample room for this writer too.
    pub(crate) fn admit(&self, branch: &Arc<Branch>, size: u64) -> Option<PassthroughWriter> {
        // Not cached: fallocate(2) takes room faster than anybody writes. And before the lock, because a disk may be
        // slow to answer.
        let space = Space::of(branch.root()).ok()?;
        let most = self.shared.most.load(Ordering::Relaxed);
        let mut branches = self.shared.branches.lock();
        let watched = branches.known.entry(branch.id).or_default();
        watched.branch = Arc::downgrade(branch);
        watched.scarce = !is_ample(&space, watched.writers + 1, most, watched.scarce);
        branch.room.put(watched.scarce);
        if watched.scarce {
            return None;
        }
        watched.writers += 1;
        if !std::mem::replace(&mut branches.watching, true) {
            let shared = Arc::downgrade(&self.shared);
            let thread = std::thread::Builder::new().name("headroom".into());
            branches.watching = thread.spawn(move || watch(&shared)).is_ok();
        }
        let since = Instant::now();
        Some(PassthroughWriter { shared: self.shared.clone(), branch: branch.id, before: size, since })
    }

    /// Returns true if readers of a file on this branch, last modified at `modified`, should go through the daemon.
    pub(crate) fn readers_must_be_served(&self, branch: &Branch, modified: i64) -> bool {
        if clock_gettime(ClockId::RealtimeCoarse).tv_sec.saturating_sub(modified) > AT_REST {
            return false;
        }
        let seen = branch.room.0.load(Ordering::Relaxed);
        let scarce = seen & 1 == 1;
        if seen != 0 && millis().wrapping_sub(seen >> 1) < INTERVAL.as_millis() as u64 {
            return scarce;
        }
        let Ok(space) = Space::of(branch.root()) else { return scarce };
        let most = self.shared.most.load(Ordering::Relaxed);
        let scarce = !is_ample(&space, 1, most, scarce);
        branch.room.put(scarce);
        scarce
    }
}

impl PassthroughWriter {
    /// Records how much the file has grown; called when the handle is closed. `size` returns the file's present size.
    pub(crate) fn closed(&self, size: impl FnOnce() -> u64) {
        if self.since.elapsed() >= BRIEF {
            self.shared.most.fetch_max(size().saturating_sub(self.before), Ordering::Relaxed);
        }
    }
}

impl Drop for PassthroughWriter {
    fn drop(&mut self) {
        if let Some(watched) = self.shared.branches.lock().known.get_mut(&self.branch) {
            watched.writers -= 1;
        }
    }
}

/// Returns true if there is room for so many writers. Where room was scarce, it takes a quarter more, so that the
/// answer does not change with every open and close.
fn is_ample(space: &Space, writers: u64, most: u64, scarce: bool) -> bool {
    let needed = ample(space.size()).saturating_add(most).saturating_mul(writers);
    space.avail >= if scarce { needed.saturating_add(needed / 4) } else { needed }
}

/// Checks the branches of passthrough writers until there are none.
fn watch(shared: &Weak<Shared>) {
    sched::unpin();
    loop {
        std::thread::sleep(INTERVAL);
        let Some(shared) = shared.upgrade() else { return };
        let looked_at: Vec<Arc<Branch>> = {
            let mut branches = shared.branches.lock();
            let busy = branches.known.values().filter(|watched| watched.writers > 0);
            let busy: Vec<Weak<Branch>> = busy.map(|watched| watched.branch.clone()).collect();
            branches.watching = !busy.is_empty();
            if busy.is_empty() {
                return;
            }
            busy.iter().filter_map(Weak::upgrade).collect()
        };
        // A branch that does not answer would keep this thread from checking the others.
        for branch in looked_at.into_iter().filter(|branch| !branch.is_silent()) {
            let Ok(space) = Space::of(branch.root()) else { continue };
            let most = shared.most.load(Ordering::Relaxed);
            let mut branches = shared.branches.lock();
            let Some(watched) = branches.known.get_mut(&branch.id) else { continue };
            watched.scarce = !is_ample(&space, watched.writers, most, watched.scarce);
            let short = !is_ample(&space, watched.writers, most, false);
            if short && !watched.warned {
                tracing::warn!(
                    "{}: little room is left, and {} open files are written by passthrough: writing to these fails with \
                     \"no space left\" when the room is used up; files opened from now on are not affected",
                    branch.path.display(),
                    watched.writers
                );
            }
            watched.warned = short;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_writer_needs_room_and_a_quarter_more_after_scarcity() {
        const GIB: u64 = 1 << 30;
        const TIB: u64 = 1 << 40;
        for (size, avail, writers, most, scarce, ample) in [
            (4 * TIB, 64 * GIB, 1, 0, false, true),
            (4 * TIB, 64 * GIB - 1, 1, 0, false, false),
            (4 * TIB, 64 * GIB, 1, 0, true, false),
            (4 * TIB, 80 * GIB, 1, 0, true, true),
            (4 * TIB, 127 * GIB, 2, 0, false, false),
            (4 * TIB, 128 * GIB, 2, 0, false, true),
            (4 * TIB, 100 * GIB, 1, 37 * GIB, false, false),
            (4 * TIB, 101 * GIB, 1, 37 * GIB, false, true),
            (80 * GIB, 10 * GIB, 1, 0, false, true),
            (80 * GIB, 10 * GIB - 1, 1, 0, false, false),
            (8 * GIB, 4 * GIB, 1, 0, false, true),
            (2 * GIB, 2 * GIB, 1, 0, false, false),
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX, true, true),
            (0, 0, 1, 0, false, false),
        ] {
            let space = Space { avail, used: size - avail, readonly: false };
            let case = format!("{size} {avail} {writers} {most} {scarce}");
            assert_eq!(is_ample(&space, writers, most, scarce), ample, "{case}");
        }
    }
}
