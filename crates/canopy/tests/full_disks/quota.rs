//! Quotas: a disk with free space whose writes fail with EDQUOT.

use super::rig::{MIB, no_unfinished_copies, pattern, pool_over};
use canopy_testkit::cmd::run;
use canopy_testkit::{Kind, LoopFs};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

/// Returns a btrfs with a quota. Whether ext4, XFS and tmpfs have quotas depends on the kernel configuration.
fn limited(bytes: u64) -> LoopFs {
    let disk = LoopFs::new(Kind::Btrfs, 256 << 20);
    let at = disk.path().to_str().expect("a path of ours");
    run("btrfs", ["quota", "enable", at]);
    run("btrfs", ["qgroup", "limit", &bytes.to_string(), "0/5", at]);
    disk
}

#[test]
fn edquot_sends_files_to_another_branch() {
    for options in ["passthrough.io=off,cache.files=off", "cache.writeback=true", ""] {
        let bed = pool_over(vec![limited(12 << 20), LoopFs::tmpfs(96 << 20)], options);
        // A growing file moves.
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(bed.at("grows")).unwrap();
        let data = pattern(5, 24 * MIB);
        for (index, piece) in data.chunks(MIB).enumerate() {
            file.write_all_at(piece, (index * MIB) as u64)
                .unwrap_or_else(|error| panic!("{options}: {error}"));
        }
        file.sync_all().unwrap_or_else(|error| panic!("{options}: {error}"));
        assert_eq!(bed.branches_with("grows"), [1], "{options}");
        assert!(fs::read(bed.at("grows")).unwrap() == data, "{options}");
        // Further files are created on a branch with room, and hold what was written.
        for number in 0..24 {
            let piece = pattern(number, MIB);
            fs::write(bed.at(&format!("f{number}")), &piece)
                .unwrap_or_else(|error| panic!("{options}: {error}"));
        }
        for number in 0..24 {
            assert!(fs::read(bed.at(&format!("f{number}"))).unwrap() == pattern(number, MIB), "{options}");
        }
        assert!((0..24).any(|number| bed.branches_with(&format!("f{number}")) == [1]), "{options}");
        drop(file);
        assert!(no_unfinished_copies(&bed.disks), "{options}");
        bed.pool.umount();
    }
}
