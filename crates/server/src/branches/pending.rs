//! Branches that do not exist yet, and directories on which a disk of fstab is not mounted yet.
//!
//! A running pool accepts the path of a disk that will be mounted later, as `canopy mount` does if asked to. Such a
//! path is part of the list that users see, and becomes a branch as soon as there is a directory. A pattern that matches
//! nothing is such a path, too: when directories match it, they take its place in the list. A thread looks once a second
//! while any is missing.

use super::topology::Topology;
use canopy_branch::branch::{BranchList, BranchSpec, Expand, FileSystem};
use canopy_config::{fstab, overlap, pool_loops};
use canopy_pool::ops;
use canopy_sys::glob::is_pattern;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);

/// Waits for branches that do not exist yet.
pub(crate) struct PendingBranches {
    topology: Arc<Topology>,
    /// A thread is looking.
    running: AtomicBool,
}

/// A pattern, and the directories that match it.
type Match = (PathBuf, Vec<PathBuf>);

impl PendingBranches {
    pub(crate) fn new(topology: Arc<Topology>) -> Arc<PendingBranches> {
        Arc::new(PendingBranches { topology, running: AtomicBool::new(false) })
    }

    /// Starts to look for the missing branches of this list, if there are any. Called while the list cannot change.
    pub(crate) fn wait_for(self: &Arc<Self>, list: &BranchList) {
        if !self.any_missing(list) || self.running.swap(true, Ordering::Relaxed) {
            return;
        }
        let pending = Arc::downgrade(self);
        if let Err(why) = thread::Builder::new().name("canopy-missing".into()).spawn(move || run(&pending)) {
            tracing::error!("cannot wait for branches that do not exist yet: {why}");
            self.running.store(false, Ordering::Relaxed);
        }
    }

    /// Puts branches in force that exist now; returns whether any is still missing. `before` is what patterns matched the last
    /// time.
    fn add_arrived(&self, before: &mut Vec<Match>) -> bool {
        let (topology, settings) = (&self.topology, &self.topology.settings);
        let is_usable = |spec: &&BranchSpec| {
            topology.is_branch(spec) || !topology.is_gone(&spec.path) && self.can_be_branch(&spec.path)
        };
        let matches = self.settled_matches(&settings.branches(), before);
        // A disk that hangs must not block other changes, so look before taking the lock.
        let arrived = settings.branches().iter().any(|spec| !topology.is_branch(spec) && is_usable(&spec));
        let _changing = settings.lock_changes();
        self.replace_patterns(&matches);
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
        let more = self.any_missing(list);
        self.running.store(more, Ordering::Relaxed);
        more
    }

    /// Returns whether this directory can become a branch. The path may be a symlink, even into the pool.
    fn can_be_branch(&self, path: &Path) -> bool {
        let settings = &self.topology.settings;
        fs::canonicalize(path).is_ok_and(|path| {
            path.is_dir()
                && fstab::away(&path).is_none()
                && settings.is_reachable(&path)
                && overlap::refuse_overlap(&path, settings.mountpoint()).is_ok()
                && pool_loops::check(&path, settings.mountpoint(), settings.device()).is_ok()
        })
    }

    /// Returns the patterns that match the same directories as a second ago. Disks that are plugged in or mounted together
    /// do not arrive at the same moment.
    fn settled_matches(&self, list: &BranchList, before: &mut Vec<Match>) -> Vec<Match> {
        let is_listed = |path: &PathBuf| list.iter().any(|spec| spec.path == *path);
        let matching = |spec: &BranchSpec| {
            let found = FileSystem.expand(spec.path.as_os_str()).into_iter();
            let found = found.filter(|path| !is_listed(path) && self.can_be_branch(path)).collect();
            (spec.path.clone(), found)
        };
        let is_waiting =
            |spec: &&BranchSpec| is_pattern(spec.path.as_os_str()) && !self.topology.is_branch(spec);
        let now: Vec<Match> = list.iter().filter(is_waiting).map(matching).collect();
        let before = std::mem::replace(before, now.clone());
        now.into_iter().filter(|found| !found.1.is_empty() && before.contains(found)).collect()
    }

    /// Puts directories into the configured list in the place of the patterns that they match. The caller holds the lock of
    /// changes.
    fn replace_patterns(&self, matches: &[Match]) {
        if matches.is_empty() {
            return;
        }
        let settings = &self.topology.settings;
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

    /// Gone branches are the business of `monitor`.
    fn any_missing(&self, list: &BranchList) -> bool {
        let is_missing =
            |spec: &BranchSpec| !self.topology.is_branch(spec) && !self.topology.is_gone(&spec.path);
        list.iter().any(is_missing)
    }
}

fn run(pending: &Weak<PendingBranches>) {
    let mut matched = Vec::new();
    loop {
        thread::sleep(INTERVAL);
        // The thread ends with the pool.
        let Some(pending) = pending.upgrade() else { return };
        if !pending.add_arrived(&mut matched) {
            return;
        }
    }
}
