//! Branches of given sizes, a pool over them, and data that tells where it belongs.

use canopy_testkit::cmd::{Finished, run_within, wait_until};
use canopy_testkit::{LoopFs, Pool, PoolBuilder, Rng};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const MIB: usize = 1 << 20;

pub(super) struct Bed {
    pub(super) pool: Pool,
    pub(super) disks: Vec<LoopFs>,
}

impl Bed {
    /// New files go to the first branch with any room at all.
    #[track_caller]
    pub(super) fn new(disks: Vec<LoopFs>, options: &str) -> Bed {
        for disk in &disks {
            let _ = fs::remove_dir(disk.path().join("lost+found"));
        }
        let pool = builder(&disks, options).mount();
        Bed { pool, disks }
    }

    /// A path in the pool.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// A path on a branch.
    pub(super) fn on(&self, branch: usize, path: &str) -> PathBuf {
        self.disks[branch].path().join(path)
    }

    /// Which branches hold a name.
    pub(super) fn holders(&self, path: &str) -> Vec<usize> {
        (0..self.disks.len()).filter(|branch| fs::symlink_metadata(self.on(*branch, path)).is_ok()).collect()
    }

    /// Waits until the daemon has closed a file; it hears of a close only afterwards.
    #[track_caller]
    pub(super) fn closed(&self, path: &str) {
        let open = || self.pool.branch_descriptors().iter().any(|held| held.ends_with(path));
        assert!(wait_until(Duration::from_secs(20), || !open()), "{path} stays open");
    }

    /// Bytes that the daemon has moved between its descriptors while `work` ran.
    #[track_caller]
    pub(super) fn moved(&self, work: impl FnOnce()) -> usize {
        let count = || {
            let text = fs::read_to_string(format!("/proc/{}/io", self.pool.pid())).expect("counters");
            let of = |name: &str| {
                text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<usize>().ok())
            };
            of("rchar:").zip(of("wchar:")).map(|(read, written)| read + written).expect("rchar and wchar")
        };
        let before = count();
        work();
        count() - before
    }

    /// Leaves a branch with about so many bytes.
    pub(super) fn fill(&self, branch: usize, left: u64) {
        fill(self.disks[branch].path(), left);
    }
}

pub(super) fn builder(disks: &[LoopFs], options: &str) -> PoolBuilder {
    let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .option("minfreespace=0,category.create=ff")
        .option(options);
    disks.iter().fold(builder, |builder, disk| builder.branch(disk.path()))
}

/// Takes all there is, by asking for ever less, and gives some back.
pub(super) fn fill(disk: &Path, left: u64) {
    let filler = File::create(disk.join("filler")).expect("a file");
    let mut at = 0;
    for step in [4 << 20, 1 << 20, 64 << 10, 4 << 10] {
        loop {
            match rustix::fs::fallocate(&filler, FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(Errno::NOSPC) => break,
                Err(errno) => panic!("filling {}: {errno}", disk.display()),
            }
        }
    }
    filler.set_len(at.saturating_sub(left)).expect("a smaller file");
    rustix::fs::syncfs(&filler).expect("sync");
}

/// fio writes so many files of so many MiB, and checks every byte.
pub(super) fn fio(dir: &Path, files: u64, each: u64) -> Finished {
    let mut fio = Command::new("fio");
    fio.arg(format!("--directory={}", dir.display()));
    fio.args(
        "--name=full --rw=randwrite --bs=64k --ioengine=psync --thread --numjobs=2 --group_reporting"
            .split(' '),
    );
    fio.arg(format!("--filesize={each}M"));
    fio.args([format!("--nrfiles={}", files / 2), format!("--size={}M", files / 2 * each)]);
    fio.args(
        "--verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fallocate=none".split(' '),
    );
    fio.arg("--openfiles=4");
    run_within(&mut fio, Duration::from_secs(900))
}

/// Bytes that tell where they belong.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// Names under which the pool keeps what is under construction, below a directory.
pub(super) fn hidden(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                todo.push(entry.path());
            }
            if entry.file_name().as_encoded_bytes().starts_with(b".canopy-clone.") {
                found.push(entry.path());
            }
        }
    }
    found
}
