//! The table about pools that outlive their process.

use super::meta::{file_op, first_stat};
use super::{Bench, TableId, Targets};
use crate::error::Error;
use crate::measure::Table;
use crate::statistics::Goal;
use crate::workload::Target;
use crate::workload::meta::NameKind;
use crate::workload::ops::FileOp;

/// Indexes of the targets in a row: branch, pool, pool without io_uring, the same with `survive`.
const DEVICE: usize = 2;
const SURVIVES: usize = 3;
/// What records may cost a lookup, and what the intents of a create may.
const LOOKUP: f64 = 1.03;
const CREATE: f64 = 1.02;

/// Such a pool receives its requests over `/dev/fuse`. So it is compared with one that does so, too: what is left is the cost of
/// what it records.
pub(super) fn survive<'s>(bench: &Bench<'s>) -> Result<Table<'s>, Error> {
    let mut targets = Targets::new(bench)?;
    let sides = [
        targets.isolated_branch()?,
        targets.isolated_pool("pool", "")?,
        targets.isolated_pool("pool, /dev/fuse", "io-uring=off")?,
        targets.isolated_pool("pool, survive", "io-uring=off,survive=true")?,
    ];
    let sides: Vec<&Target> = sides.iter().collect();
    let goal = |limit| Goal { side: SURVIVES, of: vec![DEVICE], plus: 0.0, limit };
    let mut rows = vec![
        first_stat(bench, NameKind::Existing, &sides),
        file_op(bench, FileOp::CreateWriteClose, &sides),
        file_op(bench, FileOp::OpenReadClose, &sides),
        file_op(bench, FileOp::Rename, &sides),
        file_op(bench, FileOp::Unlink, &sides),
    ];
    rows[0].goals.push(goal(LOOKUP));
    rows[1].goals.push(goal(CREATE));
    Ok(targets.table(TableId::Survive, "What it costs that a pool outlives its process".into(), rows))
}
