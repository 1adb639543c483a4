//! Rounds: every side in turn, again and again, so that a busy machine is unfair to all alike.

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::server::Server;
use crate::statistics::{Goal, RowFigures, SideRounds, TableFigures, Unit, evaluate};
use crate::workload::{Target, TargetKind, Workload};
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// One row: a work, and the targets where it is done, the one that ratios are made to first.
pub(crate) struct Row<'s> {
    pub work: String,
    pub unit: Unit,
    pub workload: Box<dyn Workload + 's>,
    pub targets: Vec<Target>,
    pub goal: Option<Goal>,
    /// Between preparing and measuring.
    pub pause: Duration,
    /// No more rounds than this, for what takes long.
    pub max_rounds: usize,
}

pub(crate) struct Table<'s> {
    pub id: &'static str,
    pub title: String,
    pub rows: Vec<Row<'s>>,
    /// Those of the targets; they end with the table.
    pub servers: Vec<Server>,
}

/// What follows a round's preparation has time to come to rest.
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

/// How long a server that ends is still there after the kernel has ended its connection.
const LINGERING: Duration = Duration::from_millis(500);

/// What happened first explains the rest.
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

/// This thread, bound to the processor it is on. One that waits for answers would else be woken on another that is idle, at
/// some answers and not at others, as the scheduler has it: that takes longer than the answer, and is the same for all.
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
        // The first is not counted: files come into being, caches fill.
        for round in 0..=rounds {
            // Backwards: what is put beside comes last in a row, and preparing it may cost all the others the
            // names that the kernel knows.
            for target in self.targets.iter().rev() {
                interrupt.check()?;
                self.workload.prepare(target, round)?;
            }
            sleep(if round > 0 { REST.max(self.pause) } else { REST });
            // Whoever goes first may find a warmer cache: they take turns in that too.
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
