//! Carrying out a plan through the daemon: small files several at once, others one after the other.

use super::batch;
use super::drop_copy::{self, CopyState};
use super::job::{MoveCandidate, Stays};
use crate::error::{Error, Result};
use crate::held::{LEASED, NotTouched};
use crate::output::{complain, shown};
use crate::pool_link::{PoolLink, UNDER_CONSTRUCTION};
use crate::progress::Progress;
use crate::stop::Stop;
use crate::survey::FileCopy;
use canopy_base::text::{bytes, os_error};
use canopy_policy::layout::Step;
use canopy_sys::ioctl::relocate::{Relocation, What};
use rustix::fs::AtFlags;
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

/// What is done with an entry of the pool: all of it, or nothing.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The names that are known, of which the first stands for all.
    pub(crate) names: Vec<PathBuf>,
    /// At least one.
    pub(crate) steps: Vec<Step>,
    /// How many copies there must be afterwards, if there are several.
    pub(crate) wanted: usize,
    /// Where it is shown to go.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: u64,
    /// It begins when all before it have ended: a directory that they leave.
    pub(super) comes_after: bool,
}

impl Task {
    /// Of what a plan says of a file.
    pub(crate) fn of(found: &MoveCandidate, steps: &[Step]) -> Task {
        let (mut from, mut to, mut bytes) = (None, None, 0);
        for step in steps {
            let (source, target) = match *step {
                Step::Move { from, to } | Step::Copy { from, to } => (from, Some(to)),
                Step::Drop { from } => (from, None),
            };
            from = from.or(Some(source));
            if target.is_some() {
                let copy = found.copies.iter().find(|copy| copy.branch == source);
                bytes += copy.map_or(0, FileCopy::used);
                to = to.or(target);
            }
        }
        let from = from.unwrap_or(found.first().branch);
        let stays = found.copies.iter().map(|copy| copy.branch).find(|branch| *branch != from);
        let to = to.or(stays).unwrap_or(from);
        Task {
            names: found.names.clone(),
            steps: steps.to_vec(),
            wanted: found.wanted,
            from,
            to,
            bytes,
            comes_after: false,
        }
    }

    fn one(names: Vec<PathBuf>, step: Step, (from, to): (usize, usize), bytes: u64) -> Task {
        Task { names, steps: vec![step], wanted: 1, from, to, bytes, comes_after: false }
    }

    /// Of a directory, which moves when those before it in the plan have: it must be empty by then.
    pub(crate) fn moving_dir(path: PathBuf, from: usize, to: usize) -> Task {
        Task { comes_after: true, ..Task::one(vec![path], Step::Move { from, to }, (from, to), 0) }
    }

    /// Of a file of which a branch gets a copy.
    pub(crate) fn copying(names: Vec<PathBuf>, from: usize, to: usize, bytes: u64) -> Task {
        Task::one(names, Step::Copy { from, to }, (from, to), bytes)
    }

    /// Of a file that leaves a branch, because another one holds the same.
    pub(crate) fn dropping(names: Vec<PathBuf>, from: usize, to: usize, bytes: u64) -> Task {
        Task::one(names, Step::Drop { from }, (from, to), bytes)
    }

    /// Nothing is copied: a branch gives what others hold.
    fn only_drops(&self) -> bool {
        self.steps.iter().all(|step| matches!(step, Step::Drop { .. }))
    }
}

/// A number of files, and the bytes that they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub(crate) struct Sum {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Sum {
    pub(crate) fn of<'s>(tasks: impl IntoIterator<Item = &'s Task>) -> Sum {
        let mut sum = Sum::default();
        tasks.into_iter().for_each(|task| sum.add(task.bytes));
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

/// What has become of a plan. The planned tasks are those that moved, those that stay, and those that were not begun.
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

    /// Adds up two plans that have no task in common.
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
pub(super) enum NotMoved {
    /// It stays.
    Stays(String),
    /// Nothing moves any more.
    Fatal(Error),
    Stopped,
}

impl From<NotTouched> for NotMoved {
    fn from(kept: NotTouched) -> NotMoved {
        match kept {
            NotTouched::Because(why) => NotMoved::Stays(why),
            NotTouched::Stopped => NotMoved::Stopped,
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

    /// Carries out tasks in their order, until a signal arrives.
    ///
    /// # Errors
    /// Only those that concern all tasks.
    pub(crate) fn run(&self, tasks: &[Task]) -> Result<Outcome> {
        self.run_calmly(tasks, &|| {})
    }

    /// As `run`, and calls `before` ahead of each task.
    pub(super) fn run_calmly(&self, tasks: &[Task], before: &dyn Fn()) -> Result<Outcome> {
        let mut outcome = Outcome { planned: Sum::of(tasks), ..Outcome::default() };
        let bar = Progress::new(outcome.planned.bytes, self.manner.quiet);
        let begun = Instant::now();
        let mut rest = tasks;
        while !rest.is_empty() {
            before();
            if self.stop.is_set() {
                break;
            }
            let (next, after) = rest.split_at(self.batch(rest));
            bar.show(&self.pool.mountpoint.join(&next[0].names[0]));
            let results = match next {
                [task] => vec![self.watched(&bar, task)],
                tasks => batch::carry_out(tasks, self.stop, &|task| self.carry_out(task)),
            };
            for (task, result) in next.iter().zip(results) {
                if let Err(error) = self.tell(&bar, &mut outcome, task, result) {
                    bar.finish();
                    return Err(error);
                }
            }
            rest = after;
            if let Some(due) = outcome.moved.bytes.saturating_mul(1000).checked_div(self.manner.rate) {
                self.stop.sleep_until(begun + Duration::from_millis(due.min(u64::from(u32::MAX))));
            }
        }
        rest.iter().for_each(|task| outcome.not_begun.add(task.bytes));
        bar.finish();
        Ok(outcome)
    }

    /// Returns how many tasks at the front are carried out at once: one by one, if there is a rate to keep.
    fn batch(&self, tasks: &[Task]) -> usize {
        if self.manner.rate > 0 { 1 } else { batch::batch(tasks) }
    }

    /// Counts and tells what has become of a task.
    ///
    /// # Errors
    /// Those that concern all tasks.
    fn tell(
        &self,
        bar: &Progress,
        outcome: &mut Outcome,
        task: &Task,
        result: std::result::Result<(), NotMoved>,
    ) -> Result<()> {
        let path = self.pool.mountpoint.join(&task.names[0]);
        match result {
            Ok(()) => {
                outcome.moved.add(task.bytes);
                let [from, to] = [task.from, task.to].map(|branch| shown(&self.pool.branches[branch].path));
                let path = shown(&path);
                bar.tell(&if task.only_drops() {
                    format!("{path}: taken off {from}")
                } else {
                    format!("{path}: {from} -> {to} ({})", bytes(task.bytes))
                });
            }
            Err(NotMoved::Stays(why)) => {
                outcome.stayed.add(task.bytes);
                bar.tell(&format!("{} {}: {why}", shown(&path), self.manner.action.failure()));
                outcome.stays.push(Stays { path, why });
            }
            Err(NotMoved::Stopped) => {
                outcome.not_begun.add(task.bytes);
                return Ok(());
            }
            Err(NotMoved::Fatal(error)) => return Err(error),
        }
        bar.inc(task.bytes);
        Ok(())
    }

    /// Takes a file off a branch, with all its names, because others hold the same.
    pub(super) fn drop_one(&self, task: &Task) -> Result<(), NotTouched> {
        self.transfer(task, (task.from, task.to), What::Drop).map_err(|why| match why {
            NotMoved::Stays(why) => NotTouched::Because(why),
            NotMoved::Fatal(error) => NotTouched::Because(error.to_string()),
            NotMoved::Stopped => NotTouched::Stopped,
        })
    }

    /// Carries out a task. While a large file is copied, the bar follows its copy on the new branch.
    fn watched(&self, bar: &Progress, task: &Task) -> Result<(), NotMoved> {
        if bar.is_hidden() || task.bytes < LARGE {
            return self.carry_out(task);
        }
        let before = bar.position();
        let (done, ended) = mpsc::channel::<()>();
        let made = std::thread::scope(|scope| {
            // The ioctl stays on the thread that signals reach first.
            scope.spawn(move || {
                while ended.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Some(copied) = self.copied(task) {
                        bar.set_position(before + copied.min(task.bytes));
                    }
                }
            });
            let made = self.carry_out(task);
            drop(done);
            made
        });
        // The caller counts the file as a whole.
        bar.set_position(before);
        made
    }

    /// Returns how many bytes of a file are copied, as far as that can be seen.
    fn copied(&self, task: &Task) -> Option<u64> {
        let dir = self.pool.branches[task.to].dir(task.names[0].parent()?).ok()?;
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

    fn carry_out(&self, task: &Task) -> Result<(), NotMoved> {
        let (pool, path) = (self.pool, &task.names[0]);
        let gets = |step: &Step| match *step {
            Step::Copy { to, .. } => Some(to),
            Step::Move { .. } | Step::Drop { .. } => None,
        };
        let copies: Vec<usize> = task.steps.iter().filter_map(gets).collect();
        for step in &task.steps {
            if let Step::Drop { from } = *step {
                drop_copy::must_be_possible(pool, path, from, (&copies, task.wanted))?;
            }
        }
        // Copies that were made for one that is to go.
        let mut made = Vec::new();
        for step in &task.steps {
            let done = match *step {
                Step::Move { from, to } => self.transfer(task, (from, to), What::Move),
                Step::Copy { from, to } => {
                    self.transfer(task, (from, to), What::Copy).map(|()| made.push((from, to)))
                }
                Step::Drop { from } => self.drop_copy(task, from).map(|()| made.clear()),
            };
            if done.is_err() {
                self.take_back(task, &made);
                return done;
            }
        }
        Ok(())
    }

    /// Takes one of several copies off a branch.
    fn drop_copy(&self, task: &Task, from: usize) -> Result<(), NotMoved> {
        match drop_copy::what_goes(self.pool, &task.names[0], from, task.wanted)? {
            CopyState::Surplus(other) => self.transfer(task, (from, other), What::Drop),
            CopyState::Old => Ok(drop_copy::remove_old(self.pool, &task.names, from)?),
            CopyState::Missing => Ok(()),
        }
    }

    /// Removes copies that were made for others that have not gone: they would be too many.
    fn take_back(&self, task: &Task, made: &[(usize, usize)]) {
        for (from, to) in made {
            if let Err(NotMoved::Stays(why)) = self.transfer(task, (*to, *from), What::Drop) {
                let path = self.pool.mountpoint.join(&task.names[0]);
                let (path, branch) = (shown(&path), shown(&self.pool.branches[*to].path));
                complain(&format!("{path}: its new copy on {branch} stays ({why}); canopy dedup removes it"));
            }
        }
    }

    /// Moves or copies a file to a branch.
    fn transfer(&self, task: &Task, between: (usize, usize), what: What) -> Result<(), NotMoved> {
        // The daemon then knows these names, and need not look for them on the whole branch.
        for name in task.names.iter().skip(1) {
            let _ = self.pool.daemon.mount().look_up(name);
        }
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.relocate(task, between, what) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) if self.stop.is_set() => return Err(NotMoved::Stopped),
                // Some other signal, such as of a window that has changed its size.
                Err(Errno::INTR) => attempts -= 1,
                Err(Errno::AGAIN) if attempts < ATTEMPTS => {}
                Err(errno) => return Err(self.reason(errno, between.1, what)),
            }
        }
    }

    fn relocate(&self, task: &Task, (from, to): (usize, usize), what: What) -> Result<(), Errno> {
        let path = &task.names[0];
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
        self.pool.daemon.mount().relocate(path.parent().unwrap_or(Path::new("")), &relocation)
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
            Errno::REMOTE => {
                let branch = shown(&self.pool.branches[to].path);
                return NotMoved::Stays(format!(
                    "{branch} is itself a pool, onto which no file moves: make its disks branches of this pool instead"
                ));
            }
            Errno::NOSPC | Errno::DQUOT => {
                let branch = shown(&self.pool.branches[to].path);
                return NotMoved::Stays(format!("{branch} has no room"));
            }
            errno => return NotMoved::Stays(os_error(errno)),
        };
        NotMoved::Stays(why.into())
    }
}
