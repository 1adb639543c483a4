//! Option changes under load: only operations that a change forbids fail, and all data is correct.

use super::rig::Dirs;
use canopy_testkit::{PATIENCE, Pool, Rng};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A file on the branch that is added and removed.
const BELOW: &str = "below";
const CHUNK: usize = 16 << 10;

/// The load while the options of the pool change. Every worker has a directory of its own.
struct Load<'a> {
    root: &'a Path,
    stop: AtomicBool,
    done: AtomicU64,
    /// Every finished file, with the seed of its content.
    made: Mutex<Vec<(PathBuf, u64)>>,
}

impl Load<'_> {
    fn until_stopped(&self, name: &str, mut step: impl FnMut(u64) -> io::Result<()>) {
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if let Err(why) = step(round) {
                self.stop.store(true, Ordering::Relaxed);
                panic!("{name}, round {round}: {why}");
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Creates files, and reads each one back.
    fn writer(&self, worker: u64) {
        let dir = self.root.join(format!("w{worker}"));
        self.until_stopped("writer", |round| {
            let seed = worker << 32 | round;
            let path = dir.join(format!("f{round}"));
            let mut file = File::create_new(&path)?;
            let content = content(seed);
            for part in content.chunks(CHUNK / 3) {
                file.write_all(part)?;
            }
            drop(file);
            let read = fs::read(&path)?;
            assert!(read == content, "{}: {} of {} bytes", path.display(), read.len(), content.len());
            self.made.lock().expect("a list").push((path, seed));
            if round % 8 == 7 {
                thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        });
    }

    /// Renames one file back and forth.
    fn renamer(&self, worker: u64) {
        let dir = self.root.join(format!("r{worker}"));
        let names = [dir.join("one"), dir.join("two")];
        fs::write(&names[0], b"moved").expect("a file");
        self.until_stopped("renamer", |round| {
            let (from, to) = (&names[round as usize % 2], &names[(round as usize + 1) % 2]);
            fs::rename(from, to)?;
            assert_eq!(fs::read(to)?, b"moved");
            assert!(!from.exists(), "both names");
            Ok(())
        });
    }

    /// Changes one open file in place, with or without passthrough, and reopens it from time to time.
    fn keeper(&self, worker: u64) {
        let path = self.root.join(format!("k{worker}/kept"));
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let (mut file, mut rng) = (open().expect("a file"), Rng::new(worker));
        let mut expected = rng.bytes(4 * CHUNK);
        file.write_all(&expected).expect("a write");
        self.until_stopped("keeper", |round| {
            let at = rng.index(expected.len() - 100);
            let bytes = rng.bytes(100);
            file.write_all_at(&bytes, at as u64)?;
            expected[at..at + 100].copy_from_slice(&bytes);
            file.rewind()?;
            let mut read = Vec::new();
            file.read_to_end(&mut read)?;
            assert!(read == expected, "kept file, round {round}");
            match round % 5 {
                0 => file = open()?,
                1 => assert!(fs::read(&path)? == expected, "kept file by name, round {round}"),
                _ => {}
            }
            Ok(())
        });
    }

    /// Lists directories and stats their entries.
    fn reader(&self) {
        self.until_stopped("reader", |_| {
            let mut seen = 0;
            for dir in fs::read_dir(self.root)? {
                let dir = dir?;
                assert_ne!(dir.file_name(), ".mergerfs");
                if dir.file_type()?.is_dir() && dir.file_name().as_encoded_bytes()[0] != b'r' {
                    for entry in fs::read_dir(dir.path())?.take(64) {
                        let entry = entry?;
                        match entry.metadata() {
                            // Its branch may have been removed since the listing.
                            Err(why)
                                if why.kind() == io::ErrorKind::NotFound && entry.file_name() == BELOW => {}
                            other => {
                                other?;
                            }
                        }
                    }
                    seen += 1;
                }
            }
            assert!(seen >= 5, "{seen} directories");
            Ok(())
        });
    }

    /// Runs all workers while `change` changes the pool, then verifies every file.
    fn run(pool: &Pool, change: impl FnOnce(&dyn Fn() -> bool)) {
        let load = Load {
            root: pool.path(),
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            made: Mutex::default(),
        };
        for name in ["w0", "w1", "w2", "r0", "r1", "k0", "k1"] {
            fs::create_dir(load.root.join(name)).expect("mkdir");
        }
        thread::scope(|scope| {
            for worker in 0..3 {
                let load = &load;
                scope.spawn(move || load.writer(worker));
            }
            for worker in 0..2 {
                let load = &load;
                scope.spawn(move || load.renamer(worker));
                scope.spawn(move || load.keeper(worker));
            }
            scope.spawn(|| load.reader());
            // Stops the workers, also if `change` panics.
            struct Stop<'a>(&'a AtomicBool);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _stop = Stop(&load.stop);
            change(&|| !load.stop.load(Ordering::Relaxed));
        });
        let made = load.made.into_inner().expect("a list");
        for (path, seed) in &made {
            assert!(fs::read(path).expect("a file that was made") == content(*seed), "{}", path.display());
        }
        println!("{} operations, {} files", load.done.into_inner(), made.len());
        assert!(made.len() > 20, "{} files", made.len());
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let length = 1 + rng.index(2 * CHUNK);
    rng.bytes(length)
}

/// Options and values that forbid none of the load's operations.
const CHANGES: &[(&str, &[&str])] = &[
    ("category.create", &["ff", "mfs", "lfs", "rand", "pfrd", "lus"]),
    ("func.create", &["ff", "mfs", "epmfs", "eprand", "mspmfs"]),
    ("category.action", &["epall", "all"]),
    ("category.search", &["ff", "newest"]),
    ("func.getattr", &["ff", "newest"]),
    ("func.readdir", &["seq", "cor", "cosr:2"]),
    ("cache.files", &["off", "partial", "full", "auto-full", "per-process"]),
    ("passthrough.io", &["off", "ro", "wo", "rw", "auto"]),
    ("cache.attr", &["0", "1", "60"]),
    ("cache.entry", &["0", "1", "60"]),
    ("cache.negative-entry", &["0", "1"]),
    ("cache.readdir", &["true", "false"]),
    ("cache.statfs", &["0", "1"]),
    ("dropcacheonclose", &["true", "false"]),
    ("flush-on-close", &["never", "always", "opened-for-write"]),
    ("parallel-direct-writes", &["true", "false"]),
    ("statfs", &["base", "full"]),
    ("xattr", &["passthrough", "noattr"]),
    ("security-capability", &["true", "false"]),
    ("ignorepponrename", &["true", "false"]),
    ("cmd.invalidate-all-nodes", &[""]),
    ("symlinkify", &["true", "false"]),
    ("symlinkify-timeout", &["-1", "0"]),
    ("proxy-ioprio", &["true", "false"]),
    ("readahead", &["0", "128"]),
    ("umask", &["-1", "18"]),
    ("cmd.gc", &[""]),
];

/// Makes random changes that forbid nothing, until `going` returns false. Sleeps for `pause` milliseconds after every
/// fourth.
pub(super) fn random_changes(pool: &Pool, dirs: &Dirs, count: u32, pause: u64, going: &dyn Fn() -> bool) {
    let (a, b, c, d) = (dirs.text("a"), dirs.text("b"), dirs.text("c"), dirs.text("d"));
    // Branches change order and mode, but all their files stay in the pool.
    let lists = [
        format!("{a}:{b}:{c}:{d}"),
        format!("{d}:{c}:{b}:{a}"),
        format!("{a}=NC:{b}:{c}=NC:{d}"),
        format!("{a}:{b}=NC:{c}:{d}=NC,1K"),
    ];
    let mut rng = Rng::new(0x00ca_0094);
    pool.set("branches", &lists[0]);
    for change in 0..count {
        if !going() {
            return;
        }
        // With an existing-path policy, a directory on an NC branch would not accept new files.
        if rng.chance(200) {
            pool.set("func.create", "mspmfs");
            pool.set("branches", rng.pick(&lists).as_str());
        } else {
            let (key, values) = rng.pick(CHANGES);
            let value = values[rng.index(values.len())];
            if value.starts_with("ep") && *key == "func.create" {
                pool.set("branches", &lists[0]);
            }
            pool.set(key, value);
        }
        if change % 4 == 0 {
            thread::sleep(Duration::from_millis(pause));
        }
    }
}

#[test]
fn three_hundred_random_changes_under_load() {
    let dirs = Dirs::new();
    let pool = dirs.pool("category.create=rand");
    Load::run(&pool, |going| random_changes(&pool, &dirs, 300, 10, going));
    pool.umount();
}

/// A branch is added and removed under load. Only its own files appear and disappear, and its open files stay usable.
#[test]
fn a_branch_can_be_added_and_removed_under_load() {
    let dirs = Dirs::new();
    let c = dirs.path("c");
    fs::write(c.join("there"), "content").expect("a file");
    fs::create_dir(c.join("w0")).expect("mkdir");
    fs::write(c.join("w0").join(BELOW), "content").expect("a file");
    let pool = dirs.pool("category.create=ff,cache.entry=60,cache.attr=60");
    let there = || (pool.path().join("there").exists(), pool.path().join("w0").join(BELOW).exists());
    Load::run(&pool, |going| {
        let begun = Instant::now();
        for round in 0..60 {
            if !going() || begun.elapsed() > PATIENCE {
                return;
            }
            pool.set("branches", &format!("+{}=NC", c.display()));
            assert_eq!(there(), (true, true), "round {round}");
            let file =
                OpenOptions::new().read(true).write(true).open(pool.path().join("there")).expect("open");
            pool.set("branches", &format!("-{}", c.display()));
            assert_eq!(there(), (false, false), "round {round}");
            let text = format!("content of round {round}");
            file.write_all_at(text.as_bytes(), 0).expect("a write to an open file");
            let mut read = vec![0; text.len()];
            file.read_exact_at(&mut read, 0).expect("a read of an open file");
            assert_eq!(read, text.as_bytes());
            assert_eq!(fs::read_to_string(c.join("there")).expect("the branch"), text);
            file.metadata().expect("fstat");
            file.sync_all().expect("fsync");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(pool.try_set("branches", &format!("-{}", c.display())).is_ok());
    });
    pool.umount();
}
