//! How much room a branch must have for a file on it to be written past the daemon (`passthrough.io=auto`).
//!
//! A file that the kernel writes by itself cannot move when its branch is full: nobody sees the write fail but the
//! program, and the kernel cannot be given another backing file, nor be made to bring its writes back. So a writer
//! is let past the daemon only where there is room for all that he and the others like him may write. How much that
//! is nobody knows beforehand; the measure is a part of the disk, for files are as large as disks allow (`ample`), and
//! on top of it the most that any one of them has written since the mount.
//!
//! Readers past the daemon keep the old file when theirs moves, and who comes to write it gets a node of his own beside
//! them (`ops/apart.rs`). So where room is short, a file that may be at work is not read past the daemon either: then
//! all who have it open go with it. One that has not changed for a day is hardly written today.

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

/// Bytes that each writer must find on a disk of this size, whatever others have written before him: an eighth of it,
/// but no less than 4 GiB and no more than 64.
fn ample(size: u64) -> u64 {
    (size / 8).clamp(4 << 30, 64 << 30)
}

/// Who was open for less cannot have written a sixty-fourth of what each must find: 64 MiB, at 16 GiB a second.
const BRIEF: Duration = Duration::from_millis(4);

/// How often the space is looked at while there are writers past the daemon, and for readers.
const INTERVAL: Duration = Duration::from_secs(1);

/// Seconds after which a file that has not changed counts as at rest.
const AT_REST: i64 = 24 * 60 * 60;

#[derive(Default)]
pub(crate) struct Headroom {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The most that a file has grown by one writer past the daemon.
    most: AtomicU64,
    branches: Mutex<Branches, rank::Headroom>,
}

#[derive(Default)]
struct Branches {
    known: HashMap<BranchId, Watched>,
    /// A thread looks at the space.
    watching: bool,
}

#[derive(Default)]
struct Watched {
    /// Open files keep it.
    branch: Weak<Branch>,
    /// Handles that write past the daemon.
    writers: u64,
    /// It had too little when it was last looked at.
    scarce: bool,
    /// Those who write past the daemon were told of.
    told: bool,
}

/// One handle that writes past the daemon, for as long as it is open.
pub(crate) struct PassthroughWriter {
    shared: Arc<Shared>,
    branch: BranchId,
    /// The file's size when it was opened, and when that was.
    before: u64,
    since: Instant,
}

impl Headroom {
    /// Lets a writer of a file of this size past the daemon, if the branch has ample room for him too.
    pub(crate) fn admit(&self, branch: &Arc<Branch>, size: u64) -> Option<PassthroughWriter> {
        // Asked each time: room can be taken faster than anybody writes (fallocate(2)). And before the lock is taken, for
        // a disk may be slow to answer.
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

    /// Is a file that was last modified then, on this branch, better read by way of the daemon?
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
    /// This handle is closed; `size` looks how large the file is by now.
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

/// Is there room for so many writers? Where there was not, it takes a quarter more, so that the answer does not
/// change with every file that comes and goes.
fn is_ample(space: &Space, writers: u64, most: u64, scarce: bool) -> bool {
    let needed = ample(space.size()).saturating_add(most).saturating_mul(writers);
    space.avail >= if scarce { needed.saturating_add(needed / 4) } else { needed }
}

/// Looks at the branches of writers past the daemon until there are none.
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
        // One that does not answer would keep this thread from looking at the others.
        for branch in looked_at.into_iter().filter(|branch| !branch.is_silent()) {
            let Ok(space) = Space::of(branch.root()) else { continue };
            let most = shared.most.load(Ordering::Relaxed);
            let mut branches = shared.branches.lock();
            let Some(watched) = branches.known.get_mut(&branch.id) else { continue };
            watched.scarce = !is_ample(&space, watched.writers, most, watched.scarce);
            let short = !is_ample(&space, watched.writers, most, false);
            if short && !watched.told {
                tracing::warn!(
                    "{}: little room is left, and {} open files are written past the pool: these meet \"no space \
                     left\" when it is used up; files opened from now on do not",
                    branch.path.display(),
                    watched.writers
                );
            }
            watched.told = short;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_each_writer_and_a_quarter_more_where_it_was_scarce() {
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
            let told = format!("{size} {avail} {writers} {most} {scarce}");
            assert_eq!(is_ample(&space, writers, most, scarce), ample, "{told}");
        }
    }
}
