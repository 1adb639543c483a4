//! The lock that holds directories in place while paths through them are in use.
//!
//! Every operation that turns nodes into branch paths holds it shared, from building the path to the last system call
//! on it. Renaming a directory holds it exclusively: otherwise a file could be created in the directory that took
//! over the old name, or a missing parent could be cloned there. Files need no such lock: an operation that finds
//! another file than its node's under a name retries.
//!
//! Readers on different threads take different shards, so that they share no cache line. The lock has the rank
//! [`rank::Tree`].

use super::rank;
use super::ranked::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use super::sharded::{self, Sharded};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long an exclusive lock waits before it lets others pass: at first, and at most. The latter is longer than most
/// requests take on a busy disk, so that they do not keep a rename waiting.
const FIRST_SLICE: Duration = Duration::from_millis(10);
const LAST_SLICE: Duration = Duration::from_millis(150);

#[derive(Default)]
pub(crate) struct TreeLock {
    shards: Sharded<RwLock<(), rank::Tree>>,
    /// Taken before the shards by the one thread that wants all of them. Without it, threads that wait for different
    /// shards would block each other, some for seconds.
    turn: Mutex<(), rank::TreeTurn>,
    /// How often the lock was held exclusively.
    moves: AtomicU64,
}

pub(crate) struct Exclusive<'a> {
    _guards: SmallVec<[RwLockWriteGuard<'a, (), rank::Tree>; sharded::COUNT]>,
    _turn: MutexGuard<'a, (), rank::TreeTurn>,
}

/// Either way of holding the lock.
#[allow(clippy::large_enum_variant, reason = "only in debug builds, where each guard records its rank")]
pub(crate) enum TreeGuard<'a> {
    Shared { _guard: RwLockReadGuard<'a, (), rank::Tree> },
    Exclusive { _guard: Exclusive<'a> },
}

impl TreeLock {
    /// Locks shared: directories stay where they are while the guard lives. A thread must not take it twice.
    pub(crate) fn shared(&self) -> TreeGuard<'_> {
        TreeGuard::Shared { _guard: self.shards.mine().read() }
    }

    /// Locks exclusively: no other operation uses a path while the guard lives. `None` if another operation uses one
    /// for longer than `limit`.
    ///
    /// While a thread waits for the lock, no new reader gets it, and a present reader may be waiting for a disk. So
    /// the thread waits in slices, and between them leaves the lock to others for twice as long.
    pub(crate) fn exclusive(&self, limit: Option<Duration>) -> Option<TreeGuard<'_>> {
        let began = Instant::now();
        let mut slice = FIRST_SLICE;
        loop {
            let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(began.elapsed()));
            if let Some(held) = self.exclusive_within(slice.min(left)) {
                return Some(held);
            }
            if left.is_zero() {
                return None;
            }
            thread::sleep((2 * slice).min(left));
            slice = (2 * slice).min(LAST_SLICE);
        }
    }

    fn exclusive_within(&self, limit: Duration) -> Option<TreeGuard<'_>> {
        let until = Instant::now() + limit;
        let turn = self.turn.try_lock_until(until)?;
        let guards =
            self.shards.iter().map(|shard| shard.try_write_sibling_until(until)).collect::<Option<_>>()?;
        self.moves.fetch_add(1, Ordering::Relaxed);
        Some(TreeGuard::Exclusive { _guard: Exclusive { _guards: guards, _turn: turn } })
    }

    /// Returns how often directories were renamed. The number does not change while the lock is held shared.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}
