//! Defects known from mergerfs that show through a mount and that the pool must not have. Each test says what mergerfs
//! did; others of these defects are tested with their subject, in `setid_clearing`, `workloads/fsync` and `cli`.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use canopy_testkit::{Kind, LoopFs, Pool, Tree};
use rustix::fs::{AtFlags, CWD, XattrFlags, getxattr, linkat, renameat, setxattr, unlinkat};

use super::rig::outcome;

/// Two branches on one disk; most defects need no more.
struct Bed {
    // Dropped last.
    disk: LoopFs,
}

impl Bed {
    fn new() -> Self {
        let disk = LoopFs::new(Kind::Ext4, 512 << 20);
        for name in ["a", "b"] {
            fs::create_dir(disk.path().join(name)).unwrap();
        }
        Self { disk }
    }

    fn a(&self, name: &str) -> PathBuf {
        self.disk.path().join("a").join(name)
    }

    fn b(&self, name: &str) -> PathBuf {
        self.disk.path().join("b").join(name)
    }

    fn pool(&self, modes: [&str; 2], options: &str) -> Pool {
        let spec = |name: &str, mode: &str| format!("{}={mode}", self.disk.path().join(name).display());
        Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch_spec(spec("a", modes[0]))
            .branch_spec(spec("b", modes[1]))
            .option("minfreespace=0")
            .option(options)
            .mount()
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// After a rename, mergerfs removed the overwritten target from read-only branches too, and the source from branches on
/// which the rename had failed.
#[test]
fn a_rename_removes_nothing_from_read_only_branches() {
    let bed = Bed::new();
    fs::write(bed.a("source"), "new").unwrap();
    fs::write(bed.b("target"), "old").unwrap();
    fs::write(bed.a("two"), "first").unwrap();
    fs::write(bed.b("two"), "second").unwrap();
    let before = Tree::capture(bed.disk.path());
    let pool = bed.pool(["RW", "RO"], "");
    let at = |name: &str| pool.path().join(name);
    // If the rename succeeded, the old target would reappear once the new one is removed; so it fails.
    assert_eq!(outcome(renameat(CWD, at("source"), CWD, at("target"))), "EROFS");
    assert_eq!(outcome(renameat(CWD, at("two"), CWD, at("three"))), "EROFS");
    assert_eq!(text(&at("target")), "old");
    pool.umount();
    before.assert_same(&Tree::capture(bed.disk.path()));
}

/// With a path-preserving policy, mergerfs returned EXDEV for every failed rename.
#[test]
fn a_rename_returns_its_own_error() {
    let bed = Bed::new();
    for dir in ["dir", "full/below", "empty"] {
        fs::create_dir_all(bed.a(dir)).unwrap();
    }
    fs::write(bed.a("file"), "").unwrap();
    fs::create_dir(bed.b("elsewhere")).unwrap();
    let pool = bed.pool(["RW", "RW"], "category.create=epmfs");
    let at = |name: &str| pool.path().join(name);
    let rename = |from: &str, to: &str| outcome(renameat(CWD, at(from), CWD, at(to)));
    assert_eq!(rename("dir", "full"), "ENOTEMPTY");
    assert_eq!(rename("file", "dir"), "EISDIR");
    assert_eq!(rename("dir", "file"), "ENOTDIR");
    assert_eq!(rename("missing", "x"), "ENOENT");
    assert_eq!(rename("file", "missing/x"), "ENOENT");
    assert_eq!(rename("dir", "dir/below"), "EINVAL");
    assert_eq!(rename("file", &"n".repeat(256)), "ENAMETOOLONG");
    // EXDEV is right if the path really does not exist on the branch.
    assert_eq!(rename("file", "elsewhere/file"), "EXDEV");
    assert_eq!(outcome(linkat(CWD, at("file"), CWD, at("elsewhere/file"), AtFlags::empty())), "EXDEV");
    assert_eq!(rename("dir", "empty"), "ok");
    pool.umount();
}

/// mergerfs ignored `cache.statfs` on the command line. The policies use the cached free space.
#[test]
fn free_space_is_cached_for_cache_statfs_seconds() {
    for (seconds, second_file_on) in [(600, "large"), (0, "small")] {
        let disks =
            [("small", 64 << 20), ("large", 128 << 20)].map(|(name, size)| (name, LoopFs::tmpfs(size)));
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(disks[0].1.path())
            .branch(disks[1].1.path())
            .option(format!("minfreespace=0,category.create=mfs,cache.statfs={seconds}"))
            .mount();
        let holds = |name: &str| disks.iter().find(|(_, disk)| disk.path().join(name).exists()).unwrap().0;
        fs::write(pool.path().join("first"), "").unwrap();
        assert_eq!(holds("first"), "large");
        fs::write(disks[1].1.path().join("filler"), vec![1; 100 << 20]).unwrap();
        fs::write(pool.path().join("second"), "").unwrap();
        assert_eq!(holds("second"), second_file_on, "cache.statfs={seconds}");
        pool.umount();
    }
}

/// In mergerfs, unlink and rmdir reported success while a copy on a read-only branch kept the name.
#[test]
fn a_removal_that_cannot_reach_every_copy_fails() {
    let bed = Bed::new();
    for root in [bed.a(""), bed.b("")] {
        fs::write(root.join("file"), "content").unwrap();
        fs::create_dir(root.join("dir")).unwrap();
    }
    let before = Tree::capture(bed.disk.path());
    let pool = bed.pool(["RW", "RO"], "");
    assert_eq!(outcome(unlinkat(CWD, pool.path().join("file"), AtFlags::empty())), "EROFS");
    assert_eq!(outcome(unlinkat(CWD, pool.path().join("dir"), AtFlags::REMOVEDIR)), "EROFS");
    assert!(pool.path().join("file").exists() && pool.path().join("dir").exists());
    pool.umount();
    before.assert_same(&Tree::capture(bed.disk.path()));
    // Copies on writable branches are removed together.
    let pool = bed.pool(["RW", "RW"], "");
    fs::remove_file(pool.path().join("file")).unwrap();
    fs::remove_dir(pool.path().join("dir")).unwrap();
    assert!(!bed.a("file").exists() && !bed.b("file").exists() && !bed.b("dir").exists());
    pool.umount();
}

/// In mergerfs, cloned directories lost setgid, could become immutable, and belonged to root for a moment.
#[test]
fn a_cloned_directory_has_the_attributes_of_its_original() {
    struct Mutable(PathBuf);
    impl Drop for Mutable {
        fn drop(&mut self) {
            let _ = Command::new("chattr").args(["-R", "-i", "-a"]).arg(&self.0).status();
        }
    }
    let bed = Bed::new();
    let deep = bed.a("one/two/three");
    fs::create_dir_all(&deep).unwrap();
    for (name, mode, uid) in
        [("one", 0o2775, 6001), ("one/two", 0o3770, 6002), ("one/two/three", 0o6711, 6003)]
    {
        setxattr(bed.a(name), "user.note", name.as_bytes(), XattrFlags::empty()).unwrap();
        chown(bed.a(name), Some(uid), Some(uid + 1000)).unwrap();
        fs::set_permissions(bed.a(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    let past = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: past, last_modification: past };
    rustix::fs::utimensat(CWD, bed.a("one"), &times, AtFlags::empty()).unwrap();
    let _mutable = Mutable(bed.a("one"));
    assert!(Command::new("chattr").arg("+i").arg(bed.a("one")).status().unwrap().success());
    // mkdir goes to the first branch that has the path; new files go to the second, which has nothing yet.
    let pool = bed.pool(["NC", "RW"], "category.create=ff");
    fs::write(pool.path().join("one/two/three/file"), "content").unwrap();
    assert!(bed.b("one/two/three/file").exists());
    for name in ["one", "one/two", "one/two/three"] {
        let (original, clone) = (fs::metadata(bed.a(name)).unwrap(), fs::metadata(bed.b(name)).unwrap());
        let seen = |meta: &fs::Metadata| (meta.mode(), meta.uid(), meta.gid());
        assert_eq!(seen(&original), seen(&clone), "{name}");
        let mut note = [0; 32];
        let length = getxattr(bed.b(name), "user.note", &mut note[..]).unwrap();
        assert_eq!(&note[..length], name.as_bytes());
    }
    assert_eq!(
        (fs::metadata(bed.b("one")).unwrap().mtime(), fs::metadata(bed.b("one")).unwrap().mtime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    // The clone is not immutable: entries can be created in it.
    fs::write(bed.b("one/behind"), "").unwrap();
    pool.umount();
}

/// In mergerfs, attribute changes through a descriptor reached only the open copy, so that copies diverged. A truncation
/// still reaches only the open copy here, because it changes data, as writes do.
#[test]
fn attribute_changes_through_a_descriptor_reach_every_copy() {
    for options in ["", "passthrough.io=off,cache.files=off"] {
        let bed = Bed::new();
        for root in [bed.a(""), bed.b("")] {
            fs::write(root.join("file"), "same content").unwrap();
        }
        let pool = bed.pool(["RW", "RW"], options);
        let file = File::options().read(true).write(true).open(pool.path().join("file")).unwrap();
        file.set_permissions(PermissionsExt::from_mode(0o640)).unwrap();
        rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(6001)), None).unwrap();
        file.set_len(4).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(12345);
        file.set_modified(time).unwrap();
        for (path, length) in [(bed.a("file"), 4), (bed.b("file"), 12)] {
            let meta = fs::metadata(&path).unwrap();
            let seen = (meta.mode() & 0o7777, meta.uid(), meta.len(), meta.mtime());
            assert_eq!(seen, (0o640, 6001, length, 12345), "{} [{options}]", path.display());
        }
        drop(file);
        pool.umount();
    }
}

/// mergerfs could read the attributes of an open file from another copy.
#[test]
fn attributes_of_an_open_file_come_from_the_open_copy() {
    let bed = Bed::new();
    for (root, value) in [(bed.a(""), "a"), (bed.b(""), "b")] {
        fs::write(root.join("file"), value).unwrap();
        setxattr(root.join("file"), "user.which", value.as_bytes(), XattrFlags::empty()).unwrap();
    }
    let pool = bed.pool(["RW", "RW"], "");
    let path = pool.path().join("file");
    let file = File::open(&path).unwrap();
    let shown = || {
        let mut value = [0; 8];
        let length = rustix::fs::fgetxattr(&file, "user.which", &mut value[..]).unwrap();
        let mut read = [0; 8];
        let count = rustix::io::pread(&file, &mut read, 0).unwrap();
        (value[..length].to_vec(), read[..count].to_vec())
    };
    assert_eq!(shown(), (b"a".to_vec(), b"a".to_vec()));
    // The open copy is removed directly on the branch; the descriptor keeps it.
    fs::remove_file(bed.a("file")).unwrap();
    assert_eq!(shown(), (b"a".to_vec(), b"a".to_vec()));
    drop(file);
    pool.umount();
}

/// mergerfs took the branch mode `=RO,1G,x` for RW.
#[test]
fn an_invalid_branch_mode_is_rejected() {
    let bed = Bed::new();
    for mode in ["RO,1G,x", "RX", "RW,", "ro", "RW,1Q", ""] {
        let spec = format!("{}={mode}", bed.a("").display());
        let refused = Pool::builder(env!("CARGO_BIN_EXE_canopy")).branch_spec(spec).try_mount();
        let failed = refused.map(Pool::umount).expect_err(mode);
        assert_eq!(failed.log.lines().count(), 1, "{mode}: {}", failed.log);
    }
}
