//! The only place that changes which branches are in force.
//!
//! The caller of every change holds [`Settings::lock_changes`]. A branch is watched before it is in force. Afterwards
//! the caller makes the kernel look all names up again ([`Coherence::invalidate_names`]).
//!
//! It alone says where a branch of the list is ([`Presence`]): in force, gone or awaited.
//!
//! A branch that is gone is removed, so that the pool keeps nothing open there except the files that its users have
//! open. It stays in the configured list, and this module remembers it until it is back.

use super::access_times::AccessTimes;
use super::remembered::Remembered;
use crate::coherence::Coherence;
use crate::lock_rank as rank;
use crate::settings::Settings;
use crate::watch::Watch;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::health::BranchHealth;
use canopy_branch::branch::state::{BranchState, Health, Turn};
use canopy_branch::branch::{Branch, BranchId, BranchList, BranchSpec, Branches};
use canopy_branch::remember::Record;
use canopy_config::resolve::remembered::{self, BranchPlace};
use canopy_config::{Config, fstab, overlap, pool_loops};
use canopy_pool::Pool;
use canopy_pool::config::MissingNames;
use canopy_pool::ops;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often events are processed before a branch is let go.
const CATCH_UP: usize = 64;

pub(crate) struct Topology {
    pub(crate) pool: Arc<Pool>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) coherence: Arc<Coherence>,
    pub(crate) watch: Arc<Watch>,
    access_times: AccessTimes,
    /// The mount of each branch in force.
    mounts: Mutex<HashMap<BranchId, BranchMount>, rank::Leaf>,
    /// Branches that were removed because they are gone, by path. A branch is added here before it is removed from
    /// the branches in force, and removed here after it is in force again, so it is never missing from both.
    gone: Mutex<HashMap<PathBuf, GoneBranch>, rank::Leaf>,
    remembered: Remembered,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct BranchMount {
    /// `None` if it had gone before it could be recorded.
    mount_id: Option<u32>,
    mountpoint: PathBuf,
}

impl BranchMount {
    /// Returns the mount of a branch whose root was opened on the mount `opened_on`, and that was mounted `before` when another
    /// process served the pool. `None` if the table does not show it, as in a chroot.
    fn of(listed: &[MountEntry], opened_on: u32, path: &Path, before: Option<&Path>) -> Option<BranchMount> {
        let at = |mount_id, mountpoint: &Path| BranchMount { mount_id, mountpoint: mountpoint.to_owned() };
        let mounted = listed.iter().find(|mounted| mounted.id == opened_on);
        match (mounted, before) {
            // What has been opened in its place is another filesystem's.
            (Some(mounted), Some(before)) if mounted.mountpoint != before => Some(at(None, before)),
            (Some(mounted), _) => Some(at(Some(mounted.id), &mounted.mountpoint)),
            (None, before) => {
                mountinfo::holding_in(listed, path)?;
                Some(at(None, before.unwrap_or(path)))
            }
        }
    }
}

/// Where a branch of the list is.
pub(crate) enum Presence {
    InForce,
    Gone(GoneBranch),
    /// It does not exist yet, or its disk is not mounted yet.
    Awaited,
}

/// A branch that was removed because it is gone.
#[derive(Clone)]
pub(crate) struct GoneBranch {
    /// Where something must be mounted before the branch counts as back.
    pub(crate) mountpoint: PathBuf,
    pub(crate) health: Arc<BranchHealth>,
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
            mounts: Mutex::default(),
            gone: Mutex::default(),
            remembered: Remembered::default(),
        };
        let before = topology.settings.mountpoints_before();
        topology.record_mounts(&ops::settings::branches(&topology.pool), &before);
        topology.arrange_missing();
        topology
    }

    /// Remembers branches whose mounts, at these mountpoints, have gone while no process served the pool.
    pub(crate) fn remember_gone(&self, gone: &[(PathBuf, PathBuf)]) {
        for (path, mountpoint) in gone {
            tracing::warn!(
                "branch {}: its mount is gone; the pool goes on without it until it is back",
                path.shown()
            );
            let health = Arc::new(BranchHealth::default());
            health.look(|| Err((Health::Gone, Errno::NODEV)));
            health.turn(Turn::Go);
            self.settings.record_mountpoint(path, mountpoint);
            self.gone.lock().insert(path.clone(), GoneBranch { mountpoint: mountpoint.clone(), health });
        }
    }

    /// Applies the access time flags that the pool is about to be mounted with. To be called before anything is
    /// served, when the mount may not be visible yet.
    pub(crate) fn apply_access_times_at_start(&self, config: &Config) {
        self.access_times.apply_at_start(&self.pool, config);
    }

    /// Applies the access time flags of the pool's mount to these branches. To be called before they are in force,
    /// and when mounts have changed.
    pub(crate) fn apply_access_times(&self, config: &Config, branches: &Branches) {
        self.access_times.apply(&self.pool, &self.settings, config, branches);
    }

    /// Puts the configured list in force, except for branches that do not exist or are gone. On failure the list in
    /// force stays, without the branches that are gone by now.
    ///
    /// Errors: `EINVAL` for a branch that lies within the pool or around it, `EEXIST` for a directory that is a
    /// branch already, `EXDEV` for a branch that the workers cannot reach, and any error of opening a branch except
    /// that it does not exist.
    pub(crate) fn apply_list(&self, config: &Config) -> Result<(), Errno> {
        let list = &config.branches;
        // So that no branch is opened again without its mount.
        let removed = self.remove_gone();
        let applied = self.check_list(list).and_then(|()| {
            let is_present = |spec: &&BranchSpec| match self.presence(&spec.path) {
                // It stays, whatever fstab says of it by now.
                Presence::InForce => exists(spec),
                Presence::Gone(_) => false,
                Presence::Awaited => exists(spec) && !is_away(spec),
            };
            self.put_in_force(config, list.iter().filter(is_present).cloned().collect())
        });
        match applied {
            Ok(()) => self.gone.lock().retain(|path, _| list.iter().any(|spec| spec.path == *path)),
            Err(_) if removed => self.coherence.invalidate_names(),
            Err(_) => {}
        }
        applied
    }

    fn check_list(&self, list: &BranchList) -> Result<(), Errno> {
        let mountpoint = self.settings.mountpoint();
        for branch in list.iter() {
            overlap::refuse_overlap(&branch.path, mountpoint).map_err(|error| {
                tracing::warn!("{error}");
                Errno::INVAL
            })?;
        }
        self.settings.check_reachable(list)?;
        self.check_duplicates(list)?;
        let device = self.settings.device();
        for branch in list.iter().filter(|spec| !self.is_in_force(&spec.path)) {
            pool_loops::check(&branch.path, mountpoint, device).map_err(|error| {
                tracing::warn!("{}", error.line());
                Errno::INVAL
            })?;
        }
        Ok(())
    }

    /// Refuses a directory that is in the list already, under whatever path. Duplicates that the pool was mounted
    /// with may stay.
    fn check_duplicates(&self, list: &BranchList) -> Result<(), Errno> {
        let in_force = ops::settings::branches(&self.pool);
        let before = self.settings.branches();
        let count = |list: &BranchList, path: &Path| list.iter().filter(|spec| spec.path == path).count();
        let is_listed = |branch: &Branch| count(list, &branch.path) > 0;
        for (index, spec) in list.iter().enumerate() {
            let path = &spec.path;
            let more_often_than_before = count(list, path) > count(&before, path).max(1);
            // Only new paths are examined, because a disk may hang.
            let identity = |path: &Path| rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
            let this = (count(&before, path) == 0).then(|| identity(path)).flatten();
            let is_taken = this.is_some()
                && (in_force
                    .iter()
                    .any(|branch| is_listed(branch) && this == Some((branch.dev, branch.ino)))
                    || list.as_slice()[..index]
                        .iter()
                        .any(|other| count(&before, &other.path) == 0 && identity(&other.path) == this));
            if more_often_than_before || is_taken {
                tracing::warn!(
                    "branch {} is given twice: it is the same directory as another branch",
                    path.shown()
                );
                return Err(Errno::EXIST);
            }
        }
        Ok(())
    }

    /// Puts these branches in force.
    pub(crate) fn put_in_force(&self, config: &Config, list: BranchList) -> Result<(), Errno> {
        self.put_opened_in_force(config, self.open(&list)?);
        Ok(())
    }

    fn open(&self, list: &BranchList) -> Result<Branches, Errno> {
        ops::settings::branches(&self.pool).update(list).map_err(|error| {
            tracing::warn!("{error}");
            error.errno()
        })
    }

    fn put_opened_in_force(&self, config: &Config, branches: Branches) {
        // Before they are in force: what is on them must be watched once the kernel caches it.
        self.watch.reconfigure(config, &branches);
        self.apply_access_times(config, &branches);
        self.record_mounts(&branches, &[]);
        self.enforce(config, branches);
    }

    /// Puts branches in force that are watched, with the names of those that are missing.
    fn enforce(&self, config: &Config, branches: Branches) {
        let at = (&*self.pool, &self.watch);
        let missing = self.remembered.arrange(config, &self.settings, at, &branches);
        if config.pool.missing == MissingNames::Remember {
            self.keep_places(config, &branches);
        }
        ops::settings::set_branches(&self.pool, branches.with_missing(missing));
    }

    /// Keeps where the branches are mounted, for the next mount of the pool.
    fn keep_places(&self, config: &Config, branches: &Branches) {
        let dir = remembered::directory(config, self.settings.mountpoint());
        let before = remembered::places(&dir);
        let mounts = self.mounts.lock().clone();
        let place = |spec: &BranchSpec| {
            let known = before.iter().find(|place| place.branch == spec.path);
            let record = self.remembered.of(&spec.path)?;
            let found_by = config.patterns.iter().find(|(_, path)| *path == spec.path);
            let on = branches.iter().find(|branch| branch.path == spec.path);
            let on = on.and_then(|branch| mounts.get(&branch.id)).filter(|on| on.mount_id.is_some());
            let mountpoint = on.map(|on| &on.mountpoint).or(known.map(|place| &place.mountpoint))?.clone();
            // A process that has taken over does not know them.
            let pattern = found_by.map(|(pattern, _)| pattern).or(known.map(|place| &place.pattern));
            let pattern = pattern.cloned().unwrap_or_default();
            (!record.is_forgotten()).then(|| BranchPlace { branch: spec.path.clone(), mountpoint, pattern })
        };
        let places: Vec<BranchPlace> = config.branches.iter().filter_map(place).collect();
        if let Err(why) = remembered::keep_places(&dir, &places) {
            tracing::warn!("missing: {} cannot be written: {why}", dir.shown());
        }
    }

    /// Has the names of missing branches be those that are remembered by now.
    fn arrange_missing(&self) {
        let config = self.settings.config();
        if config.pool.missing == MissingNames::Remember {
            self.enforce(&config, (*ops::settings::branches(&self.pool)).clone());
        }
    }

    /// Forgets what a missing branch held.
    ///
    /// Errors: `NOENT` if there is no such branch, `BUSY` if it is not missing, and those of writing its record.
    pub(crate) fn forget_names(&self, path: &Path) -> Result<(), Errno> {
        let config = self.settings.config();
        if !config.branches.iter().any(|spec| spec.path == path) {
            return Err(Errno::NOENT);
        }
        if self.is_in_force(path) {
            return Err(Errno::BUSY);
        }
        self.remembered.forget(&config, &self.settings, path)?;
        self.arrange_missing();
        self.coherence.invalidate_names();
        Ok(())
    }

    /// Returns what is remembered of a branch.
    pub(crate) fn record(&self, path: &Path) -> Option<Arc<Record>> {
        self.remembered.of(path)
    }

    /// Has what is remembered be kept for the next process, because this one is about to end.
    pub(crate) fn keep_records(&self) {
        self.remembered.end_soon();
    }

    /// Puts a gone branch in force again.
    pub(crate) fn restore(&self, path: &Path) -> Result<(), Errno> {
        let config = self.settings.config();
        let wanted = |spec: &&BranchSpec| spec.path == path || self.is_in_force(&spec.path);
        let branches = self.open(&config.branches.iter().filter(wanted).cloned().collect())?;
        let mountpoint = self.gone.lock().get(path).map(|gone| gone.mountpoint.clone());
        if let Some(mountpoint) = mountpoint
            && branches
                .iter()
                .filter(|branch| branch.path == path)
                .any(|branch| is_beside(branch, &mountpoint))
        {
            return Err(Errno::NODEV);
        }
        self.put_opened_in_force(&config, branches);
        Ok(())
    }

    /// Forgets a gone branch, which is in force again.
    pub(crate) fn forget_gone(&self, path: &Path) {
        self.gone.lock().remove(path);
    }

    /// Removes the branches that are unmounted or gone; returns whether there were any.
    pub(crate) fn remove_gone(&self) -> bool {
        let branches = ops::settings::branches(&self.pool);
        let unmounted = self.unmounted_branches(&branches);
        for branch in branches.iter().filter(|branch| unmounted.contains(&branch.id)) {
            branch.health.look(|| Err((Health::Gone, Errno::NODEV)));
        }
        let going: Vec<_> =
            branches.iter().filter(|branch| branch.health.state() == BranchState::Gone).cloned().collect();
        if going.is_empty() {
            return false;
        }
        let mut lines = Vec::new();
        for branch in &going {
            let path = branch.path.clone();
            let why = if unmounted.contains(&branch.id) {
                "its mount is gone".to_owned()
            } else {
                branch.health.report().map_or_else(String::new, |illness| illness.to_string())
            };
            lines.push(format!(
                "branch {}: {why}; the pool goes on without it until it is back",
                path.shown()
            ));
            let mountpoint =
                self.mounts.lock().get(&branch.id).map_or_else(|| path.clone(), |on| on.mountpoint.clone());
            branch.health.turn(Turn::Go);
            let gone = GoneBranch { mountpoint, health: Arc::clone(&branch.health) };
            self.gone.lock().insert(path, gone);
        }
        let rest = branches.without(&going);
        // What has happened until now is remembered, or known to be unknown.
        let caught_up = (0..CATCH_UP).any(|_| self.watch.caught_up());
        if !caught_up {
            ops::external_changes::records(&self.pool).iter().for_each(|record| record.missed_events());
        }
        self.watch.reconfigure(&self.settings.config(), &rest);
        self.enforce(&self.settings.config(), rest);
        lines.iter().for_each(|line| tracing::warn!("{line}"));
        true
    }

    /// Records the mounts of new branches. `before`: where branches were mounted when another process served the pool.
    fn record_mounts(&self, branches: &Branches, before: &[(PathBuf, PathBuf)]) {
        let mut mounts = self.mounts.lock();
        mounts.retain(|id, _| branches.by_id(*id).is_some());
        let unknown: Vec<_> = branches.iter().filter(|branch| !mounts.contains_key(&branch.id)).collect();
        let Ok(listed) = mountinfo::list() else { return };
        for branch in unknown {
            let before = before.iter().find(|(path, _)| *path == branch.path).map(|(_, at)| at.as_path());
            let mount = mountinfo::id_of(branch.root())
                .ok()
                .and_then(|id| BranchMount::of(&listed, id, &branch.path, before));
            if let Some(mount) = mount {
                self.settings.record_mountpoint(&branch.path, &mount.mountpoint);
                mounts.insert(branch.id, mount);
            }
        }
    }

    /// Returns the branches whose paths lead to another mount than the one that they were opened on.
    pub(crate) fn unmounted_branches(&self, branches: &Branches) -> Vec<BranchId> {
        let Ok(listed) = mountinfo::list() else { return Vec::new() };
        let mounts = self.mounts.lock();
        let is_unmounted = |branch: &&Arc<Branch>| {
            mounts.get(&branch.id).is_some_and(|branch_mount| {
                mountinfo::holding_in(&listed, &branch.path)
                    .is_none_or(|mounted| Some(mounted.id) != branch_mount.mount_id)
            })
        };
        branches.iter().filter(is_unmounted).map(|branch| branch.id).collect()
    }

    fn is_in_force(&self, path: &Path) -> bool {
        is_among(&ops::settings::branches(&self.pool), path)
    }

    /// Returns where the branch at this path of the list is.
    pub(crate) fn presence(&self, path: &Path) -> Presence {
        let (_, mut at) = self.presences(std::iter::once(path));
        at.pop().unwrap_or(Presence::Awaited)
    }

    /// Returns which branches are in force, and where those at these paths are at the same moment, although branches may come and
    /// go meanwhile.
    pub(crate) fn presences<'a>(
        &self,
        paths: impl Iterator<Item = &'a Path> + Clone,
    ) -> (Arc<Branches>, Vec<Presence>) {
        let mut in_force = ops::settings::branches(&self.pool);
        loop {
            let at = |path: &Path| match self.gone.lock().get(path) {
                _ if is_among(&in_force, path) => Presence::InForce,
                Some(gone) => Presence::Gone(gone.clone()),
                None => Presence::Awaited,
            };
            let found = paths.clone().map(at).collect();
            let now = ops::settings::branches(&self.pool);
            if Arc::ptr_eq(&in_force, &now) {
                return (in_force, found);
            }
            in_force = now;
        }
    }

    /// Returns all gone branches.
    pub(crate) fn gone_branches(&self) -> Vec<(PathBuf, GoneBranch)> {
        self.gone.lock().clone().into_iter().collect()
    }
}

fn is_among(branches: &Branches, path: &Path) -> bool {
    branches.iter().any(|branch| branch.path == path)
}

/// Returns true if a branch was opened that is not on the mount there. It has been unmounted since it was looked for, so what was
/// opened is the directory below.
fn is_beside(branch: &Branch, mountpoint: &Path) -> bool {
    let mounted = mountinfo::id_of(branch.root()).ok().zip(mountinfo::list().ok());
    mounted.is_some_and(|(id, listed)| {
        listed.iter().any(|mounted| mounted.id == id && !mounted.mountpoint.starts_with(mountpoint))
    })
}

/// Returns true, with a warning, if the disk of a branch is not mounted.
fn is_away(spec: &BranchSpec) -> bool {
    let disk = fstab::away(&spec.path);
    if let Some(disk) = &disk {
        let path = spec.path.shown();
        tracing::warn!("branch {path}: {} is not mounted: the pool uses it when it is", disk.shown());
    }
    disk.is_some()
}

/// Returns false, with a warning, if there is no such directory. Any other error shows when the branch is opened.
fn exists(spec: &BranchSpec) -> bool {
    let missing = matches!(rustix::fs::stat(&spec.path), Err(Errno::NOENT));
    if missing {
        tracing::warn!("branch {} does not exist: the pool uses it as soon as it does", spec.path.shown());
    }
    !missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_goes_while_it_is_recorded_is_missed() {
        let table = b"20 1 8:1 / / rw - ext4 /dev/a rw\n30 20 8:17 / /disk rw - xfs /dev/b rw\n";
        let (all, without) =
            (mountinfo::parse(table), mountinfo::parse(table.split(|&byte| byte == b'\n').next().unwrap()));
        let of = |listed: &[MountEntry], opened_on, before: Option<&str>| {
            let found = BranchMount::of(listed, opened_on, Path::new("/disk/media"), before.map(Path::new))?;
            Some((found.mount_id, found.mountpoint.to_str().unwrap().to_owned()))
        };
        let there = Some((Some(30), "/disk".to_owned()));
        assert_eq!((of(&all, 30, None), of(&all, 30, Some("/disk"))), (there.clone(), there));
        // It went after the root was opened, or before: then that is a directory of the disk below.
        assert_eq!(of(&without, 30, Some("/disk")), Some((None, "/disk".into())));
        assert_eq!(of(&without, 20, Some("/disk")), Some((None, "/disk".into())));
        assert_eq!(of(&without, 30, None), Some((None, "/disk/media".into())));
        assert_eq!(of(&without, 20, None), Some((Some(20), "/".into())), "a directory that is meant");
        assert_eq!(of(&[], 20, None), None, "a table that does not show the root");
    }
}
