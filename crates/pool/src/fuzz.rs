//! What the fuzz targets (`fuzz/`) do with bytes from outside, and the tests with their seeds.

use crate::export::StableTarget;
use canopy_base::ids::NodeId;
use canopy_branch::branch::{BranchList, Expand};
use canopy_branch::fs::generation::Generation;
use canopy_branch::relocate::journal::Plan;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What lies on branches: journal entries of moves, and the attributes that say which copy is the newest.
pub fn marks(bytes: &[u8]) {
    if let Some(generation) = Generation::parse(bytes) {
        assert_eq!(Generation::parse(&generation.to_bytes()), Some(generation));
    }
    if let Some(plan) = Plan::parse(bytes) {
        assert_eq!(Plan::parse(&plan.to_bytes()), Some(plan));
    }
}

/// Ids in file handles, as clients make them up.
pub fn handles(bytes: &[u8]) {
    for id in bytes.as_chunks().0 {
        let target = StableTarget::of(NodeId(u64::from_le_bytes(*id)));
        assert!(target.is_none_or(|target| target.id.0 == u64::from_le_bytes(*id)));
    }
}

struct Literal;

impl Expand for Literal {
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf> {
        vec![pattern.into()]
    }
}

/// A list of branches, a NUL, and a change of it.
pub fn branch_lists(bytes: &[u8]) {
    let (list, change) = bytes.split_at(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    let Ok(list) = BranchList::parse(OsStr::from_bytes(list), &Literal) else { return };
    // A path is made absolute before it is kept: a relative one may begin as an instruction does.
    let absolute = list.iter().all(|branch| branch.path.is_absolute());
    if let (true, Ok(again)) = (absolute, BranchList::parse(list.to_os_string(), &Literal)) {
        assert_eq!(again.to_os_string(), list.to_os_string());
    }
    let change = change.strip_prefix(&[0]).unwrap_or(change);
    std::hint::black_box(list.apply(OsStr::from_bytes(change), &Literal).is_ok());
}

#[cfg(test)]
#[macro_use]
#[path = "../../../fuzz/smoke.rs"]
mod smoke;

#[cfg(test)]
seeds_and_what_is_near_them!(marks, handles, branch_lists);
