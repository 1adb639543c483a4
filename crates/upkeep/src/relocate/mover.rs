//! Carrying out a plan through the daemon, one entry after the other.

use super::drop_copy::{self, CopyState, Leaving};
use super::job::{Found, Stays};
use crate::error::{Error, Result};
use crate::held::{Kept, LEASED};
use crate::output::{complain, shown};
use crate::pool_link::{PoolLink, UNDER_CONSTRUCTION, open_beneath};
use crate::progress::Progress;
use crate::stop::Stop;
use canopy_base::text::{bytes, os_error};
use canopy_sys::ioctl::relocate::{Relocation, What, relocate};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ops::Add;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How often a file is tried that changes while it moves.
const ATTEMPTS: u32 = 3;
/// Why a directory stays that still holds something.
pub(crate) const NOT_EMPTY: &str = "it is not empty";

/// From this size on, the progress of a single file is shown, in bytes.
const LARGE: u64 = 16 << 20;
/// How often its copy is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What is done with files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Action {
    #[default]
    Move,
    /// Another branch gets a copy.
    Copy,
}

impl Action {
    /// Asks whether a plan that was shown is carried out.
    pub(super) fn question(self) -> &'static str {
        match self {
            Action::Move => "Move them?",
            Action::Copy => "Copy them?",
        }
    }

    fn what(self) -> What {
        match self {
            Action::Move => What::Move,
            Action::Copy => What::Copy,
        }
    }

    /// What a file does that the action fails for.
    pub(crate) fn failure(self) -> &'static str {
        match self {
            Action::Move => "stays",
            Action::Copy => "is not copied",
        }
    }
}

/// How moves are made and shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Bytes in a second; 0 for no limit.
    pub(crate) rate: u64,
    /// Use the disks only while no other program does.
    pub(crate) idle: bool,
    /// Print no line for each file.
    pub(crate) quiet: bool,
    pub(crate) action: Action,
}

/// One step of a plan: an entry of the pool, and the branches that it moves or is copied between.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The names that are known, of which the first stands for all.
    pub(crate) names: Vec<PathBuf>,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: u64,
    /// If one of several copies moves.
    pub(crate) leaving: Option<Leaving>,
}

impl Step {
    pub(crate) fn of(found: &Found, to: usize) -> Step {
        let copy = &found.copy;
        let leaving = found.others.as_ref().map(|others| Leaving { copies: vec![to], wanted: others.wanted });
        Step { leaving, ..Step::whole(found.names.clone(), copy.branch, to, copy.used()) }
    }

    /// Of all that there is of a file.
    pub(crate) fn whole(names: Vec<PathBuf>, from: usize, to: usize, bytes: u64) -> Step {
        Step { names, from, to, bytes, leaving: None }
    }
}

/// A number of files, and the bytes that they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub(crate) struct Sum {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Sum {
    pub(crate) fn of<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Sum {
        let mut sum = Sum::default();
        steps.into_iter().for_each(|step| sum.add(step.bytes));
        sum
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    /// Returns a text such as `2 files (3.1G)`.
    pub(crate) fn counted(self, unit: Unit) -> String {
        format!("{} {} ({})", self.files, if self.files == 1 { unit.0 } else { unit.1 }, bytes(self.bytes))
    }
}

/// What is counted: one of it, and several.
pub(crate) type Unit = (&'static str, &'static str);
pub(crate) const FILES: Unit = ("file", "files");

/// Returns a line that adds up: what was done, what became of the rest, and all.
pub(crate) fn adds_up(unit: Unit, done: (&str, Sum), rest: &[(&str, Sum)], all: (&str, Sum)) -> String {
    let rest = rest.iter().filter(|(_, sum)| sum.files > 0);
    let parts = std::iter::once(&done).chain(rest).chain([&all]);
    let parts: Vec<String> = parts.map(|(word, sum)| format!("{word}: {}", sum.counted(unit))).collect();
    parts.join("; ") + "\n"
}

/// What has become of a plan. The planned steps are those that moved, those that stay, and those that were not begun.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) planned: Sum,
    pub(crate) moved: Sum,
    pub(crate) stayed: Sum,
    pub(crate) not_begun: Sum,
    /// Why those that stay do so.
    pub(crate) stays: Vec<Stays>,
}

impl Outcome {
    /// Adds up two rounds, of which the second begins with what has stayed in the first.
    pub(crate) fn followed_by(mut self, next: Outcome) -> Outcome {
        self.moved.files += next.moved.files;
        self.moved.bytes += next.moved.bytes;
        (self.stayed, self.not_begun, self.stays) = (next.stayed, next.not_begun, next.stays);
        let parts = [self.moved, self.stayed, self.not_begun];
        self.planned = Sum {
            files: parts.iter().map(|part| part.files).sum(),
            bytes: parts.iter().map(|part| part.bytes).sum(),
        };
        self
    }
}

impl Add for Outcome {
    type Output = Outcome;

    /// Adds up two plans that have no step in common.
    fn add(mut self, other: Outcome) -> Outcome {
        let sums = [
            (&mut self.planned, other.planned),
            (&mut self.moved, other.moved),
            (&mut self.stayed, other.stayed),
            (&mut self.not_begun, other.not_begun),
        ];
        for (sum, more) in sums {
            sum.files += more.files;
            sum.bytes += more.bytes;
        }
        self.stays.extend(other.stays);
        self
    }
}

/// Why an entry did not move.
enum NotMoved {
    /// It stays.
    Stays(String),
    /// Nothing moves any more.
    Fatal(Error),
    Stopped,
}

impl From<Kept> for NotMoved {
    fn from(kept: Kept) -> NotMoved {
        match kept {
            Kept::Because(why) => NotMoved::Stays(why),
            Kept::Stopped => NotMoved::Stopped,
        }
    }
}

/// Moves entries of a pool.
pub(crate) struct Mover<'p> {
    pool: &'p PoolLink,
    manner: Manner,
    stop: &'p Stop,
}

impl<'p> Mover<'p> {
    pub(crate) fn new(pool: &'p PoolLink, manner: Manner, stop: &'p Stop) -> Mover<'p> {
        Mover { pool, manner, stop }
    }

    /// Carries out the steps in their order, until a signal arrives.
    ///
    /// # Errors
    /// Only those that concern all steps.
    pub(crate) fn run(&self, steps: &[Step]) -> Result<Outcome> {
        self.run_calmly(steps, &|| {})
    }

    /// As `run`, and calls `before` ahead of each step.
    pub(super) fn run_calmly(&self, steps: &[Step], before: &dyn Fn()) -> Result<Outcome> {
        let mut outcome = Outcome { planned: Sum::of(steps), ..Outcome::default() };
        let bar = Progress::new(outcome.planned.bytes, self.manner.quiet);
        let begun = Instant::now();
        for (index, step) in steps.iter().enumerate() {
            before();
            if self.stop.is_set() {
                outcome.not_begun = Sum::of(&steps[index..]);
                break;
            }
            let path = self.pool.mountpoint.join(&step.names[0]);
            bar.show(&path);
            match self.watched(&bar, step) {
                Ok(()) => {
                    outcome.moved.add(step.bytes);
                    let [from, to] =
                        [step.from, step.to].map(|branch| shown(&self.pool.branches[branch].path));
                    let path = shown(&path);
                    bar.tell(&match &step.leaving {
                        Some(leaving) if leaving.copies.is_empty() => format!("{path}: taken off {from}"),
                        _ => format!("{path}: {from} -> {to} ({})", bytes(step.bytes)),
                    });
                }
                Err(NotMoved::Stays(why)) => {
                    outcome.stayed.add(step.bytes);
                    bar.tell(&format!("{} {}: {why}", shown(&path), self.manner.action.failure()));
                    outcome.stays.push(Stays { path, why });
                }
                Err(NotMoved::Stopped) => {
                    outcome.not_begun = Sum::of(&steps[index..]);
                    break;
                }
                Err(NotMoved::Fatal(error)) => {
                    bar.finish();
                    return Err(error);
                }
            }
            bar.inc(step.bytes);
            if let Some(due) = outcome.moved.bytes.saturating_mul(1000).checked_div(self.manner.rate) {
                self.stop.sleep_until(begun + Duration::from_millis(due.min(u64::from(u32::MAX))));
            }
        }
        bar.finish();
        Ok(outcome)
    }

    /// Takes a file off a branch, with all its names, because others hold the same.
    pub(super) fn drop_one(&self, step: &Step) -> Result<(), Kept> {
        self.transfer(step, (step.from, step.to), What::Drop).map_err(|why| match why {
            NotMoved::Stays(why) => Kept::Because(why),
            NotMoved::Fatal(error) => Kept::Because(error.to_string()),
            NotMoved::Stopped => Kept::Stopped,
        })
    }

    /// Makes a step. While a large file is copied, the bar follows its copy on the new branch.
    fn watched(&self, bar: &Progress, step: &Step) -> Result<(), NotMoved> {
        if bar.is_hidden() || step.bytes < LARGE {
            return self.step(step);
        }
        let before = bar.position();
        let (done, ended) = mpsc::channel::<()>();
        let made = std::thread::scope(|scope| {
            // The ioctl stays on the thread that signals reach first.
            scope.spawn(move || {
                while ended.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Some(copied) = self.copied(step) {
                        bar.set_position(before + copied.min(step.bytes));
                    }
                }
            });
            let made = self.step(step);
            drop(done);
            made
        });
        // The caller counts the file as a whole.
        bar.set_position(before);
        made
    }

    /// Returns how many bytes of a file are copied, as far as that can be seen.
    fn copied(&self, step: &Step) -> Option<u64> {
        let dir = self.pool.branches[step.to].dir(step.names[0].parent()?).ok()?;
        let note = [UNDER_CONSTRUCTION, b"move."].concat();
        let mut most = None;
        for entry in rustix::fs::Dir::read_from(&dir).ok()? {
            let entry = entry.ok()?;
            let name = entry.file_name();
            if name.to_bytes().starts_with(UNDER_CONSTRUCTION) && !name.to_bytes().starts_with(&note) {
                let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                most = most.max(u64::try_from(stat.st_blocks).ok().map(|blocks| blocks * 512));
            }
        }
        most
    }

    fn step(&self, step: &Step) -> Result<(), NotMoved> {
        let Some(leaving) = &step.leaving else {
            return self.transfer(step, (step.from, step.to), self.manner.action.what());
        };
        let (pool, path) = (self.pool, &step.names[0]);
        drop_copy::must_be_possible(pool, path, step.from, leaving)?;
        let mut made = Vec::new();
        let mut take = || {
            for to in &leaving.copies {
                self.transfer(step, (step.from, *to), What::Copy)?;
                made.push(*to);
            }
            match drop_copy::what_goes(pool, path, step.from, leaving.wanted)? {
                CopyState::Surplus(other) => self.transfer(step, (step.from, other), What::Drop),
                CopyState::Old => Ok(drop_copy::remove_old(pool, &step.names, step.from)?),
                CopyState::Missing => Ok(()),
            }
        };
        let taken = take();
        if taken.is_err() {
            // They would be too many.
            for to in made {
                if let Err(NotMoved::Stays(why)) = self.transfer(step, (to, step.from), What::Drop) {
                    let (path, branch) = (pool.mountpoint.join(path), &pool.branches[to].path);
                    let (path, branch) = (shown(&path), shown(branch));
                    complain(&format!(
                        "{path}: its new copy on {branch} stays ({why}); canopy dedup removes it"
                    ));
                }
            }
        }
        taken
    }

    /// Moves or copies a file to a branch.
    fn transfer(&self, step: &Step, between: (usize, usize), what: What) -> Result<(), NotMoved> {
        // The daemon then knows these names, and need not look for them on the whole branch.
        for name in step.names.iter().skip(1) {
            let _ = self.pool.mountpoint.join(name).symlink_metadata();
        }
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.relocate(step, between, what) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) if self.stop.is_set() => return Err(NotMoved::Stopped),
                // Some other signal, such as of a window that has changed its size.
                Err(Errno::INTR) => attempts -= 1,
                Err(Errno::AGAIN) if attempts < ATTEMPTS => {}
                Err(errno) => return Err(self.reason(errno, between.1, what)),
            }
        }
    }

    fn relocate(&self, step: &Step, (from, to): (usize, usize), what: What) -> Result<(), Errno> {
        let path = &step.names[0];
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = rustix::fs::open(&self.pool.mountpoint, flags | OFlags::CLOEXEC, Mode::empty())?;
        // Users may put a symlink in place of a directory meanwhile.
        let dir = open_beneath(root.as_fd(), path.parent().unwrap_or(Path::new("")), flags)?;
        let branch = |index: usize| self.pool.branches[index].path.as_os_str().as_bytes();
        let relocation = Relocation {
            name: path.file_name().unwrap_or_default().as_bytes(),
            from: branch(from),
            to: branch(to),
            rate: self.manner.rate,
            idle: self.manner.idle,
            lossy: self.pool.accepts_losses,
            what,
        };
        relocate(dir.as_fd(), &relocation)
    }

    fn reason(&self, errno: Errno, to: usize, what: What) -> NotMoved {
        let pool = || self.pool.mountpoint.clone();
        let target = &self.pool.branches[to];
        if let (Errno::PERM | Errno::OPNOTSUPP, Some(what)) = (errno, target.loses) {
            let branch = shown(&target.path);
            let what = what.what;
            return NotMoved::Stays(format!(
                "{branch} cannot store all of it: {what} (--lossy moves it anyway)"
            ));
        }
        let why = match errno {
            Errno::ACCESS => return NotMoved::Fatal(Error::NotOwner(pool())),
            Errno::NOTTY | Errno::NOSYS => return NotMoved::Fatal(Error::NotCanopy(pool())),
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => {
                return NotMoved::Fatal(Error::PoolDead(pool()));
            }
            Errno::BUSY => "open for writing",
            Errno::NOLCK => LEASED,
            Errno::TXTBSY => "a program is reading it (passthrough)",
            Errno::EXIST if what == What::Copy => "the other branch holds one of its names",
            Errno::EXIST if what == What::Drop => "the copies differ, or have other names",
            Errno::EXIST => "another branch holds a copy",
            Errno::BADMSG => "the copies differ in content (canopy which shows them)",
            Errno::NOTUNIQ => "a rule wants that many copies",
            Errno::MLINK => "it has a name outside of its branch",
            Errno::PERM => "immutable or append-only, or below such a directory",
            Errno::OPNOTSUPP => "a filesystem lacks leases, or cannot store its owner, mode or attributes",
            Errno::STALE | Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::AGAIN => {
                "it changed in the meantime"
            }
            Errno::NOTEMPTY => NOT_EMPTY,
            Errno::ROFS | Errno::INVAL => "a branch is now RO, NC, gone or failing",
            Errno::NOSPC | Errno::DQUOT => {
                let branch = shown(&self.pool.branches[to].path);
                return NotMoved::Stays(format!("{branch} has no room"));
            }
            errno => return NotMoved::Stays(os_error(errno)),
        };
        NotMoved::Stays(why.into())
    }
}
