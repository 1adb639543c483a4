//! `passthrough.io=auto`: writers use passthrough while there is ample room, and files still move off full disks.

use super::rig::{MIB, bytes_moved, fio, no_unfinished_copies, pattern, pool_over};
use canopy_testkit::cmd::{spawn, wait_until, wait_within};
use canopy_testkit::{LoopFs, PATIENCE, PoolBed};
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

/// Returns the factor on the sizes below. At 1 the three disks have 120 MiB each and the files 12 MiB; `CANOPY_SCALE=10`
/// makes disks of 1.2 GB that take 3 GB of files.
fn scale() -> u64 {
    std::env::var("CANOPY_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn disks() -> Vec<LoopFs> {
    // The extra 12 MiB cover what ext4 reserves: all files grow at once, and each must always fit on one disk.
    let size = scale() * (120 << 20) + (12 << 20);
    vec![LoopFs::ext4(size), LoopFs::ext4(size), LoopFs::ext4(size)]
}

/// The files need more space than two branches have. All are created on the first of three.
#[test]
fn with_auto_files_move_off_full_branches() {
    let bed = pool_over(disks(), "passthrough.io=auto");
    let done = fio(bed.pool.path(), 24, 12 * scale());
    assert!(done.success(), "{}\n{}", done.describe(), bed.pool.log());
    let names: Vec<_> =
        fs::read_dir(bed.pool.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 24);
    let holders: Vec<usize> =
        names.iter().map(|name| bed.branches_with(name.to_str().unwrap()).len()).collect();
    assert!(holders.iter().all(|count| *count == 1), "{holders:?}");
    assert!(bed.pool.log().contains("moved to"), "{}", bed.pool.log());
    assert!(no_unfinished_copies(&bed.disks));
    bed.pool.umount();
}

/// The same load with passthrough for every writer: the daemon cannot move the files off the first branch.
#[test]
fn with_rw_writers_get_enospc() {
    let bed = pool_over(disks(), "passthrough.io=rw");
    let done = fio(bed.pool.path(), 24, 12 * scale());
    assert!(!done.success());
    assert!(done.describe().contains("No space left on device"), "{}", done.describe());
    bed.pool.umount();
}

/// Writers, and readers of recently changed files, get passthrough until the room runs short. They get it again once the
/// free space exceeds that threshold by a quarter. Readers of files that have not changed for long always get it.
#[test]
fn auto_grants_writers_passthrough_while_there_is_ample_room() {
    const GIB: u64 = 1 << 30;
    let bed = pool_over(vec![LoopFs::xfs(200 * GIB)], "passthrough.io=auto,cache.files=off");
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
        // XFS frees blocks in the background.
        canopy_testkit::cmd::wait_until(PATIENCE, || free().abs_diff(left) < GIB);
    };
    fs::write(bed.on(0, "g"), [1; MIB]).unwrap();
    let writes = |options: &OpenOptions| {
        // Other handles of the file decide whether this one uses passthrough.
        let file = options.open(bed.at("f")).unwrap();
        bytes_moved(&bed, || file.write_all_at(&[1; MIB], 0).unwrap()) >= MIB
    };
    let new = || {
        let _ = fs::remove_file(bed.at("f"));
        bed.wait_until_closed("f");
        writes(OpenOptions::new().write(true).create(true))
    };
    let existing = || writes(OpenOptions::new().read(true).write(true));
    let alone = || {
        bed.wait_until_closed("f");
        existing()
    };
    for (left, served_by_daemon) in
        [(150, false), (23, true), (27, true), (29, true), (35, false), (27, false), (23, true)]
    {
        leave(left * GIB);
        assert_eq!((new(), alone()), (served_by_daemon, served_by_daemon), "{left} GiB left");
        bed.wait_until_closed("f");
        let reader = File::open(bed.at("f")).unwrap();
        let mut seen = vec![0; MIB];
        // A reader that the daemon serves follows the file if it moves.
        let served = bytes_moved(&bed, || reader.read_exact_at(&mut seen, 0).unwrap()) >= MIB;
        assert_eq!(served, served_by_daemon, "{left} GiB left, reading");
        // A writer opens the file beside the reader, and both see what it writes.
        assert_eq!(
            writes(OpenOptions::new().write(true)),
            served_by_daemon,
            "{left} GiB left, beside a reader"
        );
        assert_eq!(existing(), served_by_daemon, "{left} GiB left, reading and writing beside a reader");
        make_unchanged_for_a_week(&bed, "g");
        let reader_of_unchanged = File::open(bed.at("g")).unwrap();
        assert!(
            bytes_moved(&bed, || reader_of_unchanged.read_exact_at(&mut seen, 0).unwrap()) < MIB,
            "{left} GiB left"
        );
        drop(reader_of_unchanged);
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen.iter().all(|byte| *byte == 1));
    }
    // An eighth of the disk is enough for one passthrough writer. A second one would have to share it.
    leave(40 * GIB);
    bed.wait_until_closed("f");
    assert!(!new());
    bed.wait_until_closed("f");
    let first = OpenOptions::new().write(true).open(bed.at("f")).unwrap();
    let second = OpenOptions::new().write(true).open(bed.at("g")).unwrap();
    assert!(bytes_moved(&bed, || first.write_all_at(&[1; MIB], 0).unwrap()) < MIB);
    assert!(bytes_moved(&bed, || second.write_all_at(&[1; MIB], 0).unwrap()) >= MIB);
    // A writer keeps the passthrough that it was granted. The log warns when the room runs short.
    let warned = || bed.pool.log().contains("little room is left");
    assert!(!warned());
    leave(16 * GIB);
    assert!(canopy_testkit::cmd::wait_until(PATIENCE, warned));
    drop((first, second, filler));
    bed.pool.umount();
}

/// Files that do not grow reserve little, so that the files of a database do not keep each other, or a stream, from
/// passthrough on a small disk. A file that grows fast reserves as much as a stream.
#[test]
fn files_that_do_not_grow_leave_room_for_others() {
    let bed = pool_over(vec![LoopFs::xfs(6 << 30)], "passthrough.io=auto,cache.files=off");
    let read_write = |name: &str| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(bed.at(name)).unwrap()
    };
    let is_served = |file: &File| bytes_moved(&bed, || file.write_all_at(&[1; MIB], 0).unwrap()) >= MIB;
    let database: Vec<File> = ["db", "db-wal", "db-shm"].map(read_write).into();
    assert!(!database.iter().any(is_served));
    let mut tables: Vec<File> = Vec::new();
    for number in 0..40 {
        fs::write(bed.on(0, &format!("table{number}")), [1; 8192]).unwrap();
        tables.push(read_write(&format!("table{number}")));
    }
    let stream = |name: &str| {
        let file = File::create(bed.at(name)).unwrap();
        let served = is_served(&file);
        (file, served)
    };
    let mut number = 0;
    let mut admitted = None;
    assert!(wait_until(PATIENCE, || {
        number += 1;
        let (file, served) = stream(&format!("stream{number}"));
        if !served {
            admitted = Some(file);
        }
        !served
    }));
    assert!(stream("second").1, "the first stream may still take what is left");
    assert!(!tables.iter().any(is_served));
    let admitted = admitted.unwrap();
    let grows = &database[1];
    assert!(wait_until(PATIENCE, || {
        let size = grows.metadata().unwrap().len();
        rustix::fs::fallocate(grows, FallocateFlags::empty(), size, 10 << 20).unwrap();
        bed.pool.log().contains("little room is left")
    }));
    drop((admitted, database, tables));
    bed.pool.umount();
}

/// A passthrough reader keeps the old file, the writer continues on the new branch, and later opens get the whole file.
#[test]
fn a_file_moves_while_passthrough_readers_have_it_open() {
    for options in
        ["passthrough.io=auto", "passthrough.io=auto,cache.files=full,cache.entry=60,cache.attr=60"]
    {
        let bed = pool_over(vec![LoopFs::tmpfs(16 << 20), LoopFs::tmpfs(64 << 20)], options);
        let start = pattern(1, MIB);
        fs::create_dir(bed.on(0, "d")).unwrap();
        fs::write(bed.on(0, "d/f"), &start).unwrap();
        make_unchanged_for_a_week(&bed, "d/f");
        fs::hard_link(bed.on(0, "d/f"), bed.on(0, "g")).unwrap();
        let reader = File::open(bed.at("d/f")).unwrap();
        let linked = File::open(bed.at("g")).unwrap();
        let mut seen = vec![0; MIB];
        assert!(bytes_moved(&bed, || reader.read_exact_at(&mut seen, 0).unwrap()) < MIB);
        assert!(seen == start);
        let mut writer = OpenOptions::new().append(true).open(bed.at("g")).unwrap();
        bed.disks[0].fill(1 << 20);
        let more = pattern(2, 8 * MIB);
        assert!(bytes_moved(&bed, || writer.write_all(&more).unwrap()) >= 8 * MIB);
        let whole = [start.clone(), more].concat();
        assert_eq!((bed.branches_with("d/f"), bed.branches_with("g")), (vec![1], vec![1]), "{options}");
        assert!(fs::read(bed.on(1, "g")).unwrap() == whole, "{options}");
        // This holds from the first open of each name on.
        for name in ["d/f", "g", "d/f"] {
            assert!(fs::read(bed.at(name)).unwrap() == whole, "{options}: {name}");
            assert_eq!(fs::metadata(bed.at(name)).unwrap().len(), whole.len() as u64, "{options}: {name}");
        }
        for reader in [&reader, &linked] {
            seen.fill(0);
            reader.read_exact_at(&mut seen, 0).unwrap();
            assert!(seen == start, "{options}");
            // The old data are not shown beside the size of the new.
            let mut old = vec![0; whole.len()];
            let read = reader.read_at(&mut old, 0).unwrap();
            assert_eq!(reader.metadata().unwrap().len(), read as u64, "{options}");
            assert!(read < whole.len() && old[..read] == whole[..read], "{options}");
        }
        // Handles of both names see the same data.
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
        assert!(no_unfinished_copies(&bed.disks));
        bed.pool.umount();
    }
}

/// Sets the modification time of a file to a week ago.
fn make_unchanged_for_a_week(bed: &PoolBed, name: &str) {
    let file = File::options().append(true).open(bed.on(0, name)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(7 * 24 * 60 * 60)).unwrap();
}

/// The file moves to a branch with room, regardless of the order and the modes in which it is opened.
#[test]
fn writers_find_room_whatever_the_order_of_opens() {
    let (read, write, both) = (OpenOptions::new().read(true).clone(), options(false), options(true));
    let orders: [&[&OpenOptions]; 6] = [
        &[&read, &both],
        &[&read, &write],
        &[&both, &read, &write],
        &[&read, &write, &read, &both],
        &[&read, &both, &both, &read],
        &[&write, &both, &read, &both],
    ];
    for (ample, order) in [true, false].into_iter().flat_map(|ample| orders.map(|order| (ample, order))) {
        let first = if ample { LoopFs::xfs(40 << 30) } else { LoopFs::tmpfs(16 << 20) };
        let bed = pool_over(vec![first, LoopFs::tmpfs(64 << 20)], "passthrough.io=auto");
        let start = pattern(1, MIB);
        fs::write(bed.on(0, "f"), &start).unwrap();
        let what = format!("{order:?}, room at first: {ample}");
        // These open the file with passthrough while there is room. One of them maps it.
        let early = ample.then(|| File::open(bed.at("f")).unwrap());
        let mapper = ample.then(|| Mapper::of(&bed.at("f")));
        bed.disks[0].fill(0);
        let files: Vec<File> = order.iter().map(|options| options.open(bed.at("f")).unwrap()).collect();
        let mut whole = start.clone();
        // Readers that open the file before the first writer join the early passthrough readers.
        let joined =
            if ample { order.iter().take_while(|options| std::ptr::eq(**options, &read)).count() } else { 0 };
        let writers = files.iter().zip(order).filter(|(_, options)| !std::ptr::eq(**options, &read));
        for (number, (writer, _)) in writers.enumerate() {
            let more = pattern(2 + number as u64, 6 * MIB);
            writer.write_all_at(&more, whole.len() as u64).unwrap_or_else(|error| {
                panic!("{what}: {error}\n{}", bed.pool.log());
            });
            whole.extend(more);
        }
        assert_eq!(bed.branches_with("f"), [1], "{what}");
        assert!(fs::read(bed.on(1, "f")).unwrap() == whole, "{what}");
        assert!(fs::read(bed.at("f")).unwrap() == whole, "{what}");
        // Later handles follow the file. Early ones keep the old file.
        for (file, options) in files.iter().zip(order).skip(joined) {
            if !std::ptr::eq(*options, &write) {
                let mut seen = vec![0; whole.len()];
                file.read_exact_at(&mut seen, 0).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(seen == whole, "{what}");
            }
            assert_eq!(file.metadata().unwrap().len(), whole.len() as u64, "{what}");
        }
        for early in early.iter().chain(&files[..joined]) {
            let mut seen = vec![0; MIB];
            early.read_exact_at(&mut seen, 0).unwrap();
            assert!(seen == start, "{what}");
            use std::os::unix::fs::MetadataExt;
            assert_eq!(early.metadata().unwrap().ino(), fs::metadata(bed.at("f")).unwrap().ino(), "{what}");
        }
        assert!(no_unfinished_copies(&bed.disks), "{what}");
        if let Some(mapper) = mapper {
            mapper.finish();
        }
        drop((early, files));
        bed.pool.umount();
    }
}

fn options(reads: bool) -> OpenOptions {
    OpenOptions::new().read(reads).write(true).clone()
}

/// While a passthrough writer has the file open, it cannot move: other writers get ENOSPC, and no data is lost.
#[test]
fn a_passthrough_writer_keeps_the_file_on_a_full_branch() {
    let bed = pool_over(vec![LoopFs::xfs(40 << 30), LoopFs::tmpfs(64 << 20)], "passthrough.io=auto");
    fs::write(bed.on(0, "f"), pattern(1, MIB)).unwrap();
    let past = options(true).open(bed.at("f")).unwrap();
    bed.disks[0].fill(0);
    for options in [options(true), options(false)] {
        let writer = options.open(bed.at("f")).unwrap();
        let refused = writer.write_all_at(&[1; 8 * MIB], MIB as u64).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(28), "{refused}");
    }
    assert_eq!(bed.branches_with("f"), [0]);
    past.write_all_at(b"past", 0).unwrap();
    drop(past);
    bed.wait_until_closed("f");
    let writer = options(true).open(bed.at("f")).unwrap();
    writer.write_all_at(&[1; 8 * MIB], MIB as u64).unwrap();
    assert_eq!(bed.branches_with("f"), [1]);
    assert_eq!(&fs::read(bed.at("f")).unwrap()[..4], b"past");
    drop(writer);
    bed.pool.umount();
}

/// An open through /proc/self/fd looks up no name. It still reads the current file after a writer has got a separate node.
#[test]
fn a_descriptor_reopens_a_file_whose_writers_have_a_separate_node() {
    let bed = pool_over(vec![LoopFs::xfs(40 << 30), LoopFs::tmpfs(64 << 20)], "passthrough.io=auto");
    fs::write(bed.on(0, "f"), "content").unwrap();
    let early = File::open(bed.at("f")).unwrap();
    bed.disks[0].fill(64 << 10);
    let writer = options(true).open(bed.at("f")).unwrap();
    writer.write_all_at(b"C", 0).unwrap();
    let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&early));
    assert_eq!(fs::read(&by_descriptor).unwrap(), b"Content");
    assert_eq!(fs::read(bed.at("f")).unwrap(), b"Content");
    // A writer opened through it would join the node of the passthrough readers.
    let refused = options(false).open(&by_descriptor).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(116), "{refused}");
    drop((early, writer));
    bed.pool.umount();
}

/// Another program that maps a file for reading.
struct Mapper(Child);

impl Mapper {
    fn of(path: &Path) -> Mapper {
        let script = "import mmap, sys\n\
                      file = open(sys.argv[1], 'rb')\n\
                      pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n\
                      print(pages[0], flush=True)\n\
                      sys.stdin.read()\n\
                      print(sum(pages[:]), flush=True)\n";
        let mut python = Command::new("python3");
        python.args(["-c".as_ref(), script.as_ref(), path.as_os_str()]);
        let mut child = spawn(python.stdin(Stdio::piped()).stdout(Stdio::piped())).expect("python3");
        let mut first = [0; 1];
        child.stdout.as_mut().expect("stdout").read_exact(&mut first).expect("a mapped byte");
        Mapper(child)
    }

    fn finish(mut self) {
        drop(self.0.stdin.take());
        let status = wait_within(&mut self.0, PATIENCE).expect("the mapper exits");
        assert!(status.success(), "{status}");
    }
}
