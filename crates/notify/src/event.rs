//! What there is to tell.

use serde::{Deserialize, Serialize};

/// How much something matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Something happened, and all is well.
    Notice,
    /// Nothing is lost or missing yet.
    Warning,
    /// Files or a place for new ones are missing.
    Problem,
}

impl Severity {
    pub(crate) const WORDS: [(&str, Severity); 3] =
        [("notice", Severity::Notice), ("warning", Severity::Warning), ("problem", Severity::Problem)];

    pub(crate) fn word(self) -> &'static str {
        Severity::WORDS.iter().find(|(_, severity)| *severity == self).map_or("", |(word, _)| word)
    }
}

/// What tells a condition from others: as long as it is seen, it is the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Subject {
    /// The mountpoint, or the name of one that is not mounted.
    pub pool: String,
    /// As in `canopy status --json`.
    pub code: String,
    /// The branch or the job, or nothing if it is about the pool.
    pub branch: String,
}

/// Something that lasts: it begins and ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Condition {
    pub subject: Subject,
    pub severity: Severity,
    pub text: String,
    /// What to do.
    pub fix: String,
}

/// Something that has happened so many times, of which nothing remains to be seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    pub subject: Subject,
    pub count: u64,
    pub text: String,
}

/// One look at all pools.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    pub conditions: Vec<Condition>,
    pub counters: Vec<Counter>,
}

/// What has become of a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Begins,
    /// Since a day, or since it was told last.
    Lasts,
    Ends,
    /// It was over before it was told.
    Brief,
    /// It has happened, and does not last.
    Happened,
}

impl Phase {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Phase::Begins => "begins",
            Phase::Lasts => "lasts",
            Phase::Ends => "is over",
            Phase::Brief => "was brief",
            Phase::Happened => "has happened",
        }
    }

    /// There is still something to do.
    pub(crate) fn needs_fix(self) -> bool {
        matches!(self, Phase::Begins | Phase::Lasts)
    }
}

/// One thing that a message tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    pub phase: Phase,
    #[serde(flatten)]
    pub condition: Condition,
    /// When it began or happened, in seconds since 1970.
    pub since: i64,
    /// It has begun several times within the last hour.
    #[serde(default)]
    pub comes_and_goes: bool,
}

impl Event {
    pub(crate) fn severity(&self) -> Severity {
        match self.phase {
            Phase::Ends | Phase::Happened => Severity::Notice,
            Phase::Begins | Phase::Lasts | Phase::Brief => self.condition.severity,
        }
    }
}
