//! `passthrough.io=auto`: writers past the daemon where there is room for them, and full disks all the same.

use super::rig::{Bed, MIB, fio, hidden, pattern};
use canopy_testkit::LoopFs;
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

/// Three disks of 120 MiB and files of 12 MiB, or so many times that: `CANOPY_SCALE=10` is 1.2 GB and 3 GB.
fn scale() -> u64 {
    std::env::var("CANOPY_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn disks() -> Vec<LoopFs> {
    // And what ext4 keeps for itself: all files grow at once, and each must always fit somewhere as a whole.
    let size = scale() * (120 << 20) + (12 << 20);
    vec![LoopFs::ext4(size), LoopFs::ext4(size), LoopFs::ext4(size)]
}

/// More than two branches hold is written over three, of which the first is given all new files.
#[test]
fn with_auto_every_byte_finds_room() {
    let bed = Bed::new(disks(), "passthrough.io=auto");
    let done = fio(bed.pool.path(), 24, 12 * scale());
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
    let done = fio(bed.pool.path(), 24, 12 * scale());
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
        // Others who have it open decide how its data travels.
        let file = options.open(bed.at("f")).unwrap();
        bed.moved(|| file.write_all_at(&[1; MIB], 0).unwrap()) >= MIB
    };
    let new = || {
        let _ = fs::remove_file(bed.at("f"));
        bed.closed("f");
        writes(OpenOptions::new().write(true).create(true))
    };
    let existing = || writes(OpenOptions::new().read(true).write(true));
    let alone = || {
        bed.closed("f");
        existing()
    };
    for (left, comes) in
        [(150, false), (23, true), (27, true), (29, true), (35, false), (27, false), (23, true)]
    {
        leave(left * GIB);
        assert_eq!((new(), alone()), (comes, comes), "{left} GiB left");
        bed.closed("f");
        let reader = File::open(bed.at("f")).unwrap();
        let mut seen = vec![0; MIB];
        assert!(bed.moved(|| reader.read_exact_at(&mut seen, 0).unwrap()) < MIB, "{left} GiB left");
        // A writer beside him, and both see what is written.
        assert_eq!(writes(OpenOptions::new().write(true)), comes, "{left} GiB left, beside a reader");
        // Who reads as well may splice, which would show what the page cache held before others wrote.
        assert!(!existing(), "{left} GiB left, reading and writing beside a reader");
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen.iter().all(|byte| *byte == 1));
    }
    // One writer has an eighth of the disk; a second one would share it.
    leave(40 * GIB);
    bed.closed("f");
    assert!(!new());
    bed.closed("f");
    let first = OpenOptions::new().write(true).open(bed.at("f")).unwrap();
    fs::write(bed.on(0, "g"), "").unwrap();
    let second = OpenOptions::new().write(true).open(bed.at("g")).unwrap();
    assert!(bed.moved(|| first.write_all_at(&[1; MIB], 0).unwrap()) < MIB);
    assert!(bed.moved(|| second.write_all_at(&[1; MIB], 0).unwrap()) >= MIB);
    // Who was let past stays there, and it is said when the room goes.
    let warned = || bed.pool.log().contains("little room is left");
    assert!(!warned());
    leave(16 * GIB);
    assert!(canopy_testkit::cmd::wait_until(std::time::Duration::from_secs(20), warned));
    drop((first, second, filler));
    bed.pool.umount();
}

/// A reader past the daemon keeps what he has opened; whoever writes goes on, and whoever opens gets all of it.
#[test]
fn a_file_moves_from_under_readers_past_the_daemon() {
    for options in
        ["passthrough.io=auto", "passthrough.io=auto,cache.files=full,cache.entry=60,cache.attr=60"]
    {
        let bed = Bed::new(vec![LoopFs::tmpfs(16 << 20), LoopFs::tmpfs(64 << 20)], options);
        let start = pattern(1, MIB);
        fs::create_dir(bed.on(0, "d")).unwrap();
        fs::write(bed.on(0, "d/f"), &start).unwrap();
        fs::hard_link(bed.on(0, "d/f"), bed.on(0, "g")).unwrap();
        let reader = File::open(bed.at("d/f")).unwrap();
        let linked = File::open(bed.at("g")).unwrap();
        let mut seen = vec![0; MIB];
        assert!(bed.moved(|| reader.read_exact_at(&mut seen, 0).unwrap()) < MIB);
        assert!(seen == start);
        let mut writer = OpenOptions::new().append(true).open(bed.at("g")).unwrap();
        bed.fill(0, 1 << 20);
        let more = pattern(2, 8 * MIB);
        assert!(bed.moved(|| writer.write_all(&more).unwrap()) >= 8 * MIB);
        let whole = [start.clone(), more].concat();
        assert_eq!((bed.holders("d/f"), bed.holders("g")), (vec![1], vec![1]), "{options}");
        assert!(fs::read(bed.on(1, "g")).unwrap() == whole, "{options}");
        // The first open of each name already, and all that follow.
        for name in ["d/f", "g", "d/f"] {
            assert!(fs::read(bed.at(name)).unwrap() == whole, "{options}: {name}");
            assert_eq!(fs::metadata(bed.at(name)).unwrap().len(), whole.len() as u64, "{options}: {name}");
        }
        for reader in [&reader, &linked] {
            seen.fill(0);
            reader.read_exact_at(&mut seen, 0).unwrap();
            assert!(seen == start, "{options}");
        }
        // Both ways to the file agree.
        let mut another = OpenOptions::new().read(true).append(true).open(bed.at("d/f")).unwrap();
        writer.write_all(b" one").unwrap();
        another.write_all(b" two").unwrap();
        writer.write_all(b" three").unwrap();
        let mut tail = vec![0; 14];
        another.read_exact_at(&mut tail, whole.len() as u64).unwrap();
        assert_eq!(tail, b" one two three", "{options}");
        assert_eq!(fs::read(bed.on(1, "d/f")).unwrap()[whole.len()..], tail, "{options}");
        writer.sync_all().unwrap();
        drop((reader, linked, writer, another));
        assert_eq!(fs::read(bed.at("g")).unwrap()[whole.len()..], tail, "{options}");
        fs::remove_file(bed.at("d/f")).unwrap();
        assert_eq!(
            fs::metadata(bed.at("g")).map(|meta| std::os::unix::fs::MetadataExt::nlink(&meta)).unwrap(),
            1
        );
        assert!(bed.disks.iter().all(|disk| hidden(disk.path()).is_empty()));
        bed.pool.umount();
    }
}

/// What could be written through a mapping would be lost: such a writer hears that there is no room.
#[test]
fn a_writer_who_could_map_the_file_beside_readers_is_told() {
    let bed = Bed::new(vec![LoopFs::tmpfs(16 << 20), LoopFs::tmpfs(64 << 20)], "passthrough.io=auto");
    fs::write(bed.on(0, "f"), pattern(1, MIB)).unwrap();
    let reader = File::open(bed.at("f")).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(bed.at("f")).unwrap();
    bed.fill(0, 1 << 20);
    let refused = writer.write_all_at(&[1; 8 * MIB], MIB as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(28), "{refused}");
    assert_eq!(bed.holders("f"), [0]);
    // Once the reader is gone, and whoever opened beside him, the file moves.
    drop((reader, writer));
    bed.closed("f");
    let writer = OpenOptions::new().read(true).write(true).open(bed.at("f")).unwrap();
    writer.write_all_at(&[1; 8 * MIB], MIB as u64).unwrap();
    assert_eq!(bed.holders("f"), [1]);
    drop(writer);
    bed.pool.umount();
}
