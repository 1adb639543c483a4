//! What has happened between looks at a pool.

use crate::observe::{Disk, Observation};
use canopy_branch::branch::state::BranchState;
use canopy_control::metrics::{MetricsReport, OperationReport, TrafficReport};
use std::collections::VecDeque;
use std::time::Duration;

/// How many looks are kept. Rates are those since the last but one; times are of all of them, because only some requests
/// are timed.
const KEPT: usize = 11;

/// For how many looks the number of operations is remembered.
const REMEMBERED: usize = 120;

#[derive(Default)]
pub(super) struct History {
    looks: VecDeque<Observation>,
    /// Operations per second, the newest last.
    speeds: Vec<f64>,
}

/// What an operation has done.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct OperationRate {
    pub(super) name: String,
    pub(super) answered: u64,
    pub(super) slow: u64,
    /// `None` after the first look.
    pub(super) per_second: Option<f64>,
    pub(super) errors_per_second: Option<f64>,
    pub(super) times: Option<Times>,
}

/// How long requests took that were timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Times {
    pub(super) average: Duration,
    /// 99 of 100 took at most this long; `None` if that is longer than the last bound.
    pub(super) most: Option<Duration>,
}

/// What has happened on a branch, each second.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct BranchRate {
    pub(super) path: String,
    pub(super) condition: BranchState,
    pub(super) available: Option<u64>,
    /// The share of its space that users cannot fill any more.
    pub(super) used: Option<f64>,
    /// Opens, reads and writes that came to the daemon.
    pub(super) operations: Option<f64>,
    pub(super) read_bytes: Option<f64>,
    pub(super) written_bytes: Option<f64>,
    /// What its disks have done for all programs. `None` for a branch without a disk.
    pub(super) disk_read_bytes: Option<f64>,
    pub(super) disk_written_bytes: Option<f64>,
    /// The share of the time that the busiest of them was busy.
    pub(super) busy: Option<f64>,
}

impl History {
    pub(super) fn add(&mut self, observation: Observation) {
        self.looks.push_back(observation);
        if self.looks.len() > KEPT {
            self.looks.pop_front();
        }
        let rates = self.operations().into_iter().map(|operation| operation.per_second);
        if let Some(speed) = rates.sum::<Option<f64>>().filter(|_| self.looks.len() > 1) {
            self.speeds.push(speed);
        }
        if self.speeds.len() > REMEMBERED {
            self.speeds.remove(0);
        }
    }

    /// Returns how many operations there were in each second, the newest last.
    pub(super) fn speeds(&self) -> &[f64] {
        &self.speeds
    }

    pub(super) fn last(&self) -> Option<&Observation> {
        self.looks.back()
    }

    /// Returns the last look and the one before.
    fn last_two(&self) -> Option<(&Observation, Option<&Observation>)> {
        let before = self.looks.len().checked_sub(2).and_then(|index| self.looks.get(index));
        Some((self.looks.back()?, before))
    }

    /// Returns what operations have done, the most frequent first.
    pub(super) fn operations(&self) -> Vec<OperationRate> {
        let Some((now, before)) = self.last_two() else { return Vec::new() };
        let Some(metrics) = metrics_of(now) else { return Vec::new() };
        let since = before.and_then(|before| Some((elapsed(before, now), metrics_of(before)?)));
        let oldest = self.looks.iter().find_map(metrics_of);
        let rate = |now: &OperationReport| {
            let more = |count: fn(&OperationReport) -> u64| {
                let (seconds, before) = since?;
                Some(grown(count(now), find(before, &now.name).map_or(0, count)) as f64 / seconds)
            };
            OperationRate {
                name: now.name.clone(),
                answered: now.answered,
                slow: now.slow,
                per_second: more(|operation| operation.answered),
                errors_per_second: more(|operation| operation.failed),
                times: times(now, oldest.and_then(|oldest| find(oldest, &now.name)), &metrics.bounds),
            }
        };
        let mut rates: Vec<OperationRate> = metrics.operations.iter().map(rate).collect();
        let frequency = |rate: &OperationRate| (rate.per_second.unwrap_or_default(), rate.answered as f64);
        rates.sort_by(|a, b| {
            frequency(b)
                .partial_cmp(&frequency(a))
                .unwrap_or(std::cmp::Ordering::Equal)
                .then(a.name.cmp(&b.name))
        });
        rates
    }

    /// Returns what has happened on branches, in their order.
    pub(super) fn branches(&self) -> Vec<BranchRate> {
        let Some((now, before)) = self.last_two() else { return Vec::new() };
        let Some(daemon) = &now.daemon else { return Vec::new() };
        let seconds = before.map(|before| elapsed(before, now));
        let branches = daemon.pool.branches.iter().zip(&now.branches);
        branches
            .map(|(branch, seen)| {
                let traffic = |of: &Observation| {
                    metrics_of(of)?.branches.iter().find(|traffic| traffic.path == branch.path).cloned()
                };
                let (there, here) = (before.and_then(traffic), traffic(now));
                let more = |count: fn(&TrafficReport) -> u64| {
                    let (there, here) = (there.as_ref()?, here.as_ref()?);
                    Some(grown(count(here), count(there)) as f64 / seconds?)
                };
                let disks_before = before.and_then(|before| disks_of(before, &branch.path.to_path()));
                let pairs = pairs(&seen.disks, disks_before);
                let disk = |count: fn(&Disk) -> u64| {
                    let sum = |(now, before): &(&Disk, &Disk)| grown(count(now), count(before));
                    (!pairs.is_empty())
                        .then(|| pairs.iter().map(sum).sum::<u64>() as f64 / seconds.unwrap_or(1.0))
                };
                let share = |(now, before): &(&Disk, &Disk)| {
                    now.busy.saturating_sub(before.busy).as_secs_f64() / seconds.unwrap_or(1.0)
                };
                BranchRate {
                    path: branch.path.one_line(),
                    condition: branch.state(),
                    available: seen.space.as_ref().map(|space| space.available),
                    used: seen
                        .space
                        .as_ref()
                        .filter(|space| space.size > 0)
                        .map(|space| space.size.saturating_sub(space.available) as f64 / space.size as f64),
                    operations: more(|traffic| {
                        traffic.opens + traffic.passed_opens + traffic.reads + traffic.writes
                    }),
                    read_bytes: more(|traffic| traffic.read_bytes),
                    written_bytes: more(|traffic| traffic.written_bytes),
                    disk_read_bytes: disk(|disk| disk.read_bytes),
                    disk_written_bytes: disk(|disk| disk.written_bytes),
                    busy: pairs.iter().map(share).reduce(f64::max).map(|share| share.min(1.0)),
                }
            })
            .collect()
    }
}

fn metrics_of(observation: &Observation) -> Option<&MetricsReport> {
    observation.daemon.as_ref()?.metrics.as_ref()
}

fn find<'a>(metrics: &'a MetricsReport, name: &str) -> Option<&'a OperationReport> {
    metrics.operations.iter().find(|operation| operation.name == name)
}

fn disks_of<'a>(observation: &'a Observation, path: &std::path::Path) -> Option<&'a [Disk]> {
    let branches = &observation.daemon.as_ref()?.pool.branches;
    let index = branches.iter().position(|branch| branch.path.to_path() == path)?;
    observation.branches.get(index).map(|seen| &*seen.disks)
}

/// Returns the disks that were seen both times.
fn pairs<'a>(now: &'a [Disk], before: Option<&'a [Disk]>) -> Vec<(&'a Disk, &'a Disk)> {
    let before = before.unwrap_or_default();
    now.iter().filter_map(|disk| Some((disk, before.iter().find(|other| other.name == disk.name)?))).collect()
}

fn elapsed(before: &Observation, now: &Observation) -> f64 {
    now.at.saturating_duration_since(before.at).as_secs_f64().max(0.001)
}

/// Returns how much a counter has grown. One that is smaller than before has begun again.
fn grown(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// Returns how long those took that were timed since `before`.
fn times(now: &OperationReport, before: Option<&OperationReport>, bounds: &[u64]) -> Option<Times> {
    let none = OperationReport::default();
    let before =
        before.filter(|before| before.timed <= now.timed && !std::ptr::eq(*before, now)).unwrap_or(&none);
    let timed = now.timed - before.timed;
    let nanoseconds = now.nanoseconds.saturating_sub(before.nanoseconds).checked_div(timed)?;
    let counts = (0..)
        .zip(&now.buckets)
        .map(|(index, &count)| count.saturating_sub(before.buckets.get(index).copied().unwrap_or(0)));
    let (mut so_far, wanted) = (0, timed - timed / 100);
    let bucket = counts.into_iter().take_while(|count| {
        let reached = so_far >= wanted;
        so_far += count;
        !reached
    });
    let last = bucket.count().saturating_sub(1);
    let most = bounds.get(last).map(|&bound| Duration::from_nanos(bound));
    Some(Times { average: Duration::from_nanos(nanoseconds), most })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{BranchObservation, BranchSpace, DaemonFigures};
    use canopy_control::{BranchReport, KernelReport, OsText, PoolReport};
    use std::time::Instant;

    fn operation(name: &str, answered: u64, failed: u64, buckets: [u64; 4]) -> OperationReport {
        let timed = buckets.iter().sum();
        OperationReport {
            name: name.into(),
            answered,
            failed,
            slow: 1,
            timed,
            nanoseconds: timed * 1000,
            buckets: buckets.to_vec(),
        }
    }

    fn look(at: Instant, operations: Vec<OperationReport>, reads: u64, busy: Duration) -> Observation {
        let path = OsText::Text("/a".into());
        let traffic = TrafficReport {
            path: path.clone(),
            reads,
            read_bytes: 1000 * reads,
            writes: 0,
            written_bytes: 0,
            opens: 0,
            passed_opens: reads,
        };
        let branch =
            BranchReport { path, mode: "RW".into(), passes_through: true, ..BranchReport::default() };
        let kernel = KernelReport {
            protocol: "7.45".into(),
            features: vec![],
            missing: vec![],
            max_stack_depth: 1,
            unproved: vec![],
        };
        let pool = PoolReport {
            version: "1".into(),
            pid: 1,
            transport: "dev-fuse".into(),
            threads: 4,
            low_priority_threads: 0,
            parked: Vec::new(),
            closed: (0, 0),
            kernel,
            options: Default::default(),
            given: vec![],
            branches: vec![branch],
            security: Default::default(),
            survival: None,
            disks: vec![],
            catalogue: None,
            trash_alarms: Vec::new(),
            read_caches: Vec::new(),
        };
        let metrics = MetricsReport {
            operations,
            bounds: vec![10, 100, 1000],
            branches: vec![traffic],
            ..MetricsReport::default()
        };
        let disk = Disk { name: "sda".into(), read_bytes: 500 * reads, written_bytes: 0, busy };
        let space = BranchSpace { size: 100, available: 50, inodes: 0, inodes_free: 0, disks: vec![] };
        Observation {
            mountpoint: "/p".into(),
            at,
            daemon: Some(DaemonFigures { pool, metrics: Some(metrics) }),
            branches: vec![BranchObservation { space: Some(space), disks: vec![disk] }],
            process: None,
        }
    }

    #[test]
    fn rates_are_those_between_the_last_two_looks() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut history = History::default();
        assert!(history.operations().is_empty() && history.branches().is_empty());
        history.add(look(begun, vec![operation("read", 10, 0, [10, 0, 0, 0])], 0, Duration::ZERO));
        let first = &history.operations()[0];
        assert_eq!((first.per_second, first.answered), (None, 10));
        assert_eq!(first.times.unwrap().most, Some(Duration::from_nanos(10)), "since the start");
        assert_eq!(history.branches()[0].operations, None);

        let operations =
            vec![operation("read", 30, 10, [10, 0, 199, 1]), operation("lookup", 100, 0, [0; 4])];
        history.add(look(after(2), operations, 4, Duration::from_secs(1)));
        let shown: Vec<_> = history
            .operations()
            .into_iter()
            .map(|rate| (rate.name, rate.per_second, rate.errors_per_second, rate.times))
            .collect();
        let most = Some(Duration::from_nanos(1000));
        let times = Some(Times { average: Duration::from_nanos(1000), most });
        assert_eq!(
            shown,
            [("lookup".into(), Some(50.0), Some(0.0), None), ("read".into(), Some(10.0), Some(5.0), times)]
        );
        let branch = &history.branches()[0];
        assert_eq!((branch.operations, branch.read_bytes), (Some(4.0), Some(2000.0)));
        assert_eq!((branch.disk_read_bytes, branch.disk_written_bytes), (Some(1000.0), Some(0.0)));
        assert_eq!((branch.busy, branch.available, branch.used), (Some(0.5), Some(50), Some(0.5)));
        assert_eq!(history.speeds(), [60.0]);

        // Another process has taken over, and counts from zero.
        history.add(look(after(3), vec![operation("read", 5, 0, [0, 0, 0, 5])], 1, Duration::from_secs(1)));
        let read = &history.operations()[0];
        assert_eq!((read.per_second, read.errors_per_second), (Some(5.0), Some(0.0)));
        assert_eq!(read.times.unwrap().most, None);
        assert_eq!(history.branches()[0].operations, Some(2.0));
    }

    #[test]
    fn old_looks_are_dropped() {
        let (mut history, begun) = (History::default(), Instant::now());
        for second in 0..100 {
            history.add(look(begun + Duration::from_secs(second), vec![], second, Duration::ZERO));
        }
        assert_eq!((history.looks.len(), history.speeds.len()), (KEPT, 99));
    }
}
