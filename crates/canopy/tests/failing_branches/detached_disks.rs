//! Disks that are unmounted under the pool: nothing is written to the mountpoint, and they rejoin by themselves.

use super::rig::{PATIENCE, assert_only_on, illness, make_all_kinds, pool_over, wait_for_illness};

use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Kind, LoopFs, Pool, ScratchDir};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[track_caller]
fn assert_empty(dir: &Path) {
    let names: Vec<_> =
        fs::read_dir(dir).expect("a directory").map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.is_empty(), "{names:?} in {}", dir.display());
}

#[track_caller]
fn shut_down(disk: &LoopFs) {
    let done = run_within(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(disk.path()), PATIENCE);
    assert!(done.success(), "{}", done.describe());
}

#[test]
fn a_disk_that_is_unmounted_lazily_is_gone_until_it_is_mounted_again() {
    let mut bed = pool_over(vec![LoopFs::ext4(32 * MIB), LoopFs::tmpfs(32 * MIB)], "");
    let third = LoopFs::tmpfs(32 * MIB);
    let first = make_all_kinds(&bed, "a-");
    assert_only_on(&bed, 0, &first);
    fs::write(bed.at("a-dir/below"), "kept").unwrap();
    let mut open = fs::File::open(bed.at("a-dir/below")).unwrap();
    bed.disks[0].unmount_lazily();
    // A change of the branches at this time does not make the mountpoint directory the branch.
    let pool = bed.pool.path().as_os_str();
    let more = format!("branches=+{}=NC", third.path().display());
    let done = bed.pool.command(["set".as_ref(), pool, more.as_ref()]);
    assert!(done.success(), "{}", done.describe());
    wait_for_illness(&bed, 0, Some("gone"));
    assert!(!bed.at("a-file").exists() && !bed.at("a-dir").exists());
    let second = make_all_kinds(&bed, "b-");
    assert_only_on(&bed, 1, &second);
    let status = bed.pool.status();
    let branch = status["branches"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&branch["health"], &branch["path"]),
        (&"gone".into(), &bed.disks[0].path().to_str().unwrap().into())
    );
    assert_eq!(status["warnings"][0]["code"], "branch-gone", "{status:#}");
    // An open file stays usable.
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    open.rewind().unwrap();
    assert_eq!(text, "kept");
    assert_empty(bed.disks[0].path());
    drop(open);
    bed.disks[0].mount_again();
    wait_for_illness(&bed, 0, None);
    assert_eq!(fs::read_to_string(bed.at("a-file")).unwrap(), "a-");
    assert_eq!(fs::read_to_string(bed.at("a-dir/below")).unwrap(), "kept");
    let names = make_all_kinds(&bed, "c-");
    assert_only_on(&bed, 0, &names);
    let log = bed.pool.umount();
    assert!(log.contains("its mount is gone") && log.contains("is back"), "{log}");
    drop(bed.disks);
    drop(third);
}

/// A new branch list without the missing branch has no effect if it is refused for another reason.
#[test]
fn a_refused_list_does_not_forget_a_gone_branch() {
    let mut bed = pool_over(vec![LoopFs::ext4(32 * MIB), LoopFs::tmpfs(32 * MIB)], "");
    fs::write(bed.at("file"), "on the first").unwrap();
    bed.disks[0].unmount_lazily();
    wait_for_illness(&bed, 0, Some("gone"));
    let twice = format!("{0}:{0}", bed.disks[1].path().display());
    assert_eq!(bed.pool.try_set("branches", &twice), Err(Errno::EXIST));
    assert_eq!(illness(&bed, 0).as_deref(), Some("gone"));
    bed.disks[0].mount_again();
    wait_for_illness(&bed, 0, None);
    assert_eq!(fs::read_to_string(bed.at("file")).unwrap(), "on the first");
    bed.pool.umount();
    drop(bed.disks);
}

/// A thread keeps creating files. In the end each is on exactly one disk, and none in the mountpoint directory.
#[test]
fn no_file_is_created_in_the_mountpoint_of_an_unmounted_disk() {
    let mut bed = pool_over(vec![LoopFs::ext4(32 * MIB), LoopFs::tmpfs(32 * MIB)], "category.create=rand");
    let stop = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let (pool, stop) = (&bed.pool, &stop);
        let maker = scope.spawn(move || {
            let mut made = 0;
            while !stop.load(Ordering::Relaxed) {
                fs::write(pool.path().join(format!("f{made}")), made.to_string()).expect("a file");
                made += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            made
        });
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(300));
            bed.disks[0].unmount_lazily();
            std::thread::sleep(Duration::from_millis(300));
            assert_empty(bed.disks[0].path());
            bed.disks[0].mount_again();
        }
        stop.store(true, Ordering::Relaxed);
        maker.join().expect("a maker")
    });
    wait_for_illness(&bed, 0, None);
    for file in 0..made {
        let name = format!("f{file}");
        assert_eq!(fs::read_to_string(bed.at(&name)).unwrap(), file.to_string());
        assert!(bed.on(0, &name).exists() != bed.on(1, &name).exists(), "{name}");
    }
    bed.pool.umount();
    drop(bed.disks);
}

/// After a shutdown XFS fails everything with EIO. The pool keeps nothing open there, so it can be unmounted and repaired.
#[test]
fn a_disk_that_has_shut_down_can_be_unmounted_under_the_pool() {
    let mut bed = pool_over(vec![LoopFs::xfs(320 * MIB), LoopFs::tmpfs(32 * MIB)], "");
    fs::create_dir(bed.at("dir")).unwrap();
    fs::write(bed.at("dir/before"), "on the first").unwrap();
    rustix::fs::syncfs(fs::File::open(bed.on(0, "")).unwrap()).unwrap();
    shut_down(&bed.disks[0]);
    // The first request may get the error, since the pool does not take the disk for an empty one.
    let first = fs::write(bed.at("after"), "elsewhere");
    assert!(first.is_ok() || first.as_ref().unwrap_err().raw_os_error() == Some(5), "{first:?}");
    wait_for_illness(&bed, 0, Some("gone"));
    let names = make_all_kinds(&bed, "b-");
    assert_only_on(&bed, 1, &names);
    bed.disks[0].unmount();
    assert_empty(bed.disks[0].path());
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(illness(&bed, 0).as_deref(), Some("gone"), "the mountpoint directory is not the disk");
    bed.disks[0].mount_again();
    wait_for_illness(&bed, 0, None);
    assert_eq!(fs::read_to_string(bed.at("dir/before")).unwrap(), "on the first");
    let names = make_all_kinds(&bed, "c-");
    assert_only_on(&bed, 0, &names);
    bed.pool.umount();
    drop(bed.disks);
}

/// The only branch is a directory on a disk.
#[test]
fn the_only_branch_can_be_unmounted_and_mounted_again() {
    let mut disk = LoopFs::with(Kind::Ext4, 32 * MIB, &[], "");
    let branch = disk.path().join("sub/branch");
    fs::create_dir_all(&branch).unwrap();
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy")).branch(&branch).option("minfreespace=0").mount();
    let file = pool.path().join("file");
    fs::write(&file, "here").unwrap();
    disk.unmount_lazily();
    assert!(wait_until(PATIENCE, || pool.log().contains("goes on without it")), "{}", pool.log());
    // The message precedes the change.
    assert!(wait_until(PATIENCE, || fs::read(&file).is_err()));
    assert!(fs::write(pool.path().join("new"), "").is_err());
    // A directory at the same path is not the disk.
    fs::create_dir_all(&branch).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(fs::write(pool.path().join("new"), "").is_err());
    assert_empty(&branch);
    disk.mount_again();
    assert!(wait_until(PATIENCE, || fs::read(&file).is_ok()), "{}", pool.log());
    fs::write(pool.path().join("new"), "").unwrap();
    assert!(branch.join("new").exists());
    pool.umount();
    drop(disk);
}

/// The pool is mounted before the disk.
#[test]
fn a_disk_mounted_over_a_branch_replaces_it() {
    let scratch = ScratchDir::new("canopy-sick-", &["branch"]);
    let branch = scratch.path("branch");
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(&branch)
        .option("minfreespace=0")
        .forgive_descriptors()
        .mount();
    fs::write(pool.path().join("below"), "").unwrap();
    mount("tmpfs", &branch, "tmpfs", MountFlags::empty(), None).unwrap();
    let lands = || fs::write(pool.path().join("new"), "").is_ok() && branch.join("new").exists();
    assert!(wait_until(PATIENCE, lands), "{}", pool.log());
    assert!(!pool.path().join("below").exists());
    pool.umount();
    unmount(&branch, UnmountFlags::empty()).unwrap();
    assert!(branch.join("below").exists());
}
