//! Rounds: each side is measured in turn, again and again, so that other load affects all sides alike.

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::server::Server;
use crate::statistics::{Goal, RowFigures, SideRounds, TableFigures, Unit, evaluate};
use crate::workload::{Target, TargetKind, Workload};
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// One row of a table: a workload and its targets. Ratios are relative to the first target.
pub(crate) struct Row<'s> {
    pub work: String,
    pub unit: Unit,
    pub workload: Box<dyn Workload + 's>,
    pub targets: Vec<Target>,
    pub goal: Option<Goal>,
    /// The time between preparing and measuring.
    pub pause: Duration,
    /// The most rounds, for slow workloads.
    pub max_rounds: usize,
}

pub(crate) struct Table<'s> {
    pub id: &'static str,
    pub title: String,
    pub rows: Vec<Row<'s>>,
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
        let mut rows = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            progress.set_message(format!("{}: {}", self.id, row.work));
            let measured = row.measure(rounds.min(row.max_rounds), interrupt);
            let measured = measured.map_err(|error| explain(error, &mut self.servers, interrupt))?;
            rows.push(measured);
            progress.inc(1);
        }
        Ok(TableFigures { table: self.id, title: self.title.clone(), rows })
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

impl Row<'_> {
    fn measure(&self, rounds: usize, interrupt: &Interrupt) -> Result<RowFigures, Error> {
        let side = |target: &Target| SideRounds {
            side: target.name.clone(),
            floor: target.kind == TargetKind::Floor,
            figures: Vec::with_capacity(rounds),
        };
        let mut sides: Vec<SideRounds> = self.targets.iter().map(side).collect();
        // The first round does not count: it creates files and fills caches.
        for round in 0..=rounds {
            // In reverse order: the target of --against is last, and preparing it may drop the kernel's cached names
            // for all others.
            for target in self.targets.iter().rev() {
                interrupt.check()?;
                self.workload.prepare(target, round)?;
            }
            sleep(if round > 0 { REST.max(self.pause) } else { REST });
            // The order rotates, because the cache may be warmer or colder for the first target.
            for turn in 0..self.targets.len() {
                interrupt.check()?;
                let index = (turn + round) % self.targets.len();
                let _pinned = self.workload.is_single_threaded().then(PinnedThread::pin_here);
                let sample = self.workload.measure(&self.targets[index], round)?;
                if round > 0 {
                    let seconds = sample.elapsed.as_secs_f64().max(1e-9);
                    sides[index].figures.push(match self.unit {
                        Unit::Time => seconds * 1e9 / sample.operations.max(1) as f64,
                        Unit::Rate => sample.bytes.max(1) as f64 / seconds,
                    });
                }
            }
            for target in &self.targets {
                self.workload.clean_up(target, round)?;
            }
        }
        Ok(evaluate(&self.work, self.unit, &sides, self.goal))
    }
}
