//! Moves that a client asks for, by the ioctl `RELOCATE`.

use super::*;
use crate::common::{Client, TestKernel};
use canopy_pool::kernel::NoKernel;
use canopy_pool::ops;
use canopy_sys::ioctl::relocate::{RELOCATE, Relocation, What};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::files::put;
use canopy_testkit::{Fields, Kind, PATIENCE, Tree};
use rustix::fs::{AtFlags, FileType, Mode as FileMode, XattrFlags};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::time::Duration;

fn two_disks() -> Disks {
    Disks::new(vec![LoopFs::ext4(64 << 20), LoopFs::new(Kind::Ext4, 64 << 20)])
}

/// Moves an entry from one branch to another, as a user.
fn relocate_as(disks: &Disks, uid: u32, path: &str, from: usize, to: usize, rate: u64) -> Result<(), Errno> {
    ask(disks, uid, path, from, to, |wish| wish.rate = rate)
}

/// Copies an entry from one branch to another.
fn copy(disks: &Disks, path: &str, from: usize, to: usize) -> Result<(), Errno> {
    ask(disks, 0, path, from, to, |wish| wish.what = What::Copy)
}

fn ask(
    disks: &Disks,
    uid: u32,
    path: &str,
    from: usize,
    to: usize,
    how: impl FnOnce(&mut Relocation<'_>),
) -> Result<(), Errno> {
    let mut client = Client::new(disks.pool.clone());
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = if dir.is_empty() { NodeId::ROOT } else { client.walk(dir).expect("a directory").node };
    let [from, to] = [from, to].map(|branch| disks.disks[branch].path().as_os_str().as_bytes());
    let mut relocation =
        Relocation { name: name.as_bytes(), from, to, rate: 0, idle: true, lossy: false, what: What::Move };
    how(&mut relocation);
    let caller = canopy_pool::Caller { uid, ..common::administrator() };
    let done = ops::attrs::ioctl::ioctl(
        &disks.pool,
        &caller,
        dir,
        RELOCATE,
        &relocation.to_bytes().expect("names that fit"),
    );
    client.forget();
    done.map(|answer| assert!(answer.bytes().is_empty())).map_err(|error| error.errno())
}

fn relocate(disks: &Disks, path: &str, from: usize, to: usize) -> Result<(), Errno> {
    relocate_as(disks, 0, path, from, to, 0)
}

#[test]
fn a_file_moves_with_all_its_names_and_attributes() {
    let disks = two_disks();
    put(disks.on(0, "a/b/f"), &pattern(1, MIB));
    fs::create_dir_all(disks.on(0, "x/y")).unwrap();
    fs::hard_link(disks.on(0, "a/b/f"), disks.on(0, "x/y/g")).unwrap();
    let sparse = fs::OpenOptions::new().write(true).open(disks.on(0, "x/y/g")).unwrap();
    sparse.write_all_at(b"end", 40 << 20).unwrap();
    drop(sparse);
    rustix::fs::setxattr(disks.on(0, "a/b/f"), "user.x", b"value", XattrFlags::empty()).unwrap();
    fs::set_permissions(disks.on(0, "a/b/f"), fs::Permissions::from_mode(0o4711)).unwrap();
    let before = Tree::capture_with(disks.disks[0].path(), Fields::all());
    let mut client = Client::new(disks.pool.clone());
    let (node, reader) = disks.open(&mut client, "a/b/f", OFlags::RDONLY);
    let shown = ops::names::lookup::getattr(&disks.pool, node, None).unwrap();
    relocate(&disks, "x/y/g", 0, 1).unwrap();
    assert!(!disks.on(0, "a/b/f").exists() && !disks.on(0, "x/y/g").exists());
    // The directories stay on the old branch.
    let moved = Tree::capture_with(disks.disks[1].path(), Fields::all());
    let here = Tree::capture_with(disks.disks[0].path(), Fields::all());
    before.assert_same(&Tree::union([&moved, &here]).unwrap());
    let held = fs::metadata(disks.on(1, "a/b/f")).unwrap();
    assert_eq!((held.nlink(), held.ino()), (2, fs::metadata(disks.on(1, "x/y/g")).unwrap().ino()));
    assert!(held.blocks() * 512 < 4 << 20, "holes stay holes");
    // The reader goes on, and the file is the same to clients.
    assert_eq!(read(&disks.pool, reader, MIB), pattern(1, MIB));
    let after = ops::names::lookup::getattr(&disks.pool, node, None).unwrap();
    assert_eq!((after.ino, after.size, after.mtime, after.nlink), (shown.ino, shown.size, shown.mtime, 2));
    ops::data::open::release(&disks.pool, reader).unwrap();
    // And back.
    relocate(&disks, "a/b/f", 1, 0).unwrap();
    before.assert_same(&Tree::capture_with(disks.disks[0].path(), Fields::all()));
    assert_eq!(disks.unfinished_copies(), NONE);
    client.end().unwrap();
}

#[test]
fn a_copy_has_all_names_and_attributes_and_the_original_stays() {
    let disks = two_disks();
    put(disks.on(0, "a/b/f"), &pattern(1, MIB));
    fs::create_dir_all(disks.on(0, "x/y")).unwrap();
    fs::hard_link(disks.on(0, "a/b/f"), disks.on(0, "x/y/g")).unwrap();
    let sparse = fs::OpenOptions::new().write(true).open(disks.on(0, "x/y/g")).unwrap();
    sparse.write_all_at(b"end", 40 << 20).unwrap();
    drop(sparse);
    symlink("f", disks.on(0, "a/b/link")).unwrap();
    rustix::fs::setxattr(disks.on(0, "a/b/f"), "user.x", b"value", XattrFlags::empty()).unwrap();
    fs::set_permissions(disks.on(0, "a/b/f"), fs::Permissions::from_mode(0o4711)).unwrap();
    let fields = || Fields { root: false, ..Fields::all() };
    let before = Tree::capture_with(disks.disks[0].path(), fields());
    let mut client = Client::new(disks.pool.clone());
    let (_, reader) = disks.open(&mut client, "a/b/f", OFlags::RDONLY);
    copy(&disks, "x/y/g", 0, 1).unwrap();
    copy(&disks, "a/b/link", 0, 1).unwrap();
    for disk in &disks.disks {
        before.assert_same(&Tree::capture_with(disk.path(), fields()));
    }
    assert!(fs::metadata(disks.on(1, "a/b/f")).unwrap().blocks() * 512 < 4 << 20, "holes stay holes");
    assert_eq!(read(&disks.pool, reader, MIB), pattern(1, MIB));
    ops::data::open::release(&disks.pool, reader).unwrap();
    for (path, errno) in [("a/b/f", Errno::EXIST), ("a/b/link", Errno::EXIST), ("a/b", Errno::OPNOTSUPP)] {
        assert_eq!(copy(&disks, path, 0, 1), Err(errno), "{path}");
    }
    assert_eq!(disks.unfinished_copies(), NONE);
    client.end().unwrap();
}

/// A client that knew the file before writes the copy that others then find, wherever the copy was made.
#[test]
fn clients_that_know_a_file_write_the_copy_that_is_shown() {
    for (from, to) in [(0, 1), (1, 0)] {
        let disks = two_disks();
        put(disks.on(from, "d/f"), b"old");
        let mut client = Client::new(disks.pool.clone());
        let (node, reader) = disks.open(&mut client, "d/f", OFlags::RDONLY);
        let shown = ops::names::lookup::getattr(&disks.pool, node, None).unwrap();
        copy(&disks, "d/f", from, to).unwrap();
        let writer = ops::data::open::open(&disks.pool, &common::ROOT, node, OFlags::WRONLY.bits(), false)
            .unwrap()
            .handle;
        ops::data::io::write(&disks.pool, writer, 0, b"new", WriteKind::default()).unwrap();
        ops::data::open::release(&disks.pool, writer).unwrap();
        assert_eq!(read(&disks.pool, reader, 3), b"new", "an open file is one file");
        ops::data::open::release(&disks.pool, reader).unwrap();
        let found = client.walk("d/f").unwrap();
        let again =
            ops::data::open::open(&disks.pool, &common::ROOT, found.node, OFlags::RDONLY.bits(), false)
                .unwrap()
                .handle;
        assert_eq!(read(&disks.pool, again, 3), b"new");
        ops::data::open::release(&disks.pool, again).unwrap();
        assert_eq!(found.attr.ino, shown.ino);
        assert_eq!([0, 1].map(|branch| fs::read(disks.on(branch, "d/f")).unwrap()), [b"new", b"old"]);
        client.end().unwrap();
    }
}

#[test]
fn what_cannot_move_stays_and_says_why() {
    let mut config = never();
    config.min_free = 0;
    let disks = Disks::with(vec![LoopFs::ext4(32 << 20), LoopFs::tmpfs(8 << 20)], config);
    for path in ["plain", "twice", "big"] {
        put(disks.on(0, path), &pattern(2, if path == "big" { 10 * MIB } else { MIB }));
    }
    put(disks.on(1, "twice"), "another");
    put(disks.on(0, "full/f"), "x");
    rustix::fs::mknodat(rustix::fs::CWD, disks.on(0, "fifo"), FileType::Fifo, FileMode::RUSR, 0).unwrap();
    let before = [0, 1].map(|branch| Tree::capture_with(disks.disks[branch].path(), Fields::all()));
    let mut client = Client::new(disks.pool.clone());
    let (_, writer) = disks.open(&mut client, "plain", OFlags::WRONLY);
    assert_eq!(relocate(&disks, "plain", 0, 1), Err(Errno::BUSY), "open for writing in the pool");
    ops::data::open::release(&disks.pool, writer).unwrap();
    let outside = fs::OpenOptions::new().append(true).open(disks.on(0, "plain")).unwrap();
    assert_eq!(relocate(&disks, "plain", 0, 1), Err(Errno::BUSY), "open for writing on the branch");
    drop(outside);
    let refused = [
        ("plain", 1, 0, Errno::STALE),
        ("plain", 0, 0, Errno::INVAL),
        ("twice", 0, 1, Errno::EXIST),
        ("big", 0, 1, Errno::NOSPC),
        ("full", 0, 1, Errno::NOTEMPTY),
        ("fifo", 0, 1, Errno::OPNOTSUPP),
        ("none", 0, 1, Errno::NOENT),
        ("..", 0, 1, Errno::INVAL),
        (".canopy-clone.x", 0, 1, Errno::NOENT),
    ];
    for (path, from, to, errno) in refused {
        assert_eq!(relocate(&disks, path, from, to), Err(errno), "{path}");
    }
    assert_eq!(relocate_as(&disks, 1000, "plain", 0, 1, 0), Err(Errno::ACCESS));
    ops::settings::connect(
        &disks.pool,
        Arc::new(TestKernel { unwatched: true, caller_is_interrupted: true, ..TestKernel::default() }),
        false,
    );
    assert_eq!(relocate(&disks, "plain", 0, 1), Err(Errno::INTR));
    ops::settings::connect(&disks.pool, Arc::new(NoKernel), false);
    for (branch, before) in before.iter().enumerate() {
        before.assert_same(&Tree::capture_with(disks.disks[branch].path(), Fields::all()));
    }
    assert_eq!(disks.unfinished_copies(), NONE);
    client.end().unwrap();
}

#[test]
fn modes_of_branches_are_respected() {
    let disks = [LoopFs::tmpfs(8 << 20), LoopFs::tmpfs(8 << 20)];
    let paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().to_owned()).collect();
    for (modes, expected) in [
        ([Mode::Rw, Mode::Nc], Err(Errno::ROFS)),
        ([Mode::Rw, Mode::Ro], Err(Errno::ROFS)),
        ([Mode::Ro, Mode::Rw], Err(Errno::ROFS)),
        ([Mode::Nc, Mode::Rw], Ok(())),
    ] {
        put(paths[0].join("f"), "x");
        let pool = common::over(&paths, &modes, Config::default());
        let [from, to] = [0, 1].map(|index: usize| paths[index].as_os_str().as_bytes());
        let bytes = Relocation { name: b"f", from, to, rate: 0, idle: false, lossy: false, what: What::Move }
            .to_bytes()
            .unwrap();
        let done = ops::attrs::ioctl::ioctl(&pool, &common::administrator(), NodeId::ROOT, RELOCATE, &bytes)
            .map(drop);
        assert_eq!(done.map_err(|error| error.errno()), expected, "{modes:?}");
    }
    assert!(paths[1].join("f").exists());
}

/// A copy at a byte a second does not end by itself.
#[test]
fn a_client_that_wants_to_write_ends_the_move() {
    let disks = two_disks();
    put(disks.on(0, "f"), &pattern(3, 12 * MIB));
    let mut client = Client::new(disks.pool.clone());
    let node = client.walk("f").unwrap().node;
    for outside in [false, true] {
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| relocate_as(&disks, 0, "f", 0, 1, 1));
            let begun = || !files::unfinished_copies(disks.disks[1].path()).is_empty();
            assert!(wait_until(PATIENCE, || begun() || mover.is_finished()));
            assert!(!mover.is_finished(), "{:?}", mover.join());
            if outside {
                fs::OpenOptions::new()
                    .write(true)
                    .open(disks.on(0, "f"))
                    .unwrap()
                    .write_all_at(b"A", 0)
                    .unwrap();
            } else {
                let flags = OFlags::WRONLY.bits();
                let opened = common::patiently(|| {
                    ops::data::open::open(&disks.pool, &common::ROOT, node, flags, false)
                });
                let handle = opened.unwrap().handle;
                write(&disks.pool, handle, 0, b"B").unwrap();
                ops::data::open::release(&disks.pool, handle).unwrap();
            }
            assert_eq!(mover.join().unwrap(), Err(Errno::BUSY), "outside: {outside}");
        });
        assert_eq!(fs::read(disks.on(0, "f")).unwrap()[0], if outside { b'A' } else { b'B' });
        assert!(!disks.on(1, "f").exists());
        assert_eq!(disks.unfinished_copies(), NONE);
    }
    relocate(&disks, "f", 0, 1).unwrap();
    assert!(disks.on(1, "f").exists());
    client.end().unwrap();
}

#[test]
fn symlinks_and_empty_directories_follow() {
    let disks = two_disks();
    fs::create_dir_all(disks.on(0, "d/only")).unwrap();
    fs::create_dir_all(disks.on(1, "d")).unwrap();
    symlink("../somewhere", disks.on(0, "d/link")).unwrap();
    lchown(disks.on(0, "d/link"), Some(7), Some(8)).unwrap();
    let past = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 77 };
    let times = rustix::fs::Timestamps { last_access: past, last_modification: past };
    rustix::fs::utimensat(rustix::fs::CWD, disks.on(0, "d/link"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    for (path, mode) in [("d", 0o750), ("d/only", 0o1777)] {
        lchown(disks.on(0, path), Some(3), Some(4)).unwrap();
        fs::set_permissions(disks.on(0, path), fs::Permissions::from_mode(mode)).unwrap();
        rustix::fs::setxattr(disks.on(0, path), "user.x", path.as_bytes(), XattrFlags::empty()).unwrap();
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + Duration::new(5, 6));
        fs::File::open(disks.on(0, path)).unwrap().set_times(times).unwrap();
    }
    let before = Tree::capture_with(disks.disks[0].path(), Fields::all());
    let mut client = Client::new(disks.pool.clone());
    let (link, dir) = (client.walk("d/link").unwrap(), client.walk("d").unwrap());
    assert_eq!(relocate(&disks, "d", 0, 1), Err(Errno::NOTEMPTY));
    relocate(&disks, "d/link", 0, 1).unwrap();
    assert_eq!(relocate(&disks, "d/link", 0, 1), Err(Errno::STALE));
    relocate(&disks, "d/only", 0, 1).unwrap();
    relocate(&disks, "d", 0, 1).unwrap();
    assert!(!disks.on(0, "d").exists());
    before.without("").assert_same(&Tree::capture_with(disks.disks[1].path(), Fields::all()).without(""));
    // Clients see what they have seen before.
    assert_eq!(ops::names::lookup::readlink(&disks.pool, link.node).unwrap(), b"../somewhere");
    let after = ops::names::lookup::getattr(&disks.pool, dir.node, None).unwrap();
    assert_eq!((after.mode, after.uid, after.ino), (dir.attr.mode, 3, dir.attr.ino));
    assert_eq!(client.walk("d/link").unwrap().attr.ino, link.attr.ino);
    assert_eq!(client.walk("d").unwrap().node, dir.node);
    // New files appear in it.
    put(disks.on(1, "d/new"), "x");
    assert_eq!(client.walk("d/new").unwrap().attr.size, 1);
    client.end().unwrap();
}

/// What a crash between the last two steps leaves: two symlinks that are alike.
#[test]
fn a_symlink_that_is_on_both_branches_already_goes_from_the_old_one() {
    let disks = two_disks();
    for branch in [0, 1] {
        symlink("target", disks.on(branch, "link")).unwrap();
        symlink(format!("target{branch}"), disks.on(branch, "other")).unwrap();
        let past = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 77 };
        let times = rustix::fs::Timestamps { last_access: past, last_modification: past };
        rustix::fs::utimensat(rustix::fs::CWD, disks.on(branch, "link"), &times, AtFlags::SYMLINK_NOFOLLOW)
            .unwrap();
    }
    relocate(&disks, "link", 0, 1).unwrap();
    assert!(fs::symlink_metadata(disks.on(0, "link")).is_err());
    assert_eq!(fs::read_link(disks.on(1, "link")).unwrap(), PathBuf::from("target"));
    assert_eq!(relocate(&disks, "other", 0, 1), Err(Errno::EXIST));
    assert_eq!(disks.unfinished_copies(), NONE);
}

/// A branch that is removed from the pool is free for umount(8).
#[test]
fn a_removed_branch_is_let_go() {
    use canopy_branch::branch::BranchList;
    let disks = two_disks();
    put(disks.on(0, "f"), "x");
    let mut client = Client::new(disks.pool.clone());
    client.walk("f").unwrap();
    for _ in 0..3 {
        ops::attrs::statfs::statfs(&disks.pool, NodeId::ROOT).unwrap();
    }
    relocate(&disks, "f", 0, 1).unwrap();
    client.end().unwrap();
    let rest: BranchList =
        ops::settings::branches(&disks.pool).iter().skip(1).map(|branch| branch.spec()).collect();
    let branches = ops::settings::branches(&disks.pool).update(&rest).unwrap();
    ops::settings::set_branches(&disks.pool, branches);
    let path = disks.disks[0].path();
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
    let open: Vec<PathBuf> = open.filter(|target| target.starts_with(path)).collect();
    assert_eq!(open, NONE);
}
