//! The lock that holds directories in place while paths through them are in use.
//!
//! Every operation that turns nodes into branch paths holds it shared, from building the path to the
//! last system call on it. Renaming a directory holds it exclusively: otherwise a file could be created
//! in the directory that took the old name, or a missing parent be cloned under it. Files need no such
//! care: whoever finds another file than its node's under a name asks again.
//!
//! Readers on different threads take different shards, so that they share no cache line. Its rank is
//! [`rank::Tree`].

use super::rank;
use super::ranked::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use super::sharded::{self, Sharded};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// For so long the lock is waited for at first, and in the end. The latter is longer than a request takes as a rule on a disk at
/// work, so that they do not keep a rename from its turn.
const FIRST_BIT: Duration = Duration::from_millis(10);
const LAST_BIT: Duration = Duration::from_millis(150);

#[derive(Default)]
pub(crate) struct TreeLock {
    shards: Sharded<RwLock<(), rank::Tree>>,
    /// One at a time asks for all shards. Else those who wait for one of them stand in the way of those
    /// who wait for another, and some wait for seconds. Taken before the shards.
    turn: Mutex<(), rank::TreeTurn>,
    /// How often it was held exclusively.
    moves: AtomicU64,
}

pub(crate) struct Exclusive<'a> {
    _guards: SmallVec<[RwLockWriteGuard<'a, (), rank::Tree>; sharded::COUNT]>,
    _turn: MutexGuard<'a, (), rank::TreeTurn>,
}

/// Either way of holding the lock.
#[allow(clippy::large_enum_variant, reason = "only in debug builds, where each guard has its rank with it")]
pub(crate) enum TreeGuard<'a> {
    Shared { _guard: RwLockReadGuard<'a, (), rank::Tree> },
    Exclusive { _guard: Exclusive<'a> },
}

impl TreeLock {
    /// Directories stay where they are while the guard lives. Must not be taken twice by one thread.
    pub(crate) fn shared(&self) -> TreeGuard<'_> {
        TreeGuard::Shared { _guard: self.shards.mine().read() }
    }

    /// Nobody else uses a path while the guard lives. None when somebody uses one for longer than `limit`.
    ///
    /// Who waits keeps those who come meanwhile from the lock, and somebody who holds it may wait for a disk. So it is waited for
    /// in bits, and in between it is left to the others for twice as long.
    pub(crate) fn exclusive(&self, limit: Option<Duration>) -> Option<TreeGuard<'_>> {
        let began = Instant::now();
        let mut bit = FIRST_BIT;
        loop {
            let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(began.elapsed()));
            if let Some(held) = self.exclusive_within(bit.min(left)) {
                return Some(held);
            }
            if left.is_zero() {
                return None;
            }
            thread::sleep((2 * bit).min(left));
            bit = (2 * bit).min(LAST_BIT);
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

    /// How often directories were renamed. While the lock is held shared, no more are.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}
