//! Walks through a tree while it changes: they fail on the pool only where they would fail on ext4.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use canopy_testkit::cmd::wait_within;
use canopy_testkit::{Kind, PATIENCE, Pool};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, openat, statat};

use super::rig::{Disks, plain, shell, shell_ok};

const DIRS: usize = 12;
const FILES: usize = 12;

/// Makes `root/top/d*/d*/f*`, and returns the number of entries, including `top`.
fn tree(root: &Path) -> usize {
    for outer in 0..DIRS {
        for inner in 0..4 {
            let dir = root.join(format!("top/d{outer}/d{inner}"));
            fs::create_dir_all(&dir).unwrap();
            for file in 0..FILES {
                fs::write(dir.join(format!("f{file}")), b"x").unwrap();
            }
        }
    }
    1 + DIRS + DIRS * 4 + DIRS * 4 * FILES
}

fn pool(disks: &Disks) -> Pool {
    disks.pool("category.create=rand")
}

/// Repeats one closure while another runs, and counts the repetitions.
fn repeat_during<T>(mut repeated: impl FnMut(usize) + Send, work: impl FnOnce() -> T) -> (T, usize) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                repeated(rounds.fetch_add(1, Ordering::Relaxed));
            }
        });
        // A panic in `work` must also stop the other thread, or the scope never ends.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        match result {
            Ok(value) => (value, rounds.load(Ordering::Relaxed)),
            Err(payload) => std::panic::resume_unwind(payload),
        }
    })
}

#[test]
fn a_walk_from_within_is_unaffected_by_renames_of_the_top() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Ext4]);
    let pool = pool(&disks);
    let root = pool.path();
    let expected = tree(root);
    let flip = |round: usize| {
        let (from, to) = if round.is_multiple_of(2) { ("top", "other") } else { ("other", "top") };
        fs::rename(root.join(from), root.join(to)).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    };
    // The shell changes into the directory before the renames start, as a user would.
    let mut walker = Command::new("sh");
    walker.current_dir(root.join("top")).stdout(Stdio::piped()).stderr(Stdio::piped());
    walker.args([
        "-eu",
        "-c",
        "for i in 1 2 3 4 5 6; do find . -ls | wc -l; ls -laR . | wc -l; du -a . | wc -l; done",
    ]);
    let child = walker.spawn().unwrap();
    let (output, rounds) = repeat_during(flip, || child.wait_with_output().unwrap());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "after {rounds} renames: {err}");
    let counts: Vec<&str> = out.lines().map(str::trim).collect();
    for lines in counts.chunks(3) {
        assert_eq!(lines[0], expected.to_string(), "after {rounds} renames");
        assert_eq!(lines[1], counts[1], "after {rounds} renames");
    }
    assert!(rounds > 20, "only {rounds} renames during the walks");
    pool.umount();
}

#[test]
fn removal_from_within_is_unaffected_by_renames_of_the_top() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Xfs]);
    let pool = pool(&disks);
    let root = pool.path();
    tree(root);
    let flip = |round: usize| {
        let (from, to) = if round.is_multiple_of(2) { ("top", "other") } else { ("other", "top") };
        fs::rename(root.join(from), root.join(to)).unwrap();
    };
    let child = Command::new("sh")
        .current_dir(root.join("top"))
        .args(["-c", "exec rm -r d*"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (output, rounds) = repeat_during(flip, || child.wait_with_output().unwrap());
    assert!(output.status.success(), "{rounds} renames: {}", String::from_utf8_lossy(&output.stderr));
    assert!(rounds > 5, "only {rounds} renames during the removal");
    let top = if rounds.is_multiple_of(2) { "top" } else { "other" };
    assert_eq!(fs::read_dir(root.join(top)).unwrap().count(), 0);
    pool.umount();
}

/// A walk finds every unchanged entry while other directories change.
#[test]
fn changes_elsewhere_do_not_disturb_a_walk() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Btrfs]);
    let pool = pool(&disks);
    let root = pool.path();
    let expected = tree(root).to_string();
    fs::create_dir_all(root.join("busy/a/b/c")).unwrap();
    let churn = |round: usize| {
        let busy = root.join("busy");
        let name = |index: usize| busy.join(format!("n{}", index % 7));
        fs::create_dir_all(name(round).join("x/y")).unwrap();
        fs::write(name(round).join("x/file"), b"1").unwrap();
        let _ = fs::rename(name(round), name(round + 3).join("moved"));
        let _ = fs::remove_dir_all(name(round + 1));
        let _ = fs::rename(busy.join("a"), busy.join("z"));
        let _ = fs::rename(busy.join("z"), busy.join("a"));
    };
    let walks = || {
        for _ in 0..8 {
            let done = shell(root, "find top -ls | wc -l; rm -rf nothing; ls -lR top > /dev/null", &[]);
            assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
            assert_eq!(done.stdout.trim(), expected);
        }
    };
    let ((), rounds) = repeat_during(churn, walks);
    assert!(rounds > 20, "only {rounds} rounds");
    pool.umount();
    disks.union();
}

/// Returns whether every error is about a name that was removed meanwhile, as on any filesystem.
fn only_missing(stderr: &str) -> bool {
    stderr.lines().all(|line| line.ends_with("No such file or directory"))
}

fn finish(mut child: Child) -> (bool, String) {
    let status = wait_within(&mut child, 2 * PATIENCE);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
        return (false, "the process hangs".to_owned());
    }
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn removal_during_walks_fails_only_as_on_ext4() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Ext4]);
    let pool = pool(&disks);
    let reference = plain();
    for root in [reference.path(), pool.path()] {
        for _ in 0..4 {
            tree(root);
            let spawn = |script: &str| {
                let mut command = Command::new("sh");
                command.current_dir(root).args(["-c", script]);
                command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
            };
            let walks: Vec<Child> = ["find top -ls", "ls -lR top", "du -a top", "find top -depth -ls"]
                .into_iter()
                .map(|walk| spawn(&format!("while test -e top; do {walk}; done; exit 0")))
                .collect();
            let (removed, complaint) = finish(spawn("rm -rf top"));
            assert!(removed && complaint.is_empty(), "{}: rm: {complaint}", root.display());
            for walk in walks {
                let (ended, complaint) = finish(walk);
                assert!(ended && only_missing(&complaint), "{}: {complaint}", root.display());
            }
        }
    }
    pool.umount();
    assert_eq!(disks.spread(), [0, 0]);
}

/// fts(3) compares device and inode numbers on its way down and up, so they must not depend on a directory's path.
#[test]
fn a_directory_keeps_its_inode_number_across_renames() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Ext4]);
    let pool = pool(&disks);
    let root = pool.path();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("x")).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let (b, c) = (
        openat(CWD, root.join("a/b"), flags, Mode::empty()).unwrap(),
        openat(CWD, root.join("a/b/c"), flags, Mode::empty()).unwrap(),
    );
    let before = (fstat(&b).unwrap().st_ino, fstat(&c).unwrap().st_ino);
    let above = |fd| statat(fd, "..", AtFlags::empty()).unwrap().st_ino;
    for (from, to) in [("a", "a2"), ("a2/b", "x/b"), ("x", "y"), ("y/b/c", "c"), ("c", "y/b/c")] {
        fs::rename(root.join(from), root.join(to)).unwrap();
        assert_eq!((fstat(&b).unwrap().st_ino, fstat(&c).unwrap().st_ino), before, "after {from} -> {to}");
        if to != "c" {
            assert_eq!(above(&c), before.0, "after {from} -> {to}");
        }
    }
    assert_eq!(fs::metadata(root.join("y/b")).unwrap().ino(), before.0);
    let listed: Vec<u64> = fs::read_dir(root.join("y"))
        .unwrap()
        .map(|entry| {
            use std::os::unix::fs::DirEntryExt;
            entry.unwrap().ino()
        })
        .collect();
    assert_eq!(listed, [before.0], "the listing shows another inode number");
    // A directory that rename replaced still answers through open descriptors.
    fs::create_dir(root.join("empty")).unwrap();
    let held = openat(CWD, root.join("empty"), flags, Mode::empty()).unwrap();
    let ino = fstat(&held).unwrap().st_ino;
    fs::rename(root.join("a2"), root.join("empty")).unwrap();
    let replaced = fstat(&held).unwrap();
    assert_eq!((replaced.st_ino, replaced.st_nlink), (ino, 0));
    assert_eq!(statat(&held, "anything", AtFlags::empty()).unwrap_err(), rustix::io::Errno::NOENT);
    drop((b, c, held));
    pool.umount();
}

/// A long listing shows each lasting entry exactly once, however many others are created and removed meanwhile.
#[test]
fn a_listing_during_changes_shows_lasting_entries_exactly_once() {
    let disks = Disks::new(&[Kind::Ext4, Kind::Tmpfs]);
    let pool = pool(&disks);
    let root = pool.path();
    for index in 0..600 {
        fs::write(root.join(format!("stays-{index}")), b"").unwrap();
    }
    let churn = |round: usize| {
        let name = root.join(format!("goes-{}", round % 50));
        let _ = fs::write(&name, b"");
        let _ = fs::rename(&name, root.join(format!("went-{}", round % 20)));
        let _ = fs::remove_file(root.join(format!("went-{}", (round + 10) % 20)));
    };
    let lists = || {
        let end = Instant::now() + Duration::from_millis(1500);
        let mut lists = 0;
        while Instant::now() < end {
            let mut stays = 0;
            let mut all = std::collections::HashSet::new();
            for entry in fs::read_dir(root).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                stays += usize::from(name.starts_with("stays-"));
                assert!(all.insert(name.clone()), "{name} is listed twice");
            }
            assert_eq!(stays, 600);
            lists += 1;
        }
        lists
    };
    let (lists, rounds) = repeat_during(churn, lists);
    assert!(lists > 3 && rounds > 50, "{lists} listings, {rounds} changes");
    shell_ok(root, "rm -rf ./*", &[]);
    pool.umount();
}
