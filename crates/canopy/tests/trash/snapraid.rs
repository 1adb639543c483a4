//! What SnapRAID's parity needs of removed and replaced files stays until the next sync, and its `fix` finds it in the trash.
//!
//! Needs snapraid, and says so where it is missing; with CI set, it fails. `scripts/test.sh trash --ignored thousand` takes a quarter of an hour.

use super::{BINARY, kept, trash};
use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{LoopFs, Pool, PoolBed, Rng};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const OPTION: &str = "trash=**=until snapraid sync|overwritten";
const WITHIN: Duration = Duration::from_secs(120);
const EXCLUDE: &str = "exclude /.canopy-trash/\n";
const DISKS: usize = 3;
/// Arrays of the long run that work side by side.
const AT_ONCE: usize = 4;

struct Array {
    bed: PoolBed,
    /// For the parity and for one of two content files, which have to be on two disks.
    others: [LoopFs; 2],
    home: tempfile::TempDir,
}

impl Array {
    fn new() -> Option<Array> {
        if Command::new("snapraid").arg("--version").output().is_err() {
            let may_lack = std::env::var_os("CI").is_none();
            assert!(may_lack, "snapraid is not installed (scripts/setup.sh test installs it)");
            eprintln!("snapraid is not installed: nothing is tested");
            return None;
        }
        let disks = [0; DISKS].map(|_| LoopFs::ext4(40 << 20));
        let others = [LoopFs::ext4(48 << 20), LoopFs::tmpfs(16 << 20)];
        let home = tempfile::tempdir().unwrap();
        let builder = Pool::builder(BINARY).option("minfreespace=0,category.create=rand").option(OPTION);
        let array = Array { bed: PoolBed::mount(builder, disks), others, home };
        let line = |key: &str, path: &Path| format!("{key} {}\n", path.to_str().unwrap());
        let mut text = line("parity", &array.others[0].path().join("parity"));
        for dir in [array.home.path(), array.others[1].path()] {
            text += &line("content", &dir.join("content"));
        }
        for number in 0..DISKS {
            text += &line(&format!("data d{number}"), array.disk(number));
        }
        text += "blocksize 4\nexclude /lost+found/\n";
        fs::write(array.conf("fix"), &text).unwrap();
        fs::write(array.conf("sync"), text + EXCLUDE).unwrap();
        Some(array)
    }

    fn conf(&self, name: &str) -> PathBuf {
        self.home.path().join(format!("{name}.conf"))
    }

    fn disk(&self, number: usize) -> &Path {
        self.bed.disks[number].path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.bed.pool.path().join(name)
    }

    fn snapraid(&self, conf: &str, args: &[&str]) -> Finished {
        run_within(Command::new("snapraid").arg("-c").arg(self.conf(conf)).args(args), WITHIN)
    }

    /// Syncs, and removes what waited for that.
    fn sync(&self) {
        let conf = self.conf("sync");
        let done = trash(self.bed.pool.path(), "sync", ["--", "--force-empty", "-c", conf.to_str().unwrap()]);
        assert!(done.success(), "{}", done.describe());
    }

    /// Returns what is on a disk, but for the trash.
    fn files(&self, number: usize) -> BTreeMap<String, Vec<u8>> {
        let all = fs::read_dir(self.disk(number)).unwrap().flatten();
        let files = all.filter(|entry| entry.file_type().unwrap().is_file());
        files.map(|it| (it.file_name().into_string().unwrap(), fs::read(it.path()).unwrap())).collect()
    }
}

/// Random removals and replacements since a sync; then a disk is lost.
fn cases(seed: u64, count: usize) {
    let Some(array) = Array::new() else { return };
    let mut random = Rng::new(seed);
    let mut number = 0;
    for case in 0..count {
        let mut write = |random: &mut Rng, path: &Path| {
            number += 1;
            let length = 1 + random.below(120_000) as usize;
            let text: Vec<u8> = (0..length).map(|at| (number * 31 + at * 7 + at / 251) as u8).collect();
            fs::write(path, text).unwrap();
        };
        for name in 0..12 {
            let path = array.at(&format!("f{name}"));
            if !path.exists() {
                write(&mut random, &path);
            }
        }
        array.sync();
        assert!(kept(array.bed.pool.path()).is_empty(), "case {case}: the sync needs nothing of it any more");
        let synced: Vec<_> = (0..DISKS).map(|number| array.files(number)).collect();
        for _ in 0..1 + random.below(10) {
            let path = array.at(&format!("f{}", random.below(12)));
            match random.below(3) {
                0 => drop(fs::remove_file(&path)),
                // Empties it in place first, if it is there.
                1 => write(&mut random, &path),
                _ => {
                    write(&mut random, &array.at("new"));
                    fs::rename(array.at("new"), &path).unwrap();
                }
            }
        }
        // The disk is lost, and an empty one is in its place.
        let lost = random.below(DISKS as u64) as usize;
        for entry in fs::read_dir(array.disk(lost)).unwrap().flatten() {
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.unwrap();
        }
        let done = array.snapraid("fix", &["--filter-disk", &format!("d{lost}"), "fix"]);
        assert!(done.success(), "case {case} of {seed}: {}", done.describe());
        let fixed = array.files(lost);
        for (name, text) in &synced[lost] {
            assert!(fixed.get(name) == Some(text), "case {case} of {seed}: {name} on disk {lost}");
        }
        // As the trash entries are a second old by then, the next sync needs none of them.
        std::thread::sleep(Duration::from_millis(1100));
    }
}

#[test]
fn fix_brings_back_every_file_of_the_last_sync() {
    cases(1, 6);
}

#[test]
#[ignore = "takes a quarter of an hour"]
fn fix_brings_back_every_file_of_a_thousand_syncs() {
    // Most of a case is waiting: for disks, and until a second is over.
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE {
            scope.spawn(move || (first..20).step_by(AT_ONCE).for_each(|seed| cases(100 + seed as u64, 50)));
        }
    });
}

#[test]
fn a_sync_that_is_not_complete_leaves_all_in_the_trash() {
    let Some(array) = Array::new() else { return };
    fs::write(array.at("f"), "text").unwrap();
    fs::write(array.at("g"), "another").unwrap();
    array.sync();
    fs::remove_file(array.at("f")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let conf = array.home.path().join("missing.conf");
    let done = trash(array.bed.pool.path(), "sync", ["--", "-c", conf.to_str().unwrap()]);
    assert!(!done.success() && done.stderr.contains("stays in the trash"), "{}", done.describe());
    assert_eq!(kept(array.bed.pool.path()).len(), 1);
    array.sync();
    assert!(kept(array.bed.pool.path()).is_empty());
}
