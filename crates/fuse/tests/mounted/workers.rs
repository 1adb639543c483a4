//! Workers that are started while others wait, and that leave again.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use canopy_fuse::request::{NodeId, Op};
use canopy_fuse::transport::{Growth, uring};
use canopy_fuse::{Handler, Limits, Replied, Reply, Request, SessionOptions};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::common::memory::{Memory, options};
use super::common::{Scratch, Served, can_mount};

const LONG: Duration = Duration::from_secs(60);
/// As many wait at once: more than there are workers, and more than twice that.
const WAITING: usize = 12;

/// The first file that is made.
const FILE: NodeId = NodeId(2);

/// Lookups of names that begin with "slow" wait.
struct Gated {
    memory: Memory,
    gate: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
    workers: AtomicUsize,
}

impl Handler for Gated {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        if let Op::Lookup { name } = request.op
            && name.as_bytes().starts_with(b"slow")
        {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let closed = |open: &mut bool| !*open;
            drop(self.opened.wait_while(self.gate.lock().unwrap(), closed).unwrap());
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        self.memory.handle(request, reply)
    }

    fn thread_start(&self, _worker: usize) {
        self.workers.fetch_add(1, Ordering::SeqCst);
    }

    fn known_files(&self) -> Vec<NodeId> {
        vec![FILE]
    }
}

impl Gated {
    fn open(&self, open: bool) {
        *self.gate.lock().unwrap() = open;
        self.opened.notify_all();
    }
}

fn served(point: &Path, growth: Growth) -> Served<Gated> {
    // Nothing is remembered, so that each question is a request.
    let gated = Gated {
        memory: Memory::new(Duration::ZERO),
        gate: Mutex::new(true),
        opened: Condvar::new(),
        waiting: AtomicUsize::new(0),
        workers: AtomicUsize::new(0),
    };
    let served = Served::start(point, &SessionOptions { growth, ..options() }, Limits::NONE, 4, |_| gated);
    fs::write(point.join("file"), "x").unwrap();
    for number in 0..WAITING {
        // In directories of their own, which the kernel locks over a lookup.
        fs::create_dir(point.join(format!("dir{number}"))).unwrap();
    }
    assert_eq!(fs::metadata(point.join("file")).unwrap().len(), 1);
    served
}

fn stay() {
    let mut set = CpuSet::new();
    set.set(usize::from(uring::online_cpus()[0]));
    sched_setaffinity(None, &set).unwrap();
}

/// Those who wait, all on one processor.
fn slow(point: &Path) -> Vec<JoinHandle<()>> {
    let one = |number| {
        let path = point.join(format!("dir{number}/slow"));
        thread::spawn(move || {
            stay();
            assert_eq!(fs::metadata(path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        })
    };
    (0..WAITING).map(one).collect()
}

#[track_caller]
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn all_come_through_while_many_wait() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), Growth::default());
    served.handler.open(false);
    let waiting = slow(scratch.path());
    wait_until("some wait without a worker", || served.handler.waiting.load(Ordering::SeqCst) == WAITING);
    let file = scratch.path().join("file");
    let stranger = thread::spawn(move || {
        stay();
        assert_eq!(fs::metadata(file).unwrap().len(), 1);
    });
    wait_until("a stranger waits too", || stranger.is_finished());
    served.handler.open(true);
    waiting.into_iter().chain([stranger]).for_each(|thread| thread.join().unwrap());
    served.stop();
}

/// No more than so many come, and all goes on when the first are done.
#[test]
fn there_is_a_bound() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), Growth { max_extra: 2, ..Growth::default() });
    let before = served.handler.workers.load(Ordering::SeqCst);
    served.handler.open(false);
    let waiting = slow(scratch.path());
    wait_until("no worker comes", || served.handler.workers.load(Ordering::SeqCst) == before + 2);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(served.handler.workers.load(Ordering::SeqCst), before + 2);
    served.handler.open(true);
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    served.stop();
}

/// Workers join and leave all the time, and nobody's request is lost, delayed for good or failed.
#[test]
fn workers_come_and_go_under_load() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let growth = Growth { tick: Duration::from_millis(1), stuck_ticks: 2, idle_ticks: 10, max_extra: 64 };
    let served = served(scratch.path(), growth);
    let before = served.handler.workers.load(Ordering::SeqCst);
    let (ended, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let strangers: Vec<_> = (0..3)
        .map(|number| {
            let (file, ended, asked) = (scratch.path().join("file"), Arc::clone(&ended), Arc::clone(&asked));
            thread::spawn(move || {
                if number > 0 {
                    stay();
                }
                while !ended.load(Ordering::SeqCst) {
                    assert_eq!(fs::metadata(&file).unwrap().len(), 1);
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for round in 0..60 {
        served.handler.open(false);
        let waiting = slow(scratch.path());
        let all = || served.handler.waiting.load(Ordering::SeqCst) == WAITING;
        wait_until(&format!("round {round}: some wait without a worker"), all);
        let now = asked.load(Ordering::SeqCst);
        wait_until("strangers wait too", || asked.load(Ordering::SeqCst) > now + 10);
        served.handler.open(true);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        thread::sleep(Duration::from_millis(30));
    }
    ended.store(true, Ordering::SeqCst);
    strangers.into_iter().for_each(|thread| thread.join().unwrap());
    // Had none left, those of the first round would have done.
    let came = served.handler.workers.load(Ordering::SeqCst) - before;
    assert!(came > 3 * 64, "{came} workers in 60 rounds: nobody leaves");
    served.stop();
}
