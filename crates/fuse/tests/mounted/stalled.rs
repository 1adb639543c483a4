//! Requests that take too long, and are answered in the place of the worker that is stuck in them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use canopy_fuse::flags::OpenFlags;
use canopy_fuse::request::{NodeId, Op};
use canopy_fuse::transport::{Expected, Landmarks, Stalled, Verdict, WorkerGrowth, uring};
use canopy_fuse::{Handler, KernelLimits, Opcode, Replied, Reply, Request, SessionOptions, Undelivered};

use super::common::memory::{Memory, options};
use super::common::{LONG, Scratch, Served, can_mount, stay_on, wait_until};

const TIMEDOUT: i32 = 110;
/// The number of requests that are stuck at once, more than there are workers.
const STUCK: usize = 12;
const BLOCK: usize = 128 << 10;
/// What a read that comes back late writes to its buffer.
const LATE: u8 = 0xEE;
const FILE: &str = "file";
const HANDLE: u64 = 7;

/// A handler that is stuck in some requests while the gate is closed, and gives them up after `patience`.
struct Stuck {
    memory: Memory,
    patience: Duration,
    /// After the first request that was given up, others fail at once.
    refuses: bool,
    gate: Mutex<bool>,
    opened: Condvar,
    inside: AtomicUsize,
    given_up: AtomicUsize,
    /// How many came back in time and late, after they were reported.
    resumed: [AtomicUsize; 2],
    seen: Mutex<Vec<Stalled>>,
}

/// The byte at an offset of the file.
fn byte(offset: u64) -> u8 {
    (offset % 251) as u8
}

/// Reads from here on are stuck.
const SLOW: u64 = 1 << 40;

fn may_get_stuck(request: &Request<'_>) -> bool {
    match request.op {
        Op::Read(io) => io.offset >= SLOW,
        Op::Lookup { name } => name.as_bytes().starts_with(b"slow"),
        _ => false,
    }
}

impl Stuck {
    fn wait(&self) {
        self.inside.fetch_add(1, Ordering::SeqCst);
        drop(self.opened.wait_while(self.gate.lock().unwrap(), |open| !*open).unwrap());
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn open(&self, open: bool) {
        *self.gate.lock().unwrap() = open;
        self.opened.notify_all();
    }

    fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    /// How many requests came back late.
    fn late(&self) -> usize {
        self.resumed[1].load(Ordering::SeqCst)
    }
}

impl Handler for Stuck {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        match request.op {
            Op::Open { .. } => return reply.opened(HANDLE, OpenFlags::DIRECT_IO, None),
            Op::Read(io) => {
                return reply.data(io.size as usize, |buffer| {
                    if io.offset < SLOW {
                        for (at, to) in buffer.iter_mut().enumerate() {
                            *to = byte(io.offset + at as u64);
                        }
                        return Ok(buffer.len());
                    }
                    if self.refuses && self.given_up.load(Ordering::SeqCst) > 0 {
                        return Err(TIMEDOUT);
                    }
                    self.wait();
                    // Later than others have got the entry.
                    for _ in 0..50 {
                        buffer.fill(LATE);
                        std::hint::black_box(&buffer);
                        thread::sleep(Duration::from_millis(1));
                    }
                    Ok(buffer.len())
                });
            }
            Op::Lookup { name } if name.as_bytes().starts_with(b"slow") => self.wait(),
            _ => {}
        }
        self.memory.handle(request, reply)
    }

    fn undelivered(&self, what: Undelivered) {
        self.memory.undelivered(what);
    }

    fn expect(&self, request: &Request<'_>) -> Expected {
        let note = [request.header.unique, !request.header.unique, u64::from(may_get_stuck(request))];
        Expected { note, line: None }
    }

    fn stalled(&self, request: &Stalled) -> Verdict {
        assert_eq!(request.note[..2], [request.unique, !request.unique]);
        assert!(Path::new(&format!("/proc/self/task/{}", request.thread)).exists());
        if request.note[2] == 0 {
            // On a busy machine, any request may take long.
            return Verdict::Wait(LONG);
        }
        let mut seen = self.seen.lock().unwrap();
        let known = |seen: &Stalled| seen.unique == request.unique && seen.answered;
        if request.answered && !seen.iter().any(known) {
            self.given_up.fetch_add(1, Ordering::SeqCst);
        }
        seen.push(*request);
        drop(seen);
        if request.since < self.patience {
            return Verdict::Wait(self.patience - request.since);
        }
        Verdict::Answer(TIMEDOUT)
    }

    fn resumed(&self, request: &Request<'_>, late: bool) {
        if may_get_stuck(request) {
            assert!(self.seen.lock().unwrap().iter().any(|seen| seen.unique == request.header.unique));
            self.resumed[usize::from(late)].fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn served(point: &Path, patience: Duration) -> Served<Stuck> {
    let growth = WorkerGrowth { idle_ticks: 20, ..WorkerGrowth::default() };
    served_with(point, patience, growth, false)
}

fn served_with(point: &Path, patience: Duration, growth: WorkerGrowth, refuses: bool) -> Served<Stuck> {
    let stuck = Stuck {
        memory: Memory::new(Duration::ZERO),
        patience,
        refuses,
        gate: Mutex::new(true),
        opened: Condvar::new(),
        inside: AtomicUsize::new(0),
        given_up: AtomicUsize::new(0),
        resumed: Default::default(),
        seen: Mutex::default(),
    };
    let served =
        Served::start(point, &SessionOptions { growth, ..options() }, KernelLimits::NONE, 4, |session| {
            session.set_landmarks(|| Landmarks { files: vec![NodeId(2)], ..Landmarks::default() });
            stuck
        });
    fs::write(point.join(FILE), "x").unwrap();
    for number in 0..STUCK {
        fs::create_dir(point.join(format!("dir{number}"))).unwrap();
    }
    served
}

fn read(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; BLOCK];
    let len = file.read_at(&mut bytes, offset)?;
    bytes.truncate(len);
    Ok(bytes)
}

#[track_caller]
fn assert_timed_out<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.as_ref().err().and_then(io::Error::raw_os_error), Some(TIMEDOUT), "{result:?}");
}

fn open(point: &Path) -> File {
    File::options().read(true).custom_flags(libc_direct()).open(point.join(FILE)).unwrap()
}

/// `O_DIRECT`, so that a read of the client is a request of its own.
fn libc_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

/// Starts reads that get stuck, and waits until all of them have failed.
fn time_out_reads(point: &Path, served: &Served<Stuck>) {
    served.handler.open(false);
    let waiting: Vec<_> = (0..STUCK as u64)
        .map(|number| {
            let file = open(point);
            thread::spawn(move || {
                stay_on(uring::online_cpus()[0]);
                read(&file, SLOW + number * BLOCK as u64)
            })
        })
        .collect();
    for thread in waiting {
        assert_timed_out(thread.join().unwrap());
    }
}

/// Other requests use the entry of a read that timed out, and find nothing there of what the read does late.
#[test]
fn a_read_that_comes_back_late_finds_its_own_buffer() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), Duration::from_millis(200));
    time_out_reads(scratch.path(), &served);
    let handler = &served.handler;
    assert_eq!((handler.inside(), handler.given_up.load(Ordering::SeqCst)), (STUCK, STUCK));
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..2 * STUCK as u64 {
            let (file, stop, count) = (open(scratch.path()), &stop, &count);
            scope.spawn(move || {
                stay_on(uring::online_cpus()[0]);
                for round in 0.. {
                    let offset = (number * 1000 + round) * BLOCK as u64;
                    let bytes = read(&file, offset).unwrap();
                    assert_eq!(bytes.len(), BLOCK);
                    let wrong = bytes.iter().zip(offset..).position(|(&is, at)| is != byte(at));
                    assert_eq!(wrong, None, "round {round} of {number}");
                    count.fetch_add(1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        wait_until("reads do not go on", || count.load(Ordering::Relaxed) > 100);
        handler.open(true);
        wait_until("some reads do not come back", || handler.late() == STUCK);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(handler.inside(), 0);
    assert!(handler.memory.undelivered.lock().is_empty());
    served.stop();
}

/// What a lookup or a creation has done late is reported, so that it can be taken back.
#[test]
fn references_of_late_answers_are_undelivered() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), Duration::from_millis(100));
    served.handler.open(false);
    let waiting: Vec<_> = (0..STUCK)
        .map(|number| {
            let path = scratch.path().join(format!("dir{number}/slow"));
            thread::spawn(move || {
                stay_on(uring::online_cpus()[0]);
                assert_timed_out(fs::create_dir(path));
            })
        })
        .collect();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    // Each has timed out in the LOOKUP that precedes MKDIR.
    assert_eq!(served.handler.given_up.load(Ordering::SeqCst), STUCK);
    served.handler.open(true);
    wait_until("some lookups do not come back", || served.handler.late() == STUCK);
    // The names do not exist, so there is nothing to take back.
    assert!(served.handler.memory.undelivered.lock().is_empty());
    for number in 0..STUCK {
        fs::create_dir(scratch.path().join(format!("dir{number}/slow"))).unwrap();
    }
    served.handler.open(false);
    assert_timed_out(fs::metadata(scratch.path().join("dir0/slow")));
    served.handler.open(true);
    // The kernel revalidates the name, and looks it up again after an error.
    let given_up = served.handler.given_up.load(Ordering::SeqCst);
    wait_until("the lookup does not come back", || served.handler.late() == given_up);
    let undelivered = served.handler.memory.undelivered.lock().clone();
    assert_eq!(undelivered.len(), given_up - STUCK);
    assert!(matches!(undelivered[..], [Undelivered::Entry { .. }, ..]), "{undelivered:?}");
    assert!(fs::metadata(scratch.path().join("dir0/slow")).unwrap().is_dir());
    served.stop();
}

/// A request that is asked about, but is done in time, is the worker's own.
#[test]
fn requests_within_their_patience_succeed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), LONG);
    served.handler.open(false);
    let file = open(scratch.path());
    let waiting = thread::spawn(move || read(&file, SLOW));
    let seen = || served.handler.seen.lock().unwrap().first().copied();
    wait_until("the handler is not asked", || seen().is_some());
    let seen = seen().unwrap();
    assert!(seen.opcode == Opcode::Read as u32 && seen.since < LONG && !seen.answered, "{seen:?}");
    served.handler.open(true);
    assert!(waiting.join().unwrap().unwrap() == [LATE; BLOCK]);
    wait_until("the handler does not learn of the end", || {
        served.handler.resumed[0].load(Ordering::SeqCst) == 1
    });
    assert_eq!((served.handler.late(), served.handler.given_up.load(Ordering::SeqCst)), (0, 0));
    served.stop();
}

/// The connection ends although workers are stuck: their requests were answered.
#[test]
fn stuck_workers_do_not_hold_up_the_end() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), Duration::from_millis(100));
    time_out_reads(scratch.path(), &served);
    let handler = Arc::clone(&served.handler);
    served.stop();
    assert_eq!(handler.inside(), STUCK);
    handler.open(true);
    wait_until("threads remain", || Arc::strong_count(&handler) == 1);
}

/// Neither threads nor workers' memory remain.
#[test]
fn many_rounds_of_stuck_requests_leave_nothing() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let served = served(scratch.path(), Duration::from_millis(40));
    let handler = Arc::clone(&served.handler);
    // Each worker has the handler.
    let before = Arc::strong_count(&handler);
    for round in 1..=25 {
        time_out_reads(scratch.path(), &served);
        handler.open(true);
        wait_until("some reads do not come back", || handler.late() == round * STUCK);
    }
    let other = open(scratch.path());
    wait_until("workers remain", || {
        // Workers leave only while there are requests.
        assert_eq!(read(&other, 0).unwrap().len(), BLOCK);
        Arc::strong_count(&handler) <= before
    });
    assert_eq!(handler.inside(), 0);
    drop(other);
    served.stop();
}

/// Even if all workers that there may be are stuck, their requests are answered, and others are served afterwards.
#[test]
fn requests_are_given_up_when_no_more_workers_may_start() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let growth = WorkerGrowth { max_extra: 2, ..WorkerGrowth::default() };
    let served = served_with(scratch.path(), Duration::from_millis(300), growth, true);
    time_out_reads(scratch.path(), &served);
    let handler = &served.handler;
    let given_up = handler.given_up.load(Ordering::SeqCst);
    assert!((1..STUCK).contains(&given_up), "{given_up}");
    assert_eq!(handler.inside(), given_up);
    let file = open(scratch.path());
    let other = thread::spawn(move || {
        stay_on(uring::online_cpus()[0]);
        assert_eq!(read(&file, 0).unwrap().len(), BLOCK);
    });
    wait_until("another request waits", || other.is_finished());
    other.join().unwrap();
    handler.open(true);
    wait_until("some reads do not come back", || handler.late() == given_up);
    served.stop();
}
