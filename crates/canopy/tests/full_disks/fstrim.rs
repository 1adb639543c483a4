//! fstrim(8) of a pool.

use super::rig::{MIB, pattern, pool_over};
use canopy_testkit::cmd::{Finished, run_within, wait_until};
use canopy_testkit::{Kind, LoopFs, PATIENCE, User};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Returns the number of bytes that fstrim reports as discarded.
fn trimmed(done: &Finished) -> Option<u64> {
    let (_, rest) = done.stdout.split_once('(')?;
    rest.split(' ').next()?.parse().ok()
}

#[test]
fn fstrim_discards_the_free_space_of_every_branch() {
    let disks = vec![LoopFs::ext4(64 << 20), LoopFs::tmpfs(16 << 20), LoopFs::new(Kind::Ext4, 64 << 20)];
    let bed = pool_over(disks, "");
    let images = [0, 2].map(|disk: usize| bed.disks[disk].image().expect("an image"));
    let in_use = || images.each_ref().map(|image| fs::metadata(image).expect("an image").blocks() * 512);
    for branch in [0, 2] {
        let path = bed.on(branch, "f");
        fs::write(&path, pattern(1, 24 * MIB)).expect("a file");
        File::open(&path).and_then(|file| file.sync_all()).expect("fsync");
        let free = || {
            let space = rustix::fs::statvfs(bed.on(branch, "")).expect("statvfs");
            space.f_bfree * space.f_frsize
        };
        let with_it = free();
        fs::remove_file(&path).expect("unlink");
        // The pool may look at the file just now, and its blocks are free after that.
        assert!(
            wait_until(PATIENCE, || free() >= with_it + 24 * MIB as u64),
            "the blocks of the file stay in use"
        );
        rustix::fs::syncfs(File::open(bed.on(branch, "")).expect("the branch")).expect("syncfs");
    }
    let before = in_use();
    let fstrim = |command: &mut Command| run_within(command.arg("-v").arg(bed.pool.path()), PATIENCE);
    // Only root may trim.
    let refused = fstrim(&mut User { uid: 1000, gid: 1000, groups: &[] }.command("fstrim"));
    assert!(!refused.success() && refused.stderr.contains("not permitted"), "{}", refused.describe());
    assert_eq!(in_use(), before);
    let done = fstrim(&mut Command::new("fstrim"));
    assert!(done.success(), "{}", done.describe());
    let after = in_use();
    for (before, after) in before.iter().zip(after) {
        assert!(after + 20 * MIB as u64 <= *before, "{before} bytes before, {after} after");
    }
    // fstrim discards all free space of both branches, which is more than the size of the removed files.
    let sum = trimmed(&done).expect("a number");
    assert!((48 * MIB as u64..128 * MIB as u64).contains(&sum), "{}", done.describe());
    bed.pool.umount();
}

#[test]
fn fstrim_fails_if_no_branch_supports_it() {
    let bed = pool_over(vec![LoopFs::tmpfs(16 << 20), LoopFs::tmpfs(16 << 20)], "");
    let done = run_within(Command::new("fstrim").arg(bed.pool.path()), PATIENCE);
    assert!(!done.success() && done.stderr.contains("not supported"), "{}", done.describe());
    bed.pool.umount();
}
