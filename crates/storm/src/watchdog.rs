//! An operation that does not end: after some minutes the pool's connection is aborted, so that it ends with an error.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use canopy_testkit::proc;

/// How long a step may take.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Default)]
struct State {
    step: AtomicUsize,
    /// When it began, in seconds since the start.
    began: AtomicU64,
    ended: AtomicBool,
    bit: AtomicBool,
}

pub(crate) struct Watchdog(Arc<State>, Instant);

impl Watchdog {
    pub(crate) fn start(pool: &Path) -> Self {
        let (state, start) = (Arc::new(State::default()), Instant::now());
        let (seen, pool) = (Arc::clone(&state), pool.to_owned());
        thread::spawn(move || {
            while !seen.ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(500));
                let began = Duration::from_secs(seen.began.load(Ordering::Relaxed));
                if start.elapsed().saturating_sub(began) > LIMIT {
                    seen.bit.store(true, Ordering::Relaxed);
                    if let Some(mount) = proc::mount_at(&pool) {
                        let _ = fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.minor), "1");
                    }
                    return;
                }
            }
        });
        Self(state, start)
    }

    pub(crate) fn pat(&self, step: usize) {
        self.0.step.store(step, Ordering::Relaxed);
        self.0.began.store(self.1.elapsed().as_secs(), Ordering::Relaxed);
    }

    pub(crate) fn said(&self) -> String {
        if !self.0.bit.load(Ordering::Relaxed) {
            return String::new();
        }
        format!(
            "\nstep {} had not ended after {LIMIT:?}, and the pool was aborted",
            self.0.step.load(Ordering::Relaxed)
        )
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}
