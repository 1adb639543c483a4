//! The output of commands, as `docs/json.md` describes it: the fields that pages show. What is missing is unknown.

use canopy_control::OsText;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    pub pools: Vec<Pool>,
    #[serde(default)]
    pub unmounted: Vec<Unmounted>,
}

impl Status {
    pub fn pool(&self, mountpoint: &Path) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.mountpoint.to_path() == mountpoint)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Unmounted {
    pub name: Option<String>,
    pub mountpoint: Option<OsText>,
    pub described_in: OsText,
    pub fix: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Pool {
    pub mountpoint: OsText,
    pub source: OsText,
    pub state: String,
    pub error: Option<String>,
    pub version: Option<String>,
    pub pid: Option<u64>,
    pub transport: Option<String>,
    pub passthrough: Option<String>,
    #[serde(default)]
    pub options: Option<BTreeMap<String, String>>,
    pub branches: Vec<Branch>,
    #[serde(default)]
    pub disks: Vec<Disk>,
    #[serde(default)]
    pub tiering: Tiering,
    pub warnings: Vec<Warning>,
}

/// How a pool is, in one word. The warnings of `canopy status` decide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Health {
    Good,
    Attention,
    Problem,
}

impl Health {
    fn worst<'w>(warnings: impl Iterator<Item = &'w Warning>) -> Health {
        warnings.map(Warning::health).max().unwrap_or(Health::Good)
    }
}

impl Pool {
    pub fn health(&self) -> Health {
        Health::worst(self.warnings.iter())
    }

    /// How a branch is: the warnings about it decide.
    pub fn health_of(&self, branch: &Branch) -> Health {
        Health::worst(self.warnings.iter().filter(|warning| warning.branch.as_ref() == Some(&branch.path)))
    }

    /// Warnings, the worst first.
    pub fn warnings(&self) -> Vec<&Warning> {
        let mut warnings: Vec<&Warning> = self.warnings.iter().collect();
        warnings.sort_by_key(|warning| std::cmp::Reverse(warning.health()));
        warnings
    }

    /// Size and used space of all branches; branches on one filesystem count once.
    pub fn space(&self) -> Option<(u64, u64)> {
        let mut by_filesystem = BTreeMap::new();
        for branch in &self.branches {
            if let (Some(filesystem), Some(size), Some(used)) = (branch.filesystem, branch.size, branch.used)
            {
                by_filesystem.insert(filesystem, (size, used));
            }
        }
        by_filesystem.into_values().reduce(|(size, used), (more, also)| (size + more, used + also))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Branch {
    pub path: OsText,
    pub mode: Option<String>,
    pub min_free: Option<u64>,
    pub passes_through: Option<bool>,
    pub health: String,
    pub error: Option<String>,
    pub filesystem: Option<u64>,
    pub fstype: Option<String>,
    pub source: Option<OsText>,
    pub size: Option<u64>,
    pub used: Option<u64>,
    pub available: Option<u64>,
    #[serde(default)]
    pub disks: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Disk {
    pub name: String,
    pub model: Option<String>,
    pub serial: Option<String>,
    pub temperature: Option<i64>,
    pub hours: Option<u64>,
    pub verdict: String,
    #[serde(default)]
    pub findings: Vec<String>,
    #[serde(default)]
    pub asleep: bool,
    pub asked: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Tiering {
    pub tiers: Vec<Tier>,
    pub mover: Option<Mover>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Tier {
    pub name: String,
    pub size: u64,
    pub used: u64,
    pub mark: Option<u64>,
    #[serde(default)]
    pub move_when: Vec<String>,
    #[serde(default)]
    pub branches: Vec<OsText>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Mover {
    #[serde(default)]
    pub running: bool,
    #[serde(default)]
    pub state: serde_json::Value,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Warning {
    pub code: String,
    pub branch: Option<OsText>,
    /// Something is wrong; else it is advice.
    #[serde(default)]
    pub problem: bool,
    pub text: String,
    pub fix: String,
}

impl Warning {
    pub fn health(&self) -> Health {
        if self.problem { Health::Problem } else { Health::Attention }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct OptionHelp {
    pub name: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    #[serde(rename = "type")]
    pub accepts: Option<String>,
    pub default: Option<String>,
    #[serde(default)]
    pub runtime: bool,
    pub since: Option<String>,
    #[serde(default)]
    pub help: String,
    #[serde(default)]
    pub ignored: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Which {
    pub paths: Vec<WhichPath>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct WhichPath {
    pub path: OsText,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub differ: Vec<String>,
    pub copies: Vec<Copy>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Copy {
    pub branch: OsText,
    pub shown: Option<bool>,
    #[serde(default)]
    pub old: bool,
    #[serde(rename = "type")]
    pub kind: String,
    pub size: u64,
    pub used: u64,
    pub mtime: i64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Listing {
    pub branches: Vec<OsText>,
    pub entries: Vec<Entry>,
    /// There is more than was asked for.
    #[serde(default)]
    pub more: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    pub name: OsText,
    #[serde(rename = "type")]
    pub kind: String,
    pub size: u64,
    #[serde(default)]
    pub branches: Vec<usize>,
    #[serde(default)]
    pub differ: Vec<String>,
    /// Only branches hold it that are missing.
    #[serde(default)]
    pub missing: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Events {
    pub events: Vec<Event>,
}

/// Something that has begun, lasts, or is over.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    pub at: i64,
    pub phase: String,
    pub subject: Subject,
    pub severity: String,
    pub text: String,
    #[serde(default)]
    pub fix: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Subject {
    pub pool: String,
    #[serde(default)]
    pub branch: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Log {
    pub sources: Vec<LogSource>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LogSource {
    pub kind: String,
    pub file: Option<String>,
    pub lines: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Trash {
    pub kept: Vec<TrashEntry>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct TrashEntry {
    pub branch: OsText,
    pub path: OsText,
    pub removed: i64,
    pub user: Option<u32>,
    pub program: Option<String>,
    pub size: u64,
    pub used: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Jobs {
    #[serde(default)]
    pub watched: bool,
    pub pools: Vec<JobsOfPool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct JobsOfPool {
    pub mistake: Option<String>,
    #[serde(default)]
    pub jobs: Vec<Job>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Job {
    pub name: String,
    pub when: Option<String>,
    pub command: String,
    pub state: String,
    pub waits: Option<String>,
    pub overdue: Option<i64>,
    pub next: Option<i64>,
    pub last: Option<LastJob>,
    /// What the file says of it, by key.
    #[serde(default)]
    pub says: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LastJob {
    pub ended: Option<i64>,
    pub outcome: Option<String>,
    #[serde(default)]
    pub text: String,
}

/// Who is told of events.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Receivers {
    /// The file with those that can be changed here.
    pub file: String,
    pub receivers: Vec<Receiver>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Receiver {
    pub name: String,
    pub by: String,
    pub to: String,
    pub least: String,
    pub repeat: Option<String>,
    /// The file of this pool has it.
    pub pool: Option<String>,
    /// What the file says of it, by key, without what may be secret.
    #[serde(default)]
    pub says: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Doctor {
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Finding {
    pub code: String,
    pub level: String,
    pub text: String,
    pub fix: String,
    /// `canopy doctor --fix` can do it.
    #[serde(default)]
    pub fixable: bool,
}

/// What `canopy init` would do.
#[derive(Clone, Debug, Deserialize)]
pub struct Proposal {
    pub branches: Vec<String>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Du {
    pub branches: Vec<OsText>,
    pub directories: Vec<DuDirectory>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct DuDirectory {
    pub path: OsText,
    pub total: u64,
    pub by_branch: Vec<u64>,
}
