//! Opening a file wakes the disk that has it, and no other.

use super::rig::{mount, requests, rest};
use canopy_testkit::cmd::run;
use canopy_testkit::{Kind, PoolBed};
use std::fs;
use std::time::Duration;

/// Whoever opens two files of a directory within a second is taken for a program that goes on so.
const LATER: Duration = Duration::from_millis(1100);

/// Reads files of which only the second disk has a copy, in directories that both have.
#[track_caller]
fn assert_other_sleeps(bed: &PoolBed, names: &[&str]) {
    for name in names {
        let before = requests(bed);
        run("cat", [bed.at(name)]);
        let after = requests(bed);
        assert_eq!(after[0], before[0], "{name} is on the second disk");
        std::thread::sleep(LATER);
    }
}

#[test]
fn a_file_is_opened_while_the_other_disks_sleep() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let home = tempfile::tempdir().expect("a directory");
        let bed = mount(kind, &format!("catalogue={}", home.path().display()));
        for name in ["dir3/second", "dir3/third", "dir4/fourth"] {
            fs::write(bed.on(1, name), "text").expect("a file");
        }
        run("ls", ["-lR".into(), bed.pool.path().to_owned()]);
        for _ in 0..2 {
            rest(&bed);
            // As if the kernel had needed the memory.
            fs::write("/proc/sys/vm/drop_caches", "3").expect("root");
            assert_other_sleeps(
                &bed,
                &["dir3/file1", "dir3/second", "dir4/fourth", "dir3/third", "dir3/file1"],
            );
        }
        bed.pool.umount();
    }
}
