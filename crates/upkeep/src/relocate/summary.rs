//! What a command says before and after it moves or copies files.

use super::job::Stays;
use super::layout::{Bound, KeptByRule};
use super::mover::{Action, FILES, Outcome, Sum, Task, adds_up};
use crate::error::{Error, Result};
use crate::output::{print, print_json, shown};
use crate::pool_link::PoolLink;
use canopy_base::text::{bytes, one_line};
use canopy_control::OsText;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// The rate that a duration is estimated with where no limit is set: what a hard disk manages.
const USUAL_RATE: u64 = 100 << 20;
/// How many paths that stay are printed.
const SHOWN: usize = 20;

#[derive(Serialize)]
struct Report<'r> {
    command: &'r str,
    pool: OsText,
    dry_run: bool,
    /// A signal has ended the command before its plan.
    stopped: bool,
    /// The sum of `moved` or `copied`, `stayed` and `not_begun`.
    planned: Sum,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<Sum>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copied: Option<Sum>,
    stayed: Sum,
    not_begun: Sum,
    /// The plan, of a dry run.
    steps: Vec<StepReport>,
    /// What stays where it is, or has too few copies, planned or not.
    stays: Vec<Stays>,
    /// What belongs to its disk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    belongs_to_disk: Vec<OsText>,
    /// What rules and tiers keep the command from.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'r str>,
}

#[derive(Serialize)]
struct StepReport {
    path: OsText,
    from: OsText,
    to: OsText,
    bytes: u64,
}

/// What a command prints.
pub(crate) struct Summary<'s> {
    pub(crate) command: &'s str,
    pub(crate) action: Action,
    pub(crate) pool: &'s PoolLink,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) dry_run: bool,
    pub(crate) rate: u64,
}

impl Summary<'_> {
    /// Says what will be done; in a dry run, each file.
    pub(crate) fn before(&self, tasks: &[Task]) {
        if self.json || (self.quiet && !self.dry_run) {
            return;
        }
        let mut text = String::new();
        let branch = |index: usize| shown(&self.pool.branches[index].path);
        let mut pairs: BTreeMap<(usize, usize), Sum> = BTreeMap::new();
        for task in tasks {
            pairs.entry((task.from, task.to)).or_default().add(task.bytes);
            if self.dry_run {
                let path = shown(&self.pool.mountpoint.join(&task.names[0]));
                let _ = writeln!(
                    text,
                    "{path}: {} -> {} ({})",
                    branch(task.from),
                    branch(task.to),
                    bytes(task.bytes)
                );
            }
        }
        for ((from, to), sum) in pairs {
            let _ = writeln!(text, "{} -> {}: {}", branch(from), branch(to), sum.counted(FILES));
        }
        let verb = match self.action {
            Action::Move => "move",
            Action::Copy => "copy",
        };
        let all = Sum::of(tasks);
        let rate = if self.rate == 0 { USUAL_RATE } else { self.rate };
        let time = duration(Duration::from_secs(all.bytes / rate));
        let _ = if tasks.is_empty() {
            writeln!(text, "nothing to {verb}")
        } else {
            writeln!(text, "to {verb}: {}, about {time} at {}/s", all.counted(FILES), bytes(rate))
        };
        print(&text);
    }

    /// Says what has become of the plan. `stays` are those that the plan leaves out, and `bound` says which of them rules and
    /// tiers keep.
    ///
    /// # Errors
    /// If something stays, or a signal has arrived.
    pub(crate) fn after(
        &self,
        tasks: &[Task],
        outcome: &Outcome,
        (stays, bound): (&[Stays], &Bound),
        stopped: bool,
    ) -> Result<()> {
        let stays: Vec<&Stays> = stays.iter().chain(&outcome.stays).collect();
        let left = (stays.len() + bound.kept.len()) as u64;
        if self.json {
            let step = |task: &Task| StepReport {
                path: OsText::from(self.pool.mountpoint.join(&task.names[0]).as_path()),
                from: OsText::from(self.pool.branches[task.from].path.as_path()),
                to: OsText::from(self.pool.branches[task.to].path.as_path()),
                bytes: task.bytes,
            };
            let kept = |kept: &KeptByRule| Stays {
                path: kept.path.clone(),
                why: format!("its {} wants it elsewhere (--against-rules)", kept.by),
            };
            print_json(&Report {
                command: self.command,
                pool: OsText::from(self.pool.mountpoint.as_path()),
                dry_run: self.dry_run,
                stopped,
                planned: outcome.planned,
                moved: (self.action == Action::Move).then_some(outcome.moved),
                copied: (self.action == Action::Copy).then_some(outcome.moved),
                stayed: outcome.stayed,
                not_begun: outcome.not_begun,
                steps: if self.dry_run { tasks.iter().map(step).collect() } else { Vec::new() },
                stays: stays.into_iter().cloned().chain(bound.kept.iter().map(kept)).collect(),
                belongs_to_disk: bound.belongs.iter().map(|path| OsText::from(path.as_path())).collect(),
                note: bound.note.as_deref(),
            });
        } else if !self.quiet {
            print(&(self.text(outcome, &stays) + &within(bound)));
        }
        match (stopped, left) {
            (true, _) => Err(Error::Stopped),
            (false, 0) => Ok(()),
            (false, _) => Err(match self.action {
                Action::Move => Error::Left(left, outcome.moved.files + left),
                Action::Copy => Error::NotCopied(left),
            }),
        }
    }

    fn text(&self, outcome: &Outcome, stays: &[&Stays]) -> String {
        let mut text = String::new();
        let (stays_word, stay_word, done_word) = match self.action {
            Action::Move => ("stays", "stay", "moved"),
            Action::Copy => ("not copied", "not copied", "copied"),
        };
        for stay in stays.iter().take(SHOWN) {
            let _ = writeln!(text, "{stays_word}: {} ({})", shown(&stay.path), stay.why);
        }
        if stays.len() > SHOWN {
            let _ = writeln!(text, "{stays_word}: {} more (--json lists all)", stays.len() - SHOWN);
        }
        if !self.dry_run {
            let rest = [(stay_word, outcome.stayed), ("not begun", outcome.not_begun)];
            text += &adds_up(FILES, (done_word, outcome.moved), &rest, ("planned", outcome.planned));
        }
        text
    }
}

/// Returns a line for each rule and tier that keeps files, and the note.
fn within(bound: &Bound) -> String {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    bound.kept.iter().for_each(|kept| sums.entry(&kept.by).or_default().add(kept.bytes));
    let mut text = String::new();
    for path in &bound.belongs {
        let _ = writeln!(text, "stays: {} (belongs to its disk)", shown(path));
    }
    for (by, sum) in sums {
        let _ =
            writeln!(text, "kept by {}: {} (--against-rules moves them)", one_line(by), sum.counted(FILES));
    }
    if let Some(note) = &bound.note {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{} s", seconds.max(1)),
        seconds @ 60..3600 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (seconds, text) in
            [(0, "1 s"), (59, "59 s"), (61, "2 min"), (3599, "60 min"), (7260, "2 h 1 min")]
        {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
