//! Watches over the branches while the pool is served.
//!
//! Once a second, and at once when mounts change, it looks which branches may have become sick or well. Checks are run
//! [apart](tend), because a sick disk may block whatever touches it.
//!
//! A branch is gone when its mount is no longer where it was, when its root cannot be read, or when its disk is
//! missing. The pool then continues without it and keeps nothing open there except the files that its users have
//! open, so that the disk can be unmounted and repaired. The branch stays in the configured list. It returns once
//! there is a readable mount in the old place; the directory below the missing mount is never used.

use super::pending::{self, PendingBranches};
use super::topology::{GoneBranch, Presence, Topology};
use crate::test_switches;
use canopy_branch::branch::Branch;
use canopy_branch::branch::health::CheckResult;
use canopy_branch::branch::state::{BranchState, Health};
use canopy_branch::fs::block_device;
use canopy_branch::tend;
use canopy_config::overlap;
use canopy_pool::{Pool, ops};
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

const INTERVAL: Duration = Duration::from_secs(1);

struct BranchMonitor {
    topology: Weak<Topology>,
    pending: PendingBranches,
    /// Mounts have changed, and what follows is not done yet.
    mounts_changed: AtomicBool,
    /// How often it has looked.
    round: AtomicU64,
}

/// Begins to monitor the branches, until the pool ends.
pub(crate) fn start(topology: &Arc<Topology>) {
    let monitor = BranchMonitor {
        topology: Arc::downgrade(topology),
        pending: PendingBranches::new(topology),
        // What has changed since the mounts of the branches were recorded is not reported.
        mounts_changed: AtomicBool::new(true),
        round: AtomicU64::new(0),
    };
    // Polling it reports changes (proc_pid_mountinfo(5)).
    let (table, monitor) = (File::open("/proc/self/mountinfo").ok(), Arc::new(monitor));
    let reports = table.is_some();
    tend::repeat_at(table.map(OwnedFd::from), move |changed| monitor.look(changed || !reports));
}

impl BranchMonitor {
    /// Looks which branches have to be checked. Waits for none.
    fn look(self: &Arc<Self>, changed: bool) -> Option<Duration> {
        let topology = self.topology.upgrade()?;
        let changed = self.mounts_changed.fetch_or(changed, Ordering::SeqCst) || changed;
        let branches = ops::settings::branches(&topology.pool);
        if changed || branches.iter().any(|branch| branch.health.state() == BranchState::Gone) {
            let monitor = Arc::clone(self);
            tend::apart_if_free((c"canopy-health", tend::of(self)), move || monitor.follow_mounts());
        }
        if pending::any_awaited(&topology) {
            let monitor = Arc::clone(self);
            tend::apart_if_free((c"canopy-missing", tend::of(self)), move || monitor.pending.add_arrived());
        }
        for branch in branches.iter().filter(|branch| branch.needs_check()) {
            self.check_branch(branch);
        }
        for branch in ops::trash::due(&topology.pool) {
            self.tend_trash(&topology.pool, branch);
        }
        if ops::read_cache::is_due(&topology.pool, self.round.fetch_add(1, Ordering::Relaxed)) {
            let pool = Arc::clone(&topology.pool);
            tend::apart_if_free((c"canopy-cache", tend::of(self)), move || {
                if let Some(long) = test_switches::cached_after() {
                    ops::read_cache::set_rests(&pool, long);
                }
                ops::read_cache::tend(&pool);
            });
        }
        for (path, gone) in topology.gone_branches() {
            if changed || gone.health.needs_check() {
                self.check_returned(path, gone);
            }
        }
        Some(INTERVAL)
    }

    /// Does what follows when mounts have changed, or a branch is gone.
    fn follow_mounts(&self) {
        loop {
            let Some(topology) = self.topology.upgrade() else { return };
            let changed = self.mounts_changed.swap(false, Ordering::SeqCst);
            let branches = ops::settings::branches(&topology.pool);
            if changed {
                topology.apply_access_times(&topology.settings.config(), &branches);
            }
            let is_gone = |branch: &Arc<Branch>| branch.health.state() == BranchState::Gone;
            if branches.iter().any(is_gone) || !topology.unmounted_branches(&branches).is_empty() {
                remove_gone_branches(&topology);
            }
            // They may have changed meanwhile.
            if !self.mounts_changed.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Checks a branch, unless that is under way.
    fn check_branch(&self, branch: &Arc<Branch>) {
        let branch = Arc::clone(branch);
        self.check(&branch.path.clone(), move |topology| {
            let news = branch.check_health();
            let Some((topology, illness)) = topology.upgrade().zip(news) else { return };
            // What the pool has cached of its space may be out of date.
            ops::settings::forget_space(&topology.pool);
            let path = branch.path.shown();
            match illness.state {
                BranchState::Up => tracing::info!("branch {path} works again, and is used again"),
                // Logged when it is removed.
                BranchState::Gone => remove_gone_branches(&topology),
                _ => tracing::warn!(
                    "branch {path}: {illness}; nothing is created or changed there until it works again"
                ),
            }
        });
    }

    /// Checks whether a gone branch is back.
    fn check_returned(&self, path: PathBuf, gone: GoneBranch) {
        self.check(&path.clone(), move |topology| {
            let Some(pool_at) = topology.upgrade().map(|topology| topology.settings.mountpoint().to_owned())
            else {
                return;
            };
            let news = gone.health.look(|| check_mount(&path, &gone.mountpoint, &pool_at));
            let well = news.is_some_and(|illness| illness.state == BranchState::Up);
            let Some(topology) = topology.upgrade().filter(|_| well) else { return };
            let _changing = topology.settings.lock_changes();
            if !matches!(topology.presence(&path), Presence::Gone(_)) {
                return;
            }
            match topology.restore(&path) {
                Ok(()) => {
                    if let Some(branch) =
                        ops::settings::branches(&topology.pool).iter().find(|branch| branch.path == path)
                    {
                        branch.health.inherit(&gone.health);
                    }
                    topology.forget_gone(&path);
                    tracing::info!("branch {} is back, and is used again", path.shown());
                    topology.coherence.invalidate_names();
                }
                Err(_) => {
                    gone.health.look(|| Err((Health::Gone, Errno::NODEV)));
                }
            }
        });
    }

    /// Looks after the trash of a branch, unless that is being done: of a large trash much has to be read.
    fn tend_trash(&self, pool: &Arc<Pool>, branch: Arc<Branch>) {
        let pool = Arc::clone(pool);
        let line = (c"canopy-trash", branch.id.0.into());
        tend::apart_if_free(line, move || ops::trash::tend(&pool, &branch, seconds_now()));
    }

    /// Runs a check, which a sick disk may block: one for each path at a time.
    fn check(&self, path: &Path, check: impl FnOnce(&Weak<Topology>) + Send + 'static) {
        let topology = Weak::clone(&self.topology);
        let mut of_path = DefaultHasher::new();
        (path, topology.as_ptr().addr()).hash(&mut of_path);
        tend::apart_if_free((c"canopy-check", of_path.finish()), move || check(&topology));
    }
}

fn seconds_now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// Removes gone branches at once.
fn remove_gone_branches(topology: &Topology) {
    let _changing = topology.settings.lock_changes();
    if topology.remove_gone() {
        topology.coherence.invalidate_names();
    }
}

/// Checks that there is a mount where the branch had one, and that the branch can be read there.
fn check_mount(path: &Path, mountpoint: &Path, pool: &Path) -> CheckResult {
    let gone = |errno| (Health::Gone, errno);
    let listed = mountinfo::list().map_err(|_| gone(Errno::IO))?;
    let in_place = |mounted: &&MountEntry| mounted.mountpoint.starts_with(mountpoint);
    mountinfo::holding_in(&listed, path).filter(in_place).ok_or(gone(Errno::NODEV))?;
    overlap::refuse_overlap(path, pool).map_err(|_| gone(Errno::NODEV))?;
    let errno = |why: std::io::Error| gone(Errno::from_io_error(&why).unwrap_or(Errno::IO));
    fs::read_dir(path).map_err(errno)?.next().transpose().map_err(errno)?;
    // The kernel still serves cached data of a disk that was pulled.
    block_device::answers(File::open(path).map_err(errno)?.as_fd()).map_err(gone)
}
