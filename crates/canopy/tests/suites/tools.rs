//! What the suites share: where their programs are, a pool over two disks, and taking turns.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use canopy_testkit::{LoopFs, Pool};

/// Larger than the default `minfreespace` of 4 GB, so that a pool with default options creates on it. Sparse.
const DISK: u64 = 8 << 30;

/// Options of a pool that serves all data itself.
pub(super) const NO_PASSTHROUGH: &str = "passthrough.io=off";

/// A pool over two ext4 disks.
#[derive(Debug)]
pub(super) struct Rig {
    // Dropped in this order: the pool before its branches.
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

    /// Ends the pool, then the disks, with all their checks.
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

/// One suite at a time: they load the machine, and timings matter to some of their checks.
pub(super) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that `scripts/setup.sh test` installs.
///
/// # Panics
/// When it is not there: a suite which cannot run has not passed.
#[track_caller]
pub(super) fn program(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let tools = std::env::var_os("CANOPY_TOOLS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    tools
        .into_iter()
        .chain([own])
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: run scripts/setup.sh test"))
}

/// Prints one line of result that stands out in the test runner's output, captured or not.
pub(super) fn report(line: &str) {
    use std::io::Write as _;
    // The test harness captures the print macros, but a summary is wanted from passing tests as well.
    let _ = writeln!(std::io::stderr(), "    {line}");
}
