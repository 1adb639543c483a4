//! `link-cow`.

use super::rig::{MIB, no_unfinished_copies, pattern, pool_over};
use canopy_sys::lease;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PATIENCE, PoolBed, Tree};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// The ways to open a file for writing, each a single call.
type Open = fn(&Path) -> std::io::Result<File>;
const WAYS: [(&str, Open); 6] = [
    ("O_WRONLY", |path| OpenOptions::new().write(true).open(path)),
    ("O_RDWR", |path| OpenOptions::new().read(true).write(true).open(path)),
    ("O_APPEND", |path| OpenOptions::new().append(true).open(path)),
    ("O_TRUNC", |path| OpenOptions::new().write(true).truncate(true).open(path)),
    ("O_CREAT", |path| OpenOptions::new().write(true).create(true).truncate(false).open(path)),
    ("O_CREAT|O_TRUNC", |path| File::create(path)),
];

/// Which names the kernel has looked up before the file is opened.
const KNOWN: [&[&str]; 4] = [&[], &["d/b"], &["a"], &["a", "d/b", "c"]];

/// Waits until no process has a file on a branch open for writing.
///
/// `link-cow` does not copy a file that is open for writing on its branch. A program that a test on another thread
/// starts holds copies of this process's descriptors between fork and exec, so the file may stay open for a while after
/// this test has closed it.
#[track_caller]
fn wait_until_unwritten(path: &Path) {
    let file = File::open(path).unwrap();
    // The kernel refuses a read lease while the file is open for writing.
    let unwritten = wait_until(PATIENCE, || lease::take(file.as_fd()).is_ok());
    lease::release(file.as_fd());
    assert!(unwritten, "{} stays open for writing", path.display());
}

/// Waits until no process has a file open in the pool under one of its names, or for writing on the branch.
#[track_caller]
fn wait_until_unused(bed: &PoolBed, names: &[&str]) {
    for name in names {
        bed.wait_until_closed(name);
        wait_until_unwritten(&bed.on(0, name));
    }
}

#[test]
fn opening_one_link_for_writing_copies_it() {
    for kind in [Kind::Tmpfs, Kind::Ext4, Kind::Btrfs] {
        for options in [
            "link-cow=true",
            "link-cow=true,passthrough.io=off,cache.files=full,cache.entry=60,cache.attr=60",
            "link-cow=true,cache.entry=0,cache.attr=0",
        ] {
            let bed = pool_over(vec![LoopFs::new(kind, 160 << 20)], options);
            for (way, open) in WAYS {
                for known in KNOWN {
                    let what = format!("{kind:?} {options} {way} {known:?}");
                    let original = pattern(1, MIB + 5);
                    fs::create_dir(bed.on(0, "d")).unwrap();
                    fs::write(bed.on(0, "a"), &original).unwrap();
                    fs::set_permissions(bed.on(0, "a"), fs::Permissions::from_mode(0o640)).unwrap();
                    fs::hard_link(bed.on(0, "a"), bed.on(0, "d/b")).unwrap();
                    fs::hard_link(bed.on(0, "a"), bed.on(0, "c")).unwrap();
                    wait_until_unwritten(&bed.on(0, "a"));
                    known.iter().for_each(|name| assert_eq!(fs::metadata(bed.at(name)).unwrap().nlink(), 3));
                    let mut file = open(&bed.at("d/b")).unwrap_or_else(|error| panic!("{what}: {error}"));
                    file.write_all(b"changed").unwrap();
                    let own = file.metadata().unwrap();
                    assert_eq!((own.nlink(), own.mode() & 0o7777), (1, 0o640), "{what}");
                    drop(file);
                    let mut expected = if way.contains("TRUNC") { Vec::new() } else { original.clone() };
                    let at = if way == "O_APPEND" { expected.len() } else { 0 };
                    expected.resize(expected.len().max(at + 7), 0);
                    expected[at..at + 7].copy_from_slice(b"changed");
                    for name in ["a", "c", "d/b"] {
                        let content = if name == "d/b" { &expected } else { &original };
                        assert!(&fs::read(bed.at(name)).unwrap() == content, "{what}: {name} in the pool");
                        assert!(
                            &fs::read(bed.on(0, name)).unwrap() == content,
                            "{what}: {name} on the branch"
                        );
                    }
                    let meta = |name: &str| fs::metadata(bed.at(name)).unwrap();
                    assert_eq!(
                        (meta("a").nlink(), meta("c").nlink(), meta("d/b").nlink()),
                        (2, 2, 1),
                        "{what}"
                    );
                    assert_eq!(meta("a").ino(), meta("c").ino(), "{what}");
                    assert_ne!(meta("a").ino(), meta("d/b").ino(), "{what}");
                    assert!(no_unfinished_copies(&bed.disks), "{what}");
                    for name in ["a", "c", "d/b"] {
                        fs::remove_file(bed.at(name)).unwrap();
                    }
                    fs::remove_dir(bed.at("d")).unwrap();
                }
            }
            bed.pool.umount();
        }
    }
}

/// A program that has the file open for writing on the branch would keep writing to the original, not to the copy.
#[test]
fn a_link_open_for_writing_on_the_branch_is_not_copied() {
    let bed = pool_over(vec![LoopFs::tmpfs(16 << 20)], "link-cow=true");
    fs::write(bed.on(0, "a"), "content").unwrap();
    fs::hard_link(bed.on(0, "a"), bed.on(0, "b")).unwrap();
    let branch_writer = OpenOptions::new().write(true).open(bed.on(0, "a")).unwrap();
    for name in ["a", "b"] {
        let shared = OpenOptions::new().append(true).open(bed.at(name)).unwrap();
        assert_eq!(shared.metadata().unwrap().nlink(), 2, "{name}");
        drop(shared);
        bed.wait_until_closed(name);
    }
    branch_writer.write_all_at(b"C", 0).unwrap();
    assert_eq!(fs::read(bed.at("a")).unwrap(), b"Content");
    drop(branch_writer);
    wait_until_unused(&bed, &["a", "b"]);
    let own = OpenOptions::new().append(true).open(bed.at("a")).unwrap();
    assert_eq!(own.metadata().unwrap().nlink(), 1);
    assert!(no_unfinished_copies(&bed.disks));
    drop(own);
    bed.pool.umount();
}

/// The copy has the same data, holes, ownership, mode, xattrs, ACL and mtime.
#[test]
fn a_copy_keeps_data_and_metadata() {
    let bed = pool_over(vec![LoopFs::ext4(160 << 20)], "link-cow=true");
    let file = File::create(bed.on(0, "a")).unwrap();
    file.write_all_at(&pattern(1, MIB), 5 << 20).unwrap();
    file.set_len(9 << 20).unwrap();
    std::os::unix::fs::chown(bed.on(0, "a"), Some(1000), Some(1001)).unwrap();
    fs::set_permissions(bed.on(0, "a"), fs::Permissions::from_mode(0o741)).unwrap();
    rustix::fs::setxattr(bed.on(0, "a"), "user.x", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    canopy_testkit::cmd::run("setfacl", ["-m", "u:77:r--", bed.on(0, "a").to_str().unwrap()]);
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_222_222_222, 987_654_321)).unwrap();
    drop(file);
    fs::hard_link(bed.on(0, "a"), bed.on(0, "b")).unwrap();
    let fields = canopy_testkit::Fields { links: false, sparse: true, ..canopy_testkit::Fields::default() };
    wait_until_unwritten(&bed.on(0, "b"));
    let before = Tree::capture_with(bed.on(0, ""), fields);
    drop(OpenOptions::new().write(true).open(bed.at("b")).unwrap());
    before.assert_same(&Tree::capture_with(bed.on(0, ""), fields));
    assert_ne!(fs::metadata(bed.on(0, "a")).unwrap().ino(), fs::metadata(bed.on(0, "b")).unwrap().ino());
    bed.pool.umount();
}

#[test]
fn an_open_that_cannot_copy_keeps_the_link() {
    let bed = pool_over(vec![LoopFs::tmpfs(8 << 20)], "link-cow=true,passthrough.io=off");
    fs::write(bed.on(0, "a"), "content").unwrap();
    fs::hard_link(bed.on(0, "a"), bed.on(0, "b")).unwrap();
    let linked = || fs::metadata(bed.on(0, "a")).unwrap().nlink() == 2;
    // An open for reading needs no copy.
    drop(File::open(bed.at("b")).unwrap());
    assert!(linked());
    // A file that is open already is not copied.
    let reader = File::open(bed.at("a")).unwrap();
    OpenOptions::new().write(true).open(bed.at("b")).unwrap().write_all(b"CONTENT").unwrap();
    assert_eq!(std::io::read_to_string(reader).unwrap(), "CONTENT");
    assert!(linked());
    // An open through /proc/self/fd looks up no name that could be replaced.
    for name in ["a", "b"] {
        fs::metadata(bed.at(name)).unwrap();
    }
    let path = rustix::fs::open(bed.at("b"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&path));
    drop(OpenOptions::new().write(true).open(by_descriptor).unwrap());
    assert!(linked());
    drop(path);
    // There is no room for a copy.
    bed.disks[0].fill(0);
    let mut file = OpenOptions::new().write(true).open(bed.at("b")).unwrap();
    file.write_all(b"Content").unwrap();
    drop(file);
    assert!(linked() && no_unfinished_copies(&bed.disks));
    // The filler is truncated, since a removed file occupies space while any process has it open.
    OpenOptions::new().write(true).open(bed.on(0, "filler")).unwrap().set_len(0).unwrap();
    wait_until_unused(&bed, &["a", "b"]);
    drop(OpenOptions::new().write(true).open(bed.at("b")).unwrap());
    assert!(!linked());
    bed.pool.umount();
}

/// Several threads each open their own name: every write is in the file of its name.
#[test]
fn concurrent_opens_write_to_their_own_names() {
    const NAMES: usize = 12;
    let bed = pool_over(vec![LoopFs::tmpfs(64 << 20)], "link-cow=true");
    for round in 0..20 {
        let name = |index: usize| format!("{round}.{index}");
        fs::write(bed.on(0, &name(0)), "common").unwrap();
        for index in 1..NAMES {
            fs::hard_link(bed.on(0, &name(0)), bed.on(0, &name(index))).unwrap();
        }
        std::thread::scope(|scope| {
            for index in 0..NAMES {
                let path = bed.at(&name(index));
                scope.spawn(move || {
                    fs::metadata(&path).unwrap();
                    // A file that is open already stays shared. Here each thread closes its file at once.
                    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                    file.write_all(format!(" {index}").as_bytes()).unwrap();
                });
            }
        });
        let texts: Vec<String> =
            (0..NAMES).map(|index| fs::read_to_string(bed.on(0, &name(index))).unwrap()).collect();
        for (index, text) in texts.iter().enumerate() {
            assert!(text.split(' ').any(|word| word == index.to_string()), "{index}: {text}");
            assert_eq!(&fs::read_to_string(bed.at(&name(index))).unwrap(), text);
        }
    }
    assert!(no_unfinished_copies(&bed.disks));
    bed.pool.umount();
}
