//! The watchdog, which starts more workers while others are blocked, dismisses those that are no longer needed, and
//! answers in the place of a worker when the handler says so.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use canopy_sys::fuse::uring::Window;
use canopy_sys::thread::sched;
use rustix::io::Errno;

use super::admitted::{Admitted, FirstRequest};
use super::dev::send_error;
use super::parked::{Aside, Waiting};
use super::priority::{LowWorkers, Priorities};
use super::serve::Handler;
use super::stalled::{Stalled, Verdict};
use super::uring::online_cpus;
use super::wake_queue::{FindLandmarks, Landmarks, WakeCalls};
use super::worker_thread::{WorkerThread, WorkersEnd};
use super::workers::{
    Activity, Failing, GroupSample, ReplyToken, WorkerGrowth, WorkerSlot, WorkerState, Workers,
};
use crate::notify;

/// After this time without a request the watchdog sleeps until the next one.
const QUIET: Duration = Duration::from_secs(1);
/// The handler is asked about a request again after this time at the latest.
const LONG: Duration = Duration::from_secs(3600);
/// Once half of the extra workers have started, no more of a group start in a tick than this.
const LAST_STEP: usize = 4;
/// The most workers that a group has in reserve while workers leave with requests that are put aside.
const MOST_SPARE: usize = 32;
/// How often it looks whether the workers of queues have left that are to.
const LOOK: Duration = Duration::from_micros(200);
/// Starts another worker of a group, given its number. It takes the request, if there is one, or fails.
pub(crate) type Spawn =
    Box<dyn FnMut(usize, WorkerSlot, &mut Option<FirstRequest>) -> io::Result<Spawned> + Send>;
/// Takes an entry from a worker, for the next worker of the group that is started. That one answers with the errno first.
pub(crate) type Seize = Box<dyn FnMut(Window, i32) -> Result<(), (Window, io::Error)> + Send>;

/// A worker that was started.
pub(crate) struct Spawned {
    pub(crate) worker: WorkerThread,
    /// Whether the kernel passes it waiting requests only after it has sent another one to the group.
    pub(crate) needs_poke: bool,
}

/// How the watchdog starts and dismisses workers of a group.
pub(crate) struct GroupSpawner {
    pub(crate) spawn: Spawn,
    /// The io_uring queue that the group serves.
    pub(crate) queue: Option<u16>,
    /// For groups that serve a queue.
    pub(crate) seize: Option<Seize>,
    /// Whether its workers can leave.
    pub(crate) can_leave: bool,
}

/// The state of the watchdog thread.
pub(crate) struct Watchdog<H> {
    workers: Arc<Workers>,
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    landmarks: Box<FindLandmarks>,
    groups: Vec<WatchedGroup>,
    /// All threads of workers.
    threads: Vec<WorkerThread>,
    ends: WorkersEnd,
    /// The number of the last worker.
    number: usize,
    /// The number of the last notification.
    pokes: u64,
    wake_calls: WakeCalls,
    /// Requests that are to be handled once more and have no worker yet, each with the tick since when.
    due: Vec<(u64, u64)>,
    /// Whether it has warned that there are too few workers.
    scarce: bool,
    /// `None` if the workers keep the priority of the process.
    priorities: Option<Priorities>,
}

struct WatchedGroup {
    spawner: GroupSpawner,
    /// How many workers it started with.
    fixed: usize,
    /// The last tick at which all its workers were needed.
    needed: u64,
    /// The last tick at which requests waited in as many workers as it started with.
    waited: Option<u64>,
    /// About as many workers as have left with the entries of requests that were put aside, in one tick of the last ones.
    leaving: usize,
    /// How many new workers still need a poke.
    unpoked: usize,
    /// How many entries were taken from workers and do not have another yet.
    seized: usize,
}

impl WatchedGroup {
    /// Returns how many workers it has while none is stuck. Few workers that take one request after the other cost less
    /// than many that take turns, so a queue has more only while its requests wait for a disk.
    fn usual(&self, now: u64, growth: &WorkerGrowth) -> usize {
        let waits = self.waited.is_some_and(|tick| now.saturating_sub(tick) < growth.short_idle());
        if waits { self.fixed.max(growth.waiting_queue) } else { self.fixed }
    }

    /// Takes an entry from a worker.
    fn seize(&mut self, window: Window, errno: i32) -> Result<(), (Window, io::Error)> {
        let Some(seize) = &mut self.spawner.seize else {
            return Err((window, io::ErrorKind::Unsupported.into()));
        };
        seize(window, errno)?;
        self.seized += 1;
        Ok(())
    }
}

/// Returns whether there may be requests in a queue: its processor is online. The workers of others have nothing to lose, and
/// nothing that makes them leave.
fn is_online(queue: Option<u16>) -> bool {
    queue.is_some_and(|queue| online_cpus().contains(&queue))
}

/// Returns how many workers a group needs that started with `fixed` of them, when `stuck` are stuck: as many that are not
/// stuck, and at least `fixed`; only so many if there are too many threads.
fn needed(fixed: usize, stuck: usize, too_many: bool) -> usize {
    stuck + if too_many { fixed } else { fixed.max(stuck) }
}

/// What a watchdog looks after.
pub(crate) struct Watched<'w, H> {
    pub(crate) workers: &'w Arc<Workers>,
    pub(crate) device: &'w Arc<OwnedFd>,
    pub(crate) handler: &'w Arc<H>,
}

impl<H: Handler> Watchdog<H> {
    /// Starts the watchdog for all current workers, with their threads. It returns when all of them have ended, except for
    /// those that are stuck and whose requests were answered in their place.
    pub(crate) fn start(
        Watched { workers, device, handler }: Watched<'_, H>,
        spawners: Vec<GroupSpawner>,
        threads: Vec<WorkerThread>,
        landmarks: Box<FindLandmarks>,
        low: Option<LowWorkers>,
        adopted: Option<u64>,
    ) -> io::Result<JoinHandle<WorkersEnd>> {
        let watched = |(group, spawner): (usize, GroupSpawner)| WatchedGroup {
            fixed: workers.count(group),
            // Requests have waited since the process before has left its queues.
            unpoked: if adopted.is_some() && is_online(spawner.queue) { workers.count(group) } else { 0 },
            spawner,
            needed: 0,
            waited: None,
            leaving: 0,
            seized: 0,
        };
        let watchdog = Watchdog {
            workers: Arc::clone(workers),
            device: Arc::clone(device),
            handler: Arc::clone(handler),
            landmarks,
            groups: spawners.into_iter().enumerate().map(watched).collect(),
            number: threads.len(),
            threads,
            ends: WorkersEnd::default(),
            // The entries that a process has left hold notifications, by whose numbers the kernel finds them.
            pokes: adopted.unwrap_or(0) << 40,
            wake_calls: WakeCalls::default(),
            due: Vec::new(),
            scarce: false,
            priorities: low.and_then(|low| Priorities::new(workers.groups(), low)),
        };
        let thread = thread::Builder::new().name("canopy-watchdog".into()).spawn(move || watchdog.run())?;
        workers.set_watchdog(thread.thread().clone());
        Ok(thread)
    }

    fn run(mut self) -> WorkersEnd {
        sched::unpin();
        let workers = Arc::clone(&self.workers);
        while !workers.has_ended() {
            let now = workers.now();
            let (flows, unfinished) = self.adjust(now);
            if flows {
                if workers.is_retiring() {
                    self.await_retired();
                } else {
                    thread::park_timeout(workers.growth().tick);
                }
                workers.set_now(now + 1);
                continue;
            }
            workers.set_asleep(true);
            // A request that has started in the meantime may have seen the watchdog awake.
            if !self.adjust(now).0 && !workers.has_ended() {
                // Before the request that ends the sleep begins, or it would seem to be as old as the sleep.
                workers.set_now(now + workers.growth().ticks(QUIET));
                if unfinished { thread::park_timeout(QUIET) } else { thread::park() }
            }
            workers.set_asleep(false);
        }
        self.wind_down();
        self.ends
    }

    /// Waits until all workers have ended or are given up. The connection has ended.
    fn wind_down(&mut self) {
        // What is left to do is not to wait for others.
        for group in 0..self.groups.len() {
            self.workers.set_low(group, false);
        }
        loop {
            let now = Instant::now();
            for group in 0..self.groups.len() {
                for state in self.workers.sample(group, now).due {
                    self.ask(group, &state, now, false);
                }
            }
            WorkerThread::collect(&mut self.threads, &mut self.ends);
            self.workers.parked().clear();
            if self.threads.iter().all(WorkerThread::is_given_up) {
                return;
            }
            thread::sleep(self.workers.growth().tick);
            self.workers.set_now(self.workers.now() + 1);
        }
    }

    /// Asks the handler about the request of a worker that is stuck, and does what it says. Returns whether the worker has
    /// lost its entry, for which another one is to be started; not without `room` for one.
    fn ask(&mut self, group: usize, state: &WorkerState, now: Instant, room: bool) -> bool {
        let tick = self.workers.growth().tick;
        let mut activity = state.lock();
        // The worker may have begun another request by now.
        if !activity.is_due(self.workers.stuck_before(), now) {
            return false;
        }
        let Some(stalled) = activity.stalled(now) else { return false };
        let pause = match catch_unwind(AssertUnwindSafe(|| self.handler.stalled(&stalled))) {
            Ok(Verdict::Wait(pause)) => pause,
            Ok(Verdict::Answer(errno)) => {
                self.answer(group, &mut activity, &stalled, errno, room);
                tick
            }
            Err(_) => panicked(),
        };
        activity.ask_again(now + pause.min(LONG));
        activity.lost && !stalled.answered
    }

    /// Answers a request in the worker's place, if it has an answer and that has not happened yet.
    fn answer(&mut self, group: usize, activity: &mut Activity, stalled: &Stalled, errno: i32, room: bool) {
        if !self.take(group, activity, errno, room) {
            return;
        }
        // First, so that what the handler records is known to those who get the answer.
        let stalled = Stalled { answered: true, ..*stalled };
        if catch_unwind(AssertUnwindSafe(|| self.handler.stalled(&stalled))).is_err() {
            panicked();
        }
        if let Some(device) = &activity.device {
            // It fails if the request was aborted or the filesystem was unmounted.
            let _ = send_error(device, stalled.unique, errno);
        }
    }

    /// Takes from a worker what it takes to answer its request. Over io_uring the next worker of the group answers. Returns false
    /// if it has no answer, or that has happened already.
    fn take(&mut self, group: usize, activity: &mut Activity, errno: i32, room: bool) -> bool {
        let ended = self.workers.has_ended();
        let token = match activity.token() {
            Some(Some(ReplyToken::Entry(_))) if !room && !ended => return false,
            Some(token @ Some(ReplyToken::Device | ReplyToken::Entry(_))) => token,
            _ => return false,
        };
        match token.take() {
            Some(ReplyToken::Entry(window)) if !ended => match self.groups[group].seize(window, errno) {
                Ok(()) => activity.lost = true,
                Err((window, why)) => {
                    *token = Some(ReplyToken::Entry(window));
                    self.scarce(&why.to_string());
                    return false;
                }
            },
            _ => {}
        }
        activity.set_answered(errno);
        true
    }

    /// When a fault ends the process, answers the requests that are not to end any more.
    fn fail(&mut self, now: Instant) {
        let failing = self.workers.failing();
        if failing == Failing::No {
            return;
        }
        for group in 0..self.groups.len() {
            for state in self.workers.states(group) {
                let mut activity = state.lock();
                if !activity.lost && (failing == Failing::OfAll || activity.is_faulty()) {
                    // What has met a fault would do so in the next process, too. The handler is not asked: it may wait.
                    let _ = activity.stalled(now);
                    activity.ask_again(now + LONG);
                    self.take(group, &mut activity, Errno::IO.raw_os_error(), true);
                }
            }
        }
    }

    /// Looks for a tick whether no queue has a worker any more.
    fn await_retired(&self) {
        let until = Instant::now() + self.workers.growth().tick;
        // A worker that was taken its entry leaves a request which the next one answers.
        let settled = self.groups.iter().all(|group| group.seized == 0);
        let served: Vec<bool> = self.groups.iter().map(|group| is_online(group.spawner.queue)).collect();
        while Instant::now() < until && self.workers.is_retiring() {
            if settled && self.workers.find_retired(&served) {
                thread::park_timeout(self.workers.growth().tick);
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// Asks about requests that take long, and adjusts the number of workers of each group. Returns whether there were
    /// requests recently, and whether workers are to leave or children to end.
    fn adjust(&mut self, tick: u64) -> (bool, bool) {
        let (workers, now) = (Arc::clone(&self.workers), Instant::now());
        self.fail(now);
        let mut samples: Vec<GroupSample> =
            (0..self.groups.len()).map(|group| workers.sample(group, now)).collect();
        let fixed: usize = self.groups.iter().map(|group| group.fixed).sum();
        let threads: usize = samples.iter().map(|sample| sample.alive + sample.lost).sum();
        let given_up: usize = samples.iter().map(|sample| sample.given_up).sum();
        let limit = fixed + workers.growth().max_extra;
        let stuck: usize = samples.iter().map(|sample| sample.stuck).sum();
        let crowded = stuck > 0 && workers.parked().has_lines();
        let mut room = limit.saturating_sub(threads - given_up).min((2 * limit).saturating_sub(threads));
        let seized: usize = self.groups.iter().map(|group| group.seized).sum();
        let mut spare = (2 * limit).saturating_sub(threads + seized);
        let too_many = threads > limit;
        for (index, sample) in samples.iter_mut().enumerate() {
            for state in std::mem::take(&mut sample.due) {
                if self.ask(index, &state, now, spare > 0) {
                    spare -= 1;
                    (sample.alive, sample.stuck) = (sample.alive - 1, sample.stuck.saturating_sub(1));
                }
            }
            self.adjust_group(index, tick, sample, &mut room, too_many);
            if crowded {
                spare -= self.keep_some_free(index, sample, spare);
            }
        }
        if let Some(priorities) = &mut self.priorities {
            let queues = self.groups.iter().map(|group| group.spawner.queue);
            priorities.adjust(&workers, queues.zip(&samples), tick, now);
        }
        // Workers that are free receive other requests, but these only a new worker.
        // Nobody waits for a worker whose request was answered in its place, stuck as it is.
        let answered = given_up - samples.iter().map(|sample| sample.lost).sum::<usize>();
        let room = limit.saturating_sub(stuck.saturating_sub(answered));
        let waits = self.admit(room.min((2 * limit).saturating_sub(threads)));
        WorkerThread::collect(&mut self.threads, &mut self.ends);
        self.wake_calls.collect();
        if threads <= fixed {
            self.scarce = false;
        }
        let quiet = workers.growth().ticks(QUIET);
        let flows = workers.is_retiring()
            || waits
            || samples.iter().any(|sample| sample.busy || tick.saturating_sub(sample.latest) < quiet);
        let leaving = |(group, sample): (&WatchedGroup, &GroupSample)| {
            group.spawner.can_leave && sample.alive > group.fixed
        };
        (flows, !self.wake_calls.are_none() || self.groups.iter().zip(&samples).any(leaving))
    }

    /// If all workers of a group were stuck at once, before requests began to wait in line, starts others, at most `spare`:
    /// they get past the requests that are to wait in line. Returns how many.
    fn keep_some_free(&mut self, index: usize, sample: &GroupSample, spare: usize) -> usize {
        let alive = self.workers.count(index) - sample.lost;
        let missing = (sample.stuck + self.groups[index].fixed).saturating_sub(alive);
        let started = missing.min(LAST_STEP).min(spare);
        (0..started).take_while(|_| self.start_worker(index, &mut 0, &mut None)).count()
    }

    /// Starts workers for requests that were put aside and may go on, at most `room`. Returns whether there were any.
    fn admit(&mut self, mut room: usize) -> bool {
        let workers = Arc::clone(&self.workers);
        let parked = workers.parked();
        let occupied = parked.occupied();
        for &line in &occupied {
            while room > 0
                && parked.admits(line)
                && let Some(waiting) = parked.take(Aside::Line(line))
            {
                if !self.start_for(Aside::Line(line), waiting, &mut room) {
                    return true;
                }
            }
        }
        let any_parked = parked.any_parked();
        if any_parked {
            self.resume(room);
        }
        any_parked || !occupied.is_empty()
    }

    /// Starts workers for requests that have waited for a cause and are to be handled once more, at most `room`.
    fn resume(&mut self, mut room: usize) {
        let mut due = std::mem::take(&mut self.due);
        let most = room.saturating_sub(due.len());
        let (now, ticks) = (self.workers.now(), self.workers.growth().ticks(LONG));
        due.extend(self.workers.parked().resume(most).into_iter().map(|unique| (unique, now)));
        // One that is answered in its worker's place at this moment never comes.
        due.retain(|(_, since)| now.saturating_sub(*since) < ticks);
        for (unique, since) in due {
            let aside = Aside::Parked(unique);
            // Its worker may be about to put it aside.
            let waiting = if room > 0 { self.workers.parked().take(aside) } else { None };
            if waiting.is_none_or(|waiting| !self.start_for(aside, waiting, &mut room)) {
                self.due.push((unique, since));
            }
        }
    }

    /// Starts a worker for a request that was put aside. If that is not possible, puts it back and returns false.
    fn start_for(&mut self, aside: Aside, waiting: Waiting, room: &mut usize) -> bool {
        let (workers, Waiting { group, held, size }) = (Arc::clone(&self.workers), waiting);
        let mut first = Some(FirstRequest { held, admitted: Admitted::new(&workers, aside) });
        self.start_worker(group, room, &mut first);
        match first {
            Some(FirstRequest { held, .. }) => {
                workers.parked().put_back(aside, Waiting { group, held, size });
                false
            }
            None => true,
        }
    }

    /// Adds workers to a group that needs more, at most `room`, and dismisses workers of a group that has needed fewer for
    /// a while. With `too_many` threads in all groups that is a short while: idle workers take the place of others, which are
    /// to answer for those that are stuck, or to serve what is in line.
    fn adjust_group(
        &mut self,
        index: usize,
        now: u64,
        sample: &GroupSample,
        room: &mut usize,
        too_many: bool,
    ) {
        let workers = Arc::clone(&self.workers);
        // Their requests are answered by the workers that take over.
        while self.groups[index].seized > 0 && self.start_worker(index, room, &mut None) {
            self.groups[index].seized -= 1;
        }
        let group = &mut self.groups[index];
        if sample.busy && group.spawner.queue.is_some() && workers.waits_in(index, group.fixed) {
            group.waited = Some(now);
        }
        // When all that come are put aside, each tick has twice as many workers as the one before, so that others get through.
        group.leaving = workers.take_entries_held(index).max(group.leaving - group.leaving.div_ceil(8));
        let usual = group.usual(now, workers.growth()).max((2 * group.leaving).min(MOST_SPARE));
        let retires = workers.is_retiring() && is_online(group.spawner.queue);
        let needed = if retires { 0 } else { needed(usual, sample.stuck, too_many) };
        if sample.alive > needed {
            let over = sample.alive - needed;
            let idle_ticks = workers.growth().idle_ticks;
            let patience = if too_many { workers.growth().short_idle() } else { idle_ticks };
            if group.spawner.can_leave && (retires || now.saturating_sub(group.needed) >= patience) {
                workers.shrink(index, needed);
                // Workers that have not left are dismissed again after some time.
                group.needed = now.saturating_sub(patience - patience.div_ceil(10));
                let sent = (0..over).take_while(|_| self.poke(index, false)).count();
                if sent == 0
                    && let Some(file) = (self.landmarks)().file
                {
                    // The kernel knows it when they are dismissed again.
                    self.wake_calls.send(&file);
                }
            }
        } else {
            group.needed = now;
            workers.keep_all(index);
            let missing = needed - sample.alive;
            if !retires && sample.alive + *room < sample.stuck + self.groups[index].fixed {
                self.scarce(&format!("there are {} already", sample.alive));
            }
            // The handler may be about to find that requests had better wait in line.
            let step = if *room <= workers.growth().max_extra / 2 { LAST_STEP } else { usize::MAX };
            for _ in 0..missing.min(*room).min(step) {
                if !self.start_worker(index, room, &mut None) {
                    break;
                }
            }
        }
        if retires {
            self.groups[index].unpoked = 0;
        }
        // One request for each new worker, so that all of them take waiting requests.
        while self.groups[index].unpoked > 0 && self.poke(index, true) {
            self.groups[index].unpoked -= 1;
        }
    }

    /// Starts a worker, which takes `first`, and returns whether that was possible.
    fn start_worker(&mut self, index: usize, room: &mut usize, first: &mut Option<FirstRequest>) -> bool {
        self.number += 1;
        let slot = self.workers.slot(index);
        match (self.groups[index].spawner.spawn)(self.number, slot, first) {
            Ok(Spawned { worker, needs_poke }) => {
                self.threads.push(worker);
                self.groups[index].unpoked += usize::from(needs_poke);
                *room = room.saturating_sub(1);
                true
            }
            Err(why) => {
                self.scarce(&why.to_string());
                false
            }
        }
    }

    /// Makes the kernel send a request to a group for which no process waits; or, if `any` will do, one for which a child
    /// process waits. Returns false if it does not.
    fn poke(&mut self, index: usize, any: bool) -> bool {
        let queue = self.groups[index].spawner.queue;
        if let Some(queue) = queue
            && let Err(error) = sched::pin_to(usize::from(queue))
        {
            tracing::debug!(%error, cpu = queue, "cannot run on the processor of this queue");
            return false;
        }
        let Landmarks { files, root, .. } = (self.landmarks)();
        let sent = files.into_iter().any(|file| {
            self.pokes += 1;
            notify::retrieve_nothing(&self.device, file, self.pokes).is_ok()
        });
        let sent = sent || any && root.is_some_and(|root| self.wake_calls.send(&root));
        if queue.is_some() {
            sched::unpin();
        }
        sent
    }

    /// Warns once that there are fewer workers than needed.
    fn scarce(&mut self, why: &str) {
        if !std::mem::replace(&mut self.scarce, true) {
            tracing::warn!(
                "requests may have to wait for others that wait for a disk: cannot start more workers: {why}"
            );
        }
    }
}

fn panicked() -> Duration {
    tracing::error!("the handler panicked over a request that takes long");
    LONG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_needs_as_many_free_workers_as_stuck_ones() {
        for (fixed, stuck, expected) in [(4, 0, 4), (4, 1, 5), (4, 4, 8), (4, 8, 16), (1, 0, 1), (1, 1, 2)] {
            assert_eq!(needed(fixed, stuck, false), expected, "{stuck} of {fixed}");
            assert_eq!(needed(fixed, stuck, true), stuck + fixed);
        }
    }
}
