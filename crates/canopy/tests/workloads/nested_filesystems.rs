//! Branches that contain other filesystems. Files on those can have the same inode numbers as files of the branch, and
//! programs that preserve hard links treat files with equal numbers as one file.

use super::rig::{Disks, shell_ok};
use canopy_testkit::cmd::run;
use canopy_testkit::files;
use canopy_testkit::{Kind, LoopFs, Pool, Submount};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

const FILES: usize = 20;

/// Creates the same files in the same order on each filesystem, so that they get the same inode numbers. Each file has
/// a second name, because programs compare inode numbers only of files with several links.
fn fill(dir: &Path, content: &str) {
    for number in 0..FILES {
        let file = dir.join(format!("f{number}"));
        fs::write(&file, format!("{content} {number}")).unwrap();
        fs::hard_link(&file, dir.join(format!("other name of f{number}"))).unwrap();
    }
    fs::create_dir(dir.join("dir")).unwrap();
    fs::write(dir.join("dir/f"), content).unwrap();
}

/// A btrfs branch that contains subvolumes, snapshots and mounts of each filesystem type, ext4 and tmpfs twice.
struct NestedBranch {
    _mounts: Vec<Submount>,
    _others: Vec<LoopFs>,
    disks: Disks,
}

impl NestedBranch {
    fn new() -> NestedBranch {
        let disks = Disks::new(&[Kind::Btrfs]);
        let branch = disks.branches().remove(0);
        fill(&branch, "of the branch");
        let at = |name: &str| branch.join(name);
        let subvolume = |what: &[&OsStr]| {
            run("btrfs", [OsStr::new("subvolume")].iter().chain(what));
        };
        subvolume(&["create".as_ref(), at("home").as_os_str()]);
        fill(&at("home"), "at home");
        fs::create_dir(at(".snapshots")).unwrap();
        for snapshot in ["1", "2"] {
            let to = at(".snapshots").join(snapshot);
            subvolume(&["snapshot".as_ref(), at("home").as_os_str(), to.as_os_str()]);
            for number in 0..FILES {
                fs::write(to.join(format!("f{number}")), format!("snapshot {snapshot} {number}")).unwrap();
            }
        }
        let (mut mounts, mut others) = (Vec::new(), Vec::new());
        for (index, kind) in
            [Kind::Ext4, Kind::Ext4, Kind::Xfs, Kind::Tmpfs, Kind::Tmpfs].into_iter().enumerate()
        {
            let other = LoopFs::new(kind, 512 << 20);
            fill(other.path(), &format!("{kind:?} {index}"));
            let point = at(&format!("mounted{index}"));
            fs::create_dir(&point).unwrap();
            mounts.push(Submount::bind(other.path(), &point));
            others.push(other);
        }
        NestedBranch { disks, _mounts: mounts, _others: others }
    }

    fn branch(&self) -> PathBuf {
        self.disks.branches().remove(0)
    }
}

/// Returns the content and link count of each regular file below a directory, by path.
fn files(root: &Path) -> BTreeMap<PathBuf, (String, u64)> {
    let files = files::walk(root).into_iter().filter(|path| path.symlink_metadata().unwrap().is_file());
    let entry = |path: PathBuf| {
        let content = (fs::read_to_string(&path).unwrap(), path.metadata().unwrap().nlink());
        (path.strip_prefix(root).unwrap().to_owned(), content)
    };
    files.map(entry).collect()
}

/// Groups the paths below a directory by file.
fn same_files(root: &Path, by: impl Fn(&fs::Metadata) -> (u64, u64)) -> BTreeSet<Vec<PathBuf>> {
    let mut same: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
    for path in files::walk(root) {
        let key = by(&path.symlink_metadata().unwrap());
        same.entry(key).or_default().push(path.strip_prefix(root).unwrap().to_owned());
    }
    same.into_values().map(|mut paths| (paths.sort(), paths).1).collect()
}

#[track_caller]
fn check_listed_inode_numbers(pool: &Pool, options: &str) {
    let mut dirs = vec![pool.path().to_owned()];
    dirs.extend(
        files::walk(pool.path()).into_iter().filter(|path| path.symlink_metadata().unwrap().is_dir()),
    );
    for dir in dirs {
        // The first listing is a READDIRPLUS; once its attributes go unused, the kernel sends plain READDIR.
        for _ in 0..3 {
            let listed: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap()).collect();
            for entry in listed {
                let own = entry.path().symlink_metadata().unwrap().ino();
                assert_eq!(entry.ino(), own, "{} {options}", entry.path().display());
            }
            for _ in 0..2 {
                fs::read_dir(&dir).unwrap().for_each(drop);
            }
        }
    }
}

#[test]
fn distinct_files_have_distinct_inode_numbers() {
    let nested = NestedBranch::new();
    let expected = same_files(&nested.branch(), |meta| (meta.dev(), meta.ino()));
    for calc in ["hybrid-hash", "devino-hash", "hybrid-hash32", "devino-hash32"] {
        for mode in ["", ",func.readdir=cor:2"] {
            let options = format!("inodecalc={calc}{mode}");
            let pool = nested.disks.pool(&options);
            let numbers = || same_files(pool.path(), |meta| (0, meta.ino()));
            assert_eq!(numbers(), expected, "{options}");
            check_listed_inode_numbers(&pool, &options);
            pool.drop_dentries();
            check_listed_inode_numbers(&pool, &options);
            pool.umount();
        }
    }
    // A second mount gives every file the same number as the first.
    let numbers_of = |pool: Pool| {
        let numbers = files::walk(pool.path()).into_iter().map(|path| {
            let number = path.symlink_metadata().unwrap().ino();
            (path.strip_prefix(pool.path()).unwrap().to_owned(), number)
        });
        let numbers: BTreeMap<PathBuf, u64> = numbers.collect();
        pool.umount();
        numbers
    };
    assert_eq!(numbers_of(nested.disks.pool("")), numbers_of(nested.disks.pool("")));
}

#[test]
fn backups_hold_every_file() {
    let nested = NestedBranch::new();
    let expected = files(&nested.branch());
    assert!(expected.len() > 8 * 2 * FILES);
    let pool = nested.disks.pool("");
    for (program, script) in [
        ("tar", "tar c -C \"$1\" . | tar x -C \"$2\""),
        ("cp", "cp -a \"$1/.\" \"$2\""),
        ("rsync", "rsync -aH \"$1/\" \"$2/\""),
    ] {
        let to = tempfile::tempdir().unwrap();
        shell_ok(to.path(), script, &[pool.path().as_os_str(), to.path().as_os_str()]);
        assert_eq!(files(to.path()), expected, "{program}");
    }
    pool.umount();
}
