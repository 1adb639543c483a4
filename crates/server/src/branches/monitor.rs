//! Watches over the branches while the pool is served.
//!
//! One thread checks once a second which branches may have become sick or well, and is woken at once when mounts
//! change. Each branch is checked on a thread of its own, because a sick disk may block whatever touches it.
//!
//! A branch is gone when its mount is no longer where it was, when its root cannot be read, or when its disk is
//! missing. The pool then continues without it and keeps nothing open there except the files that its users have
//! open, so that the disk can be unmounted and repaired. The branch stays in the configured list. It returns once
//! there is a readable mount in the old place; the directory below the missing mount is never used.

use super::topology::{GoneBranch, Topology};
use crate::lock_rank as rank;
use canopy_base::ids::BranchId;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::Branch;
use canopy_branch::branch::health::{CheckResult, Health};
use canopy_branch::fs::block_device;
use canopy_config::overlap;
use canopy_pool::{Pool, ops};
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

const INTERVAL: Duration = Duration::from_secs(1);

struct BranchMonitor {
    topology: Weak<Topology>,
    /// Branches that a thread is checking, by path.
    in_progress: Mutex<HashSet<PathBuf>, rank::Leaf>,
    /// Branches of which a thread tends the trash.
    tended: Mutex<HashSet<BranchId>, rank::Leaf>,
    /// When the process began, in seconds since 1970.
    began: i64,
}

/// Starts to monitor the branches, until the pool ends.
pub(crate) fn start(topology: &Arc<Topology>) -> std::io::Result<()> {
    let monitor = BranchMonitor {
        topology: Arc::downgrade(topology),
        in_progress: Mutex::default(),
        tended: Mutex::default(),
        began: seconds_now(),
    };
    let monitor = Arc::new(monitor);
    thread::Builder::new().name("canopy-health".into()).spawn(move || monitor.run()).map(drop)
}

impl BranchMonitor {
    fn run(self: &Arc<Self>) {
        // Polling it reports changes (proc_pid_mountinfo(5)).
        let table = File::open("/proc/self/mountinfo").ok();
        // What has changed since the mounts of the branches were recorded is not reported.
        let mut is_first = true;
        loop {
            let changed = std::mem::take(&mut is_first) || wait_for_mount_change(table.as_ref());
            let Some(topology) = self.topology.upgrade() else { return };
            let branches = ops::settings::branches(&topology.pool);
            if changed {
                topology.apply_access_times(&topology.settings.config(), &branches);
            }
            let is_gone = |branch: &Arc<Branch>| branch.health.health() == Health::Gone;
            let any_unmounted = changed && !topology.unmounted_branches(&branches).is_empty();
            if any_unmounted || branches.iter().any(is_gone) {
                remove_gone_branches(&topology);
            }
            for branch in ops::settings::branches(&topology.pool).iter().filter(|branch| branch.needs_check())
            {
                self.check_branch(branch);
            }
            for branch in ops::trash::due(&topology.pool) {
                self.tend_trash(&topology.pool, branch);
            }
            for (path, gone) in topology.gone_branches() {
                if changed || gone.health.needs_check() {
                    self.check_returned(path, gone);
                }
            }
        }
    }

    /// Checks a branch, unless a thread is still at it.
    fn check_branch(self: &Arc<Self>, branch: &Arc<Branch>) {
        let branch = Arc::clone(branch);
        self.spawn_check(branch.path.clone(), move |topology| {
            let news = branch.check_health();
            let Some((topology, illness)) = topology.upgrade().zip(news) else { return };
            // What the pool has cached of its space may be out of date.
            ops::settings::forget_space(&topology.pool);
            let path = branch.path.shown();
            match illness.health {
                Health::Well => tracing::info!("branch {path} works again, and is used again"),
                // Logged when it is removed.
                Health::Gone => remove_gone_branches(&topology),
                _ => tracing::warn!(
                    "branch {path}: {illness}; nothing is created or changed there until it works again"
                ),
            }
        });
    }

    /// Checks whether a gone branch is back.
    fn check_returned(self: &Arc<Self>, path: PathBuf, gone: GoneBranch) {
        self.spawn_check(path.clone(), move |topology| {
            let Some(pool_at) = topology.upgrade().map(|topology| topology.settings.mountpoint().to_owned())
            else {
                return;
            };
            let news = gone.health.look(|| check_mount(&path, &gone.mountpoint, &pool_at));
            let well = news.is_some_and(|illness| illness.health == Health::Well);
            let Some(topology) = topology.upgrade().filter(|_| well) else { return };
            let _changing = topology.settings.lock_changes();
            if !topology.is_gone(&path) {
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

    /// Looks after the trash of a branch, unless a thread is still at it. Each branch has a thread of its own: of a large trash much
    /// has to be read, and a disk may hang.
    fn tend_trash(self: &Arc<Self>, pool: &Arc<Pool>, branch: Arc<Branch>) {
        if !self.tended.lock().insert(branch.id) {
            return;
        }
        let (monitor, pool, id, began) = (Arc::clone(self), Arc::clone(pool), branch.id, self.began);
        let tend = move || {
            canopy_sys::sched::start_afresh();
            ops::trash::tend(&pool, &branch, seconds_now(), began);
            monitor.tended.lock().remove(&branch.id);
        };
        if let Err(why) = thread::Builder::new().name("canopy-trash".into()).spawn(tend) {
            tracing::warn!("nobody can look after the trash of a branch: {why}");
            self.tended.lock().remove(&id);
        }
    }

    /// Runs a check on a thread of its own, one per path at a time: a sick disk may block it.
    fn spawn_check(self: &Arc<Self>, path: PathBuf, check: impl FnOnce(&Weak<Topology>) + Send + 'static) {
        if !self.in_progress.lock().insert(path.clone()) {
            return;
        }
        let (monitor, their_path) = (Arc::clone(self), path.clone());
        let started = thread::Builder::new().name("canopy-check".into()).spawn(move || {
            check(&monitor.topology);
            monitor.in_progress.lock().remove(&their_path);
        });
        if let Err(why) = started {
            tracing::warn!("branch {} cannot be checked: {why}", path.shown());
            self.in_progress.lock().remove(&path);
        }
    }
}

fn seconds_now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// Waits for a second or until mounts change; returns whether they may have changed.
fn wait_for_mount_change(table: Option<&File>) -> bool {
    let Some(table) = table else {
        thread::sleep(INTERVAL);
        return true;
    };
    let timeout = Timespec { tv_sec: INTERVAL.as_secs().cast_signed(), tv_nsec: 0 };
    match poll(&mut [PollFd::new(table, PollFlags::PRI)], Some(&timeout)) {
        Ok(changed) => changed > 0,
        Err(_) => {
            thread::sleep(INTERVAL);
            true
        }
    }
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
