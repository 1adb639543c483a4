//! Branches that do not exist yet, and directories on which a disk of fstab is not mounted yet.
//!
//! A running pool accepts the path of a disk that will be mounted later, as `canopy mount` does if asked to. Such a
//! path is part of the list that users see, and becomes a branch as soon as there is a directory. A pattern that matches
//! nothing is such a path, too: when directories match it, they take its place in the list. While any is missing, they are
//! looked for once a second.

use super::topology::{Presence, Topology};
use crate::lock_rank as rank;
use crate::settings::Settings;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::{BranchList, BranchSpec, Expand, FileSystem};
use canopy_config::{fstab, overlap, pool_loops};
use canopy_pool::ops;
use canopy_sys::glob::is_pattern;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Waits for branches that do not exist yet.
pub(super) struct PendingBranches {
    topology: Weak<Topology>,
    /// What patterns matched the last time.
    matched: Mutex<Vec<Match>, rank::Leaf>,
}

/// A pattern, and the directories that match it.
type Match = (PathBuf, Vec<PathBuf>);

impl PendingBranches {
    pub(super) fn new(topology: &Arc<Topology>) -> PendingBranches {
        PendingBranches { topology: Arc::downgrade(topology), matched: Mutex::default() }
    }

    /// Puts branches in force that exist now. May wait for a disk.
    pub(super) fn add_arrived(&self) {
        let Some(topology) = self.topology.upgrade() else { return };
        let settings = &topology.settings;
        let has_arrived = |spec: &&BranchSpec| {
            matches!(topology.presence(&spec.path), Presence::Awaited) && can_be_branch(&topology, &spec.path)
        };
        let is_usable = |spec: &&BranchSpec| {
            matches!(topology.presence(&spec.path), Presence::InForce) || has_arrived(spec)
        };
        let found = matches(&topology, &settings.branches());
        let matches = self.settled(found);
        // A disk that hangs must not block other changes, so look before taking the lock.
        let arrived = settings.branches().iter().any(|spec| has_arrived(&spec));
        let _changing = settings.lock_changes();
        replace_patterns(settings, &matches);
        let arrived = arrived || !matches.is_empty();
        let config = settings.config();
        let list = &config.branches;
        let removed = arrived && topology.remove_gone();
        if removed {
            topology.coherence.invalidate_names();
        } else if arrived
            && topology.put_in_force(&config, list.iter().filter(is_usable).cloned().collect()).is_ok()
        {
            tracing::info!("the branches are {} now", ops::settings::branches(&topology.pool).to_list());
            topology.coherence.invalidate_names();
        }
    }

    /// Returns the patterns that match the same directories as a second ago. Disks that are plugged in or mounted together
    /// do not arrive at the same moment.
    fn settled(&self, now: Vec<Match>) -> Vec<Match> {
        let before = std::mem::replace(&mut *self.matched.lock(), now.clone());
        now.into_iter().filter(|found| !found.1.is_empty() && before.contains(found)).collect()
    }
}

/// Returns whether any branch of the list is awaited. Those that are gone are the business of `monitor`.
pub(super) fn any_awaited(topology: &Topology) -> bool {
    let list = topology.settings.branches();
    let (_, found) = topology.presences(list.iter().map(|spec| spec.path.as_path()));
    found.iter().any(|presence| matches!(presence, Presence::Awaited))
}

/// Returns whether this directory can become a branch. The path may be a symlink, even into the pool.
fn can_be_branch(topology: &Topology, path: &Path) -> bool {
    let settings = &topology.settings;
    fs::canonicalize(path).is_ok_and(|path| {
        path.is_dir()
            && fstab::away(&path).is_none()
            && settings.is_reachable(&path)
            && overlap::refuse_overlap(&path, settings.mountpoint()).is_ok()
            && pool_loops::check(&path, settings.mountpoint(), settings.device()).is_ok()
    })
}

/// Returns what the patterns of the list match.
fn matches(topology: &Topology, list: &BranchList) -> Vec<Match> {
    let is_listed = |path: &PathBuf| list.iter().any(|spec| spec.path == *path);
    let matching = |spec: &BranchSpec| {
        let found = FileSystem.expand(spec.path.as_os_str()).into_iter();
        let found = found.filter(|path| !is_listed(path) && can_be_branch(topology, path)).collect();
        (spec.path.clone(), found)
    };
    let is_waiting = |spec: &&BranchSpec| {
        is_pattern(spec.path.as_os_str()) && !matches!(topology.presence(&spec.path), Presence::InForce)
    };
    list.iter().filter(is_waiting).map(matching).collect()
}

/// Puts directories into the configured list in the place of the patterns that they match. The caller holds the lock of
/// changes.
fn replace_patterns(settings: &Settings, matches: &[Match]) {
    if matches.is_empty() {
        return;
    }
    let mut next = (*settings.config()).clone();
    let specs = next.branches.iter().flat_map(|spec| {
        match matches.iter().find(|(pattern, _)| *pattern == spec.path) {
            None => vec![spec.clone()],
            Some((_, paths)) => {
                paths.iter().map(|path| BranchSpec { path: path.clone(), ..spec.clone() }).collect()
            }
        }
    });
    next.branches = specs.collect();
    settings.record("branches", next.branches.to_os_string().as_bytes());
    settings.store(next);
}
