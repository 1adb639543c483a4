//! As many workers as it takes.
//!
//! A request that waits for a disk keeps its worker. With as many such requests as there are workers nobody would be served, so
//! a watchdog looks at the workers while requests flow, and when some have been in one request for more than a moment, it
//! starts as many others. No request changes threads, and it pays for this with two stores: "busy since tick N" when it
//! begins, and the same without "busy" when it has ended.
//!
//! Workers that serve the same requests form a group: io_uring has one for each processor's queue, `/dev/fuse` is one. Once a
//! group has had more workers than it needs for a while, some leave. Which ones does not matter. A worker leaves only with a
//! request in hand that nobody waits for, so that none is lost on its way to it: the watchdog has the kernel send such
//! requests, by asking it for no data of a file that it knows (`FUSE_NOTIFY_RETRIEVE`, answered by NOTIFY_REPLY).
//!
//! The same request makes the kernel look at what waits in a group: over io_uring a request that found no idle worker waits
//! for one that comes free, and not for one that joins.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

/// How workers are added, and taken away again.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// How often the watchdog looks.
    pub tick: Duration,
    /// A worker that has been in one request for so many ticks is taken to wait for a disk.
    pub stuck: u64,
    /// Workers that are not needed for so many ticks leave.
    pub idle: u64,
    /// Workers beyond those that the connection began with.
    pub most: usize,
}

impl Default for Growth {
    fn default() -> Growth {
        Growth { tick: Duration::from_millis(10), stuck: 3, idle: 1000, most: 256 }
    }
}

impl Growth {
    pub(super) fn ticks(&self, time: Duration) -> u64 {
        (time.as_nanos() / self.tick.as_nanos().max(1)) as u64
    }
}

/// What all workers that come later may hold in messages.
const MEMORY: usize = 256 << 20;

/// The workers of a connection.
pub(crate) struct Workers {
    growth: Growth,
    /// Ticks since the beginning, but for those that were slept through.
    tick: AtomicU64,
    /// The watchdog wants to be woken by the next request.
    asleep: AtomicBool,
    ended: AtomicBool,
    watchdog: OnceLock<Thread>,
    groups: Vec<Group>,
}

/// Workers that can stand in for each other.
#[derive(Default)]
struct Group {
    /// One for each worker.
    activities: Mutex<Vec<Arc<Activity>>>,
    /// So many are to leave.
    surplus: AtomicUsize,
}

/// What a worker tells: the tick at which its last request began, times two, and one more while it is in it. On a line of its
/// own of the processor's cache, or two: they are fetched in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Activity(AtomicU64);

/// A worker's place.
pub(crate) struct WorkerSlot {
    workers: Arc<Workers>,
    group: usize,
    activity: Arc<Activity>,
}

/// A worker is in a request.
pub(crate) struct Busy<'p> {
    activity: &'p Activity,
    since: u64,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.activity.0.store(self.since, Ordering::Release);
    }
}

impl WorkerSlot {
    pub(crate) fn begin(&self) -> Busy<'_> {
        let since = self.workers.tick.load(Ordering::Relaxed) << 1;
        // Either the watchdog sees this before it falls asleep, or this thread sees it asleep.
        self.activity.0.store(since | 1, Ordering::SeqCst);
        if self.workers.asleep.load(Ordering::SeqCst) {
            self.workers.wake();
        }
        Busy { activity: &self.activity, since }
    }

    /// Whether the worker is to leave: true for as many as are too many, which do not count any more then.
    pub(crate) fn leave_if_surplus(&self) -> bool {
        let group = &self.workers.groups[self.group];
        if group.surplus.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut activities = group.activities.lock();
        #[allow(deprecated, reason = "Rust 1.88 lacks try_update, its new name")]
        let left = group.surplus.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if left.is_ok() {
            activities.retain(|activity| !Arc::ptr_eq(activity, &self.activity));
        }
        left.is_ok()
    }

    /// The connection has ended, so far as this worker can see.
    pub(crate) fn connection_ended(&self) {
        self.workers.end();
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        self.workers.groups[self.group]
            .activities
            .lock()
            .retain(|activity| !Arc::ptr_eq(activity, &self.activity));
    }
}

impl Workers {
    pub(crate) fn new(growth: Growth, payload: usize, groups: usize) -> Arc<Workers> {
        let most = growth.most.min(MEMORY / payload.max(1));
        Arc::new(Workers {
            growth: Growth { most, ..growth },
            // So that what begins in the first tick does not look like nothing.
            tick: AtomicU64::new(1),
            asleep: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            watchdog: OnceLock::new(),
            groups: std::iter::repeat_with(Group::default).take(groups).collect(),
        })
    }

    /// A place for one more worker.
    pub(crate) fn slot(self: &Arc<Workers>, group: usize) -> WorkerSlot {
        let activity = Arc::new(Activity::default());
        self.groups[group].activities.lock().push(Arc::clone(&activity));
        WorkerSlot { workers: Arc::clone(self), group, activity }
    }

    pub(super) fn growth(&self) -> &Growth {
        &self.growth
    }

    /// The tick of now.
    pub(super) fn now(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    pub(super) fn set_now(&self, tick: u64) {
        self.tick.store(tick, Ordering::Relaxed);
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// From now on the watchdog is woken by the next request, or is not.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// The thread to wake.
    pub(super) fn set_watchdog(&self, thread: Thread) {
        let _ = self.watchdog.set(thread);
    }

    /// How many workers there are in a group.
    pub(super) fn count(&self, group: usize) -> usize {
        self.groups[group].activities.lock().len()
    }

    /// Looks at the workers of a group.
    pub(super) fn sample(&self, group: usize) -> GroupSample {
        self.groups[group].sample(self.now(), self.growth.stuck)
    }

    /// Has all but `kept` workers of a group leave.
    pub(super) fn shrink(&self, group: usize, kept: usize) {
        self.groups[group].shrink(kept);
    }

    /// Nobody has to leave a group any more.
    pub(super) fn keep_all(&self, group: usize) {
        self.groups[group].surplus.store(0, Ordering::Relaxed);
    }

    #[cold]
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(watchdog) = self.watchdog.get()
        {
            watchdog.unpark();
        }
    }

    /// The watchdog ends, and starts no more workers.
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(watchdog) = self.watchdog.get() {
            watchdog.unpark();
        }
    }
}

/// Why a worker stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerEnd {
    /// Unmounted or aborted.
    Disconnected,
    /// Reading failed in a way that does not pass.
    Failed(Errno),
    /// There were more than are needed.
    Dismissed,
}

/// What the workers of a group are doing.
pub(super) struct GroupSample {
    pub(super) alive: usize,
    pub(super) stuck: usize,
    pub(super) busy: bool,
    /// The last tick at which a request began.
    pub(super) latest: u64,
}

impl Group {
    fn sample(&self, now: u64, patience: u64) -> GroupSample {
        let activities = self.activities.lock();
        let mut sample = GroupSample { alive: activities.len(), stuck: 0, busy: false, latest: 0 };
        for activity in &*activities {
            let state = activity.0.load(Ordering::SeqCst);
            let (since, busy) = (state >> 1, state & 1 == 1);
            sample.latest = sample.latest.max(since);
            sample.busy |= busy;
            sample.stuck += usize::from(busy && now.saturating_sub(since) >= patience);
        }
        sample
    }

    /// All but `kept` workers are to leave.
    fn shrink(&self, kept: usize) {
        let activities = self.activities.lock();
        self.surplus.store(activities.len().saturating_sub(kept), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_stuck_while_it_is_in_one_request() {
        let workers = Workers::new(Growth::default(), 1 << 20, 1);
        let (slot, _other) = (workers.slot(0), workers.slot(0));
        let sample = || {
            let sample = workers.groups[0].sample(workers.tick.load(Ordering::Relaxed), 3);
            (sample.alive, sample.stuck, sample.busy)
        };
        assert_eq!(sample(), (2, 0, false));
        for _ in 0..3 {
            // One after the other, over three ticks.
            let _busy = slot.begin();
            assert_eq!(sample(), (2, 0, true));
            workers.tick.fetch_add(1, Ordering::Relaxed);
        }
        let busy = slot.begin();
        workers.tick.fetch_add(3, Ordering::Relaxed);
        assert_eq!(sample(), (2, 1, true));
        drop(busy);
        assert_eq!(sample(), (2, 0, false));
        drop(slot);
        assert_eq!(sample(), (1, 0, false));
    }

    #[test]
    fn as_many_are_dismissed_as_are_too_many() {
        let workers = Workers::new(Growth::default(), 1 << 20, 1);
        let slot = workers.slot(0);
        assert!(!slot.leave_if_surplus());
        workers.groups[0].surplus.store(2, Ordering::Relaxed);
        assert_eq!([(); 4].map(|()| slot.leave_if_surplus()), [true, true, false, false]);
    }

    #[test]
    fn large_messages_make_for_few_workers() {
        for (payload, most) in [(1 << 20, 256), (4 << 20, 64), (128 << 10, 256)] {
            assert_eq!(Workers::new(Growth::default(), payload, 1).growth.most, most);
        }
    }
}
