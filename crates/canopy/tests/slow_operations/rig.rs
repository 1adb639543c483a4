//! A pool over a healthy disk and a slow one, and a bystander that uses only the healthy disk.

use canopy_fuse::transport::uring;
pub(super) use canopy_testkit::PATIENCE;
use canopy_testkit::{FaultyFs, LoopFs, Pool, ScratchDir};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
/// The number of files that the bystander uses.
const FILES: usize = 40;

pub(super) struct Rig {
    pub(super) pool: Pool,
    pub(super) faulty: FaultyFs,
    _healthy: LoopFs,
    // Dropped last: checks that nothing is left behind.
    _scratch: ScratchDir,
}

impl Rig {
    /// Mounts a pool over a healthy branch, the faulty one and `others`. The faulty branch has `dirs` directories, from
    /// `busy0` on, with two files of a mebibyte each. The healthy branch has directories of the same names in `only`.
    pub(super) fn new(transport: &str, dirs: usize, options: &str, others: &[&Path]) -> Rig {
        let scratch = ScratchDir::new("canopy-strangers-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let healthy = LoopFs::tmpfs(64 << 20);
        fs::create_dir(healthy.path().join("mine")).expect("mkdir");
        for file in 0..FILES {
            fs::write(healthy.path().join(format!("mine/s{file}")), "s").expect("a file");
        }
        // Cloning a directory to the slow disk holds the lock of this directory.
        fs::create_dir(faulty.backing_dir().join("only")).expect("mkdir");
        for dir in 0..dirs {
            let name = format!("busy{dir}");
            fs::create_dir_all(healthy.path().join("only").join(&name)).expect("mkdir");
            let dir = faulty.backing_dir().join(name);
            fs::create_dir(&dir).expect("mkdir");
            for name in ["f", "g"] {
                fs::write(dir.join(name), vec![7; 1 << 20]).expect("a file");
            }
        }
        let mut pool = Pool::builder(BINARY).branch(healthy.path()).branch(faulty.path());
        for other in others {
            pool = pool.branch(other);
        }
        let pool = pool
            // The disk counts as slow, not as hung.
            .option("minfreespace=0,category.create=ff,branch-timeout=0,passthrough.io=off")
            .option(format!("io-uring={transport}"))
            .option(options)
            .mount();
        Rig { pool, faulty, _healthy: healthy, _scratch: scratch }
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// Runs the bystander's requests, on the same processor as the clients.
    ///
    /// # Panics
    /// Panics if they do not finish in time.
    #[track_caller]
    pub(super) fn bystander(&self, what: &str) {
        let pool = self.pool.path().to_owned();
        let (send, receive) = channel();
        let bystander = std::thread::spawn(move || {
            pin();
            round(&pool);
            let _ = send.send(());
        });
        match receive.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => {
                // Otherwise the threads would never end.
                self.faulty.heal();
                let _ = bystander.join();
                panic!("{what}: the bystander hangs too");
            }
            _ => bystander.join().unwrap_or_else(|_| panic!("{what}: the bystander gets an error")),
        }
    }
}

/// Sends the bystander's requests, none of which needs the slow disk.
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

/// Pins the calling thread to the processor that all clients share.
pub(super) fn pin() {
    let mut set = CpuSet::new();
    set.set(usize::from(uring::online_cpus()[0]));
    sched_setaffinity(None, &set).expect("a processor");
}

/// Starts a client that may have to wait.
pub(super) fn client<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || {
        pin();
        work()
    })
}
