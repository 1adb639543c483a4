//! A pool of a disk that is well and one that may be slow, and a stranger who needs the first one only.

use canopy_fuse::transport::uring;
use canopy_testkit::{FaultyFs, LoopFs, Pool, ScratchDir};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
/// For what must come while others wait.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);
/// Files that the stranger has.
const FILES: usize = 40;

pub(super) struct Rig {
    pub(super) pool: Pool,
    pub(super) faulty: FaultyFs,
    _well: LoopFs,
    // Looks whether something is left, after all else has gone.
    _scratch: ScratchDir,
}

impl Rig {
    /// The branches are `well`, the faulty one, and `others`. `busy0` to `busy{dirs}` are on the faulty one, with two files of
    /// a mebibyte each; directories of these names below `only` are on the first.
    pub(super) fn new(transport: &str, dirs: usize, options: &str, others: &[&Path]) -> Rig {
        let scratch = ScratchDir::new("canopy-strangers-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let well = LoopFs::tmpfs(64 << 20);
        fs::create_dir(well.path().join("mine")).expect("mkdir");
        for file in 0..FILES {
            fs::write(well.path().join(format!("mine/s{file}")), "s").expect("a file");
        }
        // Its lock is the one that is held on the slow disk while a directory is brought there.
        fs::create_dir(faulty.backing_dir().join("only")).expect("mkdir");
        for dir in 0..dirs {
            let name = format!("busy{dir}");
            fs::create_dir_all(well.path().join("only").join(&name)).expect("mkdir");
            let dir = faulty.backing_dir().join(name);
            fs::create_dir(&dir).expect("mkdir");
            for name in ["f", "g"] {
                fs::write(dir.join(name), vec![7; 1 << 20]).expect("a file");
            }
        }
        let mut pool = Pool::builder(BINARY).branch(well.path()).branch(faulty.path());
        for other in others {
            pool = pool.branch(other);
        }
        let pool = pool
            // The disk is one that takes its time, not one that is given up.
            .option("minfreespace=0,category.create=ff,branch-timeout=0,passthrough.io=off")
            .option(format!("io-uring={transport}"))
            .option(options)
            .mount();
        Rig { pool, faulty, _well: well, _scratch: scratch }
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// What somebody does who has nothing to do with the others, on the same processor.
    ///
    /// # Panics
    /// When it does not come to an end.
    #[track_caller]
    pub(super) fn stranger(&self, what: &str) {
        let pool = self.pool.path().to_owned();
        let (send, receive) = channel();
        let stranger = std::thread::spawn(move || {
            stay();
            round(&pool);
            let _ = send.send(());
        });
        match receive.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => {
                // Else nothing of this ends.
                self.faulty.heal();
                let _ = stranger.join();
                panic!("{what}: a stranger waits too");
            }
            _ => stranger.join().unwrap_or_else(|_| panic!("{what}: a stranger meets an error")),
        }
    }
}

/// Every kind of request that needs no other disk.
fn round(pool: &Path) {
    let mine = pool.join("mine");
    for file in 0..FILES {
        let path = mine.join(format!("s{file}"));
        assert_eq!(fs::metadata(&path).expect("a stat").len(), 1);
        assert_eq!(fs::read(&path).expect("a read"), b"s");
    }
    fs::write(mine.join("new"), "new").expect("a new file");
    fs::rename(mine.join("new"), mine.join("newer")).expect("a rename");
    assert_eq!(fs::read_dir(&mine).expect("a listing").count(), FILES + 1);
    fs::remove_file(mine.join("newer")).expect("a removal");
    for mode in [0o700, 0o755] {
        fs::set_permissions(&mine, fs::Permissions::from_mode(mode)).expect("a chmod");
    }
}

/// Keeps the calling thread on the processor that everybody uses.
pub(super) fn stay() {
    let mut set = CpuSet::new();
    set.set(usize::from(uring::online_cpus()[0]));
    sched_setaffinity(None, &set).expect("a processor");
}

/// Somebody who may have to wait.
pub(super) fn client<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || {
        stay();
        work()
    })
}

/// Both, where the kernel has both.
pub(super) fn transports() -> Vec<&'static str> {
    let _ = uring::turn_on();
    match uring::Parameter::read() {
        uring::Parameter::On => vec!["off", "on"],
        _ => {
            eprintln!("only over /dev/fuse: the kernel has no io_uring for it");
            vec!["off"]
        }
    }
}
