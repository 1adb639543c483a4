//! How branches fare: which can be relied upon for something new, and which not.
//!
//! Operations only notice ([`BranchHealth::record_error`]): that a branch has answered with an error which is its own doing. What
//! it comes to is found by looking at the branch itself ([`Branch::check_health`](crate::branch::Branch::check_health)), for the error may be that of one bad
//! sector, or of a filesystem that is mounted below the branch. One thread looks, once a second (`canopy/src/serve/health.rs`);
//! an operation has gone on elsewhere meanwhile, by itself.
//!
//! An unwell branch gets nothing new, and nothing on it is changed: `Pool::view` tells the policies. It is searched and read
//! as ever. It is taken back once looks have found nothing wrong for a while, which is longer with every relapse.
//!
//! What keeps the rest of the program from waiting for a branch may say so here: [`BranchHealth::hangs`].

use crate::error::is_illness;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use rustix::io::Errno;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How a branch is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Health {
    Well,
    /// Its filesystem does not take changes, though its mode says that it should.
    ReadOnly,
    /// Changes give errors.
    Failing,
    /// Not even its root can be read, or its disk is not there. Or, of a branch that the pool has let go of: its mount is not
    /// there.
    Gone,
    /// It does not answer.
    Hung,
}

impl Health {
    const ALL: [Health; 5] = [Health::Well, Health::ReadOnly, Health::Failing, Health::Gone, Health::Hung];

    /// As a word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Health::Well => "ok",
            Health::ReadOnly => "read-only",
            Health::Failing => "failing",
            Health::Gone => "gone",
            Health::Hung => "hung",
        }
    }
}

/// What an operation was doing when a branch gave it an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// One file may be unreadable on a branch that is well.
    Read,
    Change,
}

/// Looks that find nothing wrong while changes fail all the same: after so many, the changes are believed.
const STRIKES: u32 = 5;
/// Within this time.
const STRIKES_WITHIN: Duration = Duration::from_secs(60);
/// For how long looks must find nothing wrong: at first, and at most. It doubles with every relapse.
const QUIET: Duration = Duration::from_secs(2);
const QUIET_AT_MOST: Duration = Duration::from_secs(600);
/// After so long without an illness, earlier ones do not count any more.
const FORGIVEN: Duration = Duration::from_secs(3600);
/// Between two looks at a branch that stays unwell, at most. A look writes to the disk.
const LOOK_AT_LEAST: Duration = Duration::from_secs(16);

/// The health of one branch, for as long as it is one. Reading it costs one load.
#[derive(Debug)]
pub struct BranchHealth {
    /// A [`Health`]: that of the record, or `Hung`.
    now: AtomicU8,
    hangs: AtomicBool,
    /// Errors since the last look.
    noticed: AtomicU32,
    /// ... while something was to be changed.
    failed: AtomicU32,
    record: Mutex<Record, rank::BranchHealth>,
}

/// What is told of a branch that is unwell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthReport {
    pub health: Health,
    pub since: SystemTime,
    pub cause: Errno,
}

impl fmt::Display for HealthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.health {
            Health::Well => write!(f, "it is well again"),
            Health::ReadOnly => write!(f, "it has become read-only"),
            Health::Failing => write!(f, "it fails ({})", self.cause),
            Health::Gone => write!(f, "it is gone ({})", self.cause),
            Health::Hung => write!(f, "it does not answer"),
        }
    }
}

impl Default for BranchHealth {
    fn default() -> Self {
        BranchHealth {
            now: AtomicU8::new(Health::Well as u8),
            hangs: AtomicBool::new(false),
            noticed: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            record: Mutex::new(Record::default()),
        }
    }
}

impl BranchHealth {
    pub fn health(&self) -> Health {
        Health::ALL[usize::from(self.now.load(Ordering::Relaxed))]
    }

    /// May something new go there, and what is there be changed?
    pub fn is_well(&self) -> bool {
        self.now.load(Ordering::Relaxed) == Health::Well as u8
    }

    /// The one place where errors of branch operations are noticed: call it with whatever a branch has answered.
    pub fn record_error(&self, errno: Errno, deed: OpKind) {
        if !is_illness(errno) {
            return;
        }
        self.noticed.fetch_add(1, Ordering::Relaxed);
        // A filesystem that takes no changes is found out by a look. Where that finds nothing, it is a snapshot or another
        // filesystem below the branch.
        if deed == OpKind::Change && errno != Errno::ROFS {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.record.lock().noticed = errno;
    }

    /// What is wrong with it.
    pub fn report(&self) -> Option<HealthReport> {
        let health = self.health();
        if health == Health::Well {
            return None;
        }
        let record = self.record.lock();
        let cause = if health == Health::Hung { Errno::TIMEDOUT } else { record.cause };
        Some(HealthReport { health, since: record.since, cause })
    }

    /// Somebody waits for the branch in vain, or has his answer after all. True when that is news.
    pub fn hangs(&self, hangs: bool) -> bool {
        let mut record = self.record.lock();
        let news = self.hangs.swap(hangs, Ordering::Relaxed) != hangs;
        if news && hangs && record.health == Health::Well {
            record.since = SystemTime::now();
        }
        self.publish(&record);
        news
    }

    fn publish(&self, record: &Record) {
        let health = if self.hangs.load(Ordering::Relaxed) { Health::Hung } else { record.health };
        self.now.store(health as u8, Ordering::Relaxed);
    }

    /// Is there a reason to look now?
    pub fn needs_check(&self) -> bool {
        self.is_due(Instant::now())
    }

    /// Takes in what a look finds. Gives what is to be told, if it changes anything.
    pub fn look(&self, look: impl FnOnce() -> CheckResult) -> Option<HealthReport> {
        let now = Instant::now();
        self.judge(now, look())
    }

    /// Goes on where another one is.
    pub fn inherit(&self, other: &BranchHealth) {
        let course = other.record.lock().clone();
        let mut record = self.record.lock();
        *record = course;
        self.publish(&record);
    }

    fn is_due(&self, now: Instant) -> bool {
        let record = self.record.lock();
        match record.health {
            Health::Well => self.noticed.load(Ordering::Relaxed) > 0,
            _ => record.next_look.is_none_or(|next| next <= now),
        }
    }

    /// Takes a finding in. Gives what is to be told, if it changes anything.
    fn judge(&self, now: Instant, finding: CheckResult) -> Option<HealthReport> {
        let noticed = self.noticed.swap(0, Ordering::Relaxed);
        let failed = self.failed.swap(0, Ordering::Relaxed);
        let mut record = self.record.lock();
        let before = record.health;
        record.judge(now, finding, noticed, failed);
        self.publish(&record);
        (record.health != before).then(|| HealthReport {
            health: record.health,
            since: record.since,
            cause: record.cause,
        })
    }
}

/// What a look has found: nothing wrong, or what is wrong.
pub type CheckResult = Result<(), (Health, Errno)>;

/// The course of a branch's health.
#[derive(Clone, Debug)]
struct Record {
    health: Health,
    /// Since when it is not well; the end of the last illness otherwise.
    since: SystemTime,
    cause: Errno,
    /// The last error that operations have noticed.
    noticed: Errno,
    /// Since when looks find nothing wrong.
    fine_since: Option<Instant>,
    /// How often it has fallen ill of late, and when it was last taken back.
    illnesses: u32,
    taken_back: Option<Instant>,
    /// Looks that have found nothing wrong though changes had failed, and when that began.
    strikes: u32,
    struck: Option<Instant>,
    /// Looks in a row that have found it unwell.
    in_vain: u32,
    next_look: Option<Instant>,
}

impl Default for Record {
    fn default() -> Self {
        Record {
            health: Health::Well,
            since: SystemTime::UNIX_EPOCH,
            cause: Errno::IO,
            noticed: Errno::IO,
            fine_since: None,
            illnesses: 0,
            taken_back: None,
            strikes: 0,
            struck: None,
            in_vain: 0,
            next_look: None,
        }
    }
}

impl Record {
    fn judge(&mut self, now: Instant, finding: CheckResult, noticed: u32, failed: u32) {
        let within =
            |since: Option<Instant>, time| since.is_some_and(|then: Instant| now.duration_since(then) < time);
        let finding = match finding {
            Ok(()) if self.health == Health::Well && failed > 0 => {
                if !within(self.struck, STRIKES_WITHIN) {
                    (self.strikes, self.struck) = (0, Some(now));
                }
                self.strikes += 1;
                if self.strikes >= STRIKES { Err((Health::Failing, self.noticed)) } else { Ok(()) }
            }
            other => other,
        };
        match finding {
            Err((health, cause)) => {
                if self.health == Health::Well {
                    self.since = SystemTime::now();
                    if !within(self.taken_back, FORGIVEN) {
                        self.illnesses = 0;
                    }
                    self.illnesses += 1;
                    self.in_vain = 0;
                }
                (self.health, self.cause) = (health, cause);
                (self.fine_since, self.strikes) = (None, 0);
                self.next_look = Some(now + Duration::from_secs(1 << self.in_vain.min(4)).min(LOOK_AT_LEAST));
                self.in_vain += 1;
            }
            Ok(()) if self.health == Health::Well => {}
            Ok(()) => {
                self.in_vain = 0;
                self.next_look = None;
                if noticed > 0 {
                    // It is fine to us and to nobody else.
                    self.fine_since = None;
                }
                let since = *self.fine_since.get_or_insert(now);
                let quiet = QUIET.saturating_mul(1 << (self.illnesses.saturating_sub(1)).min(16));
                if now.duration_since(since) >= quiet.min(QUIET_AT_MOST) {
                    self.health = Health::Well;
                    self.since = SystemTime::now();
                    self.taken_back = Some(now);
                    self.fine_since = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
