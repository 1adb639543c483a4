//! The workers of a connection, whose number follows the load.
//!
//! A request that waits for a disk blocks its worker. If all workers were blocked, no request would be served. So a watchdog
//! samples the workers while there are requests, and when some have been in one request for several ticks, it starts as
//! many others. Requests do not change threads. When a request begins, its worker notes in its [`WorkerState`] which one it
//! is, since which tick, and what it takes to answer it ([`ReplyToken`]). It takes the token back before it sends the answer.
//! The watchdog may take the token first, if the handler wants the request to be answered in the worker's place. So each
//! request is answered once.
//!
//! Workers that serve the same requests form a group: io_uring has a group for each processor's queue, and `/dev/fuse` is
//! one. Once a group has had more workers than it needs for a while, some of them leave; which ones does not matter. So
//! that no request is lost, a worker leaves only after it has received a request for which no process waits. The watchdog
//! makes the kernel send such requests: it asks for 0 bytes of a file that the kernel knows (`FUSE_NOTIFY_RETRIEVE`), and
//! the kernel answers with NOTIFY_REPLY.
//!
//! The same request makes the kernel serve requests that wait in a group. Over io_uring a request that finds no idle worker
//! waits until one becomes idle, and is not passed to one that joins later.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use canopy_sys::fuse::uring::Window;
use canopy_sys::process::fault;
use canopy_sys::thread::ioprio;
use canopy_sys::thread::sched;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use super::parked::{Aside, HeldRequest, Park, Parked, Waiting};
use super::pause::Pause;
use super::stalled::{Note, Stalled};
use super::tally::{Sampler, Tally};
use crate::request::Header;
use crate::wait::{Signal, Wait};

/// When workers are added and dismissed.
#[derive(Clone, Copy, Debug)]
pub struct WorkerGrowth {
    /// How often the watchdog samples the workers.
    pub tick: Duration,
    /// A worker counts as stuck once it has been in one request for this many ticks.
    pub stuck_ticks: u64,
    /// Workers that have not been needed for this many ticks leave.
    pub idle_ticks: u64,
    /// The most workers beyond those that the connection started with. Workers whose requests were answered in their place
    /// do not count. There are at most as many of these as of all others.
    pub max_extra: usize,
    /// How many workers an io_uring queue that started with fewer has once requests wait in all of those.
    pub waiting_queue: usize,
}

impl Default for WorkerGrowth {
    fn default() -> WorkerGrowth {
        WorkerGrowth {
            tick: Duration::from_millis(10),
            stuck_ticks: 3,
            idle_ticks: 1000,
            max_extra: 256,
            waiting_queue: 4,
        }
    }
}

impl WorkerGrowth {
    /// Returns after how many ticks workers leave that take the place of others.
    pub(super) fn short_idle(&self) -> u64 {
        self.idle_ticks.div_ceil(10)
    }

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
    /// All workers of queues are to leave: which attempt it is; 0 if they are not.
    retiring: AtomicU64,
    /// The attempt in which they have left, so that this process has no request of a client.
    retired: AtomicU64,
    attempts: AtomicU64,
    /// [`Failing`].
    failing: AtomicU8,
    watchdog: OnceLock<Thread>,
    groups: Vec<Group>,
    parked: Parked,
    pause: Arc<Pause>,
    thread_start: OnceLock<Box<ThreadStart>>,
}

/// Whether a fault ends the process, and whose requests get an error for that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Failing {
    No,
    /// Those of threads that have met it: they execute nothing any more.
    OfFaulty,
    /// Those of all that have not ended meanwhile. They may wait for what such a thread has locked.
    OfAll,
}

/// What each thread of a worker calls before its first request, with its number.
pub(crate) type ThreadStart = dyn Fn(usize) + Send + Sync;

/// Workers that serve the same requests.
#[derive(Default)]
struct Group {
    /// One for each worker.
    states: Mutex<Vec<Arc<WorkerState>>>,
    /// What the workers have answered that have left. Changes with the states locked, so that nothing is missing from a sum
    /// of both.
    departed: Mutex<Tally>,
    /// How many workers are to leave.
    surplus: AtomicUsize,
    /// How many entries were put aside with their requests since the last look.
    entries_held: AtomicUsize,
}

/// Where a worker and the watchdog meet. It has two cache lines of its own, because processors fetch them in pairs.
#[repr(align(128))]
pub(crate) struct WorkerState(Mutex<Activity>);

/// What a worker does.
pub(super) struct Activity {
    /// Its thread.
    thread: i32,
    /// Where it reads requests, over `/dev/fuse`.
    pub(super) device: Option<Arc<OwnedFd>>,
    /// The tick at which its last request began; 0 if it has not had one yet.
    latest: u64,
    /// How many requests it has begun.
    begun: u64,
    /// It runs only while its processor has nothing else to do.
    low: bool,
    /// What it has answered, or was answered in its place.
    tally: Tally,
    sampler: Sampler,
    current: Option<Current>,
    /// It has lost its entry to another worker and gets no more requests.
    pub(super) lost: bool,
}

/// A request in progress.
pub(super) struct Current {
    header: Header,
    note: Note,
    /// When it began, if it is timed.
    began: Option<Instant>,
    /// What it takes to answer it; `None` once it is or was answered.
    token: Option<ReplyToken>,
    /// It was answered in the worker's place.
    answered: bool,
    pub(super) asked: Option<Asked>,
    /// The handler is no longer asked.
    ended: bool,
}

/// The handler has been asked about a request.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    first: Instant,
    /// When to ask again.
    pub(super) next: Instant,
}

/// What it takes to answer a request.
pub(crate) enum ReplyToken {
    /// The worker's device.
    Device,
    /// The window of the entry that holds it.
    Entry(Window),
    /// It has no answer.
    NoAnswer,
}

/// A worker's membership in a group.
pub(crate) struct WorkerSlot {
    workers: Arc<Workers>,
    group: usize,
    state: Arc<WorkerState>,
}

/// How a request has ended for its worker.
pub(crate) struct Ended {
    /// What it takes to answer it; `None` if it was answered in the worker's place.
    pub(crate) token: Option<ReplyToken>,
    /// Whether the handler was asked about it meanwhile.
    pub(crate) stalled: bool,
}

impl WorkerSlot {
    /// Returns the worker's state.
    pub(crate) fn state(&self) -> Arc<WorkerState> {
        Arc::clone(&self.state)
    }

    /// Makes the calling thread the worker's, with this number, which reads requests from `device` if they do not
    /// come over io_uring.
    pub(crate) fn attach_thread(&self, number: usize, device: Option<Arc<OwnedFd>>) {
        {
            let mut activity = self.state.0.lock();
            ioprio::settle();
            activity.thread = rustix::thread::gettid().as_raw_nonzero().get();
            activity.device = device;
        }
        if let Some(start) = self.workers.thread_start.get() {
            start(number);
        }
    }

    /// Marks the worker as busy with a request until [`WorkerSlot::end`].
    pub(crate) fn begin(&self, header: Header, note: Note, token: ReplyToken) {
        let latest = self.workers.tick.load(Ordering::Relaxed);
        {
            let mut activity = self.state.0.lock();
            // Who begins a pause looks at the states afterwards, so either it sees this request, or the request waits.
            while self.workers.pause.is_on() {
                drop(activity);
                self.workers.pause.wait();
                activity = self.state.0.lock();
            }
            activity.latest = latest;
            activity.begun += 1;
            let began = activity.sampler.begin();
            activity.current = Some(Current {
                header,
                note,
                began,
                token: Some(token),
                answered: false,
                asked: None,
                ended: false,
            });
        }
        // Either the watchdog sees the request before it sleeps, or this thread sees that it sleeps: they have locked
        // the state one after the other.
        if self.workers.asleep.load(Ordering::SeqCst) {
            self.workers.wake();
        }
    }

    /// Ends a request, before its answer with this errno, or 0, is sent; with `None` it is not answered yet. If the handler was
    /// asked about it, the worker stays busy until [`WorkerSlot::done`].
    pub(crate) fn end(&self, errno: Option<i32>) -> Ended {
        let mut activity = self.state.0.lock();
        let Activity { current: now, tally, .. } = &mut *activity;
        let Some(current) = &mut *now else { return Ended { token: None, stalled: false } };
        let (token, stalled) = (current.token.take(), current.asked.is_some());
        let opcode = current.header.opcode;
        if let Some(errno) = errno
            && !current.answered
        {
            tally.count(opcode, errno, stalled);
        }
        if let (Some(began), Some(_)) = (current.began, errno) {
            tally.time(opcode, u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        current.ended = true;
        if !stalled {
            *now = None;
        }
        Ended { token, stalled }
    }

    /// Marks the worker as idle.
    pub(crate) fn done(&self) {
        self.state.0.lock().current = None;
    }

    /// Returns whether a request of this size can be put aside.
    pub(super) fn can_hold(&self, size: usize) -> bool {
        self.workers.parked.has_room(size) && !self.workers.has_ended()
    }

    /// Decides about a request of this size that has to wait.
    pub(super) fn park(&self, header: &Header, wait: Option<Wait>, signal: Signal, size: usize) -> Park {
        // Another request's reply would say so, or one without a worker.
        let Some(wait) = wait else { return Park::Refuse(Errno::IO.raw_os_error()) };
        self.workers.parked.park(header, &wait, signal, self.can_hold(size))
    }

    /// Records that a request no longer waits for a cause.
    pub(super) fn unparked(&self, unique: u64) {
        self.workers.parked.unparked(unique);
    }

    /// Records that a signal has reached the client of a request.
    pub(super) fn interrupted(&self, unique: u64) {
        self.workers.parked.interrupted(unique);
    }

    /// Puts a request aside, which takes this much memory.
    pub(super) fn hold(&self, aside: Aside, held: HeldRequest, size: usize) {
        if matches!(held, HeldRequest::Entry(_)) {
            self.workers.groups[self.group].entries_held.fetch_add(1, Ordering::Relaxed);
        }
        self.workers.parked.push(aside, Waiting { group: self.group, held, size });
        // Either the watchdog sees the request before it sleeps, or this thread sees that it sleeps.
        if self.workers.asleep.load(Ordering::SeqCst) {
            self.workers.wake();
        }
    }

    /// Returns whether the worker is to leave. If so, it no longer counts as a member of its group.
    pub(crate) fn leave_if_surplus(&self) -> bool {
        let group = &self.workers.groups[self.group];
        if group.surplus.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut states = group.states.lock();
        #[allow(deprecated, reason = "Rust 1.88 lacks try_update, its new name")]
        let left = group.surplus.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if left.is_ok() {
            group.remove(&mut states, &self.state);
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
        let group = &self.workers.groups[self.group];
        group.remove(&mut group.states.lock(), &self.state);
    }
}

impl WorkerState {
    fn new() -> WorkerState {
        WorkerState(Mutex::new(Activity {
            thread: 0,
            device: None,
            latest: 0,
            begun: 0,
            low: false,
            tally: Tally::default(),
            sampler: Sampler::default(),
            current: None,
            lost: false,
        }))
    }

    /// Locks what the worker does. The worker cannot end its request meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, Activity> {
        self.0.lock()
    }

    /// Returns whether the worker's request was answered in its place, so that nobody waits for this worker.
    pub(super) fn is_given_up(&self) -> bool {
        self.0.lock().current.as_ref().is_some_and(|current| current.answered)
    }
}

impl Activity {
    /// Returns whether the worker has been in its request since tick `before` or earlier.
    fn is_stuck(&self, before: u64) -> bool {
        self.current.is_some() && self.latest <= before
    }

    /// Returns whether the worker never comes out of its request: its thread has met a fault.
    pub(super) fn is_faulty(&self) -> bool {
        fault::is_faulty(self.thread)
    }

    /// Returns the worker's thread if it is in a request, and takes others afterwards.
    fn serving_thread(&self) -> Option<i32> {
        (self.current.is_some() && !self.lost).then_some(self.thread)
    }

    /// Returns whether the handler is to be asked about the worker's request.
    pub(super) fn is_due(&self, before: u64, now: Instant) -> bool {
        let due = |current: &Current| !current.ended && current.asked.is_none_or(|asked| asked.next <= now);
        self.is_stuck(before) && self.current.as_ref().is_some_and(due)
    }

    /// Describes the worker's request to the handler. Its time counts from when it was first noticed: ticks may be shorter
    /// than they should, and no request may be answered before its deadline.
    pub(super) fn stalled(&mut self, now: Instant) -> Option<Stalled> {
        let thread = self.thread;
        let current = self.current.as_mut()?;
        let asked = current.asked.get_or_insert(Asked { first: now, next: now });
        let Header { unique, opcode, node, .. } = current.header;
        Some(Stalled {
            unique,
            opcode,
            node,
            note: current.note,
            thread,
            since: now.saturating_duration_since(asked.first),
            answered: current.answered,
        })
    }

    /// Sets when to ask about the worker's request again.
    pub(super) fn ask_again(&mut self, next: Instant) {
        if let Some(asked) = self.current.as_mut().and_then(|current| current.asked.as_mut()) {
            asked.next = next;
        }
    }

    /// What it takes to answer the worker's request.
    pub(super) fn token(&mut self) -> Option<&mut Option<ReplyToken>> {
        self.current.as_mut().map(|current| &mut current.token)
    }

    /// Records that the worker's request is answered in its place, with this errno or 0.
    pub(super) fn set_answered(&mut self, errno: i32) {
        if let Some(current) = &mut self.current {
            current.answered = true;
            self.tally.count(current.header.opcode, errno, true);
        }
    }
}

impl Workers {
    pub(crate) fn new(
        growth: WorkerGrowth,
        payload: usize,
        groups: usize,
        pause: Arc<Pause>,
    ) -> Arc<Workers> {
        let max_extra = growth.max_extra.min(MAX_EXTRA_MEMORY / payload.max(1));
        Arc::new(Workers {
            growth: WorkerGrowth { max_extra, ..growth },
            // 0 means that a worker has not had a request yet.
            tick: AtomicU64::new(1),
            asleep: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            retiring: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            failing: AtomicU8::new(Failing::No as u8),
            watchdog: OnceLock::new(),
            groups: std::iter::repeat_with(Group::default).take(groups).collect(),
            parked: Parked::default(),
            pause,
            thread_start: OnceLock::new(),
        })
    }

    /// Sets what each worker's thread calls first, before any is started.
    pub(crate) fn set_thread_start(&self, call: Box<ThreadStart>) {
        let _ = self.thread_start.set(call);
    }

    /// Adds a worker to a group.
    pub(crate) fn slot(self: &Arc<Workers>, group: usize) -> WorkerSlot {
        let state = Arc::new(WorkerState::new());
        self.groups[group].states.lock().push(Arc::clone(&state));
        WorkerSlot { workers: Arc::clone(self), group, state }
    }

    /// Requests without a worker.
    pub(super) fn parked(&self) -> &Parked {
        &self.parked
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

    /// Returns the number of groups.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the number of workers in a group.
    pub(super) fn count(&self, group: usize) -> usize {
        self.groups[group].states.lock().len()
    }

    /// Has all workers of queues leave, as they come to a request for which no process waits; or has their queues filled
    /// again.
    pub(super) fn set_retiring(&self, retiring: bool) {
        if !retiring && self.failing() != Failing::No {
            return;
        }
        let attempt = if retiring { self.attempts.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        self.retiring.store(attempt, Ordering::SeqCst);
        if let Some(watchdog) = self.watchdog.get() {
            watchdog.unpark();
        }
    }

    /// Has requests get an error, because the process ends.
    pub(super) fn set_failing(&self, failing: Failing) {
        self.failing.store(failing as u8, Ordering::SeqCst);
    }

    pub(super) fn failing(&self) -> Failing {
        match self.failing.load(Ordering::SeqCst) {
            0 => Failing::No,
            1 => Failing::OfFaulty,
            _ => Failing::OfAll,
        }
    }

    /// Returns the workers of a group.
    pub(super) fn states(&self, group: usize) -> Vec<Arc<WorkerState>> {
        self.groups[group].states.lock().clone()
    }

    pub(super) fn is_retiring(&self) -> bool {
        self.retiring.load(Ordering::SeqCst) != 0
    }

    /// Returns whether they have left, and this process has no request of a client.
    pub(super) fn have_retired(&self) -> bool {
        let retiring = self.retiring.load(Ordering::SeqCst);
        retiring != 0 && self.retired.load(Ordering::SeqCst) == retiring
    }

    /// Finds that out of the groups that serve a queue with requests. To be called by the one who starts workers.
    pub(super) fn find_retired(&self, serve: &[bool]) -> bool {
        let retiring = self.retiring.load(Ordering::SeqCst);
        // Threads that have lost their entries end with the process.
        let failing = self.failing() != Failing::No;
        let has_left = |state: &Arc<WorkerState>| failing && state.0.lock().lost;
        // A worker that leaves with a request puts it aside before it ceases to be one.
        let retired = retiring != 0
            && self
                .groups
                .iter()
                .zip(serve)
                .all(|(group, serves)| !serves || group.states.lock().iter().all(has_left))
            && self.parked.waiting() == 0;
        if retired {
            self.retired.store(retiring, Ordering::SeqCst);
        }
        retired
    }

    /// Returns whether a worker serves a request.
    pub(super) fn any_busy(&self) -> bool {
        let busy = |state: &Arc<WorkerState>| state.0.lock().current.is_some();
        self.groups.iter().any(|group| group.states.lock().iter().any(busy))
    }

    /// Samples the workers of a group.
    pub(super) fn sample(&self, group: usize, now: Instant) -> GroupSample {
        self.groups[group].sample(self.stuck_before(), now)
    }

    /// Returns the tick at which a request must have begun by now to count as stuck.
    pub(super) fn stuck_before(&self) -> u64 {
        self.now().saturating_sub(self.growth.stuck_ticks)
    }

    /// Dismisses all but `kept` workers of a group.
    pub(super) fn shrink(&self, group: usize, kept: usize) {
        self.groups[group].shrink(kept);
    }

    /// Returns how many entries of a group were put aside since the last call.
    pub(super) fn take_entries_held(&self, group: usize) -> usize {
        self.groups[group].entries_held.swap(0, Ordering::Relaxed)
    }

    /// Dismisses no more workers of a group.
    pub(super) fn keep_all(&self, group: usize) {
        self.groups[group].surplus.store(0, Ordering::Relaxed);
    }

    /// Returns what all workers have answered, and how they are.
    pub(super) fn served(&self) -> (Tally, GroupSample) {
        let (mut tally, mut sum) = (Tally::default(), GroupSample::default());
        let before = self.stuck_before();
        for group in &self.groups {
            let states = group.states.lock();
            tally.add(&group.departed.lock());
            for state in &*states {
                let activity = state.0.lock();
                tally.add(&activity.tally);
                sum.add(&activity, before);
            }
        }
        (tally, sum)
    }

    /// Returns whether a worker of a group waits for its processor, or runs.
    pub(super) fn any_runnable(&self, group: usize) -> bool {
        let states = self.groups[group].states.lock();
        states.iter().any(|state| sched::is_runnable(state.0.lock().thread))
    }

    /// Returns whether at least `count` workers of a group wait for something in their requests, other than a processor.
    pub(super) fn waits_in(&self, group: usize, count: usize) -> bool {
        let threads: Vec<i32> = {
            let states = self.groups[group].states.lock();
            states.iter().filter_map(|state| state.0.lock().serving_thread()).collect()
        };
        // To look costs most.
        threads.len() >= count
            && threads.into_iter().filter(|&thread| !sched::is_runnable(thread)).count() >= count
    }

    /// Sets the priority of the workers of a group, including those that have joined since the last call, and returns how
    /// many have the low one now.
    pub(super) fn set_low(&self, group: usize, low: bool) -> usize {
        let states = self.groups[group].states.lock();
        let set = |state: &&Arc<WorkerState>| {
            let mut activity = state.0.lock();
            // A state leaves the list before its thread ends.
            let settled = activity.thread == 0 || activity.low == low;
            if !settled && sched::set_idle_only(activity.thread, low).is_ok() {
                activity.low = low;
            }
            activity.low
        };
        states.iter().filter(set).count()
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
#[derive(Default)]
pub(super) struct GroupSample {
    /// How many take requests, now or when they have ended theirs.
    pub(super) alive: usize,
    /// How many of these are stuck.
    pub(super) stuck: usize,
    /// How many others are left, which have lost their entry.
    pub(super) lost: usize,
    /// How many of all are stuck in requests that were answered in their place.
    pub(super) given_up: usize,
    /// How many are in a request that has not been answered.
    pub(super) under_way: usize,
    pub(super) busy: bool,
    /// The last tick at which a request began.
    pub(super) latest: u64,
    /// How many requests the workers have begun that it has now.
    pub(super) begun: u64,
    /// Those whose requests the handler is to be asked about.
    pub(super) due: Vec<Arc<WorkerState>>,
}

impl GroupSample {
    /// Adds what a worker does. `before` is the tick before which a request of one that is stuck has begun.
    fn add(&mut self, activity: &Activity, before: u64) {
        if activity.lost {
            self.lost += 1
        } else {
            self.alive += 1;
            self.stuck += usize::from(activity.is_stuck(before));
        }
        let answered = activity.current.as_ref().is_some_and(|current| current.answered);
        self.given_up += usize::from(activity.lost || answered);
        self.under_way += usize::from(activity.current.is_some() && !answered);
        self.latest = self.latest.max(activity.latest);
        self.begun += activity.begun;
        self.busy |= activity.current.is_some();
    }
}

impl Group {
    fn sample(&self, before: u64, now: Instant) -> GroupSample {
        let mut sample = GroupSample::default();
        for state in &*self.states.lock() {
            let activity = state.0.lock();
            sample.add(&activity, before);
            if activity.is_due(before, now) {
                sample.due.push(Arc::clone(state));
            }
        }
        sample
    }

    /// Removes a worker's state, if it is still there, and keeps what it has counted.
    fn remove(&self, states: &mut Vec<Arc<WorkerState>>, state: &Arc<WorkerState>) {
        if let Some(at) = states.iter().position(|other| Arc::ptr_eq(other, state)) {
            self.departed.lock().add(&state.0.lock().tally);
            states.swap_remove(at);
        }
    }

    /// Dismisses all but `kept` workers.
    fn shrink(&self, kept: usize) {
        let states = self.states.lock();
        let alive = states.iter().filter(|state| !state.0.lock().lost).count();
        self.surplus.store(alive.saturating_sub(kept), Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::request::NodeId;

    /// Any request.
    pub(in crate::transport) const HEADER: Header =
        Header { unique: 7, opcode: 1, node: NodeId::ROOT, uid: 0, gid: 0, pid: 0, total_extlen: 0 };

    #[test]
    fn a_worker_is_stuck_after_several_ticks_in_one_request() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1, Arc::default());
        let (slot, _other) = (workers.slot(0), workers.slot(0));
        let begin = || slot.begin(HEADER, Note::default(), ReplyToken::Device);
        let sample = || {
            let sample = workers.sample(0, Instant::now());
            (sample.alive, sample.stuck, sample.busy)
        };
        assert_eq!(sample(), (2, 0, false));
        workers.set_now(10);
        for tick in 11..14 {
            // Three requests, one in each of three ticks.
            begin();
            assert_eq!(sample(), (2, 0, true));
            workers.set_now(tick);
            assert!(slot.end(Some(0)).token.is_some());
        }
        begin();
        workers.set_now(16);
        assert_eq!(sample(), (2, 1, true));
        slot.end(Some(0));
        assert_eq!(sample(), (2, 0, false));
        drop(slot);
        assert_eq!(sample(), (1, 0, false));
    }

    #[test]
    fn either_the_worker_or_the_watchdog_gets_the_claim() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1, Arc::default());
        let slot = workers.slot(0);
        slot.begin(HEADER, [1, 2, 3], ReplyToken::Device);
        workers.set_now(20);
        let now = Instant::now();
        let mut due = workers.sample(0, now).due;
        let state = due.pop().expect("a stuck worker");
        assert!(due.is_empty() && !state.is_given_up());
        let first = state.lock().stalled(now).unwrap();
        assert_eq!(
            (first.unique, first.note, first.since, first.answered),
            (7, [1, 2, 3], Duration::ZERO, false)
        );
        // The handler is asked again when it wants to be.
        let later = now + Duration::from_secs(2);
        state.lock().ask_again(later);
        assert!(workers.sample(0, now).due.is_empty());
        assert_eq!(workers.sample(0, later).due.len(), 1);
        assert!(matches!(state.lock().token().and_then(Option::take), Some(ReplyToken::Device)));
        state.lock().set_answered(110);
        assert!(state.is_given_up());
        let second = state.lock().stalled(later).unwrap();
        assert_eq!((second.since, second.answered), (Duration::from_secs(2), true));
        let ended = slot.end(Some(5));
        assert!(ended.token.is_none() && ended.stalled);
        // The worker is still busy: it takes its answer back.
        let sample = workers.sample(0, later);
        assert_eq!((sample.stuck, sample.due.len()), (1, 0));
        slot.done();
        assert_eq!(workers.sample(0, later).stuck, 0);
        // The next request is the worker's own again.
        slot.begin(HEADER, Note::default(), ReplyToken::Device);
        let ended = slot.end(Some(5));
        assert!(ended.token.is_some() && !ended.stalled);
    }

    #[test]
    fn what_workers_have_counted_stays_when_they_leave() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 2, Arc::default());
        let (first, second) = (workers.slot(0), workers.slot(1));
        for (slot, errno) in [(&first, 0), (&first, 2), (&second, 0)] {
            slot.begin(HEADER, Note::default(), ReplyToken::Device);
            assert_eq!(workers.served().1.under_way, 1);
            slot.end(Some(errno));
        }
        let counted = || {
            let (tally, sample) = workers.served();
            let [(opcode, kind)] = tally.kinds()[..] else { panic!("one kind") };
            assert_eq!((opcode, kind.failed, tally.errors()), (crate::Opcode::Lookup, 1, vec![(2, 1)]));
            // Each worker's first request.
            assert_eq!((kind.timed, kind.buckets.iter().sum::<u64>()), (2, 2));
            (kind.answered, sample.alive, sample.under_way)
        };
        assert_eq!(counted(), (3, 2, 0));
        workers.groups[0].surplus.store(1, Ordering::Relaxed);
        assert!(first.leave_if_surplus());
        assert_eq!(counted(), (3, 1, 0));
        drop((first, second));
        assert_eq!(counted(), (3, 0, 0));
    }

    #[test]
    fn an_answer_in_a_workers_place_counts_once() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1, Arc::default());
        let slot = workers.slot(0);
        slot.begin(HEADER, Note::default(), ReplyToken::Device);
        let state = slot.state();
        state.lock().set_answered(110);
        let failed = || {
            let (tally, sample) = workers.served();
            (tally.kinds()[0].1.answered, tally.errors(), sample.under_way)
        };
        assert_eq!(failed(), (1, vec![(110, 1)], 0));
        slot.end(Some(0));
        assert_eq!(failed(), (1, vec![(110, 1)], 0));
    }

    #[test]
    fn queues_have_retired_once_their_workers_have_left() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 3, Arc::default());
        let (_device, queue, _offline) = (workers.slot(0), workers.slot(1), workers.slot(2));
        let serve = [false, true, false];
        workers.set_retiring(true);
        assert!(!workers.find_retired(&serve) && !workers.have_retired());
        let null = std::fs::File::open("/dev/null").unwrap();
        let held = HeldRequest::Message(Arc::new(null.into()), Box::new([1]));
        queue.hold(Aside::Line(7), held, 1);
        drop(queue);
        assert!(!workers.find_retired(&serve), "a request is put aside");
        drop(workers.parked().take(Aside::Line(7)).unwrap());
        assert!(workers.find_retired(&serve) && workers.have_retired());
        workers.set_retiring(false);
        assert!(!workers.have_retired() && !workers.find_retired(&serve));
    }

    #[test]
    fn only_surplus_workers_leave() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1, Arc::default());
        let slot = workers.slot(0);
        assert!(!slot.leave_if_surplus());
        workers.groups[0].surplus.store(2, Ordering::Relaxed);
        assert_eq!([(); 4].map(|()| slot.leave_if_surplus()), [true, true, false, false]);
    }
}
