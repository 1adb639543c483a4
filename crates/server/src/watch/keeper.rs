//! Keeps what is known of the branches from one process to the next, whether the one before was unmounted, replaced, or killed.
//!
//! A thread saves it when nothing has happened for a while, before another program takes over, and when the pool was unmounted;
//! and the next process learns it if the states of all branches are those that were saved with it. By then it watches them, so that
//! whatever comes later is told. Nothing of it is believed otherwise: then the directories in it are looked at again ([`revisit`](super::revisit)).

use super::Watch;
use super::kept_file::{Head, KeptFile, NewFile};
use super::revisit::{Progress, Revisits};
use crate::settings::Settings;
use crate::test_switches;
use canopy_base::hash;
use canopy_branch::branch::{Branch, Branches, unchanged};
use canopy_config::options;
use canopy_config::resolve::remembered;
use canopy_pool::Pool;
use canopy_pool::coherence::catalogue::{Catalogue, Home, Packed, packed};
use canopy_pool::ops;
use canopy_sys::shown::Show as _;
use canopy_sys::thread::ioprio;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long nothing must have happened before all is saved. By then the kernel has written back what was changed.
const QUIET: Duration = Duration::from_secs(60);
/// How long the thread waits at least before it saves all again, and how long for each MiB.
const BETWEEN: Duration = Duration::from_secs(600);
const BETWEEN_PER_MIB: Duration = Duration::from_secs(10);
/// How often it is tried before this process ends: events may still be on their way.
const ATTEMPTS: usize = 3;
/// How long who ends this process waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// The thread, as long as this lives.
pub(crate) struct Keeper {
    asks: Sender<Sender<()>>,
    revisits: Arc<Revisits>,
    /// As long as it is there, directories are looked at again.
    _revisiting: Sender<()>,
}

impl Keeper {
    /// Begins to learn what was saved, and to save what is known, if the options ask for that.
    pub(crate) fn start(pool: &Arc<Pool>, watch: &Arc<Watch>, settings: &Arc<Settings>) -> Option<Keeper> {
        let config = settings.config();
        let file = remembered::directory(&config, settings.mountpoint()).join("catalogue");
        let catalogue = ops::external_changes::catalogue(pool);
        remove_strays(&file);
        if catalogue.extents().is_none() {
            let _ = fs::remove_file(&file);
            return None;
        }
        let (asks, asked) = channel();
        let (revisiting, ended) = channel();
        let revisits = Arc::<Revisits>::default();
        let looks = Arc::clone(&revisits);
        let (pool, watch, settings) = (Arc::clone(pool), Arc::clone(watch), Arc::clone(settings));
        let keep = move || {
            ioprio::yield_disks();
            let mut saver = Saver {
                since: catalogue_of(&pool).now(),
                pool,
                watch,
                settings,
                file,
                revisits: looks,
                kept: None,
                saved: (0, 0),
                seen: (0, 0),
                changed: Instant::now(),
                next: Instant::now(),
            };
            saver.learn();
            saver.revisits.start(&saver.pool, ended);
            saver.run(&asked);
        };
        let started = thread::Builder::new().name("canopy-keep".into()).spawn(keep);
        started.inspect_err(|why| tracing::warn!("catalogue: nothing is kept for later: {why}")).ok()?;
        Some(Keeper { asks, revisits, _revisiting: revisiting })
    }

    /// Returns how far what was known has been looked at again; `None` if there is nothing of the kind.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.revisits.progress()
    }

    /// Saves all, because this process is about to end. Does not wait long for a disk.
    pub(crate) fn save(&self) {
        self.revisits.hold();
        let (done, waits) = channel();
        if self.asks.send(done).is_ok() && waits.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "catalogue: a disk does not answer, so the next process may have to read the disks"
            );
        }
    }
}

/// Removes what processes have left that were killed while they saved.
fn remove_strays(file: &Path) {
    let Some((dir, name)) = file.parent().zip(file.file_name()) else { return };
    let beginning = [name.as_bytes(), b".new."].concat();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().as_bytes().starts_with(&beginning) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn catalogue_of(pool: &Pool) -> &Catalogue {
    ops::external_changes::catalogue(pool)
}

/// How much has happened, and how much was learnt.
type Moment = (u64, u64);

struct Saver {
    pool: Arc<Pool>,
    watch: Arc<Watch>,
    settings: Arc<Settings>,
    file: PathBuf,
    revisits: Arc<Revisits>,
    /// The number of the latest change when the thread began.
    since: u64,
    /// What was saved last, and when that was.
    kept: Option<KeptFile>,
    saved: Moment,
    /// What there was when the thread looked last.
    seen: Moment,
    /// When something had happened.
    changed: Instant,
    /// When to save all again.
    next: Instant,
}

impl Saver {
    fn run(&mut self, asked: &Receiver<Sender<()>>) {
        let quiet = test_switches::keeps_after().unwrap_or(QUIET);
        loop {
            match asked.recv_timeout(quiet) {
                Ok(done) => {
                    self.look();
                    // What was changed a moment ago is written, or the states would differ once it is.
                    let flush = self.changed.elapsed() < 2 * QUIET;
                    (0..ATTEMPTS).any(|attempt| self.save(flush, attempt + 1 == ATTEMPTS));
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let is_due = Instant::now() >= self.next || test_switches::keeps_after().is_some();
                    if self.look() && is_due {
                        self.save(false, true);
                    }
                }
            }
        }
    }

    fn moment(&self) -> Moment {
        (catalogue_of(&self.pool).now(), catalogue_of(&self.pool).learnt())
    }

    /// Returns whether all is as it was when the thread looked last.
    fn look(&mut self) -> bool {
        let (before, now) = (self.seen, self.moment());
        if before.0 != now.0 {
            self.changed = Instant::now();
        }
        self.seen = now;
        before == now
    }

    /// Saves what is known, or only the states of the branches if it was saved already. Returns whether it is saved.
    fn save(&mut self, flush: bool, reports: bool) -> bool {
        let saved = if self.kept.is_some() && self.saved == self.moment() {
            self.save_states(flush)
        } else {
            self.save_all(flush)
        };
        if let Err(why) = saved.as_ref()
            && reports
        {
            tracing::info!("catalogue: what is known is not kept for later: {why}");
        }
        saved.is_ok()
    }

    fn save_states(&mut self, flush: bool) -> Result<(), String> {
        let branches = ops::settings::branches(&self.pool);
        let states = states(&branches, flush)?;
        self.check(self.saved.0)?;
        match &mut self.kept {
            Some(kept) if kept.states != states => {
                kept.set_states(states).map_err(|why| self.unwritable(&why))
            }
            _ => Ok(()),
        }
    }

    fn save_all(&mut self, flush: bool) -> Result<(), String> {
        let catalogue = catalogue_of(&self.pool);
        let saved = self.moment();
        let directories = catalogue.known_directories();
        if directories.is_empty() {
            return Ok(());
        }
        let branches = ops::settings::branches(&self.pool);
        let (head, homes) = (self.head(&branches), homes(&branches));
        let unwritable = |why: io::Error| self.unwritable(&why);
        let mut new = NewFile::begin(&self.file, &head).map_err(unwritable)?;
        for packed in directories.iter().filter_map(|path| catalogue.pack(path, &homes)) {
            new.add(&packed).map_err(unwritable)?;
        }
        for unknown in self.revisits.left() {
            new.add(&unknown).map_err(unwritable)?;
        }
        let length = new.length();
        let states = states(&branches, flush)?;
        self.check(saved.0)?;
        self.kept = Some(new.complete(&self.file, head, states).map_err(unwritable)?);
        self.saved = saved;
        self.next = Instant::now() + BETWEEN.max(BETWEEN_PER_MIB * (length >> 20) as u32);
        Ok(())
    }

    /// Makes sure that nothing has happened since the change with this number: what was saved is what the branches have held since,
    /// also when their states were looked at.
    fn check(&self, since: u64) -> Result<(), String> {
        let catalogue = catalogue_of(&self.pool);
        let is_same = self.watch.caught_up() && catalogue.is_on() && catalogue.now() == since;
        if is_same { Ok(()) } else { Err("the branches are being changed".into()) }
    }

    fn unwritable(&self, why: &io::Error) -> String {
        format!("{} cannot be written: {why}", self.file.shown())
    }

    /// Learns what a process before has saved, if nothing has changed since.
    fn learn(&mut self) {
        let kept = match KeptFile::open(&self.file) {
            Ok(Some(kept)) => kept,
            Ok(None) => return,
            Err(why) => {
                tracing::warn!(
                    "catalogue: {} is damaged, so nothing in it is used: {why}",
                    self.file.shown()
                );
                let _ = fs::remove_file(&self.file);
                return;
            }
        };
        if let Err((why, kept)) = self.learn_from(kept) {
            tracing::info!("catalogue: the disks are read again, because {why}");
            if !catalogue_of(&self.pool).is_on() {
                return;
            }
            let _ = kept.each(|bytes| {
                let found = packed(bytes);
                found.filter(|(_, what)| *what != Packed::Place).inspect(|(path, _)| self.revisits.add(path));
                found.is_some()
            });
        }
    }

    /// Returns why nothing was learnt, and from what.
    fn learn_from(&mut self, kept: KeptFile) -> Result<(), (String, KeptFile)> {
        let branches = ops::settings::branches(&self.pool);
        if let Err(why) = self.prove(&kept, &branches) {
            return Err((why, kept));
        }
        let (catalogue, homes) = (catalogue_of(&self.pool), homes(&branches));
        let mut known = 0;
        let learnt = kept.each(|bytes| match packed(bytes) {
            Some((path, Packed::Unknown)) => {
                self.revisits.add(path);
                true
            }
            _ => {
                known += 1;
                catalogue.unpack(bytes, &homes, self.since)
            }
        });
        if let Err(why) = learnt {
            return Err((format!("{} is damaged: {why}", self.file.shown()), kept));
        }
        tracing::info!("catalogue: {known} directories are known from before");
        self.kept = Some(kept);
        self.saved = (self.since, catalogue.learnt());
        Ok(())
    }

    /// Proves that all in a file is as it was.
    fn prove(&self, kept: &KeptFile, branches: &Branches) -> Result<(), String> {
        if !catalogue_of(&self.pool).is_on() {
            return Err("not all branches are watched".into());
        }
        if kept.head != self.head(branches) {
            return Err("the pool has other branches or options".into());
        }
        // All changes are told by now. What was changed before is on the disk afterwards.
        let found = states(branches, true)?;
        if let Some(at) = (0..found.len()).find(|at| kept.states.get(*at) != found.get(*at)) {
            let path = branches.as_slice()[at].path.shown();
            tracing::debug!(
                "catalogue: {} is now {}",
                kept.states.get(at).map_or("", |state| state),
                found[at]
            );
            return Err(format!("something may have been changed on {path}"));
        }
        Ok(())
    }

    /// Returns what decides, besides the branches, what is shown of them.
    fn head(&self, branches: &Branches) -> Head {
        use std::fmt::Write as _;
        let config = self.settings.config();
        let mut text = String::new();
        for option in options::table().iter().filter(|option| !option.has_name("branches")) {
            let _ = writeln!(text, "{}={}", option.name, option.render(&config).unwrap_or_default());
        }
        // In these directories it is something else that is shown.
        let _ = write!(text, "{:?}", self.watch.covered());
        for branch in branches.iter() {
            let _ = write!(text, "{:?} {:?}", branch.mode, branch.kind);
        }
        Head {
            circumstances: hash::keyed(0, text.as_bytes()),
            branches: branches.iter().map(|branch| branch.path.as_os_str().as_bytes().into()).collect(),
        }
    }
}

fn homes(branches: &Branches) -> Vec<Home> {
    branches.iter().map(|branch| Home { id: branch.id, dev: branch.dev }).collect()
}

/// Returns the states of all branches.
fn states(branches: &Branches, flush: bool) -> Result<Vec<String>, String> {
    if branches.iter().any(|branch| branch.is_silent()) {
        return Err("a branch does not answer".into());
    }
    let state = |branch: &Arc<Branch>| {
        unchanged::state(branch, flush)
            .map_err(|why| format!("of {} it is unknown whether it changes: {why}", branch.path.shown()))
    };
    branches.iter().map(state).collect()
}
