//! As many workers as it takes.
//!
//! A request that waits for a disk keeps its worker. With as many such requests as there are workers nobody would be served, so
//! a watchdog looks at the workers while requests flow, and when some have been in one request for more than a moment, it
//! starts as many others. No request changes threads, and it pays for this with two stores: "busy since tick N" when it
//! begins, and the same without "busy" when it has ended.
//!
//! Workers that serve the same requests form a line: io_uring has one for each processor's queue, `/dev/fuse` is one. Once a
//! line has had more workers than it needs for a while, some leave. Which ones does not matter. A worker leaves only with a
//! request in hand that nobody waits for, so that none is lost on its way to it: the watchdog has the kernel send such
//! requests, by asking it for no data of a file that it knows (`FUSE_NOTIFY_RETRIEVE`, answered by NOTIFY_REPLY).
//!
//! The same request makes the kernel look at what waits in a line: over io_uring a request that found no idle worker waits
//! for one that comes free, and not for one that joins.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use canopy_sys::sched;
use parking_lot::Mutex;

use super::{Handler, WorkerEnd, uring};
use crate::notify;

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
    fn ticks(&self, time: Duration) -> u64 {
        (time.as_nanos() / self.tick.as_nanos().max(1)) as u64
    }
}

/// After so long without a request the watchdog sleeps until the next one.
const QUIET: Duration = Duration::from_secs(1);
/// What all workers that come later may hold in messages.
const MEMORY: usize = 256 << 20;

/// The workers of a connection.
pub(crate) struct Crew {
    growth: Growth,
    /// Ticks since the beginning, but for those that were slept through.
    tick: AtomicU64,
    /// The watchdog wants to be woken by the next request.
    asleep: AtomicBool,
    ended: AtomicBool,
    watchdog: OnceLock<Thread>,
    lines: Vec<Line>,
}

/// Workers that can stand in for each other.
#[derive(Default)]
struct Line {
    /// One for each worker.
    slots: Mutex<Vec<Arc<Slot>>>,
    /// So many are to leave.
    surplus: AtomicUsize,
}

/// What a worker tells: the tick at which its last request began, times two, and one more while it is in it. On a line of its
/// own of the processor's cache, or two: they are fetched in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Slot(AtomicU64);

/// A worker's place.
pub(crate) struct Post {
    crew: Arc<Crew>,
    line: usize,
    slot: Arc<Slot>,
}

/// A worker is in a request.
pub(crate) struct Busy<'p> {
    slot: &'p Slot,
    since: u64,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.slot.0.store(self.since, Ordering::Release);
    }
}

impl Post {
    pub(crate) fn begin(&self) -> Busy<'_> {
        let since = self.crew.tick.load(Ordering::Relaxed) << 1;
        // Either the watchdog sees this before it falls asleep, or this thread sees it asleep.
        self.slot.0.store(since | 1, Ordering::SeqCst);
        if self.crew.asleep.load(Ordering::SeqCst) {
            self.crew.wake();
        }
        Busy { slot: &self.slot, since }
    }

    /// Whether the worker is to leave: true for as many as are too many, which do not count any more then.
    pub(crate) fn dismissed(&self) -> bool {
        let line = &self.crew.lines[self.line];
        if line.surplus.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut slots = line.slots.lock();
        let left = line.surplus.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if left.is_ok() {
            slots.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        }
        left.is_ok()
    }

    /// The connection has ended, so far as this worker can see.
    pub(crate) fn disconnected(&self) {
        self.crew.end();
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.crew.lines[self.line].slots.lock().retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

impl Crew {
    pub(crate) fn new(growth: Growth, payload: usize, lines: usize) -> Arc<Crew> {
        let most = growth.most.min(MEMORY / payload.max(1));
        Arc::new(Crew {
            growth: Growth { most, ..growth },
            // So that what begins in the first tick does not look like nothing.
            tick: AtomicU64::new(1),
            asleep: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            watchdog: OnceLock::new(),
            lines: std::iter::repeat_with(Line::default).take(lines).collect(),
        })
    }

    /// A place for one more worker.
    pub(crate) fn post(self: &Arc<Crew>, line: usize) -> Post {
        let slot = Arc::new(Slot::default());
        self.lines[line].slots.lock().push(Arc::clone(&slot));
        Post { crew: Arc::clone(self), line, slot }
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

/// Starts one more worker of a line, with this number.
pub(crate) type Recruit = Box<dyn FnMut(usize, Post) -> io::Result<Recruited> + Send>;

pub(crate) struct Recruited {
    pub(crate) thread: JoinHandle<WorkerEnd>,
    /// What waits in its line has to be pointed out to it.
    pub(crate) idle: bool,
}

/// A line as the watchdog knows it.
pub(crate) struct Recruiting {
    pub(crate) start: Recruit,
    /// The queue of io_uring that it serves.
    pub(crate) queue: Option<u16>,
    /// Whether its workers can leave.
    pub(crate) leaves: bool,
}

/// Looks after the workers.
pub(crate) struct Watchdog<H> {
    crew: Arc<Crew>,
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    lines: Vec<Watched>,
    started: Vec<JoinHandle<WorkerEnd>>,
    number: usize,
    /// Notifications sent.
    pokes: u64,
    /// It has been said that there are too few.
    scarce: bool,
}

struct Watched {
    recruiting: Recruiting,
    /// Workers that it began with.
    fixed: usize,
    /// The last tick at which all were needed.
    needed: u64,
    /// Workers that have joined, and were not shown what waits.
    unshown: usize,
}

/// What is seen of a line.
struct Seen {
    alive: usize,
    stuck: usize,
    busy: bool,
    /// The last tick at which a request began.
    latest: u64,
}

impl Line {
    fn look(&self, now: u64, patience: u64) -> Seen {
        let slots = self.slots.lock();
        let mut seen = Seen { alive: slots.len(), stuck: 0, busy: false, latest: 0 };
        for slot in &*slots {
            let state = slot.0.load(Ordering::SeqCst);
            let (since, busy) = (state >> 1, state & 1 == 1);
            seen.latest = seen.latest.max(since);
            seen.busy |= busy;
            seen.stuck += usize::from(busy && now.saturating_sub(since) >= patience);
        }
        seen
    }

    /// All but `kept` workers are to leave.
    fn dismiss(&self, kept: usize) {
        let slots = self.slots.lock();
        self.surplus.store(slots.len().saturating_sub(kept), Ordering::Relaxed);
    }
}

/// How many workers a line needs that began with `fixed`, and of which so many are stuck: as many others.
fn needed(fixed: usize, stuck: usize) -> usize {
    stuck + fixed.max(stuck)
}

impl<H: Handler> Watchdog<H> {
    /// Starts it, over all workers that there are now. `number` is that of the next one.
    pub(crate) fn start(
        crew: &Arc<Crew>,
        device: &Arc<OwnedFd>,
        handler: &Arc<H>,
        lines: Vec<Recruiting>,
        number: usize,
    ) -> io::Result<JoinHandle<Vec<JoinHandle<WorkerEnd>>>> {
        let watched = |(recruiting, line): (Recruiting, &Line)| Watched {
            recruiting,
            fixed: line.slots.lock().len(),
            needed: 0,
            unshown: 0,
        };
        let watchdog = Watchdog {
            crew: Arc::clone(crew),
            device: Arc::clone(device),
            handler: Arc::clone(handler),
            lines: lines.into_iter().zip(&crew.lines).map(watched).collect(),
            started: Vec::new(),
            number,
            pokes: 0,
            scarce: false,
        };
        let thread = thread::Builder::new().name("canopy-watchdog".into()).spawn(move || watchdog.run())?;
        let _ = crew.watchdog.set(thread.thread().clone());
        Ok(thread)
    }

    /// Gives back the workers that it has started, which end with the connection.
    fn run(mut self) -> Vec<JoinHandle<WorkerEnd>> {
        sched::anywhere();
        let crew = Arc::clone(&self.crew);
        while !crew.ended.load(Ordering::SeqCst) {
            let now = crew.tick.load(Ordering::Relaxed);
            let (flows, leaving) = self.look(now);
            if flows {
                thread::park_timeout(crew.growth.tick);
                crew.tick.store(now + 1, Ordering::Relaxed);
                continue;
            }
            crew.asleep.store(true, Ordering::SeqCst);
            // What began meanwhile may have found it awake.
            if !self.look(now).0 && !crew.ended.load(Ordering::SeqCst) {
                match leaving {
                    true => thread::park_timeout(QUIET),
                    false => thread::park(),
                }
            }
            crew.asleep.store(false, Ordering::SeqCst);
            // No request has waited in this time.
            crew.tick.store(now + crew.growth.ticks(QUIET), Ordering::Relaxed);
        }
        self.started
    }

    /// Sees to each line. Tells whether requests flow, and whether workers are to leave.
    fn look(&mut self, now: u64) -> (bool, bool) {
        let crew = Arc::clone(&self.crew);
        // There are fewer where the kernel has refused the queues.
        let lines = crew.lines.iter().take(self.lines.len());
        let seen: Vec<Seen> = lines.map(|line| line.look(now, crew.growth.stuck)).collect();
        let fixed: usize = self.lines.iter().map(|line| line.fixed).sum();
        let alive: usize = seen.iter().map(|seen| seen.alive).sum();
        let mut room = (fixed + crew.growth.most).saturating_sub(alive);
        for (index, seen) in seen.iter().enumerate() {
            self.tend(index, now, seen, &mut room);
        }
        self.started.retain(|thread| !thread.is_finished());
        if alive <= fixed {
            self.scarce = false;
        }
        let quiet = crew.growth.ticks(QUIET);
        let flows = seen.iter().any(|seen| seen.busy || now.saturating_sub(seen.latest) < quiet);
        let leaving = |(line, seen): (&Watched, &Seen)| line.recruiting.leaves && seen.alive > line.fixed;
        (flows, self.lines.iter().zip(&seen).any(leaving))
    }

    /// Adds workers to a line that needs more, `room` at most, and takes them away from one that has needed less for a while.
    fn tend(&mut self, index: usize, now: u64, seen: &Seen, room: &mut usize) {
        let crew = Arc::clone(&self.crew);
        let line = &mut self.lines[index];
        let needed = needed(line.fixed, seen.stuck);
        if seen.alive > needed {
            let over = seen.alive - needed;
            if line.recruiting.leaves && now.saturating_sub(line.needed) >= crew.growth.idle {
                crew.lines[index].dismiss(needed);
                // Those that are left will be asked again after some time.
                line.needed = now.saturating_sub(crew.growth.idle - crew.growth.idle.div_ceil(10));
                for _ in 0..over {
                    if !self.poke(index) {
                        break;
                    }
                }
            }
        } else {
            line.needed = now;
            crew.lines[index].surplus.store(0, Ordering::Relaxed);
            let missing = needed - seen.alive;
            if missing > *room {
                self.scarce(&format!("there are {} already", seen.alive));
            }
            for _ in 0..missing.min(*room) {
                self.number += 1;
                let post = crew.post(index);
                match (self.lines[index].recruiting.start)(self.number, post) {
                    Ok(Recruited { thread, idle }) => {
                        self.started.push(thread);
                        self.lines[index].unshown += usize::from(idle);
                        *room -= 1;
                    }
                    Err(why) => {
                        self.scarce(&why.to_string());
                        break;
                    }
                }
            }
        }
        // One request for each: what waits is then taken by all of them.
        while self.lines[index].unshown > 0 && self.poke(index) {
            self.lines[index].unshown -= 1;
        }
    }

    /// Has the kernel send a request to a line that nobody waits for. False if it does not.
    fn poke(&mut self, index: usize) -> bool {
        let queue = self.lines[index].recruiting.queue;
        if queue.is_some_and(|queue| !uring::pin(queue)) {
            return false;
        }
        let sent = self.handler.known_files().into_iter().any(|file| {
            self.pokes += 1;
            notify::retrieve_nothing(&self.device, file, self.pokes).is_ok()
        });
        if queue.is_some() {
            sched::anywhere();
        }
        sent
    }

    /// Says once that there are not as many workers as are needed.
    fn scarce(&mut self, why: &str) {
        if !std::mem::replace(&mut self.scarce, true) {
            tracing::warn!(
                "requests may have to wait for others that wait for a disk: no more workers, {why}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_others_as_are_stuck() {
        for (fixed, stuck, expected) in [(4, 0, 4), (4, 1, 5), (4, 4, 8), (4, 8, 16), (1, 0, 1), (1, 1, 2)] {
            assert_eq!(needed(fixed, stuck), expected, "{stuck} of {fixed}");
        }
    }

    #[test]
    fn a_worker_is_stuck_while_it_is_in_one_request() {
        let crew = Crew::new(Growth::default(), 1 << 20, 1);
        let (post, _other) = (crew.post(0), crew.post(0));
        let look = || {
            let seen = crew.lines[0].look(crew.tick.load(Ordering::Relaxed), 3);
            (seen.alive, seen.stuck, seen.busy)
        };
        assert_eq!(look(), (2, 0, false));
        for _ in 0..3 {
            // One after the other, over three ticks.
            let _busy = post.begin();
            assert_eq!(look(), (2, 0, true));
            crew.tick.fetch_add(1, Ordering::Relaxed);
        }
        let busy = post.begin();
        crew.tick.fetch_add(3, Ordering::Relaxed);
        assert_eq!(look(), (2, 1, true));
        drop(busy);
        assert_eq!(look(), (2, 0, false));
        drop(post);
        assert_eq!(look(), (1, 0, false));
    }

    #[test]
    fn as_many_are_dismissed_as_are_too_many() {
        let crew = Crew::new(Growth::default(), 1 << 20, 1);
        let post = crew.post(0);
        assert!(!post.dismissed());
        crew.lines[0].surplus.store(2, Ordering::Relaxed);
        assert_eq!([(); 4].map(|()| post.dismissed()), [true, true, false, false]);
    }

    #[test]
    fn large_messages_make_for_few_workers() {
        for (payload, most) in [(1 << 20, 256), (4 << 20, 64), (128 << 10, 256)] {
            assert_eq!(Crew::new(Growth::default(), payload, 1).growth.most, most);
        }
    }
}
