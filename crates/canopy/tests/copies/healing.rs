//! A read that one disk cannot serve is served from another copy, and the copy that could not be read is made again.

use canopy_testkit::cmd::{Finished, run_within, wait_until};
use canopy_testkit::{Fault, FaultyFs, Opcode, PATIENCE, Pool, ScratchDir};
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
const KIB: usize = 1 << 10;
const EIO: Option<i32> = Some(5);

/// A pool over a disk with faults and two directories, with a rule for two copies in `d`.
struct Bed {
    // Dropped in this order.
    pool: Pool,
    disk: FaultyFs,
    scratch: ScratchDir,
}

impl Bed {
    fn new(options: &str) -> Bed {
        let scratch = ScratchDir::new("healing-", &["second", "third", "run"]);
        let disk = FaultyFs::mount(&scratch.dir());
        let pool = Pool::builder(BINARY)
            .branch(disk.path())
            .branches([scratch.path("second"), scratch.path("third")])
            .option("minfreespace=0,category.create=ff,rules=d/**=copies 2")
            .option(options)
            .mount();
        fs::create_dir(pool.path().join("d")).unwrap();
        Bed { pool, disk, scratch }
    }

    /// Makes a file with two copies, the first on the disk with faults, and of one that cannot be read beyond 64 KiB.
    fn half_readable(&self, name: &str) -> Vec<u8> {
        let bytes: Vec<u8> = (0..300 * KIB).map(|at| (at / 3) as u8).collect();
        fs::write(self.at(name), &bytes).unwrap();
        let made = self.mover();
        assert!(made.success(), "{}", made.describe());
        assert_eq!(self.on(name), [true, true, false]);
        self.disk.set(Fault::FailBeyond(64 << 10, Errno::IO), &[Opcode::Read]);
        bytes
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.pool.path().join(name)
    }

    /// The branches, by directories that have no faults.
    fn dirs(&self) -> [std::path::PathBuf; 3] {
        [self.disk.backing_dir().to_owned(), self.scratch.path("second"), self.scratch.path("third")]
    }

    fn on(&self, name: &str) -> [bool; 3] {
        self.dirs().map(|dir| dir.join(name).exists())
    }

    fn mover(&self) -> Finished {
        let mut command = Command::new(BINARY);
        command.arg("tier").arg(self.pool.path()).arg("--once");
        run_within(command.env("CANOPY_RUN_DIR", self.scratch.path("run")), PATIENCE)
    }

    fn status(&self) -> Value {
        self.pool.status()
    }

    /// Returns how many copies the first branch could not read, as `canopy status` says, with and without a warning.
    fn unreadable(&self) -> (u64, bool) {
        let status = self.status();
        let warnings = status["warnings"].as_array().unwrap();
        let is_it = |warning: &Value| warning["code"] == "copies-unreadable";
        (status["branches"][0]["unreadable_copies"].as_u64().unwrap(), warnings.iter().any(is_it))
    }
}

#[test]
fn what_one_disk_cannot_read_is_read_from_another_copy_and_made_again() {
    let bed = Bed::new("passthrough.io=off");
    let bytes = bed.half_readable("d/f");
    assert_eq!(bed.unreadable(), (0, false));
    let before = fs::metadata(bed.at("d/f")).unwrap();
    assert!(fs::read(bed.at("d/f")).unwrap() == bytes);
    let after = fs::metadata(bed.at("d/f")).unwrap();
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    assert_eq!(bed.unreadable(), (1, true));
    assert!(bed.pool.log().contains("d/f: "), "{}", bed.pool.log());
    // The disk can store it elsewhere.
    bed.disk.heal();
    let damaged = fs::metadata(bed.disk.backing_dir().join("d/f")).unwrap().ino();
    let made = bed.mover();
    assert!(made.success(), "{}", made.describe());
    assert_eq!((bed.unreadable(), bed.on("d/f")), ((0, false), [true, true, false]));
    let copy = bed.disk.backing_dir().join("d/f");
    assert!(fs::read(&copy).unwrap() == bytes);
    assert_ne!(fs::metadata(&copy).unwrap().ino(), damaged, "it was replaced, not written over");
}

#[test]
fn whoever_has_it_open_goes_on_with_the_other_copy() {
    for cache in ["off", "auto-full"] {
        let bed = Bed::new(&format!("passthrough.io=off,cache.files={cache}"));
        let bytes = bed.half_readable("d/f");
        let (mut one, other) = (File::open(bed.at("d/f")).unwrap(), File::open(bed.at("d/f")).unwrap());
        let mut read = vec![0; 32 * KIB];
        one.read_exact(&mut read).unwrap();
        one.read_to_end(&mut read).unwrap();
        assert!(read == bytes, "{cache}");
        // A client that writes it now writes what they read.
        let writer = File::options().write(true).open(bed.at("d/f")).unwrap();
        writer.write_all_at(b"new", 200 << 10).unwrap();
        let mut found = [0; 3];
        other.read_exact_at(&mut found, 200 << 10).unwrap();
        assert_eq!(&found, b"new", "{cache}");
        drop(writer);
        assert!(fs::read(bed.at("d/f")).unwrap()[200 << 10..].starts_with(b"new"));
        drop((one, other));
    }
}

#[test]
fn an_open_that_fails_leads_to_another_copy() {
    let bed = Bed::new("passthrough.io=off");
    let bytes = bed.half_readable("d/f");
    bed.disk.set(Fault::Fail(Errno::IO), &[Opcode::Open]);
    assert!(fs::read(bed.at("d/f")).unwrap() == bytes);
    File::options().append(true).open(bed.at("d/f")).unwrap().write_all(b"more").unwrap();
    assert!(fs::read(bed.at("d/f")).unwrap().ends_with(b"more"));
    assert!(fs::read(bed.scratch.path("second/d/f")).unwrap().ends_with(b"more"));
}

/// The only up-to-date copy is not given up, whatever it cannot read.
#[test]
fn the_only_copy_keeps_its_error_and_stays() {
    let bed = Bed::new("passthrough.io=off");
    bed.half_readable("d/f");
    // From here on the other one is old.
    let file = File::options().read(true).write(true).open(bed.at("d/f")).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    let far = |file: &File| file.read_exact_at(&mut [0; 3], 200 << 10).map_err(|error| error.raw_os_error());
    assert_eq!(far(&file), Err(EIO));
    drop(file);
    let reader = File::open(bed.at("d/f")).unwrap();
    assert_eq!(far(&reader), Err(EIO));
    let mut found = [0; 3];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert_eq!((&found, bed.unreadable()), (b"new", (0, false)));
    // Neither is a file that has no other, or one of which neither copy can be read.
    bed.disk.heal();
    fs::write(bed.at("else"), vec![1; 300 * KIB]).unwrap();
    bed.disk.set(Fault::FailBeyond(64 << 10, Errno::IO), &[Opcode::Read]);
    assert_eq!(far(&File::open(bed.at("else")).unwrap()), Err(EIO));
}

#[test]
fn what_is_removed_or_replaced_is_not_owed_any_more() {
    let bed = Bed::new("passthrough.io=off");
    for (name, end) in [("d/f", 0), ("d/g", 1), ("d/h", 2)] {
        bed.half_readable(name);
        fs::read(bed.at(name)).unwrap();
        assert_eq!(bed.unreadable().0, 1, "{name}");
        bed.disk.heal();
        match end {
            0 => fs::remove_file(bed.at(name)).unwrap(),
            1 => fs::rename(bed.at(name), bed.at("d/renamed")).unwrap(),
            _ => {
                fs::write(bed.at("d/new"), "new").unwrap();
                fs::rename(bed.at("d/new"), bed.at(name)).unwrap();
            }
        }
        assert_eq!(bed.unreadable(), (0, false), "{name}");
        // What could not be read does not come along, nor back.
        match end {
            0 => assert_eq!(bed.on(name), [false; 3]),
            1 => assert_eq!((bed.on(name), bed.on("d/renamed")), ([false; 3], [false, true, false])),
            _ => assert_eq!(fs::read_to_string(bed.at(name)).unwrap(), "new"),
        }
    }
}

/// The kernel reads by itself, and tells nobody of the error. Once the pool has met one, it reads what has copies itself.
#[test]
fn passed_through_reads_fail_until_the_pool_knows_of_errors_on_the_disk() {
    let bed = Bed::new("passthrough.io=auto");
    let bytes = bed.half_readable("d/f");
    // Without passthrough (before Linux 6.9), the pool hears of it at once.
    let passes = bed.status()["branches"][0]["passes_through"].as_bool();
    let first = fs::read(bed.at("d/f")).map_err(|error| error.raw_os_error());
    if passes == Some(true) {
        assert_eq!(first, Err(EIO));
        assert_eq!(bed.unreadable(), (0, false));
    }
    // Another read that does not pass by the pool.
    bed.disk.set(Fault::Fail(Errno::IO), &[Opcode::Statfs, Opcode::Opendir]);
    let _ = fs::read_dir(bed.at("d")).map(Iterator::count);
    bed.disk.heal();
    bed.disk.set(Fault::FailBeyond(64 << 10, Errno::IO), &[Opcode::Read]);
    let kept = File::open(bed.at("d/f")).unwrap();
    let mut read = vec![0; bytes.len()];
    kept.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes);
    assert_eq!(bed.unreadable(), (1, true));
}

#[test]
fn a_disk_whose_journal_cannot_be_read_is_not_taken_for_one_that_is_away() {
    let bed = Bed::new("survive=true");
    assert!(wait_until(PATIENCE, || bed.pool.log().contains(" is on ")), "{}", bed.pool.log());
    bed.disk.set(Fault::Fail(Errno::IO), &[Opcode::Read]);
    let pid = || bed.pool.status()["pid"].as_i64();
    let before = pid().expect("a process");
    let process = rustix::process::Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    assert!(wait_until(PATIENCE, || pid().is_some_and(|pid| pid != before)));
    assert!(bed.pool.log().contains("no journal there"), "{}", bed.pool.log());
    let names = ["d/made", "made"];
    for name in names {
        // What is owed to a disk that is away is that the first one is gone.
        fs::create_dir(bed.at(name)).unwrap();
        fs::remove_dir(bed.at(name)).unwrap();
        fs::create_dir(bed.at(name)).unwrap();
    }
    assert_eq!(names.map(|name| bed.on(name)), [[true, false, false]; 2]);
    bed.disk.heal();
    // Now that it can be read, it owes nothing, and is owed nothing.
    let third = bed.scratch.path("third");
    bed.pool.set("branches", &format!("-{}", third.display()));
    bed.pool.set("branches", &format!("+>{}", third.display()));
    assert_eq!(names.map(|name| bed.on(name)), [[true, false, false]; 2]);
    assert!(names.iter().all(|name| bed.at(name).is_dir()), "{}", bed.pool.log());
}
