//! Pools whose changes are watched, and a measure of what the machine makes everybody wait.

use canopy_testkit::{Kind, LoopFs, Pool, PoolBed, PoolBuilder};
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

/// What is promised of a change (docs/caching.md).
pub(super) const BOUND: Duration = Duration::from_millis(100);

/// Mounts a pool over two filesystems of this kind.
#[track_caller]
pub(super) fn two_disks(kind: Kind, options: &str) -> PoolBed {
    PoolBed::mount(builder(options), [LoopFs::new(kind, 512 << 20), LoopFs::new(kind, 512 << 20)])
}

pub(super) fn builder(options: &str) -> PoolBuilder {
    Pool::builder(BINARY).option("minfreespace=0,category.create=ff,cache.coherence=watch").option(options)
}

/// How a name looks: nothing, or type, mode, size and link count.
pub(super) fn look(path: &Path) -> String {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => format!("{:o}", meta.mode()),
        Ok(meta) => format!("{:o} {} bytes {} links", meta.mode(), meta.size(), meta.nlink()),
        Err(why) => why.kind().to_string(),
    }
}

/// A thread like any other, that waits and works in turn and notes by how much longer that took than it should: so late
/// may everybody be on this machine at that time, whatever he does.
pub(super) struct Witness {
    late: Arc<Mutex<VecDeque<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often a change has to wait for a processor on its way: its maker, the watcher, the notifier, the asker, and the
/// worker who answers.
const WAITS: u32 = 5;

impl Witness {
    pub(super) fn new() -> Witness {
        let (late, stop) = (Arc::<Mutex<VecDeque<_>>>::default(), Arc::<AtomicBool>::default());
        let (noted, stopped) = (Arc::clone(&late), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (sleep, work) = (Duration::from_millis(2), Duration::from_micros(300));
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(sleep);
                let worked = own_time();
                while own_time() - worked < work {}
                let over = begun.elapsed().saturating_sub(sleep + work);
                note(&noted, over);
            }
        });
        Witness { late, stop, thread: Some(thread) }
    }

    /// Does some work, and notes for how long its thread had no processor meanwhile. While somebody who looks a name up
    /// or changes one stands still, the kernel lets no notification about that directory past.
    pub(super) fn watched<T>(&self, work: impl FnOnce() -> T) -> T {
        let (begun, worked) = (Instant::now(), own_time());
        let result = work();
        let over = begun.elapsed().saturating_sub(own_time() - worked);
        if over > Duration::from_millis(1) {
            note(&self.late, over);
        }
        result
    }

    /// Is it the pool's fault that what was changed then still looked as before now? Not within what is promised,
    /// counted from the latest that all who take part were sure to run.
    pub(super) fn too_late(&self, changed: Instant, asked: Instant) -> bool {
        let past = asked.saturating_duration_since(changed);
        if past <= BOUND {
            return false;
        }
        // Who is being kept waiting at this moment notes it later.
        std::thread::sleep(Duration::from_millis(150));
        let late = self.late.lock().expect("a list");
        let meanwhile = late.iter().filter(|(at, _)| *at >= changed);
        let worst = meanwhile.map(|(_, over)| *over).max().unwrap_or_default();
        past > BOUND + worst * WAITS
    }

    pub(super) fn worst(&self) -> Duration {
        self.late.lock().expect("a list").iter().map(|(_, over)| *over).max().unwrap_or_default()
    }
}

fn note(late: &Mutex<VecDeque<(Instant, Duration)>>, over: Duration) {
    let mut late = late.lock().expect("a list");
    late.push_back((Instant::now(), over));
    if late.len() > 20_000 {
        late.pop_front();
    }
}

/// Time for which this thread has had a processor.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
