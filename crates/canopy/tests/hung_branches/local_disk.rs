//! A local disk that hangs or is slow: an ext4 on a loop device whose image is on the faulty filesystem. The filesystem itself
//! answers whatever it has in memory.

use super::rig::{BINARY, DEADLINE, PATIENCE, assert_timed_out, in_time};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::files::is_opened;
use canopy_testkit::{Fault, FaultyFs, Kind, LoopFs, Opcode, Pool, ScratchDir};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many files of the disk are read at once.
const READERS: usize = 6;
static DATA: [u8; 100_000] = [7; 100_000];

struct DiskRig {
    pool: Pool,
    /// A healthy branch, with the directory `own` and a file in it.
    well: LoopFs,
    disk: LoopFs,
    // Dropped after the disk that lies on it.
    faulty: FaultyFs,
    _scratch: ScratchDir,
}

impl DiskRig {
    /// Mounts a pool over `well` and `disk`. Nothing of the disk's files is in memory, except the directory `films`.
    fn new(options: &str) -> DiskRig {
        let scratch = ScratchDir::new("canopy-disk-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let mut disk = LoopFs::with_image_in(faulty.path(), Kind::Ext4, 64 << 20);
        let well = LoopFs::tmpfs(64 << 20);
        fs::create_dir(disk.path().join("films")).expect("mkdir");
        for number in 0..READERS {
            fs::write(disk.path().join(format!("films/{number}")), DATA).expect("a file");
        }
        fs::create_dir(well.path().join("own")).expect("mkdir");
        fs::write(well.path().join("own/file"), "well").expect("a file");
        disk.unmount();
        disk.mount_again();
        let pool = Pool::builder(BINARY)
            .branch(well.path())
            .branch(disk.path())
            // Reads of data come to the daemon.
            .option("minfreespace=0,category.create=ff,passthrough.io=off,cache.files=off")
            .option(options)
            .mount();
        let rig = DiskRig { pool, well, disk, faulty, _scratch: scratch };
        for known in ["own", "own/file", "films"] {
            fs::metadata(rig.at(known)).expect("a name");
        }
        assert_eq!(fs::read_dir(rig.at("films")).expect("a listing").count(), READERS);
        rig
    }

    fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }

    /// Makes the disk hang.
    fn hang(&self) {
        self.faulty.set(Fault::Hang, &[Opcode::Read, Opcode::Write, Opcode::Fsync]);
    }

    /// Reads files of the disk that are not in memory.
    fn readers(&self) -> Vec<JoinHandle<io::Result<Vec<u8>>>> {
        (0..READERS)
            .map(|number| self.at(&format!("films/{number}")))
            .map(|path| std::thread::spawn(move || fs::read(path)))
            .collect()
    }

    /// Returns what `canopy status` says of the disk. It answers while the disk hangs.
    #[track_caller]
    fn status(&self) -> Value {
        let status = self.pool.status();
        assert_eq!(status["state"], "serving");
        let path = self.disk.path().to_str().expect("text");
        let branches = status["branches"].as_array().expect("branches");
        branches.iter().find(|branch| branch["path"] == path).expect("the disk").clone()
    }

    /// Waits until status calls the disk this. Returns what it says.
    #[track_caller]
    fn wait_for_health(&self, expected: &str) -> Value {
        let mut last = Value::Null;
        let reached = wait_until(PATIENCE, || {
            last = self.status();
            last["health"] == expected
        });
        assert!(reached, "{last:#} instead of {expected}\n{}", self.pool.log());
        last
    }

    fn count(&self, text: &str) -> usize {
        self.pool.log().matches(text).count()
    }

    /// Uses what only the healthy branch has.
    #[track_caller]
    fn assert_the_other_branch_works(&self) {
        let own = self.at("own");
        in_time(move || {
            assert_eq!(fs::read_to_string(own.join("file"))?, "well");
            fs::write(own.join("file"), "WELL")?;
            fs::write(own.join("file"), "well")?;
            assert_eq!(fs::read_dir(&own)?.count(), 1);
            rustix::fs::statvfs(&own).map_err(io::Error::from)
        })
        .expect("the healthy branch");
        assert_eq!(fs::read_to_string(self.well.path().join("own/file")).expect("a file"), "well");
    }

    /// Makes and removes names in a directory that only the healthy branch has.
    #[track_caller]
    fn assert_names_can_be_made(&self) {
        let own = self.at("own");
        in_time(move || {
            fs::rename(own.join("file"), own.join("moved"))?;
            fs::rename(own.join("moved"), own.join("file"))?;
            fs::write(own.join("new"), "new")?;
            fs::create_dir(own.join("dir"))?;
            fs::write(own.join("dir/below"), "new")?;
            fs::remove_file(own.join("dir/below"))?;
            fs::remove_dir(own.join("dir"))?;
            fs::remove_file(own.join("new"))
        })
        .expect("the healthy branch");
    }
}

#[test]
fn a_disk_without_a_deadline_is_waited_for_and_told() {
    let rig = DiskRig::new("");
    rig.hang();
    let began = Instant::now();
    let readers = rig.readers();
    let branch = rig.wait_for_health("does-not-answer");
    assert_eq!((&branch["waits"]["answers"], &branch["illness"]), (&"hung".into(), &Value::Null));
    rig.assert_the_other_branch_works();
    rig.assert_names_can_be_made();
    let branch = rig.status();
    assert_eq!(branch["waits"]["requests"], READERS, "{branch:#}");
    let disk = &branch["waits"]["disks"][0];
    let device = rig.disk.device().and_then(|path| path.file_name()).expect("a loop device");
    assert_eq!(disk["name"], device.to_str().expect("text"));
    let in_flight = ["reads_in_flight", "writes_in_flight"].map(|way| disk[way].as_u64().expect("a count"));
    assert!(in_flight.iter().sum::<u64>() > 0, "{disk}");
    // In the log once, not before ten seconds have passed.
    assert!(wait_until(PATIENCE, || rig.count("has not answered for") == 1), "{}", rig.pool.log());
    assert!(began.elapsed() >= Duration::from_secs(10));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((rig.count("has not answered for"), rig.count("has answered, after")), (1, 0));
    assert_eq!(rig.status()["health"], "does-not-answer");
    assert!(readers.iter().all(|reader| !reader.is_finished()));

    rig.faulty.heal();
    for reader in readers {
        assert!(reader.join().expect("a thread").expect("data") == DATA);
    }
    let branch = rig.wait_for_health("ok");
    assert_eq!(branch["waits"], Value::Null);
    assert!(wait_until(PATIENCE, || rig.count("has answered, after") == 1), "{}", rig.pool.log());
    assert!(wait_until(PATIENCE, || !is_opened(rig.well.path())), "without a deadline, nobody is asked");
    rig.pool.umount();
}

#[test]
fn a_disk_with_a_deadline_is_left_out_until_it_answers() {
    let rig = DiskRig::new(&format!("branch-timeout={}", DEADLINE.as_secs()));
    // A disk is not asked without need.
    assert!(wait_until(PATIENCE, || is_opened(rig.well.path())), "the tmpfs is asked");
    assert!(wait_until(PATIENCE, || !is_opened(rig.disk.path())));
    rig.hang();
    let began = Instant::now();
    for reader in rig.readers() {
        assert_timed_out(reader.join().expect("a thread"));
    }
    assert!(began.elapsed() >= DEADLINE);
    assert!(wait_until(PATIENCE, || rig.count("does not answer") == 1), "{}", rig.pool.log());
    // If each waited for the disk again, they would take several times as long as `in_time` allows.
    let path = rig.at("films/1");
    in_time(move || (0..200).for_each(|_| assert_timed_out(fs::read(&path))));
    assert_eq!(rig.status()["health"], "does-not-answer");
    rig.assert_the_other_branch_works();
    // The disk is known to lack this directory, and so what is made in it; but not to lack names in others.
    rig.assert_names_can_be_made();
    for dir in ["", "films"] {
        let path = rig.at(dir).join("new");
        assert_timed_out(in_time(move || fs::write(path, "new")));
    }
    assert_eq!((rig.count("does not answer"), rig.count("answers again")), (1, 0), "{}", rig.pool.log());

    rig.faulty.heal();
    assert!(wait_until(PATIENCE, || rig.count("answers again") == 1), "{}", rig.pool.log());
    for reader in rig.readers() {
        assert!(reader.join().expect("a thread").expect("data") == DATA);
    }
    rig.wait_for_health("ok");
    rig.pool.umount();
}

/// Each request of the disk takes longer than a second, but no operation as long as the deadline.
#[test]
fn operations_on_a_slow_disk_succeed() {
    let rig = DiskRig::new("branch-timeout=120");
    rig.faulty.set(Fault::Delay(Duration::from_millis(1500)), &[Opcode::Read]);
    let readers = rig.readers();
    rig.wait_for_health("lagging");
    rig.assert_the_other_branch_works();
    rig.assert_names_can_be_made();
    for reader in readers {
        assert!(reader.join().expect("a thread").expect("data") == DATA);
    }
    rig.faulty.heal();
    rig.wait_for_health("ok");
    assert_eq!(rig.count("does not answer"), 0, "{}", rig.pool.log());
    rig.pool.umount();
}
