//! Directories in which a program works directly on a branch.
//!
//! The event for a name that the program makes takes a moment to arrive, longer on a busy machine. A program that
//! makes a name on a branch and then looks it up through the pool could get there first. So the kernel does not cache
//! for long that a name is missing in a directory where the next one is likely to appear. The first change of a
//! series is still seen by its event, which may arrive after the lookup.

use canopy_base::ids::NodeId;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Directories beyond this number share slots.
const SLOTS: usize = 1024;
/// How long a directory counts as busy after a change, in milliseconds.
const BUSY_FOR_MS: u32 = 1000;

pub(crate) struct BusyDirs(Box<[AtomicU32]>);

impl Default for BusyDirs {
    fn default() -> Self {
        BusyDirs((0..SLOTS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl BusyDirs {
    fn slot(&self, dir: NodeId) -> &AtomicU32 {
        &self.0[dir.0 as usize % SLOTS]
    }

    /// Records that a name in the directory was made or removed directly on a branch.
    pub(crate) fn record_change(&self, dir: NodeId) {
        self.slot(dir).store(now(), Relaxed);
    }

    /// Returns whether a program has recently worked in the directory.
    pub(crate) fn is_busy(&self, dir: NodeId) -> bool {
        let changed = self.slot(dir).load(Relaxed);
        changed != 0 && now().wrapping_sub(changed) < BUSY_FOR_MS
    }
}

/// Returns monotonic milliseconds, never 0.
fn now() -> u32 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (time.tv_sec as u32).wrapping_mul(1000).wrapping_add(time.tv_nsec as u32 / 1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stays_busy_for_a_while_after_a_change() {
        let busy = BusyDirs::default();
        let dir = NodeId(7);
        assert!(!busy.is_busy(dir));
        busy.record_change(dir);
        assert!(busy.is_busy(dir) && !busy.is_busy(NodeId(8)));
        busy.slot(dir).store(now().wrapping_sub(BUSY_FOR_MS), Relaxed);
        assert!(!busy.is_busy(dir));
    }
}
