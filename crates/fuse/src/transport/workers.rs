//! The workers of a connection, whose number follows the load.
//!
//! A request that waits for a disk blocks its worker. If all workers were blocked, no request would be served. So a watchdog
//! samples the workers while there are requests, and when some have been in one request for several ticks, it starts as
//! many others. Requests do not change threads. Each one costs two stores: "busy since tick N" when it begins, and the
//! same without "busy" when it ends.
//!
//! Workers that serve the same requests form a group: io_uring has a group for each processor's queue, and `/dev/fuse` is
//! one. Once a group has had more workers than it needs for a while, some of them leave; which ones does not matter. So
//! that no request is lost, a worker leaves only after it has received a request for which no process waits. The watchdog
//! makes the kernel send such requests: it asks for 0 bytes of a file that the kernel knows (`FUSE_NOTIFY_RETRIEVE`), and
//! the kernel answers with NOTIFY_REPLY.
//!
//! The same request makes the kernel serve requests that wait in a group. Over io_uring a request that finds no idle worker
//! waits until one becomes idle, and is not passed to one that joins later.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

/// When workers are added and dismissed.
#[derive(Clone, Copy, Debug)]
pub struct WorkerGrowth {
    /// How often the watchdog samples the workers.
    pub tick: Duration,
    /// A worker counts as stuck once it has been in one request for this many ticks.
    pub stuck_ticks: u64,
    /// Workers that have not been needed for this many ticks leave.
    pub idle_ticks: u64,
    /// The most workers beyond those that the connection started with.
    pub max_extra: usize,
}

impl Default for WorkerGrowth {
    fn default() -> WorkerGrowth {
        WorkerGrowth { tick: Duration::from_millis(10), stuck_ticks: 3, idle_ticks: 1000, max_extra: 256 }
    }
}

impl WorkerGrowth {
    pub(super) fn ticks(&self, time: Duration) -> u64 {
        (time.as_nanos() / self.tick.as_nanos().max(1)) as u64
    }
}

/// The most memory for the message buffers of all extra workers, in bytes.
const MAX_EXTRA_MEMORY: usize = 256 << 20;

/// The workers of a connection.
pub(crate) struct Workers {
    growth: WorkerGrowth,
    /// The current tick. It does not follow the clock while the watchdog sleeps.
    tick: AtomicU64,
    /// Whether the next request must wake the watchdog.
    asleep: AtomicBool,
    ended: AtomicBool,
    watchdog: OnceLock<Thread>,
    groups: Vec<Group>,
}

/// Workers that serve the same requests.
#[derive(Default)]
struct Group {
    /// One for each worker.
    activities: Mutex<Vec<Arc<Activity>>>,
    /// How many workers are to leave.
    surplus: AtomicUsize,
}

/// The state of a worker: twice the tick at which its last request began, plus one while the request is in progress. It has
/// two cache lines of its own, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Activity(AtomicU64);

/// A worker's membership in a group.
pub(crate) struct WorkerSlot {
    workers: Arc<Workers>,
    group: usize,
    activity: Arc<Activity>,
}

/// A guard that marks a worker as busy with a request.
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
    /// Marks the worker as busy until the guard is dropped.
    pub(crate) fn begin(&self) -> Busy<'_> {
        let since = self.workers.tick.load(Ordering::Relaxed) << 1;
        // Either the watchdog sees this store before it sleeps, or this thread sees that it sleeps.
        self.activity.0.store(since | 1, Ordering::SeqCst);
        if self.workers.asleep.load(Ordering::SeqCst) {
            self.workers.wake();
        }
        Busy { activity: &self.activity, since }
    }

    /// Returns whether the worker is to leave. If so, it no longer counts as a member of its group.
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

    /// Reports that the connection has ended.
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
    pub(crate) fn new(growth: WorkerGrowth, payload: usize, groups: usize) -> Arc<Workers> {
        let max_extra = growth.max_extra.min(MAX_EXTRA_MEMORY / payload.max(1));
        Arc::new(Workers {
            growth: WorkerGrowth { max_extra, ..growth },
            // The state 0 means that a worker has not had a request yet.
            tick: AtomicU64::new(1),
            asleep: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            watchdog: OnceLock::new(),
            groups: std::iter::repeat_with(Group::default).take(groups).collect(),
        })
    }

    /// Adds a worker to a group.
    pub(crate) fn slot(self: &Arc<Workers>, group: usize) -> WorkerSlot {
        let activity = Arc::new(Activity::default());
        self.groups[group].activities.lock().push(Arc::clone(&activity));
        WorkerSlot { workers: Arc::clone(self), group, activity }
    }

    pub(super) fn growth(&self) -> &WorkerGrowth {
        &self.growth
    }

    /// Returns the current tick.
    pub(super) fn now(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    pub(super) fn set_now(&self, tick: u64) {
        self.tick.store(tick, Ordering::Relaxed);
    }

    /// Returns whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Sets whether the next request must wake the watchdog.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Sets the watchdog's thread.
    pub(super) fn set_watchdog(&self, thread: Thread) {
        let _ = self.watchdog.set(thread);
    }

    /// Returns the number of workers in a group.
    pub(super) fn count(&self, group: usize) -> usize {
        self.groups[group].activities.lock().len()
    }

    /// Samples the workers of a group.
    pub(super) fn sample(&self, group: usize) -> GroupSample {
        self.groups[group].sample(self.now(), self.growth.stuck_ticks)
    }

    /// Dismisses all but `kept` workers of a group.
    pub(super) fn shrink(&self, group: usize, kept: usize) {
        self.groups[group].shrink(kept);
    }

    /// Dismisses no more workers of a group.
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

    /// Ends the watchdog, so that it starts no more workers.
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(watchdog) = self.watchdog.get() {
            watchdog.unpark();
        }
    }
}

/// Why a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerEnd {
    /// The filesystem was unmounted or the connection aborted.
    Disconnected,
    /// Receiving requests has failed.
    Failed(Errno),
    /// There were more workers than needed.
    Dismissed,
}

/// The state of a group's workers.
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

    /// Dismisses all but `kept` workers.
    fn shrink(&self, kept: usize) {
        let activities = self.activities.lock();
        self.surplus.store(activities.len().saturating_sub(kept), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_stuck_after_several_ticks_in_one_request() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1);
        let (slot, _other) = (workers.slot(0), workers.slot(0));
        let sample = || {
            let sample = workers.groups[0].sample(workers.tick.load(Ordering::Relaxed), 3);
            (sample.alive, sample.stuck, sample.busy)
        };
        assert_eq!(sample(), (2, 0, false));
        for _ in 0..3 {
            // Three requests, one in each of three ticks.
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
    fn only_surplus_workers_leave() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1);
        let slot = workers.slot(0);
        assert!(!slot.leave_if_surplus());
        workers.groups[0].surplus.store(2, Ordering::Relaxed);
        assert_eq!([(); 4].map(|()| slot.leave_if_surplus()), [true, true, false, false]);
    }

    #[test]
    fn larger_messages_allow_fewer_extra_workers() {
        for (payload, max_extra) in [(1 << 20, 256), (4 << 20, 64), (128 << 10, 256)] {
            assert_eq!(Workers::new(WorkerGrowth::default(), payload, 1).growth.max_extra, max_extra);
        }
    }
}
