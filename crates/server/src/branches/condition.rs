//! How a branch answers, for reports.

use canopy_branch::branch::state::BranchState;
use canopy_branch::fs::disk::Disk;
use canopy_control::DiskReport;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A branch lags if it has not answered for this long.
pub(super) const LAGS_AFTER: Duration = Duration::from_secs(1);
/// It hangs if it has not answered for this long. Every disk that works is faster, unless it has to wake.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(3);
/// The longest that a disk needs to wake: several disks on one supply may spin up one after the other.
const WAKES_WITHIN: Duration = Duration::from_secs(30);
/// A disk that had nothing to do for this long may have gone to sleep: the shortest time that drives can be set to is
/// shorter, but nobody uses it.
const SLEEPS_AFTER: Duration = Duration::from_secs(60);

/// How a branch answers that has let operations wait.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    /// Lagging, asleep or hung.
    pub(crate) answers: BranchState,
    /// For how long it has not answered.
    pub(crate) quiet: Duration,
    /// How many requests wait.
    pub(crate) requests: usize,
    /// After what time a request fails and the branch is left out. `None`: never.
    pub(crate) deadline: Option<Duration>,
    pub(crate) disks: Vec<DiskReport>,
}

/// What is known of one branch at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signs {
    /// For how long the oldest operation has waited.
    pub(super) oldest: Option<Duration>,
    /// For how long the question has been open that was not answered yet.
    pub(super) asked: Option<Duration>,
    /// Since the last sign of life: an answer, or an operation that was stuck and ended.
    pub(super) since_life: Option<Duration>,
    /// How long the last answer took.
    pub(super) last_took: Option<Duration>,
    /// It is left out.
    pub(super) silent: bool,
    /// Answers prove nothing: they do not come from a disk.
    pub(super) answers_prove_little: bool,
    /// Its disk had nothing to do for some time, or the kernel has put it to sleep.
    pub(super) slept: bool,
}

impl Signs {
    /// Returns for how long the branch has not answered.
    pub(super) fn quiet(&self) -> Duration {
        let since_life = self.since_life.unwrap_or(Duration::MAX);
        let oldest = self.oldest.unwrap_or_default().min(since_life);
        oldest.max(self.asked.unwrap_or_default())
    }

    /// Returns how it answers: up, lagging, asleep or hung.
    pub(super) fn answers(&self) -> BranchState {
        let quiet = self.quiet();
        let late = |time: Option<Duration>| time.is_some_and(|time| time >= LAGS_AFTER);
        if self.silent {
            return BranchState::Hung;
        }
        if self.slept && (late(self.asked) || late(self.oldest)) && quiet < WAKES_WITHIN {
            return BranchState::Asleep;
        }
        if quiet >= HANGS_AFTER {
            return BranchState::Hung;
        }
        // A disk that answers at once does not lag: the operation itself is long, such as a copy.
        let long = self.answers_prove_little && self.oldest.is_some_and(|oldest| oldest >= HANGS_AFTER);
        if late(self.asked) || self.oldest.is_some() && late(self.last_took) || long {
            BranchState::Lagging
        } else {
            BranchState::Up
        }
    }
}

/// Remembers when disks have last completed a request.
#[derive(Default)]
pub(super) struct DiskHistory(HashMap<String, Completed>);

#[derive(Clone, Copy)]
struct Completed {
    count: u64,
    /// When the count was first seen.
    at: Instant,
    /// When the disk was last looked at.
    seen: Instant,
}

impl DiskHistory {
    /// Reads the counters of a disk.
    pub(super) fn look(&mut self, disk: &Disk) -> DiskReport {
        let (activity, now) = (disk.activity(), Instant::now());
        let idle = activity.map_or(Duration::ZERO, |activity| self.note(&disk.name, activity.completed, now));
        DiskReport {
            name: disk.name.clone(),
            reads_in_flight: activity.map(|activity| activity.reads_in_flight),
            writes_in_flight: activity.map(|activity| activity.writes_in_flight),
            idle: idle.as_secs(),
            state: disk.bad_state(),
        }
    }

    /// Takes note of the number of requests that a disk has completed, and returns for how long it has been that.
    fn note(&mut self, disk: &str, count: u64, now: Instant) -> Duration {
        let new = Completed { count, at: now, seen: now };
        let known = self.0.entry(disk.to_owned()).or_insert(new);
        if known.count != count {
            *known = new;
        }
        known.seen = now;
        now.saturating_duration_since(known.at)
    }

    /// Returns whether the disk had nothing to do for so long that it may have gone to sleep, up to `waiting` ago.
    pub(super) fn may_have_slept(&self, disk: &str, waiting: Duration) -> bool {
        self.0.get(disk).is_some_and(|known| {
            let idle = known.seen.saturating_duration_since(known.at);
            idle.saturating_sub(waiting) >= SLEEPS_AFTER
        })
    }

    /// Forgets disks that were not looked at for a long time.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, known| now.saturating_duration_since(known.seen) < Duration::from_secs(600));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn a_branch_is_called_what_its_signs_say() {
        let well = Signs { oldest: secs(0), last_took: Some(Duration::from_millis(5)), ..Signs::default() };
        let cases = [
            ("nothing waits", Signs::default(), BranchState::Up),
            ("a request began a moment ago", well, BranchState::Up),
            (
                "a long copy on a disk that answers",
                Signs { oldest: secs(60), since_life: secs(1), ..well },
                BranchState::Up,
            ),
            (
                "the disk takes a second and more",
                Signs { oldest: secs(2), since_life: secs(1), last_took: secs(2), ..well },
                BranchState::Lagging,
            ),
            (
                "it was slow once, but nothing waits",
                Signs { oldest: None, last_took: secs(2), ..well },
                BranchState::Up,
            ),
            (
                "a question is open for a second",
                Signs { oldest: secs(2), asked: secs(1), ..well },
                BranchState::Lagging,
            ),
            (
                "no answer at all",
                Signs { oldest: secs(4), asked: secs(3), last_took: None, ..well },
                BranchState::Hung,
            ),
            (
                "no answer since the last",
                Signs { oldest: secs(60), asked: secs(3), since_life: secs(4), ..well },
                BranchState::Hung,
            ),
            (
                "all requests were interrupted, but the disk still owes an answer",
                Signs { oldest: None, asked: secs(9), ..well },
                BranchState::Hung,
            ),
            ("it is left out", Signs { silent: true, ..Signs::default() }, BranchState::Hung),
            (
                "a disk that slept spins up",
                Signs { oldest: secs(12), asked: secs(11), slept: true, ..well },
                BranchState::Asleep,
            ),
            (
                "no disk spins up for half a minute",
                Signs { oldest: secs(31), asked: secs(30), slept: true, ..well },
                BranchState::Hung,
            ),
            (
                "one operation of a remote branch",
                Signs { oldest: secs(9), since_life: secs(0), answers_prove_little: true, ..well },
                BranchState::Lagging,
            ),
        ];
        for (what, signs, expected) in cases {
            assert_eq!(signs.answers(), expected, "{what}: {signs:?}");
        }
    }

    #[test]
    fn a_disk_may_have_slept_if_it_had_nothing_to_do_before_the_first_request() {
        let disk = "sda";
        let mut history = DiskHistory::default();
        let start = Instant::now();
        let at = |history: &mut DiskHistory, seconds, count| {
            history.note(disk, count, start + Duration::from_secs(seconds)).as_secs()
        };
        assert_eq!([at(&mut history, 0, 7), at(&mut history, 10, 8), at(&mut history, 80, 8)], [0, 0, 70]);
        let slept =
            |history: &DiskHistory, waiting| history.may_have_slept(disk, Duration::from_secs(waiting));
        // The oldest request began five seconds ago, 65 after the last one was completed.
        assert!(slept(&history, 5) && !slept(&history, 15));
        at(&mut history, 81, 9);
        assert!(!slept(&history, 0));
        history.forget_old(start + Duration::from_secs(10_000));
        assert!(history.0.is_empty());
    }
}
