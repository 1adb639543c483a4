//! `passthrough.io=auto`: writers past the daemon where there is room for them, and full disks all the same.

use super::rig::{Bed, MIB, fio, hidden};
use canopy_testkit::LoopFs;
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

fn disks() -> Vec<LoopFs> {
    vec![LoopFs::ext4(120 << 20), LoopFs::tmpfs(120 << 20), LoopFs::ext4(120 << 20)]
}

/// More than two branches hold is written over three, of which the first is given all new files.
#[test]
fn with_auto_every_byte_finds_room() {
    let bed = Bed::new(disks(), "passthrough.io=auto");
    let done = fio(bed.pool.path(), 24);
    assert!(done.success(), "{}\n{}", done.describe(), bed.pool.log());
    let names: Vec<_> =
        fs::read_dir(bed.pool.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 24);
    let holders: Vec<usize> = names.iter().map(|name| bed.holders(name.to_str().unwrap()).len()).collect();
    assert!(holders.iter().all(|count| *count == 1), "{holders:?}");
    assert!(bed.pool.log().contains("moved to"), "{}", bed.pool.log());
    assert!(bed.disks.iter().all(|disk| hidden(disk.path()).is_empty()));
    bed.pool.umount();
}

/// The same with every writer past the daemon meets the end of the first.
#[test]
fn with_rw_the_end_of_the_disk_is_met() {
    let bed = Bed::new(disks(), "passthrough.io=rw");
    let done = fio(bed.pool.path(), 24);
    assert!(!done.success());
    assert!(done.describe().contains("No space left on device"), "{}", done.describe());
    bed.pool.umount();
}

/// Writers pass as long as there is ample room, and again when a quarter more than that is there. Readers always do.
#[test]
fn writers_pass_where_there_is_ample_room() {
    const GIB: u64 = 1 << 30;
    let bed = Bed::new(vec![LoopFs::xfs(200 * GIB)], "passthrough.io=auto,cache.files=off");
    let filler = File::create(bed.on(0, "filler")).unwrap();
    let free = || {
        let space = rustix::fs::statvfs(bed.on(0, "")).unwrap();
        space.f_bavail * space.f_frsize
    };
    let leave = |left: u64| {
        let now = free();
        let size = filler.metadata().unwrap().len();
        if now > left {
            rustix::fs::fallocate(&filler, FallocateFlags::empty(), size, now - left).unwrap();
        } else {
            filler.set_len(size - (left - now)).unwrap();
        }
        // XFS gives back in the background.
        canopy_testkit::cmd::wait_until(std::time::Duration::from_secs(20), || free().abs_diff(left) < GIB);
    };
    let writes = |options: &OpenOptions| {
        let file = options.open(bed.at("f")).unwrap();
        bed.moved(|| file.write_all_at(&[1; MIB], 0).unwrap()) >= MIB
    };
    let new = || {
        let _ = fs::remove_file(bed.at("f"));
        writes(OpenOptions::new().write(true).create(true))
    };
    let existing = || writes(OpenOptions::new().read(true).write(true));
    for (left, comes) in
        [(150, false), (60, true), (70, true), (79, true), (85, false), (66, false), (63, true)]
    {
        leave(left * GIB);
        assert_eq!((new(), existing()), (comes, comes), "{left} GiB left");
        let reader = File::open(bed.at("f")).unwrap();
        let mut seen = vec![0; MIB];
        assert!(bed.moved(|| reader.read_exact_at(&mut seen, 0).unwrap()) < MIB, "{left} GiB left");
        // A writer beside him, and both see what is written.
        assert_eq!(existing(), comes, "{left} GiB left, beside a reader");
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen.iter().all(|byte| *byte == 1));
    }
    // One writer has 64 GiB; a second one would share them.
    leave(100 * GIB);
    assert!(!new());
    let first = OpenOptions::new().write(true).open(bed.at("f")).unwrap();
    fs::write(bed.on(0, "g"), "").unwrap();
    let second = OpenOptions::new().write(true).open(bed.at("g")).unwrap();
    assert!(bed.moved(|| first.write_all_at(&[1; MIB], 0).unwrap()) < MIB);
    assert!(bed.moved(|| second.write_all_at(&[1; MIB], 0).unwrap()) >= MIB);
    // Who was let past stays there, and it is said when the room goes.
    let warned = || bed.pool.log().contains("little room is left");
    assert!(!warned());
    leave(40 * GIB);
    assert!(canopy_testkit::cmd::wait_until(std::time::Duration::from_secs(20), warned));
    drop((first, second, filler));
    bed.pool.umount();
}
