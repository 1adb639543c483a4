//! Whether a branch answers, and what follows from it: it is left out while it does not.
//!
//! Nothing here makes a system call or looks at the clock. Who asks the branch, or waits for it, tells what has happened and when;
//! [`Contact::wants`] says what is to be done, and who has done it tells that as a [`Turn`].

use crate::branch::state::{Standing, Turn};
use crate::fs::disk::Disk;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between two attempts to bring a branch up to date that has answered again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// After an operation has waited for this long, its branch is asked whether it answers; earlier with a short deadline.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// The time between two questions to a branch on which operations wait.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What waits for one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Requests whose callers wait.
    pub requests: usize,
    /// When the oldest request began whose worker waits for the branch, answered or not.
    pub since: Instant,
}

/// What is known of whether a branch answers.
#[derive(Debug, Default)]
pub struct Contact {
    standing: Standing,
    /// When the last attempt has failed to bring it up to date.
    stayed_out: Option<Instant>,
    pub deadline: Option<Duration>,
    pub waiting: Option<Waiting>,
    /// Whom to ask: its disks, as a filesystem answers from memory; without any, the branch itself. `None`: nobody.
    pub disks: Option<Arc<[Disk]>>,
    /// When the question was asked that is not answered yet.
    asked: Option<Instant>,
    /// When the last answered question was asked, and how long the answer took.
    pub answered: Option<(Instant, Duration)>,
    /// There is no way to read the disk.
    unreadable: bool,
    /// The question has waited too long for the deadline.
    overdue: bool,
    /// Operations that are stuck on the branch and whose callers have been given an error, and since when there are any.
    stuck: usize,
    stuck_since: Option<Instant>,
    /// When a call that was stuck on it last returned.
    returned: Option<Instant>,
    /// Since when the log calls it hung.
    pub told: Option<Instant>,
}

impl Contact {
    /// Takes note of its deadline and of what waits for it. `disks` finds whom to ask.
    pub fn look(
        &mut self,
        now: Instant,
        deadline: Option<Duration>,
        waiting: Option<Waiting>,
        disks: impl FnOnce() -> Vec<Disk>,
    ) {
        (self.deadline, self.waiting) = (deadline, waiting);
        if self.deadline.is_none() {
            (self.overdue, self.stuck, self.stuck_since) = (false, 0, None);
        }
        if deadline.is_none() && waiting.is_none() && self.asked.is_none() {
            self.disks = None;
            (self.answered, self.unreadable) = (None, false);
            return;
        }
        let disks = self.disks.get_or_insert_with(|| disks().into());
        let Some(deadline) = deadline else { return };
        // A question to a branch without a disk comes often enough that it is known to be silent before an operation has waited
        // for the whole deadline. One to a disk is asked because of an operation, which then has waited for longer.
        let (share, operation_waits) = if disks.is_empty() {
            (deadline / 4 * 3, true)
        } else {
            (deadline / 8 * 7, waiting.is_some_and(|waiting| since(waiting.since, now) >= deadline))
        };
        self.overdue |= operation_waits && self.asked.is_some_and(|asked| since(asked, now) >= share);
    }

    /// Returns whom to ask now, if it is time to: that is then asked. A branch without a disk that has a deadline is asked all the
    /// time, any other while operations wait for it or it is left out.
    pub fn ask(&mut self, now: Instant) -> Option<Arc<[Disk]>> {
        let disks = self.disks.clone().filter(|_| self.asked.is_none())?;
        let share = |time: Duration| self.deadline.map_or(time, |deadline| time.min(deadline / 8));
        let always = self.deadline.filter(|_| disks.is_empty());
        let waits = self.waiting.is_some_and(|waiting| since(waiting.since, now) >= share(ASK_AFTER));
        let every = always.map_or_else(|| share(ASK_EVERY), |deadline| deadline / 16);
        let recently = self.last_answer().is_some_and(|last| since(last, now) < every);
        if recently || !(waits || always.is_some() || self.is_out()) {
            return None;
        }
        self.asked = Some(now);
        Some(disks)
    }

    /// Takes note of an answer, or that there was no way to ask.
    pub fn answer(&mut self, now: Instant, could_ask: bool) {
        (self.overdue, self.unreadable) = (false, !could_ask);
        if let Some(asked) = self.asked.take().filter(|_| could_ask) {
            self.answered = Some((asked, since(asked, now)));
        }
    }

    /// An operation did not finish by the deadline.
    pub fn operation_stuck(&mut self, now: Instant) {
        if self.deadline.is_some() {
            self.stuck += 1;
            self.stuck_since.get_or_insert(now);
        }
    }

    /// It has ended after all.
    pub fn operation_ended(&mut self) {
        self.stuck = self.stuck.saturating_sub(1);
        if self.stuck == 0 {
            self.stuck_since = None;
        }
    }

    /// A call that was stuck on the branch has returned.
    pub fn call_returned(&mut self, now: Instant) {
        self.returned = Some(now);
    }

    /// Returns what is to be done. One that may have missed changes has to [return](Turn::Return) first.
    #[must_use]
    pub fn wants(&self, now: Instant) -> Option<Turn> {
        // A disk that has answered since operations got stuck works: they are stuck for another reason.
        let has_answered =
            |then: Instant| self.by_disk() && self.last_answer().is_some_and(|last| last > then);
        let stuck = self.stuck > 0 && !self.stuck_since.is_some_and(has_answered);
        let hangs = self.deadline.is_some() && (self.overdue || stuck);
        match (self.standing, hangs) {
            (Standing::InForce, true) => Some(Turn::LeaveOut),
            (Standing::LeftOut, false) => self
                .stayed_out
                .is_none_or(|then| since(then, now) >= TRY_AGAIN_AFTER)
                .then_some(Turn::TakeBack),
            _ => None,
        }
    }

    /// Takes note of what has been done. Returns whether that is a change.
    pub fn turn(&mut self, turn: Turn, now: Instant) -> bool {
        let after = self.standing.after(turn);
        self.standing = after.unwrap_or(self.standing);
        if after.is_some() {
            self.stayed_out = (turn == Turn::StayOut).then_some(now);
        }
        after.is_some()
    }

    /// Returns whether operations use it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns whether operations leave it out.
    #[must_use]
    pub fn is_out(&self) -> bool {
        matches!(self.standing, Standing::LeftOut | Standing::Returning)
    }

    /// Returns when the question was asked that is still open. It is of no account if nobody waits for a branch without a disk.
    #[must_use]
    pub fn open_question(&self) -> Option<Instant> {
        self.asked.filter(|_| self.waiting.is_some() || self.is_out() || self.by_disk())
    }

    /// Returns when it gave the last sign of life: an answer, or a call that returned.
    #[must_use]
    pub fn last_life(&self) -> Option<Instant> {
        self.last_answer().max(self.returned)
    }

    /// Returns whether its answers prove nothing, as they do not come from a disk.
    #[must_use]
    pub fn answers_prove_little(&self) -> bool {
        self.unreadable || !self.by_disk()
    }

    fn by_disk(&self) -> bool {
        self.disks.as_ref().is_some_and(|disks| !disks.is_empty())
    }

    fn last_answer(&self) -> Option<Instant> {
        self.answered.map(|(asked, took)| asked + took)
    }
}

fn since(then: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(then)
}

#[cfg(test)]
mod tests;
