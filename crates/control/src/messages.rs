//! What is asked over the socket of a pool, and answered: one line of JSON each. The daemon speaks first: a [`Hello`].

use crate::metrics::MetricsReport;
use crate::read_cache::{AddedReport, CachedReport};
use crate::{ClosedReport, CopiesReport, OsText, PoolReport};
use serde::{Deserialize, Serialize};

/// The number of this form of messages. Whoever meets another one uses the control file.
pub const FORM: u32 = 1;
/// The longest question, in bytes: a value of the control file as numbers of bytes, and some more.
pub const LONGEST_QUERY: usize = 512 << 10;

/// The first line, by which each side knows that it speaks with the right one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub form: u32,
    /// The device of the pool, major and minor number.
    pub device: (u32, u32),
    /// The kernel says which process asks, so that the pool can be changed.
    pub changes: bool,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Query {
    Status,
    Metrics,
    /// Files that may lack copies, since this report.
    Closed(u64),
    /// What the branches hold under these paths of the pool, and which copies of each file are up to date.
    Copies(Vec<OsText>),
    /// The listed keys.
    Keys,
    Get(String),
    /// The tiers and rules in force.
    Placement,
    Set {
        key: String,
        value: OsText,
    },
    Command(String),
    /// Forget what a missing branch held.
    Forget(OsText),
    /// The copies that read caches have.
    Cached,
    /// Have these paths of the pool copied to a read cache. Asked again until they are, or are refused.
    CacheAdd(Vec<OsText>),
    /// Remove the copies of these paths, or all.
    CacheDrop(Option<Vec<OsText>>),
}

impl Query {
    /// Returns whether it may change the pool, so that it must not be asked twice.
    #[must_use]
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Query::Set { .. }
                | Query::Command(_)
                | Query::Forget(_)
                | Query::CacheAdd(_)
                | Query::CacheDrop(_)
        )
    }

    /// Returns whether only administrators get an answer.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.changes() || matches!(self, Query::Closed(_) | Query::Copies(_) | Query::Cached)
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Status(Box<PoolReport>),
    Metrics(Box<MetricsReport>),
    Closed(ClosedReport),
    /// In the order of the paths.
    Copies(Vec<CopiesReport>),
    Keys(Vec<String>),
    Value(OsText),
    Placement(PlacementReport),
    Cached(Vec<CachedReport>),
    /// In the order of the paths.
    CacheAdded(Vec<AddedReport>),
    /// How many files, and the bytes that they took.
    CacheDropped(u64, u64),
    Done,
}

/// What the daemon says: an answer, or the errno that the control file would give.
pub type Reply = Result<Answer, i32>;

/// All tiers and rules, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PlacementReport {
    pub tiers: Vec<TierReport>,
    pub rules: Vec<RuleReport>,
}

/// Branches that get new files before those of the tiers after it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TierReport {
    pub name: String,
    /// Globs.
    pub branches: Vec<String>,
    pub move_when: Vec<MoveWhenReport>,
}

/// When files leave a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveWhenReport {
    /// In per cent.
    Fuller {
        than: u8,
        until: u8,
    },
    OlderSeconds(u64),
    LargerBytes(u64),
    EveryNight {
        hour: u8,
        minute: u8,
    },
}

/// Where files of some paths belong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleReport {
    /// A glob.
    pub path: String,
    pub target: TargetReport,
    pub copies: Option<u8>,
    /// Writes go to all copies at once.
    #[serde(default)]
    pub written: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetReport {
    Anywhere,
    /// Globs.
    Branches(Vec<String>),
    Tier(String),
}
