//! Extra workers: they start while others wait, and leave again. Lines: requests that wait without a worker.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use canopy_fuse::request::{NodeId, Op};
use canopy_fuse::transport::{Expected, Landmarks, Limits, Transport, WorkerGrowth, uring};
use canopy_fuse::wait::Wait;
use canopy_fuse::{Handler, KernelLimits, Replied, Reply, Request, SessionOptions};

use super::common::memory::{Memory, options};
use super::common::{LONG, Scratch, Served, can_mount, stay_on, wait_until};

/// The number of requests that wait at once, more than twice the number of workers.
const WAITING: usize = 12;

/// Workers over `/dev/fuse` at the start.
const THREADS: usize = 4;

/// The line of lookups of names that begin with "slow".
const LINE: u64 = 7;

/// The first file that is created.
const FILE: NodeId = NodeId(2);

/// What they wait for that give back their workers.
const WAIT: Wait =
    Wait { cause: [7, 8, 9], longest: LONG, refusal: 11, interruptible: false, must_wait: false };

/// A handler whose lookups of names that begin with "slow" wait while the gate is closed.
struct Gated {
    memory: Memory,
    /// From this many waiting lookups on, further ones wait in line.
    crowded_from: AtomicUsize,
    /// How many have been in line.
    lined_up: AtomicUsize,
    gate: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
    workers: Arc<AtomicUsize>,
    /// The lookups give back their workers while the gate is closed.
    parks: AtomicBool,
    /// How often they have.
    parked: AtomicUsize,
}

impl Handler for Gated {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        if let Op::Lookup { name } = request.op
            && name.as_bytes().starts_with(b"slow")
        {
            if self.parks.load(Ordering::SeqCst) && !*self.gate.lock().unwrap() {
                self.parked.fetch_add(1, Ordering::SeqCst);
                return reply.later(WAIT);
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let closed = |open: &mut bool| !*open;
            drop(self.opened.wait_while(self.gate.lock().unwrap(), closed).unwrap());
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        self.memory.handle(request, reply)
    }

    fn expect(&self, request: &Request<'_>) -> Expected {
        let Op::Lookup { name } = request.op else { return Expected::default() };
        let crowded = self.waiting.load(Ordering::SeqCst) >= self.crowded_from.load(Ordering::SeqCst);
        let waits = crowded && name.as_bytes().starts_with(b"slow");
        self.lined_up.fetch_add(usize::from(waits), Ordering::SeqCst);
        Expected { line: waits.then_some(LINE), ..Expected::default() }
    }
}

impl Gated {
    fn open(&self, open: bool) {
        *self.gate.lock().unwrap() = open;
        self.opened.notify_all();
    }
}

fn served(point: &Path, growth: WorkerGrowth) -> Served<Gated> {
    // The kernel caches nothing, so that each system call is a request.
    let gated = Gated {
        memory: Memory::new(Duration::ZERO),
        crowded_from: AtomicUsize::new(usize::MAX),
        lined_up: AtomicUsize::new(0),
        gate: Mutex::new(true),
        opened: Condvar::new(),
        waiting: AtomicUsize::new(0),
        workers: Arc::default(),
        parks: AtomicBool::new(false),
        parked: AtomicUsize::new(0),
    };
    let options = SessionOptions { growth, ..options() };
    let served = Served::start(point, &options, KernelLimits::NONE, THREADS, |session| {
        let workers = Arc::clone(&gated.workers);
        session.set_landmarks(|| Landmarks { files: vec![FILE], ..Landmarks::default() });
        session.on_thread_start(move |_| _ = workers.fetch_add(1, Ordering::SeqCst));
        gated
    });
    fs::write(point.join("file"), "x").unwrap();
    for number in 0..WAITING {
        // Separate directories, because the kernel locks the directory during a lookup.
        fs::create_dir(point.join(format!("dir{number}"))).unwrap();
    }
    assert_eq!(fs::metadata(point.join("file")).unwrap().len(), 1);
    served
}

/// Starts threads whose lookups wait, all on one processor.
fn start_slow(point: &Path) -> Vec<JoinHandle<()>> {
    let one = |number| {
        let path = point.join(format!("dir{number}/slow"));
        thread::spawn(move || {
            stay_on(uring::online_cpus()[0]);
            assert_eq!(fs::metadata(path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        })
    };
    (0..WAITING).map(one).collect()
}

#[test]
fn other_requests_are_served_while_many_wait() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), WorkerGrowth::default());
    served.handler.open(false);
    let waiting = start_slow(scratch.path());
    wait_until("some slow requests have no worker", || {
        served.handler.waiting.load(Ordering::SeqCst) == WAITING
    });
    let file = scratch.path().join("file");
    let other = thread::spawn(move || {
        stay_on(uring::online_cpus()[0]);
        assert_eq!(fs::metadata(file).unwrap().len(), 1);
    });
    wait_until("another request waits too", || other.is_finished());
    served.handler.open(true);
    waiting.into_iter().chain([other]).for_each(|thread| thread.join().unwrap());
    served.stop();
}

/// All requests are served even though there are fewer workers than slow requests.
#[test]
fn the_number_of_extra_workers_is_limited() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), WorkerGrowth { max_extra: 2, ..WorkerGrowth::default() });
    // On a busy machine, the requests so far may have been slow enough for an extra worker.
    let fixed = match served.transport {
        Transport::Device(_) => THREADS,
        Transport::Uring { workers, .. } => 1 + workers,
    };
    served.handler.open(false);
    let waiting = start_slow(scratch.path());
    wait_until("no extra worker starts", || served.handler.workers.load(Ordering::SeqCst) == fixed + 2);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(served.handler.workers.load(Ordering::SeqCst), fixed + 2);
    served.handler.open(true);
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    served.stop();
}

/// It does not have to wait until they count as stuck.
#[test]
fn a_queue_gets_more_workers_once_requests_wait_in_all_of_them() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let growth = WorkerGrowth { stuck_ticks: u64::MAX, ..WorkerGrowth::default() };
    let served = served(scratch.path(), growth);
    served.handler.open(false);
    let waiting = start_slow(scratch.path());
    let expected = match served.transport {
        Transport::Device(_) => THREADS,
        Transport::Uring { .. } => growth.waiting_queue,
    };
    wait_until("no further workers start", || served.handler.waiting.load(Ordering::SeqCst) == expected);
    served.handler.open(true);
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    served.stop();
}

/// The request that wakes the watchdog is not as old as its sleep.
#[test]
fn a_request_after_a_pause_starts_no_worker() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let growth = WorkerGrowth { stuck_ticks: 60, waiting_queue: 0, ..WorkerGrowth::default() };
    let served = served(scratch.path(), growth);
    let workers = || served.handler.workers.load(Ordering::SeqCst);
    for _ in 0..3 {
        // Longer than the watchdog stays awake.
        thread::sleep(Duration::from_millis(1500));
        let before = workers();
        served.handler.open(false);
        let path = scratch.path().join("dir0/slow");
        let client = thread::spawn(move || fs::metadata(path).unwrap_err());
        wait_until("the request has no worker", || served.handler.waiting.load(Ordering::SeqCst) == 1);
        thread::sleep(Duration::from_millis(50));
        let after = workers();
        served.handler.open(true);
        client.join().unwrap();
        assert_eq!(after, before);
    }
    served.stop();
}

/// Requests in line take no worker, are all served in the end, and hold up nobody meanwhile, not even where no worker may
/// be added.
#[test]
fn requests_in_line_wait_without_a_worker() {
    if !can_mount() {
        return;
    }
    const AT_ONCE: usize = 3;
    let scratch = Scratch::new();
    let growth = WorkerGrowth { max_extra: AT_ONCE, ..WorkerGrowth::default() };
    let served = served(scratch.path(), growth);
    let handler = &served.handler;
    handler.crowded_from.store(AT_ONCE, Ordering::SeqCst);
    let limit = |number| {
        served.lines.limit(Limits { any: true, usual: 0, lines: [(LINE, number)].into() });
    };
    assert_eq!(served.lines.bound(), AT_ONCE);
    for round in 0..3 {
        handler.open(false);
        // None may follow those that wait at their workers.
        limit(0);
        let before = handler.lined_up.load(Ordering::SeqCst);
        let clients = start_slow(scratch.path());
        wait_until("some slow requests neither wait nor are in line", || {
            let lined_up = handler.lined_up.load(Ordering::SeqCst) - before;
            lined_up > 0 && lined_up + handler.waiting.load(Ordering::SeqCst) >= WAITING
        });
        let file = scratch.path().join("file");
        let other = thread::spawn(move || {
            stay_on(uring::online_cpus()[0]);
            assert_eq!(fs::metadata(file).unwrap().len(), 1);
        });
        wait_until("another request waits too", || other.is_finished());
        other.join().unwrap();
        assert!(clients.iter().all(|client| !client.is_finished()), "round {round}");
        assert!(served.lines.waiting(LINE) > 0 && served.lines.waiting(LINE + 1) == 0);
        handler.open(true);
        thread::sleep(Duration::from_millis(50));
        assert!(served.lines.waiting(LINE) > 0, "round {round}: they go on without leave");
        limit(AT_ONCE);
        wait_until("a request in line is not served", || clients.iter().all(JoinHandle::is_finished));
        clients.into_iter().for_each(|client| client.join().unwrap());
    }
    served.stop();
}

/// No request is lost, blocked or fails while workers join and leave.
#[test]
fn requests_are_served_while_workers_join_and_leave() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let growth = WorkerGrowth {
        tick: Duration::from_millis(1),
        stuck_ticks: 2,
        idle_ticks: 10,
        max_extra: 64,
        ..WorkerGrowth::default()
    };
    let served = served(scratch.path(), growth);
    let before = served.handler.workers.load(Ordering::SeqCst);
    let (ended, served_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let others: Vec<_> = (0..3)
        .map(|number| {
            let file = scratch.path().join("file");
            let (ended, served_count) = (Arc::clone(&ended), Arc::clone(&served_count));
            thread::spawn(move || {
                if number > 0 {
                    stay_on(uring::online_cpus()[0]);
                }
                while !ended.load(Ordering::SeqCst) {
                    assert_eq!(fs::metadata(&file).unwrap().len(), 1);
                    served_count.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for round in 0..60 {
        served.handler.open(false);
        let waiting = start_slow(scratch.path());
        let all = || served.handler.waiting.load(Ordering::SeqCst) == WAITING;
        wait_until(&format!("round {round}: some slow requests have no worker"), all);
        let now = served_count.load(Ordering::SeqCst);
        wait_until("other requests wait too", || served_count.load(Ordering::SeqCst) > now + 10);
        served.handler.open(true);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        thread::sleep(Duration::from_millis(30));
    }
    ended.store(true, Ordering::SeqCst);
    others.into_iter().for_each(|thread| thread.join().unwrap());
    // If no worker had left, those of the first round would have been enough.
    let started = served.handler.workers.load(Ordering::SeqCst) - before;
    assert!(started > 3 * 64, "{started} workers started in 60 rounds: none leaves");
    served.stop();
}

/// Requests that wait for a cause are handled once more until they get through, and need no worker meanwhile.
#[test]
fn requests_that_wait_for_a_cause_need_no_worker() {
    if !can_mount() {
        return;
    }
    let dir = Scratch::new();
    let served = served(dir.path(), WorkerGrowth::default());
    served.handler.parks.store(true, Ordering::SeqCst);
    served.handler.open(false);
    let slow = start_slow(dir.path());
    // Each has been put aside, one tries again and again, and others are served.
    let waiting = || served.requests.parked();
    wait_until("not all wait", || waiting().len() == WAITING);
    assert!(waiting().iter().all(|one| one.cause == WAIT.cause), "{:?}", waiting());
    wait_until("none tries", || served.handler.parked.load(Ordering::SeqCst) > WAITING + 5);
    for _ in 0..100 {
        assert_eq!(fs::metadata(dir.path().join("file")).unwrap().len(), 1);
    }
    assert_eq!((served.handler.waiting.load(Ordering::SeqCst), waiting().len()), (0, WAITING));
    served.handler.open(true);
    slow.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(waiting(), []);
    assert!(served.requests.read().parked > WAITING as u64);
    served.stop();
}
