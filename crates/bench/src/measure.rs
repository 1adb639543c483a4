//! Rounds: each side is measured in turn, again and again, so that other load affects all sides alike.

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::server::Server;
use crate::statistics::{Goal, RequestsEach, SideRounds, TableFigures, Unit, evaluate};
use crate::workload::{Target, TargetKind, Workload};
use canopy_fuse::request_counter::{CountError, RequestCounter};
use clap::ValueEnum;
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where the scheduler may run a single client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Clients {
    /// On one processor
    Bound,
    /// Anywhere, as programs run
    Free,
}

/// One row of a table: a workload and its targets. Ratios are relative to the first target.
pub(crate) struct Row<'s> {
    pub work: String,
    pub unit: Unit,
    pub workload: Box<dyn Workload + 's>,
    pub targets: Vec<Target>,
    pub goals: Vec<Goal>,
    /// The time between preparing and measuring.
    pub pause: Duration,
    /// The most rounds, for slow workloads.
    pub max_rounds: usize,
    /// Whether to count the requests that the kernel sends.
    pub count_requests: bool,
}

pub(crate) struct Table<'s> {
    pub id: &'static str,
    pub title: String,
    pub rows: Vec<Row<'s>>,
    /// Rows with a single client are measured with each of these.
    pub clients: Vec<Clients>,
    pub notes: Vec<String>,
    /// The servers of the targets; they end with the table.
    pub servers: Vec<Server>,
}

/// The pause after preparing a round, in which the machine settles.
const REST: Duration = Duration::from_millis(10);

impl Table<'_> {
    pub(crate) fn measure(
        &mut self,
        rounds: usize,
        interrupt: &Interrupt,
        progress: &ProgressBar,
    ) -> Result<TableFigures, Error> {
        let mut notes = self.notes.clone();
        let mut counting = true;
        let mut rows = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let all = [Clients::Free];
            let clients = if row.workload.is_single_threaded() { self.clients.as_slice() } else { &all };
            for (pass, &clients) in clients.iter().enumerate() {
                let work = match (clients, row.workload.is_single_threaded()) {
                    (Clients::Free, true) => format!("{}, free client", row.work),
                    _ => row.work.clone(),
                };
                progress.set_message(format!("{}: {work}", self.id));
                // No directory of an earlier pass is used again.
                let first = pass * (rounds + 2);
                let measurement =
                    Measurement { row, clients, first, rounds: rounds.min(row.max_rounds), interrupt };
                let mut explain = |error| explain(error, &mut self.servers, interrupt);
                let mut sides = measurement.sides().map_err(&mut explain)?;
                if counting
                    && row.count_requests
                    && let Err(error) = measurement.count_requests(&mut sides).map_err(&mut explain)?
                {
                    // Without tracefs the requests of other rows cannot be counted either.
                    counting = matches!(error, CountError::Overrun { .. });
                    let which = if counting { format!("Requests of {work}") } else { "Requests".into() };
                    notes.push(format!("{which} were not counted: {error}."));
                }
                rows.push(evaluate(&work, row.unit, &sides, &row.goals));
            }
            progress.inc(1);
        }
        Ok(TableFigures { table: self.id, title: self.title.clone(), notes, rows })
    }
}

/// How long a server process may live on after the kernel has closed its connection.
const LINGERING: Duration = Duration::from_millis(500);

/// Returns the first cause of an error: an interruption or the end of a server, or else the error itself.
fn explain(error: Error, servers: &mut [Server], interrupt: &Interrupt) -> Error {
    let deadline = Instant::now() + LINGERING;
    loop {
        let ended = servers.iter_mut().find_map(|server| server.check().err());
        match interrupt.check().err().or(ended) {
            Some(first) => return first,
            None if Instant::now() > deadline => return error,
            None => sleep(REST),
        }
    }
}

/// Pins this thread to its current processor. Otherwise the scheduler wakes a waiting thread on another, idle processor
/// after some replies, which takes longer than the reply itself and says nothing about the server.
struct PinnedThread(Option<CpuSet>);

impl PinnedThread {
    fn pin_here() -> PinnedThread {
        let before = sched_getaffinity(None).ok();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        let bound = sched_setaffinity(None, &here).is_ok();
        PinnedThread(before.filter(|_| bound))
    }
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// The measurement of a row with one kind of client.
struct Measurement<'m, 's> {
    row: &'m Row<'s>,
    clients: Clients,
    /// The number of the first round.
    first: usize,
    rounds: usize,
    interrupt: &'m Interrupt,
}

impl Measurement<'_, '_> {
    fn sides(&self) -> Result<Vec<SideRounds>, Error> {
        let row = self.row;
        let side = |target: &Target| SideRounds {
            side: target.name.clone(),
            floor: target.kind == TargetKind::Floor,
            figures: Vec::with_capacity(self.rounds),
            requests: None,
        };
        let mut sides: Vec<SideRounds> = row.targets.iter().map(side).collect();
        // The first round does not count: it creates files and fills caches.
        for round in self.first..=self.first + self.rounds {
            self.round(round, |index, target| {
                let _pinned = (self.clients == Clients::Bound).then(PinnedThread::pin_here);
                row.workload.warm_up(target)?;
                let sample = row.workload.measure(target, round)?;
                if round > self.first {
                    let seconds = sample.elapsed.as_secs_f64().max(1e-9);
                    sides[index].figures.push(match row.unit {
                        Unit::Time => seconds * 1e9 / sample.operations.max(1) as f64,
                        Unit::Rate => sample.bytes.max(1) as f64 / seconds,
                        Unit::Size => sample.bytes.max(1) as f64 / sample.operations.max(1) as f64,
                    });
                }
                Ok(())
            })?;
        }
        Ok(sides)
    }

    /// Counts the requests for one operation in another round, because counting takes time too. The inner error says why
    /// they cannot be counted.
    fn count_requests(&self, sides: &mut [SideRounds]) -> Result<Result<(), CountError>, Error> {
        let mut failed = None;
        let round = self.first + self.rounds + 1;
        self.round(round, |index, target| {
            if target.kind == TargetKind::Branch {
                return Ok(());
            }
            self.row.workload.warm_up(target)?;
            match RequestCounter::of_mount(&target.root) {
                Ok(counter) => {
                    let sample = self.row.workload.measure(target, round)?;
                    let each = |(kind, count)| (kind, count as f64 / sample.operations.max(1) as f64);
                    match counter.take() {
                        Ok(sent) => {
                            sides[index].requests = Some(sent.by_name().map(each).collect::<RequestsEach>())
                        }
                        Err(error) => failed = Some(error),
                    }
                }
                Err(error) => failed = Some(error),
            }
            Ok(())
        })?;
        Ok(failed.map_or(Ok(()), Err))
    }

    /// Prepares all targets, runs `measure` on each, and cleans up.
    fn round(
        &self,
        round: usize,
        mut measure: impl FnMut(usize, &Target) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (workload, targets) = (&self.row.workload, &self.row.targets);
        // In reverse order: the target of --against is last, and preparing it may drop the kernel's cached names for
        // all others.
        for target in targets.iter().rev() {
            self.interrupt.check()?;
            workload.prepare(target, round)?;
        }
        sleep(if round > self.first { REST.max(self.row.pause) } else { REST });
        // The order rotates, because the cache may be warmer or colder for the first target.
        for turn in 0..targets.len() {
            self.interrupt.check()?;
            let index = (turn + round) % targets.len();
            measure(index, &targets[index])?;
        }
        targets.iter().try_for_each(|target| workload.clean_up(target, round))
    }
}
