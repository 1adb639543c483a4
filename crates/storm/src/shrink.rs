//! Shortens a sequence of steps that fails, by playing parts of it on new worlds.

use std::mem::discriminant;
use std::time::{Duration, Instant};

use crate::drive::{Failure, Watched, play, stopped};
use crate::plan::Plan;
use crate::script::Step;

pub(crate) type Numbered = Vec<(usize, Step)>;

/// Removes what has changed nothing, kinds of steps, then halves, then single ones, as long as the rest fails and there is time.
pub(crate) fn shrink(plan: &Plan, steps: Numbered, failure: Failure, time: Duration) -> (Numbered, Failure) {
    let mut shorter = Shorter { plan, until: Instant::now() + time, steps, failure };
    let at = shorter.failure.at;
    shorter.steps.retain(|(number, _)| *number <= at);
    let idle = shorter.failure.idle.clone();
    let rest = shorter.steps.iter().filter(|(number, _)| !idle.contains(number));
    shorter.attempt(rest.copied().collect());
    let mut kinds: Vec<Step> = Vec::new();
    for (_, step) in &shorter.steps {
        if kinds.iter().all(|kind| discriminant(kind) != discriminant(step)) {
            kinds.push(*step);
        }
    }
    for kind in kinds.iter().filter(|kind| !matches!(kind, Step::Client(_))) {
        let rest = shorter.steps.iter().filter(|(_, step)| discriminant(step) != discriminant(kind));
        shorter.attempt(rest.copied().collect());
    }
    let mut size = shorter.steps.len().div_ceil(2);
    while size > 0 {
        let (mut start, mut changed) = (0, false);
        while start < shorter.steps.len() {
            let mut fewer = shorter.steps.clone();
            fewer.drain(start..(start + size).min(fewer.len()));
            if !fewer.is_empty() && shorter.attempt(fewer) {
                changed = true;
            } else {
                start += size;
            }
        }
        if !changed || size > 1 {
            size /= 2;
        }
    }
    (shorter.steps, shorter.failure)
}

struct Shorter<'a> {
    plan: &'a Plan,
    until: Instant,
    steps: Numbered,
    failure: Failure,
}

impl Shorter<'_> {
    /// Plays a part, and keeps it if it fails.
    fn attempt(&mut self, steps: Numbered) -> bool {
        if stopped() || Instant::now() > self.until {
            return false;
        }
        let Some(failure) = play(self.plan, &steps, Watched::default()) else { return false };
        let at = failure.at;
        self.steps = steps;
        self.steps.retain(|(number, _)| *number <= at);
        self.failure = failure;
        eprintln!("storm: {} steps fail as well", self.steps.len());
        true
    }
}
