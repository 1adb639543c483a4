//! Writes what was seen of pools in the OpenMetrics text format, version 1.0.0.

use crate::families::{self, ALL, Family};
use crate::observe::{BranchObservation, Observation};
use canopy_branch::branch::state::BranchState;
use canopy_control::metrics::{MetricsReport, OperationReport, TrafficReport};
use canopy_control::{BranchReport, OsText, ReadCacheReport};
use std::fmt::{Display, Write as _};
use std::time::Duration;

/// The samples of all metrics, each with the others of its metric.
struct Exposition {
    /// In the order of [`ALL`].
    samples: Vec<String>,
}

/// Labels of a sample: names and values.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// Returns what was seen of pools, as text.
pub(crate) fn text(observations: &[Observation]) -> String {
    let mut exposition = Exposition { samples: vec![String::new(); ALL.len()] };
    observations.iter().for_each(|one| exposition.pool(one));
    exposition.finish()
}

impl Exposition {
    fn add(&mut self, family: &Family, suffix: &str, labels: Labels<'_>, value: impl Display) {
        let Some(index) = ALL.iter().position(|known| known.name == family.name) else { return };
        let text = &mut self.samples[index];
        text.push_str(family.name);
        text.push_str(suffix);
        for (number, (name, value)) in labels.iter().enumerate() {
            let _ = write!(text, "{}{name}=\"{}\"", if number == 0 { '{' } else { ',' }, escaped(value));
        }
        let _ = writeln!(text, "}} {value}");
    }

    /// Adds the only sample of a metric with these labels.
    fn one(&mut self, family: &Family, labels: Labels<'_>, value: impl Display) {
        self.add(family, family.kind.suffixes()[0], labels, value);
    }

    fn finish(self) -> String {
        let mut text = String::new();
        for (family, samples) in ALL.iter().zip(self.samples).filter(|(_, samples)| !samples.is_empty()) {
            let Family { name, help, .. } = family;
            let _ = writeln!(text, "# TYPE {name} {}", family.kind.word());
            if let Some(unit) = family.unit() {
                let _ = writeln!(text, "# UNIT {name} {unit}");
            }
            let _ = writeln!(text, "# HELP {name} {help}");
            text.push_str(&samples);
        }
        text.push_str("# EOF\n");
        text
    }

    fn pool(&mut self, seen: &Observation) {
        let pool = text_of(&OsText::from(seen.mountpoint.as_path()));
        let own: Labels<'_> = &[("pool", &pool)];
        self.one(&families::UP, own, u8::from(seen.daemon.is_some()));
        let Some(daemon) = &seen.daemon else { return };
        let report = &daemon.pool;
        let info: Labels<'_> = &[
            ("pool", &pool),
            ("version", &report.version),
            ("transport", &report.transport),
            ("protocol", &report.kernel.protocol),
        ];
        self.one(&families::POOL, info, 1);
        for (branch, seen) in report.branches.iter().zip(&seen.branches) {
            self.branch(&pool, branch, seen);
        }
        for disk in &report.disks {
            let own: Labels<'_> = &[("pool", &pool), ("disk", &disk.name)];
            self.one(&families::DISK_IDLE, own, crate::sleep::idle(disk));
            self.one(&families::DISK_WAKES, own, disk.woken);
        }
        if let Some(catalogue) = &report.catalogue {
            self.one(&families::CATALOGUE_DIRECTORIES, own, catalogue.directories);
            self.one(&families::CATALOGUE_BYTES, own, catalogue.bytes);
            for (from, answers) in [("catalogue", catalogue.answered), ("branches", catalogue.asked)] {
                self.one(&families::CATALOGUE_ANSWERS, &[("pool", &pool), ("from", from)], answers);
            }
        }
        report.read_caches.iter().for_each(|cache| self.read_cache(&pool, cache));
        if let Some(process) = seen.process {
            self.one(&families::MEMORY, own, process.resident_bytes);
            self.one(&families::CPU, own, seconds(process.cpu));
        }
        if let Some(survival) = &report.survival {
            self.one(&families::TAKEOVERS, own, survival.takeovers);
            self.one(&families::TAKEOVER_PAUSE, own, survival.longest_pause_ms / 1e3);
        }
        if let Some(metrics) = &daemon.metrics {
            self.metrics(&pool, metrics);
        }
    }

    fn branch(&mut self, pool: &str, branch: &BranchReport, seen: &BranchObservation) {
        let path = text_of(&branch.path);
        let own: Labels<'_> = &[("pool", pool), ("branch", &path)];
        let state = branch.state();
        for one in BranchState::ALL {
            let labels = [own, &[(families::CONDITION.name, one.word())]].concat();
            self.one(&families::CONDITION, &labels, u8::from(one == state));
        }
        let waiting = branch.waits.as_ref().map_or(0, |waits| waits.requests);
        self.one(&families::WAITING, own, waiting);
        self.one(&families::PASSTHROUGH, own, u8::from(branch.passes_through));
        self.one(&families::MIN_FREE, own, branch.min_free);
        if let Some(space) = &seen.space {
            self.one(&families::SIZE, own, space.size);
            self.one(&families::AVAILABLE, own, space.available);
            if space.inodes > 0 {
                self.one(&families::INODES, own, space.inodes);
                self.one(&families::INODES_FREE, own, space.inodes_free);
            }
        }
        for disk in &seen.disks {
            let labels = [own, &[("disk", &*disk.name)]].concat();
            self.one(&families::DISK_READ_BYTES, &labels, disk.read_bytes);
            self.one(&families::DISK_WRITTEN_BYTES, &labels, disk.written_bytes);
            self.one(&families::DISK_BUSY, &labels, seconds(disk.busy));
        }
    }

    fn read_cache(&mut self, pool: &str, cache: &ReadCacheReport) {
        let path = text_of(&cache.path);
        let own: Labels<'_> = &[("pool", pool), ("cache", &path)];
        self.one(&families::READ_CACHE_FILES, own, cache.files);
        self.one(&families::READ_CACHE_BYTES, own, cache.bytes);
        for (result, opens, bytes) in
            [("hit", cache.hits, cache.hit_bytes), ("miss", cache.misses, cache.missed_bytes)]
        {
            let labels = [own, &[("result", result)]].concat();
            self.one(&families::READ_CACHE_OPENS, &labels, opens);
            self.one(&families::READ_CACHE_OPENED_BYTES, &labels, bytes);
        }
        self.one(&families::READ_CACHE_READ_BYTES, own, cache.read_bytes);
    }

    fn metrics(&mut self, pool: &str, metrics: &MetricsReport) {
        let own: Labels<'_> = &[("pool", pool)];
        self.one(&families::START, own, metrics.started);
        for operation in &metrics.operations {
            self.operation(pool, operation, &metrics.bounds);
        }
        for (&errno, count) in &metrics.errors {
            self.one(&families::ERRORS, &[("pool", pool), ("errno", &errno_name(errno))], count);
        }
        metrics.branches.iter().for_each(|branch| self.traffic(pool, branch));
        let (requests, caches, moves) = (&metrics.requests, &metrics.caches, &metrics.moves);
        for (family, value) in [
            (&families::UNDER_WAY, requests.under_way),
            (&families::IN_LINE, requests.in_line),
            (&families::WORKERS, requests.workers),
            (&families::LOW_WORKERS, requests.low_priority_workers),
            (&families::STUCK_WORKERS, requests.stuck),
            (&families::OPEN_FILES, caches.open_files),
            (&families::KNOWN_NODES, caches.known_nodes),
            (&families::KNOWN_NODES_LIMIT, caches.known_nodes_limit),
            (&families::CACHED_DIRECTORIES, caches.directories),
            (&families::CACHED_NAMES, caches.names),
            (&families::MOVES_UNDER_WAY, moves.under_way),
        ] {
            self.one(family, own, value);
        }
        self.one(&families::MOVED_FILES, own, moves.files);
        self.one(&families::MOVED_BYTES, own, moves.bytes);
    }

    fn operation(&mut self, pool: &str, operation: &OperationReport, bounds: &[u64]) {
        let own: Labels<'_> = &[("pool", pool), ("operation", &operation.name)];
        self.one(&families::OPERATIONS, own, operation.answered);
        self.one(&families::OPERATION_ERRORS, own, operation.failed);
        self.one(&families::SLOW_OPERATIONS, own, operation.slow);
        let bounds = bounds.iter().map(|&bound| seconds(Duration::from_nanos(bound)).to_string());
        let mut so_far = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&operation.buckets) {
            so_far += count;
            self.add(&families::DURATION, "_bucket", &[own, &[("le", &*bound)]].concat(), so_far);
        }
        self.add(&families::DURATION, "_sum", own, seconds(Duration::from_nanos(operation.nanoseconds)));
        self.add(&families::DURATION, "_count", own, so_far);
    }

    fn traffic(&mut self, pool: &str, branch: &TrafficReport) {
        let path = text_of(&branch.path);
        for (family, way, count) in [
            (&families::OPENS, "daemon", branch.opens),
            (&families::OPENS, "passthrough", branch.passed_opens),
            (&families::READS, "daemon", branch.reads),
            (&families::READ_BYTES, "daemon", branch.read_bytes),
            (&families::WRITES, "daemon", branch.writes),
            (&families::WRITTEN_BYTES, "daemon", branch.written_bytes),
        ] {
            self.one(family, &[("pool", pool), ("branch", &path), ("way", way)], count);
        }
    }
}

fn text_of(path: &OsText) -> String {
    path.one_line()
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// Returns the value of a label, as it stands between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the name of an errno, such as `ENOENT`.
fn errno_name(errno: i32) -> String {
    match nix::errno::Errno::from_raw(errno) {
        nix::errno::Errno::UnknownErrno => "other".to_owned(),
        known => format!("{known:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Kind;
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::Instant;

    fn observation(mountpoint: &str) -> Observation {
        Observation {
            mountpoint: Path::new(mountpoint).to_owned(),
            at: Instant::now(),
            daemon: None,
            branches: Vec::new(),
            process: None,
        }
    }

    #[test]
    fn pools_that_do_not_answer_are_down() {
        let text = text(&[observation("/a"), observation("/b \"c\\\n")]);
        let expected = "# TYPE canopy_up gauge\n# HELP canopy_up 1 if the daemon of the pool answers, else 0.\n\
                        canopy_up{pool=\"/a\"} 0\ncanopy_up{pool=\"/b \\\"c\\\\\\\\n\"} 0\n# EOF\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn buckets_of_a_histogram_are_cumulative() {
        let mut exposition = Exposition { samples: vec![String::new(); ALL.len()] };
        let operation = OperationReport {
            name: "read".into(),
            answered: 50,
            timed: 6,
            nanoseconds: 1_500_000_000,
            buckets: vec![1, 2, 3],
            ..OperationReport::default()
        };
        exposition.operation("/p", &operation, &[10_000, 1_000_000_000]);
        let text = exposition.finish();
        let histogram: Vec<&str> =
            text.lines().filter(|line| line.starts_with("canopy_operation_d")).collect();
        let own = "pool=\"/p\",operation=\"read\"";
        let expected = [
            format!("canopy_operation_duration_seconds_bucket{{{own},le=\"0.00001\"}} 1"),
            format!("canopy_operation_duration_seconds_bucket{{{own},le=\"1\"}} 3"),
            format!("canopy_operation_duration_seconds_bucket{{{own},le=\"+Inf\"}} 6"),
            format!("canopy_operation_duration_seconds_sum{{{own}}} 1.5"),
            format!("canopy_operation_duration_seconds_count{{{own}}} 6"),
        ];
        assert_eq!(histogram, expected);
        assert!(text.contains("# UNIT canopy_operation_duration_seconds seconds\n"));
        assert!(text.contains(&format!("\ncanopy_operations_total{{{own}}} 50\n")));
    }

    #[test]
    fn errors_have_their_names() {
        let errors = BTreeMap::from([(0, 1_u64), (2, 7), (133, 3)]);
        let metrics = MetricsReport { errors, ..MetricsReport::default() };
        let mut exposition = Exposition { samples: vec![String::new(); ALL.len()] };
        exposition.metrics("/p", &metrics);
        let text = exposition.finish();
        for (errno, count) in [("other", 1), ("ENOENT", 7), ("EHWPOISON", 3)] {
            let sample = format!("canopy_errors_total{{pool=\"/p\",errno=\"{errno}\"}} {count}\n");
            assert!(text.contains(&sample), "{text}");
        }
    }

    #[test]
    fn every_sample_has_the_labels_of_its_metric() {
        let branch = |path: &str| TrafficReport {
            path: OsText::Text(path.into()),
            reads: 1,
            read_bytes: 2,
            writes: 3,
            written_bytes: 4,
            opens: 5,
            passed_opens: 6,
        };
        let metrics = MetricsReport {
            operations: vec![OperationReport { buckets: vec![0; 2], ..OperationReport::default() }],
            bounds: vec![1],
            errors: BTreeMap::from([(2, 1)]),
            branches: vec![branch("/a"), branch("/b")],
            ..MetricsReport::default()
        };
        let mut exposition = Exposition { samples: vec![String::new(); ALL.len()] };
        exposition.metrics("/p", &metrics);
        exposition.read_cache("/p", &ReadCacheReport::default());
        for (family, samples) in ALL.iter().zip(exposition.samples) {
            for sample in samples.lines() {
                let labels = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}')).unwrap().0;
                let names: Vec<&str> =
                    labels.split(',').filter_map(|one| Some(one.split_once('=')?.0)).collect();
                let own = [&["pool"], family.labels].concat();
                let is_bucket = family.kind == Kind::Histogram && names.last() == Some(&"le");
                assert_eq!(&names[..names.len() - usize::from(is_bucket)], own, "{sample}");
            }
        }
    }
}
