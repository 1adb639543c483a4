//! Directories in which somebody is at work directly on a branch.
//!
//! A notice of what he made takes a moment, longer on a busy machine. Who makes a name on a branch and looks for it
//! through the pool would find then that he was faster; so that a name is missing is not remembered where he may be
//! about to make it. The first of his changes is noticed all the same, only perhaps later than he looks.

use canopy_pool::NodeId;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Directories share a note when there are more.
const NOTES: usize = 1024;
/// For how long somebody is taken to go on, in milliseconds.
const AT_WORK: u32 = 1000;

pub(crate) struct BusyDirs(Box<[AtomicU32]>);

impl Default for BusyDirs {
    fn default() -> Self {
        BusyDirs((0..NOTES).map(|_| AtomicU32::new(0)).collect())
    }
}

impl BusyDirs {
    fn at(&self, dir: NodeId) -> &AtomicU32 {
        &self.0[dir.0 as usize % NOTES]
    }

    /// A name in it was made or removed, not through the pool.
    pub(crate) fn note(&self, dir: NodeId) {
        self.at(dir).store(now(), Relaxed);
    }

    /// Is somebody at work in it?
    pub(crate) fn is_busy(&self, dir: NodeId) -> bool {
        let noted = self.at(dir).load(Relaxed);
        noted != 0 && now().wrapping_sub(noted) < AT_WORK
    }
}

/// Milliseconds; never 0.
fn now() -> u32 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (time.tv_sec as u32).wrapping_mul(1000).wrapping_add(time.tv_nsec as u32 / 1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_at_work_is_taken_to_go_on_for_a_while() {
        let busy = BusyDirs::default();
        let dir = NodeId(7);
        assert!(!busy.is_busy(dir));
        busy.note(dir);
        assert!(busy.is_busy(dir) && !busy.is_busy(NodeId(8)));
        busy.at(dir).store(now().wrapping_sub(AT_WORK), Relaxed);
        assert!(!busy.is_busy(dir));
    }
}
