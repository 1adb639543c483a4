//! Clients in rounds of ordinary work on the files of one disk: a bystander whose rounds are counted, and others that use a
//! disk that lags or hangs. What the bystander loses beside the others is what they take from it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::Rng;
use crate::cmd::{PATIENCE, wait_until};

/// Files in each directory.
const FILES: usize = 3;

/// Directories of files that are on one disk only.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
    name: &'static str,
    dirs: usize,
}

/// How far a client came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub rounds: usize,
    pub longest: Duration,
    /// The step that took longest in the longest round.
    pub step: &'static str,
}

impl Files {
    /// `dirs` directories below the root of a pool or of a disk. `name` begins their names.
    pub fn new(root: &Path, name: &'static str, dirs: usize) -> Files {
        Files { root: root.to_owned(), name, dirs }
    }

    /// The path of a directory.
    pub fn dir(&self, number: usize) -> PathBuf {
        self.root.join(format!("{}-{number}", self.name))
    }

    /// Makes the directories and files.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn make(&self) {
        for dir in (0..self.dirs).map(|number| self.dir(number)) {
            fs::create_dir(&dir).expect("mkdir");
            (0..FILES).for_each(|file| fs::write(dir.join(format!("f{file}")), "data").expect("a file"));
        }
    }

    /// Makes every name known that a round of this client uses.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn visit(&self, client: &str) {
        for number in 0..self.dirs {
            for file in 0..FILES {
                self.round(client, number, file, 0, false).expect("a first visit");
            }
        }
    }

    /// One round: read, change, create, rename, list, remove. With `sync` the new file reaches the disk. Returns the step
    /// that took longest.
    fn round(
        &self,
        client: &str,
        dir: usize,
        file: usize,
        mode: u32,
        sync: bool,
    ) -> io::Result<(Duration, &'static str)> {
        let dir = self.dir(dir);
        let file = dir.join(format!("f{file}"));
        let (new, renamed) = (dir.join(client), dir.join(format!("{client}-renamed")));
        let mut longest = (Duration::ZERO, "");
        let mut step = |what: &'static str, work: &mut dyn FnMut() -> io::Result<()>| {
            let began = Instant::now();
            let result = work().map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")));
            longest = longest.max((began.elapsed(), what));
            result
        };
        step("stat", &mut || fs::metadata(&file).map(drop))?;
        step("open and read", &mut || File::open(&file)?.read_to_end(&mut Vec::new()).map(drop))?;
        step("chmod", &mut || fs::set_permissions(&file, Permissions::from_mode(0o600 + mode)))?;
        step("create and write", &mut || {
            let mut made = OpenOptions::new().write(true).create_new(true).open(&new)?;
            made.write_all(b"new")?;
            if sync { made.sync_all() } else { Ok(()) }
        })?;
        step("rename", &mut || fs::rename(&new, &renamed))?;
        step("list", &mut || fs::read_dir(&dir)?.try_for_each(|entry| entry.map(drop)))?;
        step("unlink", &mut || fs::remove_file(&renamed))?;
        Ok(longest)
    }

    fn random_round(&self, client: &str, rng: &mut Rng, sync: bool) -> io::Result<(Duration, &'static str)> {
        let mode = u32::try_from(rng.below(64)).expect("a small number");
        self.round(client, rng.index(self.dirs), rng.index(FILES), mode, sync)
    }

    /// Counts the rounds of a client in this time. If one is still under way after twice the time, `release` has to let it
    /// continue.
    ///
    /// # Panics
    /// If an operation of the client fails.
    #[track_caller]
    pub fn count_rounds(&self, client: &str, time: Duration, release: impl FnOnce()) -> Progress {
        let began = Instant::now();
        self.work(client, move |_| began.elapsed() < time, 2 * time, release)
    }

    /// Counts the rounds of a client until they are `rounds`. If they are not after [`PATIENCE`], `release` has to let the
    /// client continue.
    ///
    /// # Panics
    /// If an operation of the client fails.
    #[track_caller]
    pub fn make_rounds(&self, client: &str, rounds: usize, release: impl FnOnce()) -> Progress {
        let began = Instant::now();
        self.work(client, move |made| made < rounds && began.elapsed() < PATIENCE, PATIENCE, release)
    }

    /// Makes rounds while `goes_on` says so of their number. Calls `release` if the last has not ended by then.
    #[track_caller]
    fn work(
        &self,
        client: &str,
        goes_on: impl Fn(usize) -> bool + Send + 'static,
        patience: Duration,
        release: impl FnOnce(),
    ) -> Progress {
        let seen = Arc::new(Mutex::new(Progress::default()));
        let began = Instant::now();
        let thread = {
            let (files, client, seen) = (self.clone(), client.to_owned(), Arc::clone(&seen));
            let work = move || {
                let (mut rng, mut made) = (Rng::new(1), 0);
                while goes_on(made) {
                    let started = Instant::now();
                    let (_, step) = files.random_round(&client, &mut rng, false).expect("a round");
                    made += 1;
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.rounds = made;
                    if started.elapsed() > seen.longest {
                        (seen.longest, seen.step) = (started.elapsed(), step);
                    }
                }
            };
            std::thread::Builder::new().name("bystander".into()).spawn(work).expect("a thread")
        };
        wait_until(patience, || thread.is_finished());
        let mut progress = *seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !thread.is_finished() {
            (progress.longest, progress.step) = (began.elapsed(), "still under way");
            release();
        }
        thread.join().expect("a client that is not held up by errors");
        progress
    }
}

/// Clients that work in rounds until they are told to stop.
#[derive(Debug)]
pub struct Others {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Others {
    /// Starts `count` clients, for which no operation may fail.
    pub fn start(count: usize, files: &Files) -> Others {
        Others::start_with(count, files, |error| panic!("a client of the slow disk: {error}"))
    }

    /// Starts `count` clients that go on with the next round after an error.
    pub fn start_despite_errors(count: usize, files: &Files) -> Others {
        Others::start_with(count, files, |_| sleep(Duration::from_millis(10)))
    }

    fn start_with(count: usize, files: &Files, failed: fn(io::Error)) -> Others {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let start = |number: usize| {
            let (stop, rounds, files) = (Arc::clone(&stop), Arc::clone(&rounds), files.clone());
            std::thread::spawn(move || {
                let (client, mut rng) = (format!("client{number}"), Rng::new(1000 + number as u64));
                while !stop.load(Ordering::Relaxed) {
                    match files.random_round(&client, &mut rng, true) {
                        Ok(_) => _ = rounds.fetch_add(1, Ordering::Relaxed),
                        Err(error) => failed(error),
                    }
                }
            })
        };
        let threads = (0..count).map(start).collect();
        Others { stop, rounds, threads }
    }

    /// Tells them to stop, waits until each has ended its round, and returns the number of rounds.
    ///
    /// # Panics
    /// If an operation of one has failed.
    #[track_caller]
    pub fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a client of the slow disk"));
        self.rounds.load(Ordering::Relaxed)
    }

    /// How many rounds they have ended so far.
    pub fn rounds(&self) -> usize {
        self.rounds.load(Ordering::Relaxed)
    }
}
