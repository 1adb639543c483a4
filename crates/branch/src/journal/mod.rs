//! What branches are owed that are away: a log in the root of each branch, and one replay.
//!
//! Every log has an identity, by which a branch is known under any path, and knows those of the others. As long as one of them
//! is missing, the changes of names, and of directories' attributes, are noted in the logs of the branches that they happen on, and of
//! others. When it is there again, they are replayed on it before its files are shown, and its log learns what those are owed that
//! are still missing. So each that is up to date can bring others up to date, whoever else is missing by then. What has to give way
//! is set aside, and nothing is deleted.
//!
//! Numbers of changes grow from each to the next, whichever log has them: a log never has one that is not larger than all that
//! were in any log of the pool when it was written.

mod attributes;
mod log;
mod replay;

pub use log::{Change, Record, Step, parse};

use crate::branch::list::Mode;
use crate::branch::{Branch, BranchId, Branches};
use canopy_base::error::is_illness;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Mutex, RwLock};
use canopy_sys::shown::Show as _;
use log::{Id, Log};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

/// On how many branches a change is noted, if there are as many.
const NOTED_ON: usize = 3;

/// The logs of the branches in force.
#[derive(Default)]
pub struct Journals {
    /// A branch is away, or left out.
    owes: AtomicBool,
    /// The number of the last change.
    clock: AtomicU64,
    /// A branch is left out, and the logs do not say so yet.
    unsaid: AtomicBool,
    /// Held while they come to say so: nobody answers a client before that is on disk.
    saying: Mutex<(), rank::JournalAway>,
    table: RwLock<Table, rank::Leaf>,
}

type Logs = Vec<(BranchId, Arc<Log>)>;

#[derive(Default)]
struct Table {
    logs: Logs,
    /// Branches that do not answer and are not given up, with the numbers of the last changes that they have. Nothing is read or
    /// written there.
    left_out: Vec<(BranchId, u64)>,
}

/// Whether clients can change names while branches are brought up to date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Before,
    Now,
}

/// A branch that cannot be shown, because it could not be brought up to date.
pub struct LeftOut {
    pub branch: BranchId,
    /// For users.
    pub why: String,
}

impl Table {
    fn ids_left_out(&self) -> SmallVec<[BranchId; 2]> {
        self.left_out.iter().map(|(id, _)| *id).collect()
    }
}

impl Journals {
    /// Returns whether changes are to be noted. Costs one load.
    pub fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Notes a change of names that has happened on these branches: in their logs, and in others, so that it is known when some of
    /// them are away in their turn.
    pub fn note(&self, branches: impl Iterator<Item = BranchId>, change: &Change) {
        if self.unsaid.load(Ordering::Acquire) {
            self.say_who_is_left_out();
        }
        let at = self.tick();
        let on: SmallVec<[BranchId; 4]> = branches.collect();
        let (logs, left_out) = {
            let table = self.table.read();
            (table.logs.clone(), table.ids_left_out())
        };
        let (own, mut others): (Logs, Logs) = logs.into_iter().partition(|(id, _)| on.contains(id));
        others.retain(|(id, _)| !left_out.contains(id));
        let is_noted = |(_, log): &&(BranchId, Arc<Log>)| log.note(at, change).is_ok();
        // Also one that is left out has made it, if an operation had begun there before.
        let noted = own.iter().filter(is_noted).filter(|(id, _)| !left_out.contains(id)).count();
        let more = others.iter().filter(is_noted).take(NOTED_ON.saturating_sub(noted)).count();
        if noted + more == 0 {
            tracing::warn!(
                "a change could not be noted for a branch that is away: no journal can be written"
            );
        }
    }

    /// Notes changes from now on for a branch that does not answer. Touches no disk: that the branch is away is written before
    /// the first change. Comes before the branches are in force without it.
    pub fn leave_out(&self, branch: BranchId) {
        let mut table = self.table.write();
        if table.logs.is_empty() || table.left_out.iter().any(|(id, _)| *id == branch) {
            return;
        }
        table.left_out.push((branch, self.clock.load(Ordering::Relaxed)));
        self.unsaid.store(true, Ordering::Release);
        self.owes.store(true, Ordering::Relaxed);
    }

    /// Returns whether a branch was left out, so that it has to be [taken back](Self::take_back).
    pub fn is_left_out(&self, branch: BranchId) -> bool {
        self.table.read().left_out.iter().any(|(id, _)| *id == branch)
    }

    /// Brings a branch up to date that was left out, as [`arrange`](Self::arrange) does with those that were away. With
    /// [`When::Now`], it is left out no longer unless it is among the result.
    pub fn take_back(&self, when: When, branch: BranchId, branches: &Branches) -> Vec<LeftOut> {
        self.arrange_with(when, &|other| other.id != branch, branches, Some(branch))
    }

    /// Says in the logs of branches that answer which are left out, on disk when it returns.
    fn say_who_is_left_out(&self) {
        let _saying = self.saying.lock();
        while self.unsaid.load(Ordering::Acquire) {
            let (logs, left_out) = {
                let table = self.table.read();
                (table.logs.clone(), table.left_out.clone())
            };
            let is_left_out = |id: BranchId| left_out.iter().any(|(left, _)| *left == id);
            for (branch, since) in &left_out {
                let Some(its) = log_of(&logs, *branch) else { continue };
                for (_, log) in logs.iter().filter(|(id, _)| !is_left_out(*id)) {
                    if let Err(errno) = log.meet(std::iter::empty(), std::iter::once(its.id()), *since) {
                        tracing::warn!("the journal of a branch cannot be written: {errno}");
                    }
                }
            }
            let table = self.table.write();
            if table.left_out == left_out {
                self.unsaid.store(false, Ordering::Release);
            }
        }
    }

    /// Returns the next number: the time, or one more than the last. So the numbers of two processes that serve the pool one
    /// after the other do not meet.
    fn tick(&self) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or_default();
        let next = |last: u64| now.max(last.saturating_add(1));
        let last = self.clock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        last.map_or(now, next)
    }

    /// Stops noting, and removes the logs: they would not tell of changes from now on. Those of other branches than the ones that
    /// were noted on are looked for on those that are `examined`; none is on one that does not answer.
    pub fn end(&self, branches: &Branches, examined: impl Fn(&Branch) -> bool) {
        let logs = {
            let mut table = self.table.write();
            self.owes.store(false, Ordering::Relaxed);
            self.unsaid.store(false, Ordering::Relaxed);
            std::mem::take(&mut table.logs)
        };
        let has_log = |branch: &Branch| logs.iter().any(|(id, _)| *id == branch.id);
        for branch in branches.iter().filter(|branch| branch.mode != Mode::Ro && !branch.is_silent()) {
            if has_log(branch) || examined(branch) {
                Log::remove(branch.root());
            }
        }
        let is_silent = |id: BranchId| branches.by_id(id).is_some_and(|branch| branch.is_silent());
        self.table.write().left_out.retain(|(id, _)| is_silent(*id));
    }

    /// Prepares `branches`, which are about to be in force: says in their logs which others are away, and brings those up to
    /// date that were. `stays` are those that are in force already. Returns those that have to stay out.
    ///
    /// With [`When::Before`], changes go on, and what is noted meanwhile is left to do; with [`When::Now`], there are none.
    pub fn arrange(&self, when: When, stays: &dyn Fn(&Branch) -> bool, branches: &Branches) -> Vec<LeftOut> {
        self.arrange_with(when, stays, branches, None)
    }

    /// `returns` is one that answers again.
    fn arrange_with(
        &self,
        when: When,
        stays: &dyn Fn(&Branch) -> bool,
        branches: &Branches,
        returns: Option<BranchId>,
    ) -> Vec<LeftOut> {
        if when == When::Now {
            self.say_who_is_left_out();
        }
        let silent = self.table.read().ids_left_out();
        let answers = |branch: &Branch| {
            returns == Some(branch.id) || !branch.is_silent() && !silent.contains(&branch.id)
        };
        let Opened { mut logs, unwritable, unreadable } = self.open(branches, &answers);
        let mut left_out = Vec::new();
        for (branch, id) in &unwritable {
            if logs.iter().any(|(_, log)| log.away().contains_key(id)) {
                left_out.push(LeftOut { branch: *branch, why: "it cannot be changed".into() });
            }
        }
        // No name that one of these holds can change.
        let unwritable = unwritable.iter().map(|(_, id)| *id);
        let mut present: BTreeSet<Id> = logs.iter().map(|(_, log)| log.id()).chain(unwritable).collect();
        if when == When::Now {
            match whose(&logs, &present, &unreadable) {
                Some(theirs) => present.extend(theirs),
                // Taken for one that is away, it would have to give way later with all that it gets until then.
                None => left_out.extend(unreadable.iter().map(|(branch, errno)| LeftOut {
                    branch: *branch,
                    why: format!("its journal cannot be read: {errno}"),
                })),
            }
            self.say_who_is_away(&logs, &present);
        }
        // Those that stay are right; among others, the one that comes first.
        let mut order: Vec<&Arc<Branch>> = branches.iter().collect();
        order.sort_by_key(|branch| !stays(branch));
        for (at, branch) in order.iter().enumerate() {
            let Some(own) = log_of(&logs, branch.id) else { continue };
            let before = |id: BranchId| order[..at].iter().any(|other| other.id == id);
            let mut missed = Missed::default();
            for (id, log) in logs.iter().filter(|(id, _)| *id != branch.id) {
                if let Err(errno) = missed.add(when, &own, log, before(*id)) {
                    missed.failed = Some(errno);
                }
            }
            if missed.owing.is_empty() && missed.failed.is_none() {
                continue;
            }
            if !missed.apart.is_empty() {
                tracing::warn!(
                    "{}: the branch was also used without the others; what they lack of it is in {} there",
                    branch.path.shown(),
                    String::from_utf8_lossy(crate::fs::reserved::ASIDE)
                );
            }
            let others = branches.iter().filter(|other| other.id != branch.id && answers(other));
            let owes = |other: &&Arc<Branch>| {
                log_of(&logs, other.id)
                    .is_some_and(|log| missed.owing.iter().any(|owing| Arc::ptr_eq(owing, &log)))
            };
            let roots: Vec<_> = branches.iter().filter(owes).cloned().collect();
            if let Err(why) = bring_up_to_date(when, branch, &own, (missed, &roots), others) {
                left_out.push(LeftOut { branch: branch.id, why });
                logs.retain(|(id, _)| *id != branch.id);
            }
        }
        if when == When::Before {
            return left_out;
        }
        let away = logs.iter().any(|(_, log)| !log.away().is_empty());
        if !away {
            logs.iter().for_each(|(_, log)| log.compact());
        }
        for left in &left_out {
            let path =
                branches.by_id(left.branch).map(|branch| branch.path.shown().to_string()).unwrap_or_default();
            tracing::warn!("{path}: stays out, for it cannot be brought up to date: {}", left.why);
        }
        let mut table = self.table.write();
        let is_out = |id: BranchId| left_out.iter().any(|left| left.branch == id);
        table
            .left_out
            .retain(|(id, _)| branches.by_id(*id).is_some() && (returns != Some(*id) || is_out(*id)));
        // Those that were not looked at go on.
        let stays = |(id, _): &(BranchId, Arc<Log>)| {
            branches.by_id(*id).is_some() && log_of(&logs, *id).is_none() && !is_out(*id)
                || table.left_out.iter().any(|(left, _)| left == id)
        };
        let rest: Logs = table.logs.iter().filter(|log| stays(log)).cloned().collect();
        logs.retain(|(id, _)| !rest.iter().any(|(other, _)| other == id));
        table.logs = rest.into_iter().chain(logs).collect();
        self.owes.store(away || !table.left_out.is_empty(), Ordering::Relaxed);
        left_out
    }

    /// Opens the logs of those branches that answer and can have one.
    fn open(&self, branches: &Branches, answers: &dyn Fn(&Branch) -> bool) -> Opened {
        let known = self.table.read().logs.clone();
        let Opened { mut logs, mut unwritable, mut unreadable } = Opened::default();
        for branch in branches.iter().filter(|branch| answers(branch)) {
            let known = log_of(&known, branch.id);
            let opened = match known {
                Some(log) => Ok(log),
                None if branch.mode == Mode::Ro => Err(Errno::ROFS),
                None => Log::open(branch.root()).map(Arc::new),
            };
            match opened {
                // Two paths to one directory.
                Ok(log) if logs.iter().any(|(_, other)| other.id() == log.id()) => {}
                Ok(log) => {
                    self.clock.fetch_max(log.last(), Ordering::Relaxed);
                    logs.push((branch.id, log));
                }
                Err(errno) => {
                    match Log::id_on(branch.root()) {
                        Some(id) => unwritable.push((branch.id, id)),
                        None if errno != Errno::ROFS && is_illness(errno) => {
                            unreadable.push((branch.id, errno))
                        }
                        None => {}
                    }
                    if branch.mode != Mode::Ro {
                        tracing::warn!("{}: no journal there: {errno}", branch.path.shown());
                    }
                }
            }
        }
        Opened { logs, unwritable, unreadable }
    }

    /// Says in each log which others there are, and which of all that any log knows are away. That is on disk when this
    /// returns: it comes before the first change without them.
    fn say_who_is_away(&self, logs: &Logs, present: &BTreeSet<Id>) {
        let known: BTreeSet<Id> = logs.iter().flat_map(|(_, log)| log.knows()).collect();
        let now = self.clock.load(Ordering::Relaxed);
        for (_, log) in logs {
            let others = present.iter().filter(|id| **id != log.id()).copied();
            if let Err(errno) = log.meet(others, known.difference(present).copied(), now) {
                tracing::warn!("the journal of a branch cannot be written: {errno}");
            }
        }
    }
}

/// The logs of branches.
#[derive(Default)]
struct Opened {
    logs: Logs,
    /// Whose cannot be written.
    unwritable: Vec<(BranchId, Id)>,
    /// Whose disk fails, so that it is not known which is whose.
    unreadable: Vec<(BranchId, Errno)>,
}

/// Returns which logs must be those that cannot be read: as many as there are of these, each known to another, and said by none to be
/// away. `None` if that cannot be told.
fn whose(logs: &Logs, present: &BTreeSet<Id>, unreadable: &[(BranchId, Errno)]) -> Option<Vec<Id>> {
    let is_away = |id: &Id| logs.iter().any(|(_, log)| log.away().contains_key(id));
    let known: BTreeSet<Id> = logs.iter().flat_map(|(_, log)| log.knows()).collect();
    let rest: Vec<Id> = known.difference(present).copied().filter(|id| !is_away(id)).collect();
    let fits = unreadable.is_empty() || rest.len() == unreadable.len();
    fits.then(|| if unreadable.is_empty() { Vec::new() } else { rest })
}

/// Brings branches up to date that were away. To be called before anything is mounted: a disk may keep this waiting. Returns them
/// without those that have to stay out.
pub fn bring_all_up_to_date(branches: Branches) -> Branches {
    let left_out = Journals::default().arrange(When::Now, &|_| false, &branches);
    let is_out = |branch: &&Arc<Branch>| left_out.iter().any(|left| left.branch == branch.id);
    let out: Vec<_> = branches.iter().filter(is_out).cloned().collect();
    branches.without(&out)
}

/// What the log of a branch says of others, for reports.
pub struct Said {
    pub id: [u8; 16],
    /// Who is away, and the last change that it has; `None` where changes were forgotten.
    pub away: BTreeMap<[u8; 16], Option<u64>>,
    /// The numbers of all changes: times, in nanoseconds.
    pub changes: Vec<u64>,
}

/// Reads the log of a branch, if it has one. Changes nothing.
pub fn look(root: BorrowedFd<'_>) -> Option<Said> {
    let (id, away, changes) = Log::look(root)?;
    let away = away.into_iter().map(|(id, since)| (id, (since != log::LOST).then_some(since))).collect();
    Some(Said { id, away, changes })
}

fn log_of(logs: &Logs, id: BranchId) -> Option<Arc<Log>> {
    logs.iter().find(|(other, _)| *other == id).map(|(_, log)| Arc::clone(log))
}

/// What a branch has missed.
#[derive(Default)]
struct Missed {
    changes: BTreeMap<u64, Change>,
    /// The logs that say that it was away.
    owing: Vec<Arc<Log>>,
    /// Those of branches that this one was used without, and they without it. They are right.
    apart: Vec<Id>,
    /// Some of it was too much to be kept.
    lost: bool,
    failed: Option<Errno>,
}

impl Missed {
    /// Adds what a log says. Of two branches that were used apart, the one that comes first is right.
    fn add(&mut self, when: When, own: &Log, log: &Arc<Log>, is_first: bool) -> Result<(), Errno> {
        let Some(since) = log.away().get(&own.id()).copied() else { return Ok(()) };
        let mut changes = owed(own, log)?;
        if !lacks(own, &changes) {
            changes.clear();
        }
        // Each may say that the other was away, and one has got since, from a third, all that the other has noted.
        if !changes.is_empty() && lacks(log, &owed(log, own)?) {
            if !is_first || when == When::Before {
                return Ok(());
            }
            self.apart.push(log.id());
        }
        self.lost |= since == log::LOST;
        self.changes.extend(changes);
        self.owing.push(Arc::clone(log));
        Ok(())
    }
}

/// Returns whether a branch has not got all of these changes yet. A replay that was cut off still needs those before its last step:
/// it gives attributes to directories at its end.
fn lacks(own: &Log, changes: &BTreeMap<u64, Change>) -> bool {
    changes.range(own.step().map_or(0, |step| step.at)..).next().is_some()
}

/// Returns the changes in a log that a branch has not made, if the log says that it was away.
fn owed(own: &Log, log: &Log) -> Result<BTreeMap<u64, Change>, Errno> {
    let Some(since) = log.away().get(&own.id()).copied().filter(|since| *since != log::LOST) else {
        return Ok(BTreeMap::new());
    };
    let mut changes: BTreeMap<u64, Change> =
        log.changes()?.into_iter().filter(|(at, _)| *at > since).collect();
    // What it has in its own log happened while it was there.
    for (at, _) in own.changes()? {
        changes.remove(&at);
    }
    Ok(changes)
}

/// Replays on a branch what the others have noted for it.
///
/// Errors: for users.
fn bring_up_to_date<'b>(
    when: When,
    branch: &Branch,
    own: &Log,
    (missed, roots): (Missed, &[Arc<Branch>]),
    others: impl Iterator<Item = &'b Arc<Branch>>,
) -> Result<(), String> {
    let failed = |errno: Errno| errno.to_string();
    let Missed { changes, owing, apart, lost, failed: unreadable } = missed;
    if let Some(errno) = unreadable {
        return Err(failed(errno));
    }
    if lost {
        tracing::warn!(
            "{}: too much has changed without it; names that were removed meanwhile are there again",
            branch.path.shown()
        );
    }
    let others: Vec<_> = others.map(|other| other.root()).collect();
    let roots: Vec<_> = roots.iter().map(|other| other.root()).collect();
    let (root, owed) = (branch.root(), attributes::OwedAttributes::default());
    let replay =
        replay::Replay { root, others: &others, owing: &roots, owed, log: own, step: &mut || Ok(()) };
    let set_aside = replay.run(&changes).map_err(failed)?;
    if set_aside > 0 {
        tracing::info!(
            "{}: {set_aside} names had changed without it; what it held there is in {}",
            branch.path.shown(),
            String::from_utf8_lossy(crate::fs::reserved::ASIDE)
        );
    }
    // What it has noted while it was used without these has given way, and is owed to none of them. That comes first: if only they
    // said that it is back, or it had all of theirs, they would get it.
    apart.into_iter().try_for_each(|id| own.welcome(id)).map_err(failed)?;
    let last = changes.last_key_value().map(|(at, _)| *at);
    take_over(own, &owing, last).map_err(failed)?;
    if when == When::Before {
        return Ok(());
    }
    owing.iter().try_for_each(|log| log.welcome(own.id())).map_err(failed)
}

/// Lets the log of a branch that is up to date say what is owed to those that are still away, as the others do: the next time, it may
/// be the only one that is there. `last` is the last change that the branch has got.
fn take_over(own: &Log, owing: &[Arc<Log>], last: Option<u64>) -> Result<(), Errno> {
    let mut away: BTreeMap<Id, u64> = BTreeMap::new();
    for log in owing {
        for (id, since) in log.away().into_iter().filter(|(id, _)| *id != own.id()) {
            let known = away.entry(id).or_insert(since);
            *known = if log::LOST == since.max(*known) { log::LOST } else { since.min(*known) };
        }
    }
    let since = away.values().copied().min().unwrap_or(log::LOST);
    let mut changes: BTreeMap<u64, Change> = BTreeMap::new();
    if since != log::LOST {
        for log in owing {
            changes.extend(log.changes()?.into_iter().filter(|(at, _)| *at > since));
        }
        for (at, _) in own.changes()? {
            changes.remove(&at);
        }
    }
    own.take_over(
        &away,
        changes,
        last.map(|last| Step { at: last.saturating_add(1), ino: 0, backwards: false }),
    )
}
