//! Looks again at the directories that were known before, where nothing proves that they are as they were: after a reboot, say.
//!
//! A thread does so, one directory after the other, with the lowest priority at the disks. While clients wait for the branches, it
//! leaves these to them for most of the time, and while a disk rests, it waits. Nothing of what was known is believed: it only says
//! where to look. Until then a directory is asked for as if it had never been known, and who asks first has it known.
//!
//! It may wait for ever for a disk, and nobody waits for it.

use crate::lock_rank as rank;
use crate::test_switches;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::rest;
use canopy_pool::Pool;
use canopy_pool::coherence::catalogue::pack_unknown;
use canopy_pool::ops;
use canopy_sys::thread::ioprio;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The most directories. Their paths take some 30 MiB then.
const MOST: usize = 1 << 18;
/// How long it waits where nothing can be learnt now.
const PAUSE: Duration = Duration::from_secs(2);
/// While clients wait for the branches: how many times as long as it has taken.
const YIELDS: u32 = 8;
const LONGEST_YIELD: Duration = Duration::from_secs(2);
/// How often it looks whether there is room, in directories.
const LOOKS_FOR_ROOM: u64 = 256;
/// How long it waits for the end of this process: that changes no access time which the next one would take for a change.
const HELD: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct Revisits {
    todo: Mutex<VecDeque<Box<[u8]>>, rank::Leaf>,
    /// How many there were, and how many have been looked at.
    total: AtomicU64,
    done: AtomicU64,
    /// A disk rests, which is not to be woken.
    rests: AtomicBool,
    held: Mutex<Option<Instant>, rank::Leaf>,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) rests: bool,
}

impl Revisits {
    /// Adds a directory. Those above it come first.
    pub(super) fn add(&self, path: &[u8]) {
        let mut todo = self.todo.lock();
        if todo.len() < MOST {
            todo.push_back(path.into());
            self.total.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how far it is; `None` if there is nothing to do.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        (done < total).then(|| Progress { done, total, rests: self.rests.load(Ordering::Relaxed) })
    }

    /// Returns what has not been looked at, packed for the next process.
    pub(super) fn left(&self) -> Vec<Vec<u8>> {
        self.todo.lock().iter().map(|path| pack_unknown(path)).collect()
    }

    /// Reads nothing for a while, because this process is about to end.
    pub(super) fn hold(&self) {
        *self.held.lock() = Some(Instant::now() + HELD);
    }

    fn is_held(&self) -> bool {
        self.held.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Begins, on a thread of its own. It ends when nobody can send any more.
    pub(super) fn start(self: &Arc<Revisits>, pool: &Arc<Pool>, ended: Receiver<()>) {
        if self.progress().is_none() {
            return;
        }
        let (revisits, pool) = (Arc::clone(self), Arc::clone(pool));
        let look = move || {
            ioprio::yield_disks();
            revisits.run(&pool, &ended);
        };
        if let Err(why) = thread::Builder::new().name("canopy-revisit".into()).spawn(look) {
            tracing::warn!("catalogue: what was known is not looked at again: {why}");
        }
    }

    fn run(&self, pool: &Pool, ended: &Receiver<()>) {
        let (begun, total) = (Instant::now(), self.total.load(Ordering::Relaxed));
        loop {
            let Some(path) = self.todo.lock().front().cloned() else { break };
            let (asked, at) = (asked(pool), Instant::now());
            let rests = ops::settings::branches(pool).iter().any(|branch| rest::may_sleep(branch.id));
            self.rests.store(rests, Ordering::Relaxed);
            let pause = if rests || self.is_held() || !ops::readdir::relearn::relearn(pool, &path) {
                PAUSE
            } else {
                self.todo.lock().pop_front();
                let done = self.done.fetch_add(1, Ordering::Relaxed);
                if done.is_multiple_of(LOOKS_FOR_ROOM) && !ops::external_changes::catalogue(pool).has_room() {
                    tracing::info!("catalogue: there is no room for more than {done} of {total} directories");
                    self.todo.lock().clear();
                    self.done.store(total, Ordering::Relaxed);
                    return;
                }
                let busy = self::asked(pool) != asked;
                let pause = if busy { (YIELDS * at.elapsed()).min(LONGEST_YIELD) } else { Duration::ZERO };
                test_switches::revisits_after().unwrap_or(pause)
            };
            if ended.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
        let took = begun.elapsed().as_secs();
        tracing::info!("catalogue: {total} directories that were known were looked at again, in {took} s");
    }
}

/// Returns how many questions were put to the branches.
fn asked(pool: &Pool) -> u64 {
    ops::external_changes::catalogue(pool).asked()
}
