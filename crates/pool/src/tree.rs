//! The lock that holds directories in place while paths through them are in use.
//!
//! Every operation that turns nodes into branch paths holds it shared, from building the path to the
//! last system call on it. Renaming a directory holds it exclusively: otherwise a file could be created
//! in the directory that took the old name, or a missing parent be cloned under it. Files need no such
//! care: whoever finds another file than its node's under a name asks again.
//!
//! Readers on different threads take different shards, so that they share no cache line. It is the
//! outermost lock (docs/ARCHITECTURE.md, "Lock order").

use crate::shards::{self, Shards};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct TreeLock {
    shards: Shards<RwLock<()>>,
    /// One at a time asks for all shards. Else those who wait for one of them stand in the way of those
    /// who wait for another, and some wait for seconds. Taken before the shards.
    turn: Mutex<()>,
    /// How often it was held exclusively.
    moves: AtomicU64,
}

pub(crate) struct Exclusive<'a> {
    _guards: SmallVec<[RwLockWriteGuard<'a, ()>; shards::COUNT]>,
    _turn: MutexGuard<'a, ()>,
}

/// Either way of holding the lock.
pub(crate) enum Held<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Exclusive { _guard: Exclusive<'a> },
}

impl TreeLock {
    /// Directories stay where they are while the guard lives. Must not be taken twice by one thread.
    pub(crate) fn shared(&self) -> Held<'_> {
        Held::Shared { _guard: self.shards.mine().read() }
    }

    /// Nobody else uses a path while the guard lives.
    pub(crate) fn exclusive(&self) -> Held<'_> {
        let turn = self.turn.lock();
        let guards = self.shards.iter().map(RwLock::write).collect();
        self.moves.fetch_add(1, Ordering::Relaxed);
        Held::Exclusive { _guard: Exclusive { _guards: guards, _turn: turn } }
    }

    /// The same, but no longer waiting than so. Those who come meanwhile wait too.
    pub(crate) fn exclusive_within(&self, limit: Duration) -> Option<Held<'_>> {
        let until = Instant::now() + limit;
        let turn = self.turn.try_lock_until(until)?;
        let guards = self.shards.iter().map(|shard| shard.try_write_until(until)).collect::<Option<_>>()?;
        self.moves.fetch_add(1, Ordering::Relaxed);
        Some(Held::Exclusive { _guard: Exclusive { _guards: guards, _turn: turn } })
    }

    /// How often directories were renamed. While the lock is held shared, no more are.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}
