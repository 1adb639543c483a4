//! Shared helpers: the paths of the suites' programs, a pool over two disks, and a lock that serializes the suites.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use canopy_testkit::cmd::tool as program;
use canopy_testkit::{Branches, Kind, LoopFs, Pool, PoolBed};

/// Larger than the default `minfreespace` of 4 GB, so that a pool with default options creates on it. Sparse.
const DISK: u64 = 8 << 30;

/// Options of a pool whose daemon serves all data.
pub(super) const NO_PASSTHROUGH: &str = "passthrough.io=off";

/// A pool over two ext4 disks, or over what `CANOPY_TEST_BRANCHES` names: four, if that is a mixture.
#[derive(Debug)]
pub(super) struct Rig {
    // The fields drop in this order: the pool before its branches.
    pub(super) pool: Pool,
    _disks: Vec<LoopFs>,
}

impl Rig {
    #[track_caller]
    pub(super) fn new(options: &str) -> Self {
        let branches = branches();
        let count = branches.kinds().len().max(2);
        let disks: Vec<LoopFs> = (0..count).map(|number| branches.disk(number, DISK)).collect();
        let PoolBed { pool, disks } =
            PoolBed::mount(Pool::builder(env!("CARGO_BIN_EXE_canopy")).option(options), disks);
        Self { pool, _disks: disks }
    }

    /// Unmounts the pool and then the disks, and runs their final checks.
    #[track_caller]
    pub(super) fn end(self) {
        assert!(self.pool.is_alive(), "the daemon died:\n{}", self.pool.log());
        self.pool.umount();
    }
}

/// The branches that the suites run over.
#[track_caller]
pub(super) fn branches() -> Branches {
    Branches::asked().unwrap_or(Branches::All(Kind::Ext4))
}

/// A filesystem of each kind among the branches, to run a suite on without a pool.
#[track_caller]
pub(super) fn plain_disks() -> Vec<LoopFs> {
    branches().kinds().iter().map(|kind| LoopFs::new(*kind, DISK)).collect()
}

#[track_caller]
pub(super) fn disk() -> LoopFs {
    plain_disks().swap_remove(0)
}

/// Waits for the turn of a suite. Only one runs at a time, because suites load the machine and some check timings.
pub(super) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a result line that shows in the test runner's output even if the runner captures output.
pub(super) fn report(line: &str) {
    use std::io::Write as _;
    // The test harness captures the print macros, but passing tests must also show their summary.
    let _ = writeln!(std::io::stderr(), "    {line}");
}
