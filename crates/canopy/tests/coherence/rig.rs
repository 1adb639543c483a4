//! Pools whose branches are watched, and a measure of this machine's scheduling delays.

use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool, PoolBed, PoolBuilder, branch_disk};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// The promised delay until a change shows (docs/caching.md).
pub(super) const BOUND: Duration = Duration::from_millis(100);

/// Whether changes have to show within [`BOUND`]. A machine that does other things as well breaks that promise.
fn asserts_bound() -> bool {
    std::env::var_os("CANOPY_TEST_BOUND").is_some()
}

/// Mounts a pool over two filesystems of this kind.
#[track_caller]
pub(super) fn two_disks(kind: Kind, options: &str) -> PoolBed {
    PoolBed::mount(builder(options), disks(kind))
}

/// Two filesystems of this kind, unless `CANOPY_TEST_BRANCHES` names another.
#[track_caller]
fn disks(kind: Kind) -> [LoopFs; 2] {
    [0, 1].map(|number| branch_disk(number, kind, 512 << 20))
}

pub(super) fn builder(options: &str) -> PoolBuilder {
    Pool::builder(BINARY).option("minfreespace=0,category.create=ff,cache.coherence=watch").option(options)
}

/// Who opens directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opens {
    /// The kernel by itself, as far as it may keep listings.
    Kernel,
    /// The daemon, as on kernels before Linux 5.1.
    Daemon,
}

/// Mounts a pool over two filesystems, on a kernel that lets `opens` open directories.
#[track_caller]
pub(super) fn open_by(opens: Opens, kind: Kind, options: &str) -> PoolBed {
    let hidden = match opens {
        Opens::Kernel => "",
        Opens::Daemon => "mask:NO_OPENDIR_SUPPORT",
    };
    PoolBed::mount(builder(options).env("CANOPY_TEST_KERNEL", hidden), disks(kind))
}

/// Describes an entry: its type, mode, size and link count, or the error.
pub(super) fn look(path: &Path) -> String {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => format!("{:o}", meta.mode()),
        Ok(meta) => format!("{:o} {} bytes {} links", meta.mode(), meta.size(), meta.nlink()),
        Err(why) => why.kind().to_string(),
    }
}

/// Measures scheduling delays with a thread that alternates between sleeping and working and records how much longer
/// that took than it should. Any thread on this machine may be that late at that time.
pub(super) struct DelayMeter {
    delays: Arc<Mutex<VecDeque<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How many threads must be scheduled before a change shows: the one that makes it, the watcher, the notifier, the one
/// that looks it up, and the worker that answers.
const HOPS: u32 = 5;

impl DelayMeter {
    pub(super) fn new() -> DelayMeter {
        let (delays, stop) = (Arc::<Mutex<VecDeque<_>>>::default(), Arc::<AtomicBool>::default());
        let (recorded, stopped) = (Arc::clone(&delays), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (sleep, work) = (Duration::from_millis(2), Duration::from_micros(300));
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(sleep);
                let cpu_before = cpu_time();
                while cpu_time() - cpu_before < work {}
                let delay = begun.elapsed().saturating_sub(sleep + work);
                record(&recorded, delay);
            }
        });
        DelayMeter { delays, stop, thread: Some(thread) }
    }

    /// Runs `work` and records for how long its thread was not running meanwhile. While a thread that looks up or
    /// changes a name is stalled, the kernel blocks notifications about that directory.
    pub(super) fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let (begun, cpu_before) = (Instant::now(), cpu_time());
        let result = work();
        let delay = begun.elapsed().saturating_sub(cpu_time() - cpu_before);
        if delay > Duration::from_millis(1) {
            record(&self.delays, delay);
        }
        result
    }

    /// Returns whether a lookup at `asked` that misses a change made at `changed` is a fault, after allowing for scheduling
    /// delays in between. It is one after [`PATIENCE`], and after [`BOUND`] if `CANOPY_TEST_BOUND` asks for that.
    pub(super) fn exceeds_bound(&self, changed: Instant, asked: Instant) -> bool {
        let past = asked.saturating_duration_since(changed);
        if past <= BOUND || !asserts_bound() {
            return past > PATIENCE;
        }
        // A thread that is delayed at this moment records its delay later.
        std::thread::sleep(Duration::from_millis(150));
        let delays = self.delays.lock().expect("a list");
        let meanwhile = delays.iter().filter(|(at, _)| *at >= changed);
        let worst = meanwhile.map(|(_, delay)| *delay).max().unwrap_or_default();
        past > BOUND + worst * HOPS
    }

    pub(super) fn worst(&self) -> Duration {
        self.delays.lock().expect("a list").iter().map(|(_, delay)| *delay).max().unwrap_or_default()
    }
}

fn record(delays: &Mutex<VecDeque<(Instant, Duration)>>, delay: Duration) {
    let mut delays = delays.lock().expect("a list");
    delays.push_back((Instant::now(), delay));
    if delays.len() > 20_000 {
        delays.pop_front();
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

impl Drop for DelayMeter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
