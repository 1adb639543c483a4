//! The health of branches: which of them can be relied on.
//!
//! Operations only record errors that are the branch's own, at the [gate](super::gate). Whether the branch is
//! unhealthy is decided by checking it ([`Branch::check_health`](crate::branch::Branch::check_health)), because one
//! error may come from a bad sector, or from a filesystem that is mounted below the branch. One thread checks, once a
//! second (`crates/server/src/branches/monitor.rs`). Meanwhile the operation has moved on to another branch by
//! itself.
//!
//! Nothing is created or changed on an unhealthy branch; `Pool::view` tells the policies. It is still searched and
//! read. It counts as healthy again once checks have found nothing wrong for a certain time, which doubles with every
//! relapse.
//!
//! Whether the branch answers is known in one place, too ([`contact`]). What both say of the branch is its
//! [state](super::state).

pub mod contact;

use super::state::{BranchState, Health, Turn};
use canopy_base::error::is_illness;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use contact::Contact;
use rustix::io::Errno;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// What an operation was doing when a branch gave it an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// Reading. One file may be unreadable on a healthy branch.
    Read,
    Change,
}

/// After this many checks that find nothing wrong while changes keep failing, the branch counts as failing.
const STRIKES: u32 = 5;
/// The time within which these checks must happen.
const STRIKES_WITHIN: Duration = Duration::from_secs(60);
/// How long checks must find nothing wrong before a branch recovers: at first, and at most. Doubles with every
/// relapse.
const RECOVERY: Duration = Duration::from_secs(2);
const RECOVERY_AT_MOST: Duration = Duration::from_secs(600);
/// A failure this long after the last recovery is not a relapse.
const RELAPSE_WITHIN: Duration = Duration::from_secs(3600);
/// The longest pause between two checks of an unhealthy branch. A check writes to the disk.
const CHECK_PAUSE_AT_MOST: Duration = Duration::from_secs(16);

/// The health of one branch. Reading it costs one load.
#[derive(Debug)]
pub struct BranchHealth {
    /// A [`BranchState`], which only [`BranchHealth::publish`] writes.
    now: AtomicU8,
    /// The errors since the last check.
    errors: AtomicU32,
    /// The errors since the last check that were met by changes.
    failed_changes: AtomicU32,
    /// It has failed to read something, at any time.
    failed_to_read: AtomicBool,
    /// How many names have given way on it since it came that were changed there alone.
    set_aside: AtomicU64,
    known: Mutex<Known, rank::Leaf>,
}

/// What is known of one branch.
#[derive(Debug, Default)]
struct Known {
    record: Record,
    contact: Contact,
}

/// What is reported about an unhealthy branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthReport {
    pub state: BranchState,
    pub since: SystemTime,
    pub cause: Errno,
}

impl fmt::Display for HealthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            BranchState::Up => write!(f, "it works again"),
            BranchState::ReadOnly => write!(f, "it has become read-only"),
            BranchState::Failing => write!(f, "it fails ({})", self.cause),
            BranchState::Gone | BranchState::Awaited => write!(f, "it is gone ({})", self.cause),
            BranchState::Lagging | BranchState::Asleep | BranchState::Hung => {
                write!(f, "it does not answer")
            }
        }
    }
}

impl Default for BranchHealth {
    fn default() -> Self {
        BranchHealth {
            now: AtomicU8::new(BranchState::Up as u8),
            errors: AtomicU32::new(0),
            failed_changes: AtomicU32::new(0),
            failed_to_read: AtomicBool::new(false),
            set_aside: AtomicU64::new(0),
            known: Mutex::default(),
        }
    }
}

impl BranchHealth {
    pub fn state(&self) -> BranchState {
        BranchState::ALL[usize::from(self.now.load(Ordering::Relaxed))]
    }

    /// Returns true if files may be created and changed on the branch.
    pub fn is_well(&self) -> bool {
        self.now.load(Ordering::Relaxed) == BranchState::Up as u8
    }

    /// Records an error of a call on the branch.
    pub(super) fn record_error(&self, errno: Errno, op: OpKind) {
        if !is_illness(errno) {
            return;
        }
        self.errors.fetch_add(1, Ordering::Relaxed);
        // A check finds out whether a filesystem refuses changes. If the check finds nothing, a snapshot or another
        // filesystem below the branch refused this one.
        if op == OpKind::Change && errno != Errno::ROFS {
            self.failed_changes.fetch_add(1, Ordering::Relaxed);
        }
        if op == OpKind::Read && errno != Errno::ROFS {
            self.failed_to_read.store(true, Ordering::Relaxed);
        }
        self.known.lock().record.last_error = errno;
    }

    /// Returns whether the branch has ever failed to read something, as far as this process has seen.
    pub fn has_failed_to_read(&self) -> bool {
        self.failed_to_read.load(Ordering::Relaxed)
    }

    /// Counts names that have given way and were changed on this branch alone.
    pub fn count_set_aside(&self, names: usize) {
        self.set_aside.fetch_add(names as u64, Ordering::Relaxed);
    }

    /// Returns how many names have given way since the branch came that were changed on it alone.
    pub fn set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::Relaxed)
    }

    /// Returns what is wrong with the branch, or `None` if it is healthy.
    pub fn report(&self) -> Option<HealthReport> {
        let state = self.state();
        if state == BranchState::Up {
            return None;
        }
        let record = &self.known.lock().record;
        let cause = if state == BranchState::Hung { Errno::TIMEDOUT } else { record.cause };
        Some(HealthReport { state, since: record.since, cause })
    }

    /// Changes whether operations use the branch. Returns whether that is a change.
    pub fn turn(&self, turn: Turn) -> bool {
        let mut known = self.known.lock();
        let changed = known.contact.turn(turn, Instant::now());
        if changed && turn == Turn::LeaveOut && known.record.health == Health::Well {
            known.record.since = SystemTime::now();
        }
        self.publish(&known);
        changed
    }

    /// Runs `look` with what is known of whether the branch answers.
    pub fn contact<T>(&self, look: impl FnOnce(&mut Contact) -> T) -> T {
        look(&mut self.known.lock().contact)
    }

    fn publish(&self, known: &Known) {
        let state = BranchState::of(known.contact.standing(), known.record.health);
        self.now.store(state as u8, Ordering::Relaxed);
    }

    /// Returns true if the branch should be checked now.
    pub fn needs_check(&self) -> bool {
        self.is_due(Instant::now())
    }

    /// Runs a check and takes its result into account. Returns a report if the health has changed.
    pub fn look(&self, look: impl FnOnce() -> CheckResult) -> Option<HealthReport> {
        let now = Instant::now();
        self.judge(now, look())
    }

    /// Forgets what checks have found.
    pub(super) fn forget_illness(&self) {
        self.inherit(&BranchHealth::default());
        self.errors.store(0, Ordering::Relaxed);
        self.failed_changes.store(0, Ordering::Relaxed);
    }

    /// Continues with the record of another branch.
    pub fn inherit(&self, other: &BranchHealth) {
        let history = other.known.lock().record.clone();
        let mut known = self.known.lock();
        known.record = history;
        self.publish(&known);
    }

    fn is_due(&self, now: Instant) -> bool {
        let record = &self.known.lock().record;
        match record.health {
            Health::Well => self.errors.load(Ordering::Relaxed) > 0,
            _ => record.next_check.is_none_or(|next| next <= now),
        }
    }

    /// Takes the result of a check into account. Returns a report if the health has changed.
    fn judge(&self, now: Instant, finding: CheckResult) -> Option<HealthReport> {
        let errors = self.errors.swap(0, Ordering::Relaxed);
        let failed_changes = self.failed_changes.swap(0, Ordering::Relaxed);
        let mut known = self.known.lock();
        let before = known.record.health;
        known.record.judge(now, finding, errors, failed_changes);
        self.publish(&known);
        let record = &known.record;
        (record.health != before).then_some(HealthReport {
            state: record.health.into(),
            since: record.since,
            cause: record.cause,
        })
    }
}

/// The result of a check: nothing wrong, or what is wrong.
pub type CheckResult = Result<(), (Health, Errno)>;

/// The history of a branch's health.
#[derive(Clone, Debug)]
struct Record {
    health: Health,
    /// When it became unhealthy or, if it is healthy, when it recovered.
    since: SystemTime,
    cause: Errno,
    /// The last error that an operation has recorded.
    last_error: Errno,
    /// Since when checks find nothing wrong.
    healthy_since: Option<Instant>,
    /// The number of failures in a row that each came soon after a recovery, and the time of the last recovery.
    failures: u32,
    recovered_at: Option<Instant>,
    /// The number of checks that found nothing wrong although changes had failed, and the time of the first.
    strikes: u32,
    first_strike: Option<Instant>,
    /// The number of checks in a row that found something wrong.
    failed_checks: u32,
    next_check: Option<Instant>,
}

impl Default for Record {
    fn default() -> Self {
        Record {
            health: Health::Well,
            since: SystemTime::UNIX_EPOCH,
            cause: Errno::IO,
            last_error: Errno::IO,
            healthy_since: None,
            failures: 0,
            recovered_at: None,
            strikes: 0,
            first_strike: None,
            failed_checks: 0,
            next_check: None,
        }
    }
}

impl Record {
    fn judge(&mut self, now: Instant, finding: CheckResult, errors: u32, failed_changes: u32) {
        let within =
            |since: Option<Instant>, time| since.is_some_and(|then: Instant| now.duration_since(then) < time);
        let finding = match finding {
            Ok(()) if self.health == Health::Well && failed_changes > 0 => {
                if !within(self.first_strike, STRIKES_WITHIN) {
                    (self.strikes, self.first_strike) = (0, Some(now));
                }
                self.strikes += 1;
                if self.strikes >= STRIKES { Err((Health::Failing, self.last_error)) } else { Ok(()) }
            }
            other => other,
        };
        match finding {
            Err((health, cause)) => {
                if self.health == Health::Well {
                    self.since = SystemTime::now();
                    if !within(self.recovered_at, RELAPSE_WITHIN) {
                        self.failures = 0;
                    }
                    self.failures += 1;
                    self.failed_checks = 0;
                }
                (self.health, self.cause) = (health, cause);
                (self.healthy_since, self.strikes) = (None, 0);
                self.next_check =
                    Some(now + Duration::from_secs(1 << self.failed_checks.min(4)).min(CHECK_PAUSE_AT_MOST));
                self.failed_checks += 1;
            }
            Ok(()) if self.health == Health::Well => {}
            Ok(()) => {
                self.failed_checks = 0;
                self.next_check = None;
                if errors > 0 {
                    // Checks find nothing wrong, but operations still fail.
                    self.healthy_since = None;
                }
                let since = *self.healthy_since.get_or_insert(now);
                let recovery = RECOVERY.saturating_mul(1 << (self.failures.saturating_sub(1)).min(16));
                if now.duration_since(since) >= recovery.min(RECOVERY_AT_MOST) {
                    self.health = Health::Well;
                    self.since = SystemTime::now();
                    self.recovered_at = Some(now);
                    self.healthy_since = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
