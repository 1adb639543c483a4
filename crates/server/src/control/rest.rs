//! The reports of disks that rest, and of what is known without them.

use crate::watch::revisit::Progress;
use canopy_branch::branch::rest::{self, Touch, Wake};
use canopy_branch::branch::{Branch, Branches};
use canopy_config::Config;
use canopy_control::{CatalogueReport, OsText, RestReport, VerifyingReport, WakeReport};
use canopy_pool::{Pool, ops};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the disks below branches. Touches none.
pub(super) fn disks(branches: &Branches) -> Vec<RestReport> {
    let path = |branch: &Branch| OsText::from(branch.path.as_path());
    let report = |disk: rest::DiskRest| RestReport {
        branches: disk
            .branches
            .iter()
            .filter_map(|id| branches.by_id(*id))
            .map(|branch| path(branch))
            .collect(),
        solid: disk.solid,
        suspended: disk.disk.is_suspended(),
        rests: disk.rests,
        since: seconds(disk.since),
        woken: disk.woken,
        rested: disk.rested.as_secs(),
        wakes: disk.wakes.iter().map(wake).collect(),
        name: disk.disk.name,
    };
    rest::disks().into_iter().map(report).filter(|disk| !disk.branches.is_empty()).collect()
}

fn wake(wake: &Wake) -> WakeReport {
    let text = |bytes: &[u8]| OsText::from(OsStr::from_bytes(bytes));
    let by = |touch: &Touch| match (touch.own, touch.waited) {
        (true, _) => "pool",
        (false, true) => "client",
        (false, false) => "later",
    };
    let touch = wake.by.as_ref();
    let client = touch.filter(|touch| !touch.own);
    let operation = |touch: &Touch| {
        if touch.own {
            String::from_utf8_lossy(&touch.program).into_owned()
        } else {
            touch.operation.to_ascii_lowercase()
        }
    };
    WakeReport {
        at: seconds(wake.at),
        rested: wake.rested.as_secs(),
        by: touch.map_or("outside", by).into(),
        program: client.filter(|touch| !touch.program.is_empty()).map(|touch| text(&touch.program)),
        pid: client.map(|touch| touch.pid).filter(|pid| *pid != 0),
        operation: touch.map(operation),
        path: touch.and_then(|touch| touch.path.as_deref()).map(text),
    }
}

/// Returns the disks without the names of files.
pub(super) fn without_names(mut disks: Vec<RestReport>) -> Vec<RestReport> {
    disks.iter_mut().flat_map(|disk| &mut disk.wakes).for_each(|wake| wake.path = None);
    disks
}

/// Returns how much is known of the branches; `None` if nothing is kept.
pub(super) fn catalogue(pool: &Pool, config: &Config) -> Option<CatalogueReport> {
    let catalogue = ops::external_changes::catalogue(pool);
    let extents = catalogue.extents()?;
    Some(CatalogueReport {
        relied_on: catalogue.is_on(),
        directories: extents.directories,
        bytes: extents.bytes,
        bound: config.catalogue_size,
        answered: extents.answered,
        asked: extents.asked,
        verifying: None,
    })
}

/// Returns how far what was known before has been looked at again.
pub(super) fn verifying(progress: Progress) -> VerifyingReport {
    let Progress { done, total, rests } = progress;
    VerifyingReport { done, total, waits_for_disk: rests }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
