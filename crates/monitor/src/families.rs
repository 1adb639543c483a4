//! The metrics: their names, types, labels and meanings, in the order in which they are printed.

/// The type of a metric, in the words of OpenMetrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Gauge,
    Counter,
    Histogram,
    Info,
    StateSet,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
            Kind::StateSet => "stateset",
        }
    }

    /// What the names of its samples add to that of the metric.
    pub fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Gauge | Kind::StateSet => &[""],
            Kind::Counter => &["_total"],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
            Kind::Info => &["_info"],
        }
    }
}

/// A metric.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    /// The labels of its samples, besides `pool`.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Family {
    /// The unit, which is the last word of the name.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(&format!("_{unit}")))
    }
}

macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(crate) const $constant: Family =
            Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)+

        /// All metrics.
        pub const ALL: &[Family] = &[$($constant),+];
    };
}

families! {
    UP: Gauge "canopy_up" []
        "1 if the daemon of the pool answers, else 0.";
    POOL: Info "canopy_pool" ["version", "transport", "protocol"]
        "The version of the daemon, how requests reach it, and the version of the FUSE protocol.";
    START: Gauge "canopy_start_time_seconds" []
        "When the process that serves the pool began. Counters begin with it.";
    OPERATIONS: Counter "canopy_operations" ["operation"]
        "Requests of the kernel that were answered.";
    OPERATION_ERRORS: Counter "canopy_operation_errors" ["operation"]
        "Requests that were answered with an error. Some are ordinary, such as ENOENT for a lookup.";
    SLOW_OPERATIONS: Counter "canopy_slow_operations" ["operation"]
        "Requests that took longer than about 30 ms, all of them.";
    DURATION: Histogram "canopy_operation_duration_seconds" ["operation"]
        "How long requests took in the daemon. One request in 16 is timed, chosen by chance.";
    ERRORS: Counter "canopy_errors" ["errno"]
        "Requests that were answered with an error, by its name.";
    UNDER_WAY: Gauge "canopy_requests_under_way" []
        "Requests that have a worker and no answer yet.";
    IN_LINE: Gauge "canopy_requests_in_line" []
        "Requests that wait without a worker for a branch that many are stuck in.";
    WORKERS: Gauge "canopy_workers" []
        "Threads that take requests.";
    LOW_WORKERS: Gauge "canopy_workers_low_priority" []
        "Workers that run only while their processor has nothing else to do.";
    STUCK_WORKERS: Gauge "canopy_workers_stuck" []
        "Workers that have been in one request for longer than about 30 ms.";
    CONDITION: StateSet "canopy_branch_condition" ["branch"]
        "The condition of the branch: 1 for the one that it is in, 0 for the others.";
    WAITING: Gauge "canopy_branch_waiting_requests" ["branch"]
        "Requests that wait for the branch because it does not answer well.";
    PASSTHROUGH: Gauge "canopy_branch_passthrough" ["branch"]
        "1 if files on the branch can be passed through, else 0.";
    OPENS: Counter "canopy_branch_opens" ["branch", "way"]
        "Opens of files on the branch, by the way that their data goes: passthrough or daemon.";
    READS: Counter "canopy_branch_reads" ["branch", "way"]
        "Reads by the daemon. Those by passthrough do not come to it and cannot be counted.";
    READ_BYTES: Counter "canopy_branch_read_bytes" ["branch", "way"]
        "Bytes that the daemon has read from the branch for clients.";
    WRITES: Counter "canopy_branch_writes" ["branch", "way"]
        "Writes by the daemon. Those by passthrough do not come to it and cannot be counted.";
    WRITTEN_BYTES: Counter "canopy_branch_written_bytes" ["branch", "way"]
        "Bytes that the daemon has written to the branch for clients.";
    SIZE: Gauge "canopy_branch_size_bytes" ["branch"]
        "The size of the branch's filesystem.";
    AVAILABLE: Gauge "canopy_branch_available_bytes" ["branch"]
        "The space that users can still fill.";
    MIN_FREE: Gauge "canopy_branch_min_free_bytes" ["branch"]
        "The minfreespace of the branch: with less free space it gets no new files.";
    INODES: Gauge "canopy_branch_inodes" ["branch"]
        "The inodes of the branch's filesystem, if it counts them.";
    INODES_FREE: Gauge "canopy_branch_inodes_free" ["branch"]
        "The inodes that users can still take, if the filesystem counts them.";
    DISK_READ_BYTES: Counter "canopy_disk_read_bytes" ["branch", "disk"]
        "Bytes read from a disk of the branch by all programs, passthrough included, as the kernel counts them.";
    DISK_WRITTEN_BYTES: Counter "canopy_disk_written_bytes" ["branch", "disk"]
        "Bytes written to a disk of the branch by all programs, passthrough included, as the kernel counts them.";
    DISK_BUSY: Counter "canopy_disk_busy_seconds" ["branch", "disk"]
        "How long a disk of the branch had requests to answer.";
    DISK_IDLE: Gauge "canopy_disk_idle_seconds" ["disk"]
        "How long the disk has had nothing to do, as seen every 20 seconds.";
    DISK_WAKES: Counter "canopy_disk_wakes" ["disk"]
        "How often the disk was used again after it had had nothing to do for five minutes.";
    OPEN_FILES: Gauge "canopy_open_files" []
        "Files that clients have open.";
    KNOWN_NODES: Gauge "canopy_known_nodes" []
        "Files and directories that the kernel knows.";
    KNOWN_NODES_LIMIT: Gauge "canopy_known_nodes_limit" []
        "How many of them the kernel may know (cache.memory).";
    CACHED_DIRECTORIES: Gauge "canopy_cached_directories" []
        "Directories of which the daemon knows which branches have which names.";
    CACHED_NAMES: Gauge "canopy_cached_names" []
        "The names in these directories.";
    CATALOGUE_DIRECTORIES: Gauge "canopy_catalogue_directories" []
        "Directories that are known without reading the branches (catalogue).";
    CATALOGUE_BYTES: Gauge "canopy_catalogue_bytes" []
        "The space that this takes in the file of the catalogue.";
    CATALOGUE_ANSWERS: Counter "canopy_catalogue_answers" ["from"]
        "Questions about names and attributes, by who has answered them: the catalogue or the branches.";
    READ_CACHE_FILES: Gauge "canopy_read_cache_files" ["cache"]
        "Copies in a directory of a read cache.";
    READ_CACHE_BYTES: Gauge "canopy_read_cache_bytes" ["cache"]
        "The space that they take.";
    READ_CACHE_OPENS: Counter "canopy_read_cache_opens" ["cache", "result"]
        "Opens of files of a read cache: hit if the file was read from a copy there, else miss.";
    READ_CACHE_OPENED_BYTES: Counter "canopy_read_cache_opened_bytes" ["cache", "result"]
        "The sizes of these files.";
    READ_CACHE_READ_BYTES: Counter "canopy_read_cache_read_bytes" ["cache"]
        "Bytes that clients have read from copies there.";
    MEMORY: Gauge "canopy_resident_memory_bytes" []
        "The memory of the process that serves the pool.";
    CPU: Counter "canopy_cpu_seconds" []
        "The processor time of the process that serves the pool.";
    TAKEOVERS: Counter "canopy_takeovers" []
        "How often another process has taken over from one that died (survive).";
    TAKEOVER_PAUSE: Gauge "canopy_takeover_longest_pause_seconds" []
        "The longest time that nobody served the pool between two processes.";
    MOVED_FILES: Counter "canopy_moved_files" []
        "Files that have moved to another branch.";
    MOVED_BYTES: Counter "canopy_moved_bytes" []
        "The space that they take.";
    MOVES_UNDER_WAY: Gauge "canopy_moves_under_way" []
        "Files that are being moved or copied to another branch.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_rules_of_openmetrics() {
        let mut names = BTreeSet::new();
        for family in ALL {
            let name = family.name;
            assert!(name.starts_with("canopy_") && names.insert(name), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(!["_total", "_info", "_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)));
            assert!(family.help.ends_with('.') && !family.help.contains(['\n', '\\', '"']), "{name}");
        }
    }
}
