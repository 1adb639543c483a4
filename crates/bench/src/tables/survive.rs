//! The table about pools that outlive their process.

use super::meta::{file_op, first_stat};
use super::{Bench, TableId, Targets};
use crate::error::Error;
use crate::measure::Table;
use crate::statistics::Goal;
use crate::workload::Target;
use crate::workload::meta::NameKind;
use crate::workload::ops::FileOp;

/// Indexes of the targets in a row: branch, pool that is not outlived, pool, and both over `/dev/fuse`.
const URING: [usize; 2] = [1, 2];
const DEVICE: [usize; 2] = [3, 4];
/// What records may cost a lookup, and what the intents of a create may.
const LOOKUP: f64 = 1.03;
const CREATE: f64 = 1.02;

/// Each pool that another process can take over is compared with one over the same transport: what is left is the cost of what it
/// records.
pub(super) fn survive<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let sides = [
        targets.isolated_branch()?,
        targets.isolated_pool("survive=false", "survive=false")?,
        targets.isolated_pool("survive=auto", "survive=auto")?,
        targets.isolated_pool("/dev/fuse, survive=false", "io-uring=off,survive=false")?,
        targets.isolated_pool("/dev/fuse, survive=auto", "io-uring=off,survive=auto")?,
    ];
    let sides: Vec<&Target> = sides.iter().collect();
    let goals = |limit| [URING, DEVICE].map(|[off, on]| Goal { side: on, of: vec![off], plus: 0.0, limit });
    let mut rows = vec![
        first_stat(bench, NameKind::Existing, &sides),
        file_op(bench, FileOp::CreateWriteClose, &sides),
        file_op(bench, FileOp::OpenReadClose, &sides),
        file_op(bench, FileOp::Rename, &sides),
        file_op(bench, FileOp::Unlink, &sides),
    ];
    rows[0].goals.extend(goals(LOOKUP));
    rows[1].goals.extend(goals(CREATE));
    Ok(targets.table(TableId::Survive, "What it costs that a pool outlives its process".into(), rows))
}
