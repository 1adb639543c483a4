//! Clients that work in the pool meanwhile, each in a directory of its own, and know what must be there.

use super::super::busy::Goes;
use super::{Acceptance, STILL};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{Fields, PATIENCE, Rng, Tree, TreeSpec, populate};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// Longer than a program takes on a busy machine.
const LONG: u32 = 5;

/// Between two rounds, so that the commands get their share of a small machine.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Clients<'s> {
    ended: &'static AtomicBool,
    rounds: Arc<[AtomicU64; 4]>,
    threads: Vec<(&'static str, ScopedJoinHandle<'s, ()>)>,
}

/// The clients whose rounds are counted.
const COUNTED: [&str; 4] = ["rsync", "git", "fio", "readers"];

impl<'s> Clients<'s> {
    pub(super) fn start<'e>(scope: &'s Scope<'s, 'e>, pool: &'e Acceptance) -> Clients<'s> {
        // Threads of a scope may not borrow from what the scope's caller makes within it.
        let ended: &'static AtomicBool = Box::leak(Box::default());
        let rounds: Arc<[AtomicU64; 4]> = Arc::default();
        let dirs = ["rsync", "git", "fio", "grow"].map(|name| {
            let dir = pool.bed.at(name);
            fs::create_dir(&dir).expect("mkdir");
            dir
        });
        let [rsync, git, fio, grow] = dirs;
        let source = pool.plain.path().join("source");
        fs::create_dir(&source).expect("mkdir");
        populate(&source, &TreeSpec { files: 60, specials: 0, seed: 7, ..TreeSpec::default() });
        let [plain, pooled] = [pool.plain.path(), pool.bed.pool.path()].map(|root| root.join(STILL));
        let count = |index: usize| {
            let rounds = Arc::clone(&rounds);
            move || {
                rounds[index].fetch_add(1, Ordering::Relaxed);
            }
        };
        let [of_rsync, of_git, of_fio, of_readers] = [0, 1, 2, 3].map(count);
        let threads = vec![
            ("rsync", scope.spawn(move || copies(&source, &rsync, &Goes(ended), &of_rsync))),
            ("git", scope.spawn(move || commits(&git, &Goes(ended), &of_git))),
            ("fio", scope.spawn(move || verified(&fio, &Goes(ended), &of_fio))),
            ("appender", scope.spawn(move || grows(&grow, &Goes(ended)))),
            ("reader", scope.spawn(move || reads(&plain, &pooled, &Goes(ended), &of_readers))),
        ];
        Clients { ended, rounds, threads }
    }

    /// Fails if a client has failed.
    #[track_caller]
    pub(super) fn check(&self) {
        let failed: Vec<&str> =
            self.threads.iter().filter(|(_, thread)| thread.is_finished()).map(|(name, _)| *name).collect();
        assert!(failed.is_empty(), "clients have failed: {failed:?}");
    }

    /// Ends the clients, which compare all that they have for a last time. Returns what they have done.
    pub(super) fn end(mut self) -> String {
        self.ended.store(true, Ordering::Release);
        for (name, thread) in std::mem::take(&mut self.threads) {
            assert!(thread.join().is_ok(), "{name} has failed");
        }
        let done = COUNTED.iter().zip(&*self.rounds);
        let done = done.map(|(name, rounds)| format!("{name} {} rounds", rounds.load(Ordering::Relaxed)));
        done.collect::<Vec<_>>().join(", ")
    }
}

/// Ends the others if the test fails, so that they do not keep the scope open.
impl Drop for Clients<'_> {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
    }
}

#[track_caller]
fn succeed(command: &mut Command) {
    let done = run_within(command, PATIENCE * LONG);
    assert!(done.success(), "{command:?}: {}", done.describe());
}

/// Copies a tree into the pool with rsync, compares, lets rsync find nothing to do, and removes the copy.
fn copies(source: &Path, dir: &Path, goes: &Goes<'_>, count: &dyn Fn()) {
    let expected = Tree::capture(source);
    let mut number = 0;
    while goes.on() {
        let copy = dir.join(format!("{number}"));
        let from = source.join(".");
        let rsync = |more: &[&str]| {
            let mut command = Command::new("rsync");
            command.args(["-aHAX", "--numeric-ids"]).args(more).arg(&from).arg(&copy);
            command
        };
        succeed(&mut rsync(&[]));
        let again = run_within(&mut rsync(&["-ni", "--checksum"]), PATIENCE * LONG);
        assert!(again.success() && again.stdout.is_empty(), "{}", again.describe());
        expected.assert_same(&Tree::capture_with(&copy, Fields::default()));
        fs::remove_dir_all(&copy).expect("remove");
        number += 1;
        count();
        std::thread::sleep(PAUSE);
    }
}

/// Commits to a repository, clones it, and lets git check both.
fn commits(dir: &Path, goes: &Goes<'_>, count: &dyn Fn()) {
    let repository = dir.join("repository");
    let git = |dir: &Path, args: &[&str]| {
        let mut command = Command::new("git");
        command
            .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0", "-C"])
            .arg(dir)
            .args(args);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command
    };
    fs::create_dir(&repository).expect("mkdir");
    succeed(&mut git(&repository, &["init", "-q", "."]));
    let mut rng = Rng::new(5);
    let mut number = 0;
    while goes.on() {
        for file in 0..12 {
            let path = repository.join(format!("d{}/f{file}", file % 3));
            fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
            let length = rng.index(20_000);
            fs::write(path, rng.bytes(length)).expect("write");
        }
        succeed(&mut git(&repository, &["add", "-A"]));
        succeed(&mut git(&repository, &["commit", "-qm", "more"]));
        if number % 5 == 4 {
            succeed(&mut git(&repository, &["gc", "-q", "--prune=now"]));
            let clone = dir.join("clone");
            succeed(&mut git(dir, &["clone", "-q", "--no-hardlinks", "repository", "clone"]));
            succeed(&mut git(&clone, &["fsck", "--strict"]));
            fs::remove_dir_all(&clone).expect("remove");
        }
        let status = run_within(&mut git(&repository, &["status", "--porcelain"]), PATIENCE * LONG);
        assert!(status.success() && status.stdout.is_empty(), "{}", status.describe());
        number += 1;
        count();
    }
    succeed(&mut git(&repository, &["fsck", "--strict"]));
}

/// Writes blocks at random places with fio, which reads them back and compares.
fn verified(dir: &Path, goes: &Goes<'_>, count: &dyn Fn()) {
    let mut number = 0;
    while goes.on() {
        let mut fio = Command::new("fio");
        fio.arg(format!("--directory={}", dir.display())).arg(format!("--filename=f{}", number % 3));
        fio.args(["--name=verify", "--size=4M", "--rw=randwrite", "--bsrange=4k-64k", "--bs_unaligned"]);
        fio.args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--ioengine=psync",
            "--output-format=terse",
        ]);
        succeed(fio.arg(format!("--randseed={number}")));
        number += 1;
        count();
    }
}

/// Appends to a file that is open all the time, and reads it by its name.
fn grows(dir: &Path, goes: &Goes<'_>) {
    let path = dir.join("log");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("open");
    let line = |number: u64| format!("{number:063}\n");
    let mut lines = 0;
    while goes.on() {
        for _ in 0..16 {
            file.write_all(line(lines).as_bytes()).expect("append");
            lines += 1;
        }
        let (mut last, at) = (vec![0; 64 * 16], (lines - 16) * 64);
        File::open(&path).expect("open").read_exact_at(&mut last, at).expect("read");
        let expected: String = (lines - 16..lines).map(line).collect();
        assert!(last == expected.as_bytes(), "the end of the log differs");
        std::thread::sleep(PAUSE);
    }
    let mut text = String::new();
    File::open(&path).expect("open").read_to_string(&mut text).expect("read");
    assert!(text.lines().enumerate().all(|(number, text)| text == line(number as u64).trim_end()));
    assert_eq!(text.len() as u64, lines * 64);
}

/// Reads files that nobody changes, some of which are open all the time for reading, and some for writing.
fn reads(plain: &Path, pooled: &Path, goes: &Goes<'_>, count: &dyn Fn()) {
    let is_file = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    let files: Vec<PathBuf> = canopy_testkit::files::walk(plain).into_iter().filter(is_file).collect();
    let inside = |path: &PathBuf| pooled.join(path.strip_prefix(plain).expect("below"));
    let mut rng = Rng::new(8);
    let kept: Vec<(File, &PathBuf)> = (0..30)
        .map(|_| rng.pick(&files))
        .map(|path| (File::open(inside(path)).expect("open"), path))
        .collect();
    let open = |path: &PathBuf| OpenOptions::new().read(true).write(true).open(inside(path));
    // Not those that are immutable.
    let _written: Vec<File> = (0..8).filter_map(|_| open(rng.pick(&files)).ok()).collect();
    while goes.on() {
        let path = rng.pick(&files);
        let expected = fs::read(path).expect("read");
        assert!(fs::read(inside(path)).expect("read") == expected, "{} differs", path.display());
        let (file, path) = rng.pick(&kept);
        let (expected, mut found) = (fs::read(path).expect("read"), Vec::new());
        found.resize(expected.len(), 0);
        file.read_exact_at(&mut found, 0).expect("read");
        assert!(found == expected, "{}, which is open, differs", path.display());
        count();
        std::thread::sleep(PAUSE);
    }
}
