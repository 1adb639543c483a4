//! Which branches are in force: the one place that changes that.
//!
//! Every change is made with [`Settings::changing`] held. A branch is watched before it is in force, and the kernel looks
//! all names up again afterwards, which is the caller's part ([`Coherence::invalidate_names`]).
//!
//! Of a branch that is gone the pool lets go: it keeps nothing open there but the files that its users have open. The
//! branch stays listed, and is remembered here until it is back.

use super::access_times::AccessTimes;
use crate::coherence::Coherence;
use crate::settings::Settings;
use crate::watch::Watch;
use canopy_config::{Config, overlap, pool_loops};
use canopy_pool::Pool;
use canopy_pool::branch::health::{BranchHealth, Health, HealthReport};
use canopy_pool::branch::{Branch, BranchId, BranchList, BranchSpec, Branches};
use canopy_sys::mountinfo;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Its locks are leaves.
pub(crate) struct Topology {
    pub(crate) pool: Arc<Pool>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) coherence: Arc<Coherence>,
    pub(crate) watch: Arc<Watch>,
    access_times: AccessTimes,
    /// The mount that each branch in force lies on.
    anchors: Mutex<HashMap<BranchId, Anchor>>,
    /// Branches that the pool has let go of, by their paths. A branch is entered here before it leaves the branches in force,
    /// and leaves after it is one again: it is never missing from both.
    gone: Mutex<HashMap<PathBuf, Gone>>,
}

struct Anchor {
    mount_id: u32,
    mountpoint: PathBuf,
}

/// A branch that the pool has let go of.
#[derive(Clone)]
pub(crate) struct Gone {
    /// Where something must be mounted before the branch is back.
    pub(crate) mountpoint: PathBuf,
    pub(crate) condition: Arc<BranchHealth>,
}

impl Topology {
    pub(crate) fn new(
        pool: Arc<Pool>,
        settings: Arc<Settings>,
        coherence: Arc<Coherence>,
        watch: Arc<Watch>,
    ) -> Topology {
        let topology = Topology {
            pool,
            settings,
            coherence,
            watch,
            access_times: AccessTimes::default(),
            anchors: Mutex::default(),
            gone: Mutex::default(),
        };
        topology.learn(&topology.pool.branches());
        topology
    }

    /// Has the branches read as the pool is to be mounted. Before anything is served: the mount may not be seen yet.
    pub(crate) fn begin_access_times(&self, config: &Config) {
        self.access_times.begin(&self.pool, config);
    }

    /// Has these branches read as the pool's mount says. Before they are in force, and when mounts have changed.
    pub(crate) fn settle_access_times(&self, config: &Config, branches: &Branches) {
        self.access_times.settle(&self.pool, &self.settings, config, branches);
    }

    /// Puts a list in force, as far as its branches are there. Nothing changes when it fails.
    ///
    /// Errors: `EINVAL` for a branch that lies within the pool or around it, `EEXIST` for one that is a branch already,
    /// `EXDEV` for one outside of what the workers may reach, and whatever opening one gives, other than that it does not
    /// exist.
    pub(crate) fn take_branches(&self, config: &Config) -> Result<(), Errno> {
        let list = &config.branches;
        let mountpoint = self.settings.mountpoint();
        self.gone.lock().retain(|path, _| list.iter().any(|spec| spec.path == *path));
        // None is opened anew where its mount is not there any more.
        self.let_go(config);
        for branch in list.iter() {
            overlap::refuse_overlap(&branch.path, mountpoint).map_err(|error| {
                tracing::warn!("{error}");
                Errno::INVAL
            })?;
        }
        self.settings.on_ground(list)?;
        self.not_twice(list)?;
        let own = self.settings.device();
        for branch in list.iter().filter(|spec| !self.is_branch(spec)) {
            pool_loops::check(&branch.path, mountpoint, own).map_err(|error| {
                tracing::warn!("{}", error.line());
                Errno::INVAL
            })?;
        }
        let is_there = |spec: &&BranchSpec| {
            !self.is_gone(&spec.path)
                && match rustix::fs::stat(&spec.path) {
                    Err(Errno::NOENT) => {
                        tracing::warn!(
                            "branch {} does not exist: it takes part when it does",
                            spec.path.display()
                        );
                        false
                    }
                    _ => true,
                }
        };
        self.take(config, list.iter().filter(is_there).cloned().collect())
    }

    /// Refuses a directory that is in the list already, under whichever path. Those that the pool was mounted with stay.
    fn not_twice(&self, list: &BranchList) -> Result<(), Errno> {
        let held = self.pool.branches();
        let before = self.settings.branches();
        let count = |list: &BranchList, path: &Path| list.iter().filter(|spec| spec.path == path).count();
        let is_listed = |branch: &Branch| count(list, &branch.path) > 0;
        for (index, spec) in list.iter().enumerate() {
            let path = &spec.path;
            let grown = count(list, path) > count(&before, path).max(1);
            // A disk that hangs is asked only if it is new.
            let identity = |path: &Path| rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
            let own = (count(&before, path) == 0).then(|| identity(path)).flatten();
            let is_held = own.is_some()
                && (held.iter().any(|branch| is_listed(branch) && own == Some((branch.dev, branch.ino)))
                    || list.as_slice()[..index]
                        .iter()
                        .any(|other| count(&before, &other.path) == 0 && identity(&other.path) == own));
            if grown || is_held {
                tracing::warn!(
                    "branch {} is given twice: it is the same directory as another branch",
                    path.display()
                );
                return Err(Errno::EXIST);
            }
        }
        Ok(())
    }

    /// Puts these branches in force.
    pub(crate) fn take(&self, config: &Config, list: BranchList) -> Result<(), Errno> {
        let branches = self.pool.branches().update(&list).map_err(|error| {
            tracing::warn!("{error}");
            error.errno()
        })?;
        // Before they are in force: what they hold must be watched once it is relied upon.
        self.watch.settle(config, &branches);
        self.settle_access_times(config, &branches);
        self.learn(&branches);
        self.pool.set_branches(branches);
        Ok(())
    }

    /// Puts a branch in force again that the pool has let go of.
    pub(crate) fn take_back(&self, path: &Path) -> Result<(), Errno> {
        let config = self.settings.config();
        let wanted = |spec: &&BranchSpec| spec.path == path || self.is_branch(spec);
        self.take(&config, config.branches.iter().filter(wanted).cloned().collect())
    }

    /// A branch that was gone is one again.
    pub(crate) fn is_back(&self, path: &Path) {
        self.gone.lock().remove(path);
    }

    /// Lets go of the branches that have left, or whose roots cannot be read; true if there were any.
    pub(crate) fn let_go(&self, config: &Config) -> bool {
        let branches = self.pool.branches();
        let left = self.have_left(&branches);
        for branch in branches.iter().filter(|branch| left.contains(&branch.id)) {
            branch.health.look(|| Err((Health::Gone, Errno::NODEV)));
        }
        let leaving: Vec<_> =
            branches.iter().filter(|branch| branch.health.health() == Health::Gone).cloned().collect();
        if leaving.is_empty() {
            return false;
        }
        let mut lines = Vec::new();
        for branch in &leaving {
            let path = branch.path.clone();
            let why = match left.contains(&branch.id) {
                true => "its mount is not there any more".to_owned(),
                false => branch.health.report().map_or_else(String::new, |illness| illness.to_string()),
            };
            lines.push(format!(
                "branch {}: {why}; the pool goes on without it until it is back",
                path.display()
            ));
            let mountpoint =
                self.anchors.lock().get(&branch.id).map_or_else(|| path.clone(), |on| on.mountpoint.clone());
            let gone = Gone { mountpoint, condition: Arc::clone(&branch.health) };
            self.gone.lock().insert(path, gone);
        }
        let rest = branches.without(&leaving);
        self.watch.settle(config, &rest);
        self.pool.set_branches(rest);
        lines.iter().for_each(|line| tracing::warn!("{line}"));
        true
    }

    /// Remembers on which mounts the branches lie.
    fn learn(&self, branches: &Branches) {
        let mut anchors = self.anchors.lock();
        anchors.retain(|id, _| branches.by_id(*id).is_some());
        let unknown: Vec<_> = branches.iter().filter(|branch| !anchors.contains_key(&branch.id)).collect();
        let Ok(listed) = mountinfo::list() else { return };
        for branch in unknown {
            let mounted = mountinfo::id_of(branch.root())
                .ok()
                .and_then(|id| listed.iter().find(|mounted| mounted.id == id));
            if let Some(mounted) = mounted {
                let anchor = Anchor { mount_id: mounted.id, mountpoint: mounted.mountpoint.clone() };
                anchors.insert(branch.id, anchor);
            }
        }
    }

    /// The branches whose paths lead to another mount than the one they were opened on.
    pub(crate) fn have_left(&self, branches: &Branches) -> Vec<BranchId> {
        let Ok(listed) = mountinfo::list() else { return Vec::new() };
        let anchors = self.anchors.lock();
        let has_left = |branch: &&Arc<Branch>| {
            anchors.get(&branch.id).is_some_and(|anchor| {
                mountinfo::holding_in(&listed, &branch.path)
                    .is_none_or(|mounted| mounted.id != anchor.mount_id)
            })
        };
        branches.iter().filter(has_left).map(|branch| branch.id).collect()
    }

    /// Is this one of the branches in force?
    pub(crate) fn is_branch(&self, spec: &BranchSpec) -> bool {
        self.pool.branches().iter().any(|branch| branch.path == spec.path)
    }

    /// Has the pool let go of the branch at this path?
    pub(crate) fn is_gone(&self, path: &Path) -> bool {
        self.gone.lock().contains_key(path)
    }

    /// Why the pool has let go of a branch.
    pub(crate) fn why_gone(&self, path: &Path) -> Option<HealthReport> {
        // Until it is a branch again it is gone, however well it is by now.
        let still = HealthReport { health: Health::Gone, since: SystemTime::now(), cause: Errno::NODEV };
        self.gone.lock().get(path).map(|gone| gone.condition.report().unwrap_or(still))
    }

    /// Every branch that the pool has let go of.
    pub(crate) fn gone(&self) -> Vec<(PathBuf, Gone)> {
        self.gone.lock().clone().into_iter().collect()
    }
}
