//! The report for `canopy metrics` and `canopy top`.

use canopy_branch::branch::Branch;
use canopy_control::OsText;
use canopy_control::metrics::{
    CachesReport, MetricsReport, MovesReport, OperationReport, RequestsReport, TrafficReport,
};
use canopy_fuse::transport::{BOUNDS, Served};
use canopy_pool::Pool;
use canopy_pool::ops;
use std::sync::Arc;

/// Returns the report. Does not touch any branch. `started` is in seconds since the epoch.
pub(crate) fn metrics(
    pool: &Pool,
    served: Served,
    low_priority_workers: usize,
    started: u64,
) -> MetricsReport {
    let operations = served.kinds.into_iter().map(|(opcode, kind)| OperationReport {
        name: opcode.name().to_ascii_lowercase(),
        answered: kind.answered,
        failed: kind.failed,
        slow: kind.slow,
        timed: kind.timed,
        nanoseconds: kind.nanoseconds,
        buckets: kind.buckets.to_vec(),
    });
    let tally = ops::tally::tally(pool);
    MetricsReport {
        started,
        operations: operations.collect(),
        errors: served.errors.into_iter().collect(),
        bounds: BOUNDS.to_vec(),
        requests: RequestsReport {
            workers: served.workers,
            low_priority_workers,
            under_way: served.under_way,
            stuck: served.stuck,
            in_line: served.in_line,
        },
        branches: traffic(pool),
        caches: CachesReport {
            known_nodes: tally.known_nodes,
            known_nodes_limit: tally.known_nodes_limit,
            open_files: tally.open_files,
            directories: tally.cached_dirs,
            names: tally.cached_names,
        },
        moves: MovesReport {
            files: tally.moved_files,
            bytes: tally.moved_bytes,
            under_way: tally.moves_under_way,
        },
    }
}

fn traffic(pool: &Pool) -> Vec<TrafficReport> {
    let report = |branch: &Arc<Branch>| {
        let counts = branch.traffic.counts();
        TrafficReport {
            path: OsText::from(branch.path.as_path()),
            reads: counts.reads,
            read_bytes: counts.read_bytes,
            writes: counts.writes,
            written_bytes: counts.written_bytes,
            opens: counts.opens,
            passed_opens: counts.passed_opens,
        }
    };
    ops::settings::branches(pool).iter().map(report).collect()
}
