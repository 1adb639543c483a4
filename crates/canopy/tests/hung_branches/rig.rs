//! A pool over two healthy disks and one that may hang.

use canopy_fuse::Opcode;
pub(super) use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, FaultyFs, LoopFs, Pool, ScratchDir, transports};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
/// `branch-timeout` of these tests. On a busy machine, a branch that is well may take seconds to answer.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

pub(super) struct Rig {
    pub(super) pool: Pool,
    pub(super) well: [LoopFs; 2],
    pub(super) faulty: FaultyFs,
    // Dropped last: checks that nothing is left behind.
    _scratch: ScratchDir,
}

impl Rig {
    /// Mounts a pool over `well[0]`, the faulty branch and `well[1]`, in this order.
    pub(super) fn new(options: &str) -> Rig {
        Rig::over("auto", options)
    }

    /// Mounts such a pool for each transport, one after the other.
    pub(super) fn over_each_transport(options: &str) -> impl Iterator<Item = Rig> {
        transports().into_iter().map(move |transport| Rig::over(transport, options))
    }

    fn over(transport: &str, options: &str) -> Rig {
        let scratch = ScratchDir::new("canopy-hung-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let well = [LoopFs::tmpfs(256 << 20), LoopFs::tmpfs(256 << 20)];
        for (place, name) in [(well[0].path(), "a"), (faulty.backing_dir(), "b"), (well[1].path(), "c")] {
            fs::create_dir(place.join("d")).expect("mkdir");
            fs::write(place.join("d").join(name), name).expect("a file");
            fs::write(place.join(format!("only-{name}")), name).expect("a file");
        }
        let pool = Pool::builder(BINARY)
            .branch(well[0].path())
            .branch(faulty.path())
            .branch(well[1].path())
            .option(format!("minfreespace=0,category.create=ff,branch-timeout={}", DEADLINE.as_secs()))
            .option(format!("io-uring={transport}"))
            // The kernel answers nothing from its caches.
            .option("cache.attr=0,cache.entry=0")
            .option(options)
            .mount();
        Rig { pool, well, faulty, _scratch: scratch }
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// Makes every request to the branch hang, and waits until the pool has noticed.
    pub(super) fn hang(&self) {
        self.faulty.set_all(Fault::Hang);
        self.wait_until_known_to_hang();
    }

    /// Waits until the pool has logged that the branch hangs.
    pub(super) fn wait_until_known_to_hang(&self) {
        let said = || self.pool.log().matches("does not answer").count();
        let taken_back = || self.pool.log().matches("answers again").count();
        assert!(wait_until(PATIENCE, || said() > taken_back()), "{}", self.pool.log());
    }

    /// Lets the branch answer again, and waits until the pool has taken it back.
    pub(super) fn heal(&self) {
        self.faulty.heal();
        let balanced = || {
            let log = self.pool.log();
            log.matches("does not answer").count() == log.matches("answers again").count()
        };
        assert!(wait_until(PATIENCE, balanced), "{}", self.pool.log());
    }
}

/// Runs work that must end although the branch hangs, and goes on to hang. Returns its result.
#[track_caller]
pub(super) fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = channel();
    std::thread::spawn(move || send.send(work()));
    receive
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| panic!("the operation hangs for more than {PATIENCE:?}"))
}

#[track_caller]
pub(super) fn assert_timed_out<T: std::fmt::Debug>(result: io::Result<T>) {
    let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
    assert_eq!(errno, Some(Errno::TIMEDOUT.raw_os_error()), "{result:?}");
}

pub(super) const LOOKS: &[Opcode] = &[Opcode::Lookup, Opcode::Getattr, Opcode::Statx];
