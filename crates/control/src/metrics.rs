//! What the daemon of a pool counts: the JSON of [`METRICS`](super::METRICS).
//!
//! Counters begin with the process and never decrease while it lives.

use super::OsText;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MetricsReport {
    /// When the process that serves the pool began, in seconds since the epoch.
    pub started: u64,
    /// The kinds of operations that were answered.
    pub operations: Vec<OperationReport>,
    /// How often an operation was answered with each errno. 0 stands for those that are not known.
    pub errors: BTreeMap<i32, u64>,
    /// The upper bounds of [`OperationReport::buckets`], in nanoseconds. The last bucket has none.
    pub bounds: Vec<u64>,
    pub requests: RequestsReport,
    pub branches: Vec<TrafficReport>,
    pub caches: CachesReport,
    pub moves: MovesReport,
}

/// One kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReport {
    /// The kernel's name in lower case, such as `lookup`.
    pub name: String,
    pub answered: u64,
    /// How many of them with an error.
    pub failed: u64,
    /// How many took longer than about 30 ms.
    pub slow: u64,
    /// How many were timed: some, chosen by chance.
    pub timed: u64,
    /// How long those took in all.
    pub nanoseconds: u64,
    /// How many of those took at most as long as each bound but longer than the one before, and how many longer than all.
    pub buckets: Vec<u64>,
}

/// The requests of this moment, and their workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RequestsReport {
    pub workers: usize,
    /// How many of the workers run only while their processor has nothing else to do.
    pub low_priority_workers: usize,
    /// Requests that have a worker and no answer yet.
    pub under_way: usize,
    /// Workers that have been in one request for a while.
    pub stuck: usize,
    /// Requests that wait for a branch without a worker.
    pub in_line: usize,
}

/// What the daemon has done on a branch. What passthrough carries is not in it, but that its files were opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrafficReport {
    pub path: OsText,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    /// Opens of files whose data the daemon reads and writes.
    pub opens: u64,
    /// Opens of files whose data the kernel reads and writes by passthrough.
    pub passed_opens: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CachesReport {
    /// Files and directories that the kernel knows, and how many of them it may know (`cache.memory`).
    pub known_nodes: usize,
    pub known_nodes_limit: usize,
    pub open_files: usize,
    /// Directories whose names are known by branch, and these names.
    pub directories: usize,
    pub names: usize,
}

/// Files that have moved to another branch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MovesReport {
    pub files: u64,
    /// The space that they take.
    pub bytes: u64,
    pub under_way: usize,
}
