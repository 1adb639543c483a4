//! Shared helpers: the paths of the suites' programs, a pool over two disks, and a lock that serializes the suites.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use canopy_testkit::cmd::tool as program;
use canopy_testkit::{LoopFs, Pool};

/// Larger than the default `minfreespace` of 4 GB, so that a pool with default options creates on it. Sparse.
const DISK: u64 = 8 << 30;

/// Options of a pool whose daemon serves all data.
pub(super) const NO_PASSTHROUGH: &str = "passthrough.io=off";

/// A pool over two ext4 disks.
#[derive(Debug)]
pub(super) struct Rig {
    // The fields drop in this order: the pool before its branches.
    pub(super) pool: Pool,
    _disks: [LoopFs; 2],
}

impl Rig {
    #[track_caller]
    pub(super) fn new(options: &str) -> Self {
        let disks = [disk(), disk()];
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(disks[0].path())
            .branch(disks[1].path())
            .option(options)
            .mount();
        Self { pool, _disks: disks }
    }

    /// Unmounts the pool and then the disks, and runs their final checks.
    #[track_caller]
    pub(super) fn end(self) {
        assert!(self.pool.is_alive(), "the daemon died:\n{}", self.pool.log());
        self.pool.umount();
    }
}

#[track_caller]
pub(super) fn disk() -> LoopFs {
    LoopFs::ext4(DISK)
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
