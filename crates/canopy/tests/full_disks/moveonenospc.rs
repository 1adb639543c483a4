//! `moveonenospc` on real mounts.

use super::rig::{MIB, no_unfinished_copies, pattern, pool_over};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{Kind, LoopFs, PATIENCE};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

/// The ways in which written data reaches the daemon.
const WAYS: [&str; 4] = [
    "passthrough.io=off,cache.files=off",
    "passthrough.io=off,cache.files=full",
    "passthrough.io=off,cache.files=auto-full",
    "cache.writeback=true",
];

#[test]
fn a_full_branch_moves_the_file_to_another() {
    for (kind, size) in [(Kind::Tmpfs, 16), (Kind::Ext4, 32), (Kind::Xfs, 320), (Kind::Btrfs, 144)] {
        for options in WAYS {
            let what = format!("{kind:?} {options}");
            let bed = pool_over(vec![LoopFs::new(kind, size << 20), LoopFs::tmpfs(64 << 20)], options);
            fs::create_dir(bed.on(0, "d")).unwrap();
            let start = pattern(1, MIB);
            fs::write(bed.at("d/f"), &start).unwrap();
            fs::hard_link(bed.at("d/f"), bed.at("g")).unwrap();
            let reader = File::open(bed.at("g")).unwrap();
            let file = OpenOptions::new().read(true).write(true).open(bed.at("d/f")).unwrap();
            let number = file.metadata().unwrap().ino();
            bed.disks[0].fill(2 << 20);
            let more = pattern(2, 8 * MIB);
            file.write_all_at(&more, MIB as u64).unwrap_or_else(|error| panic!("{what}: {error}"));
            file.sync_all().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((bed.branches_with("d/f"), bed.branches_with("g")), (vec![1], vec![1]), "{what}");
            let mut seen = vec![0; 9 * MIB];
            for handle in [&reader, &file] {
                handle.read_exact_at(&mut seen, 0).unwrap();
                assert!(seen[..MIB] == start && seen[MIB..] == more, "{what}");
            }
            assert!(fs::read(bed.on(1, "g")).unwrap() == seen, "{what}");
            for meta in [file.metadata(), reader.metadata(), fs::metadata(bed.at("g"))] {
                let meta = meta.unwrap();
                assert_eq!((meta.ino(), meta.nlink(), meta.len()), (number, 2, 9 << 20), "{what}");
            }
            drop((file, reader));
            assert!(no_unfinished_copies(&bed.disks), "{what}");
            bed.pool.umount();
        }
    }
}

/// Writeback requests belong to no client process, and still move the file.
#[test]
fn writeback_moves_the_file_off_a_full_branch() {
    let bed = pool_over(vec![LoopFs::tmpfs(8 << 20), LoopFs::tmpfs(64 << 20)], "cache.writeback=true");
    let file = File::create(bed.at("f")).unwrap();
    bed.disks[0].fill(1 << 20);
    // The page cache accepts all of it. Only the sync reports whether there was room.
    let data = pattern(3, 16 * MIB);
    file.write_all_at(&data, 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(bed.branches_with("f"), [1]);
    assert!(fs::read(bed.on(1, "f")).unwrap() == data);
    drop(file);
    bed.pool.umount();
}

/// New files, directories and symlinks go to the second branch once the first has no inodes left.
#[test]
fn new_entries_go_to_a_branch_that_has_inodes() {
    let few = LoopFs::with(Kind::Tmpfs, 32 << 20, &[], "nr_inodes=8");
    let bed = pool_over(vec![few, LoopFs::tmpfs(32 << 20)], "");
    for index in 0..20 {
        fs::write(bed.at(&format!("f{index}")), format!("{index}")).unwrap();
        fs::create_dir(bed.at(&format!("d{index}"))).unwrap();
        std::os::unix::fs::symlink("f0", bed.at(&format!("s{index}"))).unwrap();
    }
    for index in 0..20 {
        assert_eq!(fs::read_to_string(bed.at(&format!("f{index}"))).unwrap(), index.to_string());
        assert_eq!(bed.branches_with(&format!("f{index}")).len(), 1);
    }
    assert_eq!(
        (bed.branches_with("f0"), bed.branches_with("f19"), bed.branches_with("d19")),
        (vec![0], vec![1], vec![1])
    );
    assert!(no_unfinished_copies(&bed.disks));
    bed.pool.umount();
}

/// fio verifies every byte it has written while one branch after another fills up.
#[test]
fn fio_verifies_files_that_move_off_full_branches() {
    for options in [WAYS[0], WAYS[1], WAYS[3]] {
        let bed = pool_over(
            vec![LoopFs::tmpfs(24 << 20), LoopFs::ext4(48 << 20), LoopFs::tmpfs(96 << 20)],
            options,
        );
        let mut fio = Command::new("fio");
        fio.arg(format!("--directory={}", bed.pool.path().display()));
        fio.args(
            "--name=full --numjobs=4 --size=24M --rw=randwrite --bs=64k --ioengine=psync --thread".split(' '),
        );
        fio.args(
            "--verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 --fallocate=none --file_service_type=random"
                .split(' '),
        );
        let done = run_within(&mut fio, 5 * PATIENCE);
        assert!(done.success(), "{options}: {}\n{}", done.describe(), bed.pool.log());
        let holders: Vec<Vec<usize>> =
            (0..4).map(|job| bed.branches_with(&format!("full.{job}.0"))).collect();
        assert!(holders.iter().all(|holders| holders.len() == 1), "{options}: {holders:?}");
        assert!(holders.iter().any(|holders| holders[0] != 0), "{options}: no file has moved");
        assert!(no_unfinished_copies(&bed.disks), "{options}");
        bed.pool.umount();
    }
}
