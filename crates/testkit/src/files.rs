//! Helpers for files and directories.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::time::{ClockId, clock_gettime};

use crate::cmd::{PATIENCE, wait_until};

/// Reads a file of UTF-8 text.
///
/// # Panics
/// If that fails.
#[track_caller]
pub fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// Writes a file, and makes the directories that lead to it.
///
/// # Panics
/// If that fails.
#[track_caller]
pub fn put(path: impl AsRef<Path>, content: &(impl AsRef<[u8]> + ?Sized)) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
    fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Returns when the clock that filesystems take times from has moved on: it does at each tick of the kernel's timer. Changes
/// after that have later times than those before.
///
/// # Panics
/// If the clock stands still.
#[track_caller]
pub fn wait_for_clock_tick() {
    // Files may have times of the exact clock (multigrain timestamps, Linux 6.13), which can be ahead of the next tick's.
    let first = clock_gettime(ClockId::Realtime);
    let passed = || clock_gettime(ClockId::RealtimeCoarse) > first;
    assert!(wait_until(PATIENCE, passed), "the clock stands still");
}

/// Copies a program to where every user may execute it.
///
/// cp(1) writes the copy. A descriptor of this process that is open for writing would be inherited by the processes that
/// other tests start at that moment, and the copy could not be executed meanwhile (`ETXTBSY`).
///
/// # Panics
/// If that fails.
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = Command::new("cp").arg("--no-preserve=mode").arg(from).arg(to).status().expect("cp");
    assert!(copied.success(), "cannot copy {} to {}", from.display(), to.display());
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).expect("a copy");
}

/// Returns the path of every entry below a directory.
///
/// # Panics
/// If a directory cannot be read.
#[track_caller]
pub fn walk(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                dirs.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// Returns the hidden files and directories below `root` that a pool makes while it copies a file or directory.
///
/// # Panics
/// If a directory cannot be read.
#[track_caller]
pub fn unfinished_copies(root: &Path) -> Vec<PathBuf> {
    let is_copy = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".canopy-clone."))
    };
    walk(root).into_iter().filter(is_copy).collect()
}

/// Returns whether anybody opens a directory within four seconds, as a pool does that asks a branch without a disk whether it
/// answers.
///
/// # Panics
/// If the directory cannot be watched.
#[must_use]
pub fn is_opened(dir: &Path) -> bool {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).expect("inotify");
    inotify::add_watch(&watch, dir, inotify::WatchFlags::OPEN).expect("a watch");
    let within = Timespec { tv_sec: 4, tv_nsec: 0 };
    poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&within)).expect("poll") > 0
}
