//! Branches that do not exist yet.
//!
//! A running pool accepts the path of a disk that will be mounted later, as `canopy mount` does if asked to. Such a
//! path is part of the list that users see, and becomes a branch as soon as there is a directory. A thread looks for
//! it once a second while any is missing.

use super::topology::Topology;
use canopy_config::{overlap, pool_loops};
use canopy_pool::branch::{BranchList, BranchSpec};
use std::fs;
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

    /// Puts branches in force that exist now; returns whether any is still missing.
    fn add_arrived(&self) -> bool {
        let (topology, settings) = (&self.topology, &self.topology.settings);
        let is_usable = |spec: &&BranchSpec| {
            topology.is_branch(spec)
                // The path may be a symlink by now, even into the pool.
                || !topology.is_gone(&spec.path)
                    && fs::canonicalize(&spec.path).is_ok_and(|path| {
                        path.is_dir()
                            && settings.is_reachable(&path)
                            && overlap::refuse_overlap(&path, settings.mountpoint()).is_ok()
                            && pool_loops::check(&path, settings.mountpoint(), settings.device()).is_ok()
                    })
        };
        // A disk that hangs must not block other changes, so look before taking the lock.
        let arrived = settings.branches().iter().any(|spec| !topology.is_branch(spec) && is_usable(&spec));
        let _changing = settings.lock_changes();
        let config = settings.config();
        let list = &config.branches;
        let removed = arrived && topology.remove_gone();
        if removed {
            topology.coherence.invalidate_names();
        } else if arrived
            && topology.put_in_force(&config, list.iter().filter(is_usable).cloned().collect()).is_ok()
        {
            tracing::info!("the branches are {} now", topology.pool.branches().to_list());
            topology.coherence.invalidate_names();
        }
        let more = self.any_missing(list);
        self.running.store(more, Ordering::Relaxed);
        more
    }

    /// Gone branches are the business of `monitor`.
    fn any_missing(&self, list: &BranchList) -> bool {
        let is_missing =
            |spec: &BranchSpec| !self.topology.is_branch(spec) && !self.topology.is_gone(&spec.path);
        list.iter().any(is_missing)
    }
}

fn run(pending: &Weak<PendingBranches>) {
    loop {
        thread::sleep(INTERVAL);
        // The thread ends with the pool.
        let Some(pending) = pending.upgrade() else { return };
        if !pending.add_arrived() {
            return;
        }
    }
}
