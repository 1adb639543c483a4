//! What is known of the branches is answered without reading their disks, and is never wrong.
//!
//! `CANOPY_CATALOGUE_CHANGES` sets the number of random changes, `CANOPY_CATALOGUE_SEED` the seed.

mod kept;
mod revisited;

use crate::rig::builder;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PoolBed, Rng, require_root};
use rustix::fs::XattrFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, FileTimes, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// The kernel remembers nothing, and asks before it opens a directory, so each look is a request.
const ASKS: &str = "cache.attr=0,cache.entry=0,cache.negative-entry=0";

fn mount(options: &str, disks: Vec<LoopFs>, store: &TempDir) -> PoolBed {
    let pool = builder(options)
        .option(format!("catalogue={}", store.path().display()))
        // What was made a moment ago is learnt, too.
        .env("CANOPY_TEST_RESTED", "0")
        .env("CANOPY_TEST_KERNEL", "mask:NO_OPENDIR_SUPPORT");
    PoolBed::mount(pool, disks)
}

/// Describes a file as clients see it; of a directory, what does not depend on how many copies it has.
fn describe(path: &Path) -> String {
    let Ok(meta) = fs::symlink_metadata(path) else { return "absent".into() };
    let common = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
    if meta.is_dir() {
        return common;
    }
    let link = fs::read_link(path).unwrap_or_default();
    let (size, links, time) =
        (meta.size(), meta.nlink(), (meta.mtime(), meta.mtime_nsec(), meta.ctime_nsec()));
    format!("{common} {size} bytes {links} links {time:?} {}", link.display())
}

/// Extended attributes: those that a file has are read from its disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attributes {
    /// There are none, which is asked for.
    Listed,
    Any,
}

/// Walks a tree as media servers do: lists, stats, and looks for another file beside each.
fn walk(dir: &Path, with: Attributes, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).expect("a listing") {
        let path = entry.expect("an entry").path();
        found.insert(path.clone(), describe(&path));
        if with == Attributes::Listed {
            assert_eq!(attributes(&path), 0);
        }
        assert!(fs::symlink_metadata(path.with_extension("srt")).is_err());
        if fs::symlink_metadata(&path).expect("it is there").is_dir() {
            walk(&path, with, found);
        }
    }
}

fn walked(bed: &PoolBed, with: Attributes) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    walk(bed.pool.path(), with, &mut found);
    found
}

/// Returns how many requests each disk has answered.
fn reads(bed: &PoolBed) -> Vec<u64> {
    let reads = |disk: &LoopFs| {
        let name = disk.device().and_then(Path::file_name).expect("a device").to_os_string();
        let stat = fs::read_to_string(Path::new("/sys/block").join(name).join("stat")).expect("counters");
        stat.split_whitespace().next().and_then(|reads| reads.parse().ok()).expect("a number")
    };
    bed.disks.iter().map(reads).collect()
}

fn drop_caches(bed: &PoolBed) {
    bed.pool.drop_dentries();
    bed.disks.iter().for_each(LoopFs::drop_caches);
}

/// Returns how many extended attributes a file has.
fn attributes(path: &Path) -> usize {
    let mut names = [0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or_default();
    names[..length].iter().filter(|byte| **byte == 0).count()
}

fn set_attribute(path: &Path, name: &str) -> io::Result<()> {
    Ok(rustix::fs::lsetxattr(path, name, b"value", XattrFlags::empty())?)
}

/// Asserts that a walk reads no disk once others have. On a busy machine some answers are not sure in time, so that a disk is
/// asked, and several walks are tried.
#[track_caller]
fn assert_walks_read_nothing(bed: &PoolBed, with: Attributes) {
    drop_caches(bed);
    let first = walked(bed, with);
    let mut counts = Vec::new();
    for _ in 0..8 {
        drop_caches(bed);
        let before = reads(bed);
        let again = walked(bed, with);
        let after = reads(bed);
        assert_eq!(first, again);
        if before == after {
            return;
        }
        counts.push((before, after));
    }
    panic!("each walk reads a disk: {counts:?}");
}

fn fill(disk: &Path, number: usize) {
    for dir in 0..20 {
        let at = disk.join(format!("dir{dir}"));
        fs::create_dir_all(at.join("below/deep")).expect("directories");
        for file in 0..10 {
            fs::write(at.join(format!("file{number}-{file}")), vec![b'x'; file * 100]).expect("a file");
        }
        let first = at.join(format!("file{number}-0"));
        symlink("../there", at.join(format!("link{number}"))).expect("a link");
        fs::hard_link(&first, at.join(format!("below/deep/other{number}"))).expect("a link");
    }
}

#[test]
fn a_walk_of_what_is_known_reads_no_disk() {
    require_root();
    let store = tempfile::tempdir().expect("a directory");
    let disks: Vec<LoopFs> = (0..3).map(|_| LoopFs::ext4(64 << 20)).collect();
    for (number, disk) in disks.iter().enumerate() {
        fill(disk.path(), number);
    }
    let bed = mount("", disks, &store);
    assert_walks_read_nothing(&bed, Attributes::Listed);
    // What changes is asked for, and then known again.
    fs::write(bed.on(1, "dir3/file1-4"), "longer").expect("a file");
    fs::write(bed.at("dir4/new"), "new").expect("a file");
    fs::rename(bed.on(2, "dir5/below"), bed.on(2, "dir6/arrived")).expect("a rename");
    assert_eq!(fs::metadata(bed.at("dir3/file1-4")).expect("it is there").len(), 6);
    assert_walks_read_nothing(&bed, Attributes::Listed);
    bed.pool.umount();
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

struct Storm<'a> {
    bed: &'a PoolBed,
    random: Rng,
    done: Vec<String>,
}

impl Storm<'_> {
    /// Returns a path, on a branch or in the pool.
    fn path(&mut self) -> PathBuf {
        let mut path = match self.random.index(self.bed.disks.len() + 2) {
            branch if branch < self.bed.disks.len() => self.bed.on(branch, ""),
            _ => self.bed.at(""),
        };
        for _ in 0..=self.random.index(3) {
            path.push(self.random.pick(&NAMES));
        }
        path
    }

    /// Returns two paths on one filesystem.
    fn two(&mut self) -> [PathBuf; 2] {
        let one = self.path();
        loop {
            let other = self.path();
            let root = |path: &Path| self.bed.disks.iter().position(|disk| path.starts_with(disk.path()));
            if root(&one) == root(&other) {
                return [one, other];
            }
        }
    }

    fn change(&mut self) {
        let (what, number) = (self.random.index(14), self.random.below(1 << 40));
        let path = self.path();
        let file = || File::options().write(true).open(&path);
        let done = match what {
            0 | 1 => fs::write(&path, vec![b'x'; number as usize % 5000]),
            2 => fs::create_dir_all(&path),
            3 => fs::remove_file(&path),
            4 => fs::remove_dir(&path),
            5 => fs::remove_dir_all(&path),
            6 => fs::set_permissions(&path, Permissions::from_mode(0o700 | number as u32 & 0o77)),
            7 => file().and_then(|file| file.write_all_at(b"more", number % 9000)),
            8 => file().and_then(|file| file.set_len(number % 9000)),
            9 => {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(number >> 10);
                file().and_then(|file| file.set_times(FileTimes::new().set_modified(time)))
            }
            10 => symlink(number.to_string(), &path),
            11 => set_attribute(&path, &format!("user.{}", number % 3)),
            12 => {
                let [from, to] = self.two();
                self.done.push(format!("from {} to {}", from.display(), to.display()));
                fs::rename(from, to)
            }
            _ => {
                let [from, to] = self.two();
                self.done.push(format!("from {} to {}", from.display(), to.display()));
                fs::hard_link(from, to)
            }
        };
        self.done.push(format!("{what} {} {number}: {done:?}", path.display()));
    }

    /// Returns what differs between the pool and the branches.
    fn differences(&self) -> Vec<String> {
        let mut found = Vec::new();
        let roots: Vec<PathBuf> = self.bed.disks.iter().map(|disk| disk.path().to_owned()).collect();
        compare(self.bed.pool.path(), &roots, &mut found);
        found
    }
}

/// Compares a directory of the pool with its copies.
fn compare(pool: &Path, copies: &[PathBuf], found: &mut Vec<String>) {
    let names = |dir: &Path| -> BTreeSet<_> {
        let listed = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        listed.filter(|name| !name.to_string_lossy().starts_with(".canopy")).collect()
    };
    let all: BTreeSet<_> = copies.iter().flat_map(|dir| names(dir)).collect();
    let shown = names(pool);
    if shown != all {
        found.push(format!("{}: {shown:?} instead of {all:?}", pool.display()));
    }
    for name in all.iter().map(PathBuf::from).chain(NAMES.iter().map(PathBuf::from)) {
        let there: Vec<PathBuf> = copies.iter().map(|dir| dir.join(&name)).collect();
        let first = there.iter().find(|path| path.symlink_metadata().is_ok());
        let with_attributes = |path: &Path| format!("{} {} attributes", describe(path), attributes(path));
        let at = pool.join(&name);
        let expected = first.map_or("absent 0 attributes".into(), |path| with_attributes(path));
        let answer = with_attributes(&at);
        if answer != expected {
            found.push(format!("{}: {answer} instead of {expected}", at.display()));
        }
        if first.is_some_and(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_dir())) {
            let is_dir = |path: &&PathBuf| path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            let dirs: Vec<PathBuf> = there.iter().filter(is_dir).cloned().collect();
            compare(&at, &dirs, found);
        }
    }
}

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn what_is_known_is_what_the_branches_hold() {
    require_root();
    let (changes, seed) = (variable("CANOPY_CATALOGUE_CHANGES", 60), variable("CANOPY_CATALOGUE_SEED", 1));
    for (at, kind) in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs].into_iter().enumerate() {
        let store = tempfile::tempdir().expect("a directory");
        let disks = (0..2).map(|_| LoopFs::new(kind, 512 << 20)).collect();
        let bed = mount(ASKS, disks, &store);
        let mut storm = Storm { bed: &bed, random: Rng::new(seed + at as u64), done: Vec::new() };
        for change in 0..changes {
            storm.change();
            let mut left = Vec::new();
            let same = wait_until(Duration::from_secs(2), || {
                left = storm.differences();
                left.is_empty()
            });
            let recent = &storm.done[storm.done.len().saturating_sub(12)..];
            assert!(same, "{kind:?}, seed {seed}, change {change}: {left:#?}\nafter {recent:#?}");
        }
        if kind != Kind::Tmpfs {
            assert_walks_read_nothing(&bed, Attributes::Any);
        }
        bed.pool.umount();
    }
}
