//! Disks that end: filesystems that have shut down, disks that are pulled, disks that answer nothing but errors. The
//! rest of the pool goes on, and they come back once they are mounted anew.

use super::rig::{PATIENCE, assert_only_on, illness, make_all_kinds, pool_over, wait_for_illness};
use canopy_testkit::PoolBed;
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Fault, FaultyFs, Kind, LoopFs, Opcode, ScratchDir, Tree, tree};
use rustix::io::Errno;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn size(kind: Kind) -> u64 {
    match kind {
        Kind::Xfs => 320 * MIB,
        Kind::Btrfs => 160 * MIB,
        _ => 64 * MIB,
    }
}

/// Fills a disk with a few things of which nothing is in memory afterwards, and joins it with another one.
#[track_caller]
fn bed(mut sick: LoopFs) -> PoolBed {
    let well = LoopFs::tmpfs(32 * MIB);
    let _ = fs::remove_dir(sick.path().join("lost+found"));
    for disk in [&sick, &well] {
        fs::create_dir(disk.path().join("both")).unwrap();
        fs::create_dir(disk.path().join("both/deep")).unwrap();
    }
    fs::create_dir(sick.path().join("first")).unwrap();
    for file in ["first/file", "both/deep/here"] {
        fs::write(sick.path().join(file), "on the first").unwrap();
    }
    fs::write(well.path().join("both/deep/there"), "on the second").unwrap();
    sick.unmount();
    sick.mount_again();
    pool_over(vec![sick, well], "")
}

/// Somebody meets the error, one way or another.
fn meet(bed: &PoolBed) {
    let written = fs::File::create(bed.at("met")).and_then(|mut file| {
        file.write_all(&[1; 65536])?;
        file.sync_all()
    });
    let read = fs::read(bed.at("first/file"));
    assert!(written.is_err() || read.is_err() || !bed.on(0, "met").exists(), "there was none");
}

/// It is told when it is done.
#[track_caller]
fn is_let_go(bed: &PoolBed) {
    assert!(wait_until(PATIENCE, || bed.pool.log().contains("goes on without it")), "{}", bed.pool.log());
    assert_eq!(illness(bed, 0).as_deref(), Some("gone"));
}

/// What lies on the other disk is used as ever, in directories that both hold.
#[track_caller]
fn life_goes_on(bed: &PoolBed, round: &str) {
    for dir in ["", "both", "both/deep"] {
        let at = |name: &str| bed.at(dir).join(format!("{round}{name}"));
        fs::write(at("new"), "made")
            .unwrap_or_else(|why| panic!("create in {dir}: {why}\n{}", bed.pool.log()));
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "made");
        fs::OpenOptions::new().append(true).open(at("new")).unwrap().write_all(b", changed").unwrap();
        fs::rename(at("new"), at("renamed")).unwrap();
        fs::hard_link(at("renamed"), at("linked")).unwrap();
        fs::remove_file(at("linked")).unwrap();
        fs::create_dir(at("dir")).unwrap();
        fs::rename(at("renamed"), at("dir").join("moved")).unwrap();
        let listed = fs::read_dir(bed.at(dir)).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(listed.collect::<Vec<_>>().contains(&format!("{round}dir").into()), "{dir}");
        assert_eq!(fs::read_to_string(at("dir").join("moved")).unwrap(), "made, changed");
        fs::remove_file(at("dir").join("moved")).unwrap();
        fs::remove_dir(at("dir")).unwrap();
        fs::write(at("stays"), round).unwrap();
        assert!(bed.on(1, dir).join(format!("{round}stays")).exists(), "{dir}");
    }
    assert_eq!(fs::read_to_string(bed.at("both/deep/there")).unwrap(), "on the second");
    let names = make_all_kinds(bed, round);
    for name in names {
        assert!(fs::symlink_metadata(bed.on(1, &name)).is_ok(), "{name}");
    }
}

/// The pool tells which disk it is, and what to do.
#[track_caller]
fn is_told(bed: &PoolBed, code: &str, mend: &str) {
    let status = bed.pool.status();
    let path = bed.disks[0].path().to_str().unwrap();
    let warnings = status["warnings"].as_array().unwrap();
    let told = warnings.iter().find(|told| told["branch"] == path);
    let told = told.unwrap_or_else(|| panic!("{status:#}"));
    assert_eq!(told["code"], code, "{status:#}");
    assert!(told["mend"].as_str().unwrap().contains(mend), "{told:#}");
}

/// Once the disk is mounted again it takes part in everything, and the pool shows what the disks hold.
#[track_caller]
fn comes_back(mut bed: PoolBed) {
    // As long as it is still known, mounting it again would bring it back as it was.
    let device = bed.disks[0].device().and_then(Path::file_name).expect("a device").to_owned();
    let known = |kind: &str| Path::new("/sys/fs").join(kind).join(&device).exists();
    let known_to_btrfs = || {
        let all = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
        all.into_iter().any(|one| one.path().join("devices").join(&device).symlink_metadata().is_ok())
    };
    let ended = wait_until(PATIENCE, || !known("ext4") && !known("xfs") && !known_to_btrfs());
    assert!(ended, "the old mount lives on\n{}", bed.pool.log());
    bed.disks[0].mount_again();
    wait_for_illness(&bed, 0, None);
    assert_eq!(fs::read_to_string(bed.at("first/file")).unwrap(), "on the first");
    let names = make_all_kinds(&bed, "again-");
    assert_only_on(&bed, 0, &names);
    let fields = tree::Fields::without_dir_times();
    let [first, second] = [0, 1].map(|index| Tree::capture_with(bed.disks[index].path(), fields));
    let union = Tree::union([&first, &second]).expect("no name twice");
    union.assert_same(&Tree::capture_with(bed.pool.path(), fields));
    let log = bed.pool.umount();
    assert!(!log.contains("panicked"), "{log}");
    drop(bed.disks);
}

/// Everything that is to be written is an error from then on; ext4 goes on reading what it has in memory.
#[test]
fn a_filesystem_that_has_shut_down_is_done_without() {
    for (kind, illness, code, mend) in [
        (Kind::Ext4, "failing", "branch-failing", "umount --lazy"),
        (Kind::Xfs, "gone", "branch-gone", "mount it again"),
    ] {
        let mut bed = bed(LoopFs::new(kind, size(kind)));
        let mut shutdown = Command::new("xfs_io");
        shutdown.args(["-x", "-c", "shutdown"]).arg(bed.disks[0].path());
        let done = run_within(&mut shutdown, Duration::from_secs(60));
        assert!(done.success(), "{}", done.describe());
        meet(&bed);
        match illness {
            "gone" => is_let_go(&bed),
            illness => wait_for_illness(&bed, 0, Some(illness)),
        }
        life_goes_on(&bed, "a-");
        is_told(&bed, code, mend);
        // As the mend says.
        match illness {
            "gone" => bed.disks[0].unmount(),
            _ => {
                bed.disks[0].unmount_lazily();
                is_let_go(&bed);
                life_goes_on(&bed, "b-");
            }
        }
        comes_back(bed);
    }
}

/// The device is there and has no capacity any more.
#[test]
fn a_disk_that_is_pulled_is_done_without() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let scratch = ScratchDir::new("canopy-pulled-", &[]);
        let mut bed = bed(LoopFs::new(kind, size(kind)));
        let (image, kept) = (bed.disks[0].image().unwrap(), scratch.path("kept"));
        copy(&image, &kept);
        let set_size = |size| {
            fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(size).unwrap();
            let device = bed.disks[0].device().unwrap();
            let done = run_within(Command::new("losetup").arg("-c").arg(device), Duration::from_secs(30));
            assert!(done.success(), "{}", done.describe());
        };
        set_size(0);
        meet(&bed);
        is_let_go(&bed);
        life_goes_on(&bed, "a-");
        is_told(&bed, "branch-gone", "mount it again");
        // It can still be listed from memory, and is not taken back for that.
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(illness(&bed, 0).as_deref(), Some("gone"));
        life_goes_on(&bed, "b-");
        bed.disks[0].unmount();
        copy(&kept, &image);
        let device = bed.disks[0].device().unwrap();
        let done = run_within(Command::new("losetup").arg("-c").arg(device), Duration::from_secs(30));
        assert!(done.success(), "{}", done.describe());
        comes_back(bed);
    }
}

/// The device is there, and every read and write of it fails.
#[test]
fn a_disk_that_answers_nothing_but_errors_is_done_without() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let scratch = ScratchDir::new("canopy-dead-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let mut bed = bed(LoopFs::with_image_in(faulty.path(), kind, size(kind)));
        let _heals = Heals(&faulty);
        // The image can still be looked at: mkfs.btrfs of other tests looks at those of all loop devices.
        faulty.set(Fault::Fail(Errno::IO), &[Opcode::Read, Opcode::Write, Opcode::Fsync, Opcode::Fallocate]);
        meet(&bed);
        is_let_go(&bed);
        life_goes_on(&bed, "a-");
        is_told(&bed, "branch-gone", "mount it again");
        bed.disks[0].unmount();
        life_goes_on(&bed, "b-");
        faulty.heal();
        comes_back(bed);
    }
}

/// A test that fails leaves a disk that can be detached.
struct Heals<'f>(&'f FaultyFs);

impl Drop for Heals<'_> {
    fn drop(&mut self) {
        self.0.heal();
    }
}

fn copy(from: &Path, to: &PathBuf) {
    let mut cp = Command::new("cp");
    cp.args(["--sparse=always"]).arg(from).arg(to);
    let done = run_within(&mut cp, Duration::from_secs(60));
    assert!(done.success(), "{}", done.describe());
}
