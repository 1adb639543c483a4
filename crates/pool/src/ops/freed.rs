//! Room that removed files are about to give back.
//!
//! On its filesystem, a file that was closed a moment ago gives its room back before unlink(2) returns. In a pool, the kernel tells
//! of the close and that it knows the file no longer (RELEASE, FORGET) when it has answered unlink(2), and until then the daemon has
//! the file open. What finds a branch full right after that tries again for a moment.

use crate::pool::{Op, Pool};
use canopy_base::error::{Result, is_full};
use canopy_branch::branch::space::LastFreed;
use std::time::Instant;

/// One operation that may find a branch full.
#[derive(Default)]
pub(crate) struct Patience {
    began: Option<Instant>,
}

impl Patience {
    /// Returns whether an operation that has found a branch full is to be tried again, after a pause: if a file lost its last
    /// name a moment ago, on the filesystem `dev` or, without one, on any branch. The caller holds no lock.
    pub(crate) fn tries_again(&mut self, op: &Op<'_>, dev: Option<u64>) -> bool {
        let began = *self.began.get_or_insert_with(Instant::now);
        let mut concerned = op.branches.iter().filter(|branch| dev.is_none_or(|dev| dev == branch.dev));
        began.elapsed() < LastFreed::LONGEST && concerned.any(|branch| branch.freed.waits())
    }
}

/// Runs an operation that makes something, and changes nothing if a branch is full.
pub(crate) fn make<T>(pool: &Pool, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let mut patience = Patience::default();
    loop {
        match operation() {
            Err(error) if is_full(error.errno()) && patience.tries_again(&Op::begin(pool), None) => {}
            made => return made,
        }
    }
}
