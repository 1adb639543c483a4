//! Branches that do not exist yet.
//!
//! A running pool takes the path of a disk that will be mounted later, as a mount does where that is asked for. Such a
//! path is part of the list that users see, and a branch as soon as there is a directory: a thread looks for it, for as
//! long as one is missing.

use super::topology::Topology;
use canopy_config::{overlap, pool_loops};
use canopy_pool::branch::{BranchList, BranchSpec};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// Looks for branches that do not exist yet, while there are any.
pub(crate) struct PendingBranches {
    topology: Arc<Topology>,
    /// A thread is looking.
    running: AtomicBool,
}

impl PendingBranches {
    pub(crate) fn new(topology: Arc<Topology>) -> Arc<PendingBranches> {
        Arc::new(PendingBranches { topology, running: AtomicBool::new(false) })
    }

    /// Looks for the branches of this list that are missing from now on, if any are. Called while the list cannot change.
    pub(crate) fn look_for(self: &Arc<Self>, list: &BranchList) {
        if !self.some_missing(list) || self.running.swap(true, Ordering::Relaxed) {
            return;
        }
        let pending = Arc::downgrade(self);
        if let Err(why) = thread::Builder::new().name("canopy-missing".into()).spawn(move || run(&pending)) {
            tracing::error!("branches that do not exist yet are not looked for: {why}");
            self.running.store(false, Ordering::Relaxed);
        }
    }

    /// Takes on what has come; true while something is missing.
    fn look(&self) -> bool {
        let (topology, settings) = (&self.topology, &self.topology.settings);
        let usable = |spec: &&BranchSpec| {
            topology.is_branch(spec)
                // What has come may be a symlink, into the pool for one.
                || !topology.is_gone(&spec.path)
                    && fs::canonicalize(&spec.path).is_ok_and(|path| {
                        path.is_dir()
                            && settings.is_on_ground(&path)
                            && overlap::refuse_overlap(&path, settings.mountpoint()).is_ok()
                            && pool_loops::check(&path, settings.mountpoint(), settings.device()).is_ok()
                    })
        };
        // A disk that hangs is waited for without holding up changes.
        let come = settings.branches().iter().any(|spec| !topology.is_branch(spec) && usable(&spec));
        let _changing = settings.changing();
        let config = settings.config();
        let list = &config.branches;
        let left = come && topology.let_go(&config);
        if left {
            topology.coherence.invalidate_names();
        } else if come && topology.take(&config, list.iter().filter(usable).cloned().collect()).is_ok() {
            tracing::info!("the branches are {} now", topology.pool.branches().to_list());
            topology.coherence.invalidate_names();
        }
        let more = self.some_missing(list);
        self.running.store(more, Ordering::Relaxed);
        more
    }

    /// Those that the pool has let go of are looked for by `monitor`.
    fn some_missing(&self, list: &BranchList) -> bool {
        let is_missing =
            |spec: &BranchSpec| !self.topology.is_branch(spec) && !self.topology.is_gone(&spec.path);
        list.iter().any(is_missing)
    }
}

fn run(pending: &Weak<PendingBranches>) {
    loop {
        thread::sleep(EVERY);
        // It ends with the pool.
        let Some(pending) = pending.upgrade() else { return };
        if !pending.look() {
            return;
        }
    }
}
