//! Rounds: every side in turn, again and again, so that a busy machine is unfair to all alike.

use crate::error::Fault;
use crate::interrupt::Interrupt;
use crate::server::Server;
use crate::statistics::{Goal, Rounds, RowFigures, TableFigures, Unit, evaluate};
use crate::workload::{Kind, Place, Work};
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// One row: a work, and the places where it is done, the one that ratios are made to first.
pub(crate) struct Row<'s> {
    pub work: String,
    pub unit: Unit,
    pub does: Box<dyn Work + 's>,
    pub places: Vec<Place>,
    pub goal: Option<Goal>,
    /// Between preparing and measuring.
    pub pause: Duration,
    /// No more rounds than this, for what takes long.
    pub most: usize,
}

pub(crate) struct Table<'s> {
    pub id: &'static str,
    pub title: String,
    pub rows: Vec<Row<'s>>,
    /// Those of the places; they end with the table.
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
    ) -> Result<TableFigures, Fault> {
        let mut rows = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            progress.set_message(format!("{}: {}", self.id, row.work));
            let measured = row.measure(rounds.min(row.most), interrupt);
            let measured = measured.map_err(|fault| explain(fault, &mut self.servers, interrupt))?;
            rows.push(measured);
            progress.inc(1);
        }
        Ok(TableFigures { table: self.id, title: self.title.clone(), rows })
    }
}

/// How long a server that ends is still there after the kernel has ended its connection.
const LINGERING: Duration = Duration::from_millis(500);

/// What happened first explains the rest.
fn explain(fault: Fault, servers: &mut [Server], interrupt: &Interrupt) -> Fault {
    let deadline = Instant::now() + LINGERING;
    loop {
        let ended = servers.iter_mut().find_map(|server| server.check().err());
        match interrupt.check().err().or(ended) {
            Some(first) => return first,
            None if Instant::now() > deadline => return fault,
            None => sleep(REST),
        }
    }
}

/// This thread, bound to the processor it is on. One that waits for answers would else be woken on another that is idle, at
/// some answers and not at others, as the scheduler has it: that takes longer than the answer, and is the same for all.
struct Staying(Option<CpuSet>);

impl Staying {
    fn here() -> Staying {
        let before = sched_getaffinity(None).ok();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        let bound = sched_setaffinity(None, &here).is_ok();
        Staying(before.filter(|_| bound))
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

impl Row<'_> {
    fn measure(&self, rounds: usize, interrupt: &Interrupt) -> Result<RowFigures, Fault> {
        let side = |place: &Place| Rounds {
            side: place.name.clone(),
            floor: place.kind == Kind::Floor,
            figures: Vec::with_capacity(rounds),
        };
        let mut sides: Vec<Rounds> = self.places.iter().map(side).collect();
        // The first is not counted: files come into being, caches fill.
        for round in 0..=rounds {
            // Backwards: what is put beside comes last in a row, and preparing it may cost all the others the
            // names that the kernel knows.
            for place in self.places.iter().rev() {
                interrupt.check()?;
                self.does.prepare(place, round)?;
            }
            sleep(if round > 0 { REST.max(self.pause) } else { REST });
            // Whoever goes first may find a warmer cache: they take turns in that too.
            for turn in 0..self.places.len() {
                interrupt.check()?;
                let index = (turn + round) % self.places.len();
                let _stays = self.does.is_alone().then(Staying::here);
                let sample = self.does.measure(&self.places[index], round)?;
                if round > 0 {
                    let seconds = sample.took.as_secs_f64().max(1e-9);
                    sides[index].figures.push(match self.unit {
                        Unit::Time => seconds * 1e9 / sample.operations.max(1) as f64,
                        Unit::Rate => sample.bytes.max(1) as f64 / seconds,
                    });
                }
            }
            for place in &self.places {
                self.does.tidy(place, round)?;
            }
        }
        Ok(evaluate(&self.work, self.unit, &sides, self.goal))
    }
}
