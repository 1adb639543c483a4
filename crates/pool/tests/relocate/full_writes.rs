//! Writes to a full branch.

use super::*;
use crate::common::TestKernel;
use canopy_pool::kernel::NoKernel;
use canopy_pool::ops;
use canopy_pool::{SetAttr, Whence};
use canopy_testkit::Kind;
use canopy_testkit::files::put;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_full_branch_moves_the_file_and_all_its_handles() {
    let disks = Disks::small_and_large();
    put(disks.on(0, "dir/f"), &pattern(1, MIB));
    let mut client = disks_client(&disks);
    let (node, writer) = disks.open(&mut client, "dir/f", OFlags::RDWR);
    let (_, reader) = disks.open(&mut client, "dir/f", OFlags::RDONLY);
    let (_, appender) = disks.open(&mut client, "dir/f", OFlags::WRONLY | OFlags::APPEND);
    let before = ops::names::lookup::getattr(&disks.pool, node, None).unwrap();
    disks.fill(0);
    let more = pattern(2, 3 * MIB);
    write(&disks.pool, writer, MIB as u64, &more).expect("the other branch has room");
    assert!(!disks.on(0, "dir/f").exists());
    let mut whole = [pattern(1, MIB), more].concat();
    assert_eq!(fs::read(disks.on(1, "dir/f")).unwrap(), whole);
    // Each handle sees what the others write.
    write(&disks.pool, appender, 0, b"appended").unwrap();
    whole.extend_from_slice(b"appended");
    write(&disks.pool, writer, 7, b"changed").unwrap();
    whole[7..14].copy_from_slice(b"changed");
    for handle in [writer, reader] {
        assert_eq!(read(&disks.pool, handle, 8 * MIB), whole);
    }
    assert_eq!(fs::read(disks.on(1, "dir/f")).unwrap(), whole);
    // Clients cannot see that the file moved.
    let after = ops::names::lookup::getattr(&disks.pool, node, Some(reader)).unwrap();
    assert_eq!((after.ino, after.size), (before.ino, whole.len() as u64));
    assert_eq!(
        ops::names::lookup::lookup(&disks.pool, client.walk("dir").unwrap().node, b"f").map(|e| e.node),
        Ok(node)
    );
    ops::names::lookup::forget(&disks.pool, node, 1);
    ops::data::io::fsync(&disks.pool, appender, false).unwrap();
    assert_eq!(ops::data::io::lseek(&disks.pool, reader, 0, Whence::Hole).unwrap(), whole.len() as u64);
    for handle in [writer, reader, appender] {
        ops::data::open::release(&disks.pool, handle).unwrap();
    }
    assert_eq!(ops::names::lookup::getattr(&disks.pool, node, None).unwrap().ino, before.ino);
    assert_eq!(disks.unfinished_copies(), NONE);
    client.end().unwrap();
}

#[test]
fn a_move_ends_early_when_the_caller_is_killed() {
    let disks = Disks::small_and_large();
    put(disks.on(0, "dir/f"), &pattern(1, MIB));
    let mut client = disks_client(&disks);
    let (_, writer) = disks.open(&mut client, "dir/f", OFlags::RDWR);
    disks.fill(0);
    let kernel = TestKernel { unwatched: true, caller_is_killed: true, ..TestKernel::default() };
    ops::settings::connect(&disks.pool, Arc::new(kernel), false);
    assert_eq!(write(&disks.pool, writer, MIB as u64, &pattern(2, MIB)), Err(Errno::NOSPC));
    assert_eq!(fs::read(disks.on(0, "dir/f")).unwrap()[..MIB], pattern(1, MIB));
    assert!(!disks.on(1, "dir/f").exists());
    assert_eq!(disks.unfinished_copies(), NONE);
    // The next caller is alive and waits.
    ops::settings::connect(&disks.pool, Arc::new(NoKernel), false);
    write(&disks.pool, writer, MIB as u64, &pattern(2, MIB)).unwrap();
    assert!(disks.on(1, "dir/f").exists());
    ops::data::open::release(&disks.pool, writer).unwrap();
    client.end().unwrap();
}

fn disks_client(disks: &Disks) -> common::Client {
    common::Client::new(disks.pool.clone())
}

#[test]
fn all_names_of_a_file_move_or_none() {
    for outside in [false, true] {
        let large = LoopFs::tmpfs(64 << 20);
        let small = LoopFs::tmpfs(4 << 20);
        // Each branch is a subdirectory of its filesystem, so that a name can be outside the branch.
        let branches = [small.path().join("branch"), large.path().join("branch")];
        branches.iter().for_each(|branch| fs::create_dir(branch).unwrap());
        let mut config = Config::default();
        config.policies.set_category(Category::Create, Policy::Ff);
        let pool = common::over(&branches, &[Mode::Rw, Mode::Rw], config);
        put(branches[0].join("a/f"), &pattern(1, MIB));
        // Names that were never looked up.
        fs::create_dir_all(branches[0].join("x/y/z")).unwrap();
        fs::hard_link(branches[0].join("a/f"), branches[0].join("x/y/z/g")).unwrap();
        fs::hard_link(branches[0].join("a/f"), branches[0].join("a/h")).unwrap();
        if outside {
            fs::hard_link(branches[0].join("a/f"), small.path().join("outside")).unwrap();
        }
        let mut client = common::Client::new(pool.clone());
        let node = client.walk("a/h").unwrap().node;
        let handle =
            ops::data::open::open(&pool, &common::ROOT, node, OFlags::RDWR.bits(), false).unwrap().handle;
        let filler = fs::File::create(small.path().join("filler")).unwrap();
        let free = rustix::fs::statvfs(small.path()).unwrap();
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, free.f_bavail * free.f_frsize)
            .unwrap();
        let result = write(&pool, handle, MIB as u64, &pattern(2, MIB));
        let (left, held) = if outside { (0, 4) } else { (1, 3) };
        assert_eq!(result, if outside { Err(Errno::NOSPC) } else { Ok(()) });
        for name in ["a/f", "a/h", "x/y/z/g"] {
            assert!(!branches[1 - left].join(name).exists(), "{name}");
            let meta = fs::metadata(branches[left].join(name)).unwrap();
            assert_eq!(
                (meta.nlink(), meta.ino()),
                (held, fs::metadata(branches[left].join("a/f")).unwrap().ino())
            );
        }
        // All names still lead to one node.
        for name in ["a/f", "a/h", "x/y/z/g"] {
            assert_eq!(client.walk(name).unwrap().node, node, "{name}");
        }
        ops::data::open::release(&pool, handle).unwrap();
        client.end().unwrap();
    }
}

/// Covers far more names than descriptors.
#[test]
fn a_file_with_thousands_of_names_moves() {
    const NAMES: usize = 5000;
    let disks = Disks::small_and_large();
    put(disks.on(0, "d/0"), &pattern(1, MIB));
    for name in 1..NAMES {
        fs::hard_link(disks.on(0, "d/0"), disks.on(0, &format!("d/{name}"))).unwrap();
    }
    let mut client = disks_client(&disks);
    let (_, handle) = disks.open(&mut client, "d/7", OFlags::RDWR);
    disks.fill(0);
    write(&disks.pool, handle, MIB as u64, &pattern(2, MIB)).unwrap();
    assert_eq!(fs::read_dir(disks.on(0, "d")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(disks.on(1, "d")).unwrap().count(), NAMES);
    assert_eq!(fs::metadata(disks.on(1, "d/0")).unwrap().nlink(), NAMES as u64);
    assert_eq!(read(&disks.pool, handle, 4 * MIB), [pattern(1, MIB), pattern(2, MIB)].concat());
    ops::data::open::release(&disks.pool, handle).unwrap();
    client.end().unwrap();
}

/// A writer on the branch keeps the file from moving. The handles of the pool do not, and survive the attempt.
#[test]
fn handles_stay_usable_while_another_writer_keeps_the_file_on_its_branch() {
    let disks = Disks::small_and_large();
    put(disks.on(0, "dir/f"), &pattern(1, MIB));
    let mut client = disks_client(&disks);
    let flags = [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::APPEND, OFlags::RDWR | OFlags::DIRECT];
    let handles = flags.map(|flags| disks.open(&mut client, "dir/f", flags));
    let (_, reader) = disks.open(&mut client, "dir/f", OFlags::RDONLY);
    disks.fill(0);
    let other_writer = fs::File::options().write(true).open(disks.on(0, "dir/f")).unwrap();
    for (flags, (_, writer)) in flags.into_iter().zip(handles) {
        assert_eq!(write(&disks.pool, writer, 8 * MIB as u64, &[1; 4096]), Err(Errno::NOSPC));
        if !flags.contains(OFlags::APPEND) {
            assert_eq!(
                write(&disks.pool, writer, 0, &[2; 4096]),
                Ok(()),
                "writes within the file need no room"
            );
        }
    }
    assert_eq!(&read(&disks.pool, reader, 4096), &[2; 4096]);
    assert_eq!(disks.unfinished_copies(), NONE);
    assert!(disks.on(0, "dir/f").exists());
    drop(other_writer);
    for (_, writer) in handles {
        assert_eq!(write(&disks.pool, writer, 8 * MIB as u64, &[1; 4096]), Ok(()));
    }
    assert!(disks.on(1, "dir/f").exists());
    for handle in handles.map(|(_, handle)| handle).into_iter().chain([reader]) {
        ops::data::open::release(&disks.pool, handle).unwrap();
    }
    client.end().unwrap();
}

#[test]
fn a_file_stays_where_it_is_when_it_cannot_move() {
    type Row = (&'static str, fn() -> Config, fn(&Disks));
    let table: [Row; 4] = [
        ("moveonenospc=false", never, |_| {}),
        // The policy chooses only branches that have the directory, and no other has.
        ("epff", || Config { move_when_full: MoveWhenFull(Some(Policy::EpFf)), ..Config::default() }, |_| {}),
        // The pool might show the other copy after the move.
        ("a second copy", Config::default, |disks| put(disks.on(1, "dir/f"), b"another")),
        ("no room anywhere", Config::default, |disks| disks.fill(1)),
    ];
    for (what, config, prepare) in table {
        let disks = Disks::with(vec![LoopFs::tmpfs(4 << 20), LoopFs::tmpfs(64 << 20)], config());
        put(disks.on(0, "dir/f"), b"content");
        let mut client = disks_client(&disks);
        let (_, handle) = disks.open(&mut client, "dir/f", OFlags::RDWR);
        disks.fill(0);
        prepare(&disks);
        assert_eq!(write(&disks.pool, handle, 8192, &[1; MIB]), Err(Errno::NOSPC), "{what}");
        assert_eq!(&read(&disks.pool, handle, 7), b"content", "{what}");
        assert!(disks.on(0, "dir/f").exists(), "{what}");
        assert_eq!(disks.unfinished_copies(), NONE, "{what}");
        ops::data::open::release(&disks.pool, handle).unwrap();
        client.end().unwrap();
    }
}

/// A write beyond a quota fails with EDQUOT. btrfs enforces its limits for root too.
#[test]
fn an_exceeded_quota_moves_the_file() {
    let limited = LoopFs::btrfs(160 << 20);
    let path = limited.path().to_str().expect("text").to_owned();
    canopy_testkit::cmd::run("btrfs", ["quota", "enable", &path]);
    canopy_testkit::cmd::run("btrfs", ["qgroup", "limit", "6M", &path]);
    let mut behind = fs::File::create(limited.path().join("behind")).unwrap();
    let refused = std::io::Write::write_all(&mut behind, &[0; 16 * MIB]).unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::DQUOT));
    drop(behind);
    fs::remove_file(limited.path().join("behind")).unwrap();
    rustix::fs::syncfs(fs::File::open(limited.path()).unwrap()).unwrap();
    let disks = Disks::new(vec![limited, LoopFs::tmpfs(64 << 20)]);
    put(disks.on(0, "f"), &pattern(1, MIB));
    let mut client = disks_client(&disks);
    let (_, handle) = disks.open(&mut client, "f", OFlags::RDWR);
    write(&disks.pool, handle, MIB as u64, &pattern(2, 8 * MIB)).unwrap();
    assert!(!disks.on(0, "f").exists() && disks.on(1, "f").exists());
    assert_eq!(read(&disks.pool, handle, 16 * MIB), [pattern(1, MIB), pattern(2, 8 * MIB)].concat());
    ops::data::open::release(&disks.pool, handle).unwrap();
    client.end().unwrap();
}

#[test]
fn unlinked_files_move_too() {
    let disks = Disks::small_and_large();
    put(disks.on(0, "f"), &pattern(1, MIB));
    let mut client = disks_client(&disks);
    let (node, handle) = disks.open(&mut client, "f", OFlags::RDWR);
    ops::names::remove::unlink(&disks.pool, NodeId::ROOT, b"f").unwrap();
    disks.fill(0);
    write(&disks.pool, handle, MIB as u64, &pattern(2, 2 * MIB)).unwrap();
    assert_eq!(read(&disks.pool, handle, 8 * MIB), [pattern(1, MIB), pattern(2, 2 * MIB)].concat());
    assert_eq!(ops::names::lookup::getattr(&disks.pool, node, None).unwrap().nlink, 0);
    assert_eq!(fs::read_dir(disks.on(1, "")).unwrap().count(), 0);
    ops::data::open::release(&disks.pool, handle).unwrap();
    client.end().unwrap();
}

#[test]
fn fallocate_and_copy_file_range_move_the_file() {
    for copies in [false, true] {
        let disks = Disks::small_and_large();
        put(disks.on(0, "f"), &pattern(1, MIB));
        put(disks.on(0, "source"), &pattern(2, MIB));
        let mut client = disks_client(&disks);
        let (_, handle) = disks.open(&mut client, "f", OFlags::RDWR);
        let (_, source) = disks.open(&mut client, "source", OFlags::RDONLY);
        disks.fill(0);
        if copies {
            let all = MIB as u64;
            // The move separates the two files, so the kernel has to copy by itself.
            let copied = ops::data::io::copy_file_range(&disks.pool, (source, 0), (handle, all), all);
            assert_eq!(copied.map_err(|error| error.errno()), Err(Errno::XDEV));
            assert_eq!(read(&disks.pool, handle, 16 * MIB)[..MIB], pattern(1, MIB));
            assert_eq!(read(&disks.pool, source, MIB), pattern(2, MIB));
        } else {
            ops::data::io::fallocate(&disks.pool, handle, 0, 0, 8 << 20).unwrap();
            assert_eq!(fs::metadata(disks.on(1, "f")).unwrap().blocks() * 512, 8 << 20);
            assert_eq!(read(&disks.pool, handle, MIB), pattern(1, MIB));
        }
        assert!(!disks.on(0, "f").exists() && disks.on(1, "f").exists());
        for handle in [handle, source] {
            ops::data::open::release(&disks.pool, handle).unwrap();
        }
        client.end().unwrap();
    }
}

/// On a filesystem with holes, a larger size needs no room.
#[test]
fn truncating_on_a_full_branch_changes_only_the_size() {
    let disks = Disks::small_and_large();
    put(disks.on(0, "f"), b"content");
    let mut client = disks_client(&disks);
    let node = client.walk("f").unwrap().node;
    disks.fill(0);
    let set = SetAttr { size: Some(1 << 30), ..SetAttr::default() };
    let attr = ops::attrs::setattr::setattr(&disks.pool, &common::ROOT, node, None, &set).unwrap();
    assert_eq!(attr.size, 1 << 30);
    assert!(disks.on(0, "f").exists());
    client.end().unwrap();
}

/// Reads back every acknowledged write while one branch after the other fills up.
#[test]
fn no_write_is_lost_while_branches_fill_up() {
    const THREADS: usize = 4;
    const PIECE: usize = 64 << 10;
    let disks = Disks::new(vec![
        LoopFs::tmpfs(4 << 20),
        LoopFs::tmpfs(10 << 20),
        LoopFs::tmpfs(24 << 20),
        LoopFs::tmpfs(96 << 20),
    ]);
    put(disks.on(0, "f"), b"");
    put(disks.on(0, "g"), b"");
    let mut client = disks_client(&disks);
    let handles: Vec<(HandleId, HandleId)> = (0..THREADS)
        .map(|_| (disks.open(&mut client, "f", OFlags::RDWR).1, disks.open(&mut client, "g", OFlags::RDWR).1))
        .collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (f, g) in &handles {
            let (next, pool) = (&next, &disks.pool);
            scope.spawn(move || {
                loop {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if piece >= 32 * MIB / PIECE {
                        break;
                    }
                    for (handle, salt) in [(f, 0), (g, 1 << 32)] {
                        let (at, data) = ((piece * PIECE) as u64, pattern(piece as u64 + salt, PIECE));
                        write(pool, *handle, at, &data).expect("some branch has room");
                        let mut back = vec![0; PIECE];
                        assert_eq!(ops::data::io::read(pool, *handle, at, &mut back), Ok(PIECE));
                        assert!(back == data, "piece {piece} is not what was written");
                    }
                }
            });
        }
    });
    for (index, salt) in [(0, 0), (1, 1 << 32)] {
        let handle = if index == 0 { handles[0].0 } else { handles[0].1 };
        for piece in 0..32 * MIB / PIECE {
            let mut back = vec![0; PIECE];
            assert_eq!(
                ops::data::io::read(&disks.pool, handle, (piece * PIECE) as u64, &mut back),
                Ok(PIECE)
            );
            assert!(back == pattern(piece as u64 + salt, PIECE), "piece {piece}");
        }
    }
    for name in ["f", "g"] {
        let copies = (0..4).filter(|branch| disks.on(*branch, name).exists()).count();
        assert_eq!(copies, 1, "{name}");
    }
    assert!(!disks.on(0, "f").exists() && !disks.on(0, "g").exists());
    assert_eq!(disks.unfinished_copies(), NONE);
    for (f, g) in handles {
        ops::data::open::release(&disks.pool, f).unwrap();
        ops::data::open::release(&disks.pool, g).unwrap();
    }
    client.end().unwrap();
}

/// The kernel tells of a close, and that it has forgotten a file, after it has answered who removed it.
#[test]
fn the_room_of_a_file_that_was_just_removed_is_waited_for() {
    let full = |inodes: &str| LoopFs::with(Kind::Tmpfs, 4 << 20, &[], inodes);
    // Its root, and two files.
    let disks = Disks::new(vec![full("nr_inodes=3")]);
    let pool = &disks.pool;
    put(disks.on(0, "old"), &pattern(1, 3 * MIB));
    put(disks.on(0, "new"), b"");
    let open = |name: &[u8]| {
        let node = ops::names::lookup::lookup(pool, NodeId::ROOT, name).unwrap().node;
        let flags = OFlags::RDWR.bits();
        (node, ops::data::open::open(pool, &common::ROOT, node, flags, false).unwrap().handle)
    };
    let mkdir = || ops::names::create::mkdir(pool, &common::ROOT, NodeId::ROOT, b"dir", 0o755);
    let (new, writer) = open(b"new");
    for makes_room in [true, false] {
        let (old, closing) = open(b"old");
        ops::names::remove::unlink(pool, NodeId::ROOT, b"old").unwrap();
        let begun = Instant::now();
        let close = || {
            ops::data::open::release(pool, closing).unwrap();
            ops::names::lookup::forget(pool, old, 1);
        };
        std::thread::scope(|scope| {
            if makes_room {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(30));
                    close();
                });
                write(pool, writer, 0, &pattern(2, 3 * MIB)).expect("the room of the old file");
            } else {
                // Whoever keeps such a file open gives nothing back, and is not waited for.
                assert_eq!(write(pool, writer, 0, &pattern(2, 3 * MIB)), Err(Errno::NOSPC));
                assert_eq!(mkdir().unwrap_err().errno(), Errno::NOSPC);
                assert!(begun.elapsed() < Duration::from_secs(5));
                close();
                ops::names::lookup::forget(pool, mkdir().expect("the inode of the old file").node, 1);
            }
        });
        if makes_room {
            write(pool, writer, 0, b"").unwrap();
            fs::write(disks.on(0, "new"), "").unwrap();
            put(disks.on(0, "old"), &pattern(1, 3 * MIB));
        }
    }
    ops::data::open::release(pool, writer).unwrap();
    ops::names::lookup::forget(pool, new, 1);
}
