//! The reference model on a real mount: random sequences of system calls give the same results on a mounted pool and in
//! a plain directory. Needs root.
//!
//! `CANOPY_MODEL_SEQUENCES` sets the number of sequences of each test, `CANOPY_MODEL_SEED` the first seed.

#![forbid(unsafe_code)]

use canopy_testkit::model::{Plain, Rules, World, check};
use canopy_testkit::{Branches, LoopFs, Pool, lag, require_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = 60;

/// A mounted pool in memory, and a plain directory.
struct Bed {
    pool: Pool,
    branches: Vec<PathBuf>,
    plain: PathBuf,
    /// Numbers the runs; each run has its own directory in the same mount.
    runs: AtomicU64,
    _home: tempfile::TempDir,
    _disks: Vec<LoopFs>,
}

fn directory(path: &Path) {
    fs::create_dir(path).expect("a directory");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
}

impl Bed {
    fn new(branches: usize, options: &str) -> Bed {
        require_root();
        let home =
            tempfile::Builder::new().prefix("canopy-model-").tempdir_in("/dev/shm").expect("a directory");
        let mut paths: Vec<PathBuf> =
            (0..branches).map(|index| home.path().join(format!("b{index}"))).collect();
        let mut plain = home.path().join("plain");
        // One branch is on a disk that lags, if the tests' environment asks for that. Changes that stay in the disk's cache
        // would not notice.
        let mut disks: Vec<_> = lag().map(|_| LoopFs::ext4(256 << 20)).into_iter().collect();
        disks.iter().for_each(LoopFs::set_synchronous);
        if let (Some(disk), Some(last)) = (disks.first(), paths.last_mut()) {
            *last = disk.path().join("branch");
        }
        // Other filesystems may be asked for, and then the plain directory is on such a one, too.
        if let Some(asked) = Branches::asked() {
            let others: Vec<_> = (0..branches).map(|number| asked.disk(number, 256 << 20)).collect();
            paths = others.iter().map(|disk| disk.path().join("branch")).collect();
            let other = asked.plain_disk(256 << 20);
            plain = other.path().join("plain");
            disks.push(other);
            disks.extend(others);
        }
        paths.iter().chain([&plain]).for_each(|path| directory(path));
        Bed::over(paths, plain, options, home, disks)
    }

    /// Mounts a pool whose first branch has room for two pages.
    fn on_full_branches(options: &str) -> Bed {
        let disks = vec![LoopFs::tmpfs(32 << 10), LoopFs::tmpfs(256 << 20)];
        let paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().join("branch")).collect();
        let home =
            tempfile::Builder::new().prefix("canopy-model-").tempdir_in("/dev/shm").expect("a directory");
        let plain = home.path().join("plain");
        paths.iter().chain([&plain]).for_each(|path| directory(path));
        fs::write(disks[0].path().join("filler"), [0; 6 * 4096]).expect("a file");
        Bed::over(paths, plain, options, home, disks)
    }

    fn over(
        paths: Vec<PathBuf>,
        plain: PathBuf,
        options: &str,
        home: tempfile::TempDir,
        disks: Vec<LoopFs>,
    ) -> Bed {
        let mut builder =
            Pool::builder(env!("CARGO_BIN_EXE_canopy")).option("minfreespace=0").option(options);
        for path in &paths {
            builder = builder.branch(path);
        }
        Bed {
            pool: builder.mount(),
            branches: paths,
            plain,
            runs: AtomicU64::new(0),
            _home: home,
            _disks: disks,
        }
    }

    fn world(&self) -> World {
        let run = self.runs.fetch_add(1, Ordering::Relaxed).to_string();
        let (plain, pool) = (self.plain.join(&run), self.pool.path().join(&run));
        directory(&plain);
        directory(&pool);
        World {
            plain: Plain::new(plain),
            subject: Box::new(Plain::new(pool)),
            branches: self.branches.iter().map(|branch| branch.join(&run)).collect(),
            keep: Box::new(()),
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect(name))
}

const RULES: Rules = Rules { path_preserving: false, holes_unknown: false, every: 20 };

fn run(branches: usize, options: &str, rules: Rules) {
    run_in(Bed::new(branches, options), rules);
}

fn run_in(bed: Bed, rules: Rules) {
    let first = number("CANOPY_MODEL_SEED", 1);
    for seed in first..first + number("CANOPY_MODEL_SEQUENCES", 60) {
        check(seed, OPERATIONS, rules, || bed.world());
    }
    bed.pool.umount();
}

#[test]
fn one_branch() {
    run(1, "", RULES);
}

#[test]
fn four_branches_rand() {
    run(4, "category.create=rand", RULES);
}

#[test]
fn two_branches_without_passthrough() {
    run(2, "category.create=rand,passthrough.io=off,cache.files=full", RULES);
}

#[test]
fn two_branches_without_any_cache() {
    let options = "category.create=rand,passthrough.io=off,cache.files=off,cache.attr=0,cache.entry=0";
    run(2, options, RULES);
}

#[test]
fn two_branches_with_writeback() {
    let options = "category.create=rand,passthrough.io=off,cache.files=auto-full,cache.writeback=true";
    // The kernel asks about holes before it writes data back, so the pool must not answer.
    run(2, options, Rules { holes_unknown: true, ..RULES });
}

/// Long timeouts for every kernel cache.
#[test]
fn two_branches_with_long_cache_timeouts() {
    let options =
        "category.create=rand,cache.attr=60,cache.entry=60,cache.negative-entry=60,cache.readdir=true";
    run(2, options, RULES);
}

/// Every transport, with every way to keep the kernel's caches coherent.
#[test]
fn every_transport_with_every_coherence_mode() {
    for transport in ["on", "off"] {
        for coherence in ["watch", "timeout"] {
            run(2, &format!("category.create=rand,io-uring={transport},cache.coherence={coherence}"), RULES);
        }
    }
}

#[test]
fn four_branches_path_preserving() {
    run(4, "category.create=eprand,func.mkdir=rand", Rules { path_preserving: true, ..RULES });
}

/// Files move to another branch while clients write them; clients see no difference.
#[test]
fn a_full_branch_is_invisible_to_clients() {
    for options in [
        "passthrough.io=off,cache.files=off",
        "passthrough.io=off,cache.files=full",
        "passthrough.io=off,cache.files=auto-full,cache.writeback=true",
    ] {
        let bed = Bed::on_full_branches(&format!("category.create=ff,{options}"));
        run_in(bed, Rules { holes_unknown: true, ..RULES });
    }
}

/// cp(1) copies only the data that `SEEK_DATA` finds, so the pool must report data that is not yet written back.
#[test]
fn written_data_is_never_a_hole() {
    use rustix::fs::{SeekFrom, seek};
    use std::os::unix::fs::FileExt;
    for options in ["", "passthrough.io=off,cache.files=auto-full,cache.writeback=true"] {
        let bed = Bed::new(2, options);
        let file = fs::File::create(bed.pool.path().join("f")).expect("a file");
        file.write_all_at(&[7; 5000], 12_288).expect("write");
        let data = seek(&file, SeekFrom::Data(0)).expect("there is data");
        let behind = seek(&file, SeekFrom::Hole(12_288)).expect("the end is a hole");
        assert!(data <= 12_288 && behind >= 17_288, "{options}: {data}..{behind}");
        drop(file);
        bed.pool.umount();
    }
}
