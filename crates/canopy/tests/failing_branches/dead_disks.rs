//! Dead disks: filesystems that have shut down, disks that are pulled, disks that fail every request. The rest of the pool
//! keeps working, and a dead disk rejoins once it is mounted again.

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

/// Mounts a pool over the given disk with a few files, none of them in the page cache, and a healthy second disk.
#[track_caller]
fn bed(mut failing: LoopFs) -> PoolBed {
    let healthy = LoopFs::tmpfs(32 * MIB);
    let _ = fs::remove_dir(failing.path().join("lost+found"));
    for disk in [&failing, &healthy] {
        fs::create_dir(disk.path().join("both")).unwrap();
        fs::create_dir(disk.path().join("both/deep")).unwrap();
    }
    fs::create_dir(failing.path().join("first")).unwrap();
    for file in ["first/file", "both/deep/here"] {
        fs::write(failing.path().join(file), "on the first").unwrap();
    }
    fs::write(healthy.path().join("both/deep/there"), "on the second").unwrap();
    failing.unmount();
    failing.mount_again();
    pool_over(vec![failing, healthy], "")
}

/// Provokes the error with a write and a read.
fn provoke_error(bed: &PoolBed) {
    let written = fs::File::create(bed.at("met")).and_then(|mut file| {
        file.write_all(&[1; 65536])?;
        file.sync_all()
    });
    let read = fs::read(bed.at("first/file"));
    assert!(written.is_err() || read.is_err() || !bed.on(0, "met").exists(), "no error occurred");
}

/// Waits until the pool has dropped the branch and logged that.
#[track_caller]
fn wait_until_dropped(bed: &PoolBed) {
    assert!(wait_until(PATIENCE, || bed.pool.log().contains("goes on without it")), "{}", bed.pool.log());
    assert_eq!(illness(bed, 0).as_deref(), Some("gone"));
}

/// Asserts that the other disk stays usable, also in directories that exist on both.
#[track_caller]
fn assert_other_disk_works(bed: &PoolBed, round: &str) {
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

/// Asserts that the status warns of the disk and says how to repair it.
#[track_caller]
fn assert_warning(bed: &PoolBed, code: &str, fix: &str) {
    let status = bed.pool.status();
    let path = bed.disks[0].path().to_str().unwrap();
    let warnings = status["warnings"].as_array().unwrap();
    let warning = warnings.iter().find(|warning| warning["branch"] == path);
    let warning = warning.unwrap_or_else(|| panic!("{status:#}"));
    assert_eq!(warning["code"], code, "{status:#}");
    assert!(warning["fix"].as_str().unwrap().contains(fix), "{warning:#}");
}

/// Mounts the disk again, and asserts that it takes new files and that the pool shows the union of both disks.
#[track_caller]
fn assert_rejoins(mut bed: PoolBed) {
    // While the kernel still has the old mount's superblock, a new mount would reuse it in its failed state.
    let device = bed.disks[0].device().and_then(Path::file_name).expect("a device").to_owned();
    let known = |kind: &str| Path::new("/sys/fs").join(kind).join(&device).exists();
    let known_to_btrfs = || {
        let all = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
        all.into_iter().any(|one| one.path().join("devices").join(&device).symlink_metadata().is_ok())
    };
    let ended = wait_until(PATIENCE, || !known("ext4") && !known("xfs") && !known_to_btrfs());
    assert!(ended, "the old superblock still exists\n{}", bed.pool.log());
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

/// Every write fails after a shutdown. ext4 still reads what is in the page cache.
#[test]
fn the_pool_drops_a_filesystem_that_has_shut_down() {
    for (kind, illness, code, fix) in [
        (Kind::Ext4, "failing", "branch-failing", "umount --lazy"),
        (Kind::Xfs, "gone", "branch-gone", "mount it again"),
    ] {
        let mut bed = bed(LoopFs::new(kind, size(kind)));
        let mut shutdown = Command::new("xfs_io");
        shutdown.args(["-x", "-c", "shutdown"]).arg(bed.disks[0].path());
        let done = run_within(&mut shutdown, PATIENCE);
        assert!(done.success(), "{}", done.describe());
        provoke_error(&bed);
        match illness {
            "gone" => wait_until_dropped(&bed),
            illness => wait_for_illness(&bed, 0, Some(illness)),
        }
        assert_other_disk_works(&bed, "a-");
        assert_warning(&bed, code, fix);
        // Follow the advice in the warning.
        match illness {
            "gone" => bed.disks[0].unmount(),
            _ => {
                bed.disks[0].unmount_lazily();
                wait_until_dropped(&bed);
                assert_other_disk_works(&bed, "b-");
            }
        }
        assert_rejoins(bed);
    }
}

/// The device still exists, with a capacity of zero.
#[test]
fn the_pool_drops_a_pulled_disk() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let scratch = ScratchDir::new("canopy-pulled-", &[]);
        let mut bed = bed(LoopFs::new(kind, size(kind)));
        let (image, kept) = (bed.disks[0].image().unwrap(), scratch.path("kept"));
        copy(&image, &kept);
        let set_size = |size| {
            fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(size).unwrap();
            let device = bed.disks[0].device().unwrap();
            let done = run_within(Command::new("losetup").arg("-c").arg(device), PATIENCE);
            assert!(done.success(), "{}", done.describe());
        };
        set_size(0);
        provoke_error(&bed);
        wait_until_dropped(&bed);
        assert_other_disk_works(&bed, "a-");
        assert_warning(&bed, "branch-gone", "mount it again");
        // The kernel can still list it from memory, but that does not bring it back into the pool.
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(illness(&bed, 0).as_deref(), Some("gone"));
        assert_other_disk_works(&bed, "b-");
        bed.disks[0].unmount();
        copy(&kept, &image);
        let device = bed.disks[0].device().unwrap();
        let done = run_within(Command::new("losetup").arg("-c").arg(device), PATIENCE);
        assert!(done.success(), "{}", done.describe());
        assert_rejoins(bed);
    }
}

/// The device still exists, and every read and write fails.
#[test]
fn the_pool_drops_a_disk_that_fails_every_request() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let scratch = ScratchDir::new("canopy-dead-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let mut bed = bed(LoopFs::with_image_in(faulty.path(), kind, size(kind)));
        let _heals = Heals(&faulty);
        // Lookups of the image still work: mkfs.btrfs in other tests stats the images of all loop devices.
        faulty.set(Fault::Fail(Errno::IO), &[Opcode::Read, Opcode::Write, Opcode::Fsync, Opcode::Fallocate]);
        provoke_error(&bed);
        wait_until_dropped(&bed);
        assert_other_disk_works(&bed, "a-");
        assert_warning(&bed, "branch-gone", "mount it again");
        bed.disks[0].unmount();
        assert_other_disk_works(&bed, "b-");
        faulty.heal();
        assert_rejoins(bed);
    }
}

/// Heals the filesystem on drop, so that the disk can be detached after a failed test.
struct Heals<'f>(&'f FaultyFs);

impl Drop for Heals<'_> {
    fn drop(&mut self) {
        self.0.heal();
    }
}

fn copy(from: &Path, to: &PathBuf) {
    let mut cp = Command::new("cp");
    cp.args(["--sparse=always"]).arg(from).arg(to);
    let done = run_within(&mut cp, PATIENCE);
    assert!(done.success(), "{}", done.describe());
}
