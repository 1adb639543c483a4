//! A pool that remembers, and what it says of that.

pub(super) use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{LoopFs, Pool, PoolBed, PoolBuilder};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Describes a pool that remembers in this directory, and creates on the first branch that accepts it.
pub(super) fn builder(state: &Path) -> PoolBuilder {
    Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .option("minfreespace=0,category.create=ff,missing=remember,allow-missing-branches=true")
        .env("CANOPY_STATE_DIR", state)
}

/// Two disks, the first on ext4, with a tree on each, and directories that both have.
pub(super) fn disks() -> Vec<LoopFs> {
    let disks = vec![LoopFs::ext4(64 * MIB), LoopFs::tmpfs(64 * MIB)];
    for disk in &disks {
        let _ = fs::remove_dir(disk.path().join("lost+found"));
    }
    let on = |disk: usize, path: &str| disks[disk].path().join(path);
    for dir in ["films/old", "only/deep", "both", "empty"] {
        fs::create_dir_all(on(0, dir)).unwrap();
    }
    for dir in ["music", "both"] {
        fs::create_dir_all(on(1, dir)).unwrap();
    }
    for number in 0..40 {
        fs::write(on(0, &format!("films/{number}.mkv")), vec![b'f'; number]).unwrap();
        fs::write(on(1, &format!("music/{number}.flac")), vec![b'm'; number]).unwrap();
        fs::write(on(number % 2, &format!("both/{number}")), "both").unwrap();
    }
    fs::write(on(0, "films/old/first"), "old").unwrap();
    fs::write(on(0, "only/deep/file"), "deep").unwrap();
    std::os::unix::fs::symlink("0.mkv", on(0, "films/link")).unwrap();
    fs::hard_link(on(0, "only/deep/file"), on(0, "only/same")).unwrap();
    disks
}

/// Mounts such a pool, and waits until it knows all.
#[track_caller]
pub(super) fn bed(state: &TempDir) -> PoolBed {
    let bed = PoolBed::mount(builder(state.path()), disks());
    wait_until_known(&bed.pool);
    bed
}

/// Returns what the pool says of the branch at a path.
#[track_caller]
pub(super) fn branch(pool: &Pool, path: &Path) -> Value {
    let status = pool.status();
    let branches = status["branches"].as_array().expect("branches").clone();
    let found = branches.into_iter().find(|found| found["path"] == path.to_str().expect("text"));
    found.unwrap_or_else(|| panic!("{} is not listed: {status:#}", path.display()))
}

/// Waits until all that the branches hold is remembered.
#[track_caller]
pub(super) fn wait_until_known(pool: &Pool) {
    let mut last = Value::Null;
    let known = wait_until(PATIENCE, || {
        last = pool.status()["branches"].clone();
        let all = last.as_array().expect("branches");
        all.iter()
            .filter(|branch| branch["remembered"]["shown"] == false)
            .all(|branch| branch["remembered"]["whole"] == true && branch["remembered"]["unknown"] == 0)
    });
    assert!(known, "{last:#}\n{}", pool.log());
}

/// Takes the disk away, as a pulled one goes.
#[track_caller]
pub(super) fn take_away(bed: &mut PoolBed, disk: usize) {
    bed.disks[disk].unmount_lazily();
    wait_for(&bed.pool, bed.disks[disk].path(), true);
}

#[track_caller]
pub(super) fn bring_back(bed: &mut PoolBed, disk: usize) {
    bed.disks[disk].mount_again();
    wait_until_back(bed, disk);
}

#[track_caller]
pub(super) fn wait_until_back(bed: &PoolBed, disk: usize) {
    wait_for(&bed.pool, bed.disks[disk].path(), false);
}

#[track_caller]
fn wait_for(pool: &Pool, path: &Path, gone: bool) {
    let is = wait_until(PATIENCE, || (branch(pool, path)["illness"]["health"] == "gone") == gone);
    assert!(is, "{:#}\n{}", branch(pool, path), pool.log());
}

/// What stat(2) says of a tree, by path; of directories, without what depends on how many branches have them.
pub(super) fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    add(root, root, &mut found);
    found
}

fn add(root: &Path, dir: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|why| panic!("{}: {why}", dir.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|why| panic!("in {}: {why}", dir.display())).path();
        let meta = fs::symlink_metadata(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let mut text = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
        if meta.is_dir() {
            add(root, &path, found);
        } else {
            let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
            let link = fs::read_link(&path).unwrap_or_default();
            text += &format!(" {} {} {times:?} {} {}", meta.size(), meta.ino(), meta.nlink(), link.display());
        }
        let twice = found.insert(path.strip_prefix(root).unwrap().to_owned(), text);
        assert!(twice.is_none(), "{} is listed twice", path.display());
    }
}

/// Mirrors the pool with a command that deletes; returns its exit status.
#[track_caller]
pub(super) fn rsync(pool: &Path, target: &Path) -> i32 {
    let mut command = Command::new("rsync");
    command.args(["-a", "--delete"]).arg(format!("{}/", pool.display())).arg(target);
    let done = run_within(&mut command, PATIENCE);
    let code = done.code().unwrap_or(-1);
    assert!([0, 23, 24].contains(&code), "{}", done.describe());
    code
}

/// Returns the paths of a tree on a plain filesystem.
pub(super) fn paths(root: &Path) -> Vec<PathBuf> {
    tree(root).into_keys().collect()
}
