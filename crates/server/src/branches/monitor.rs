//! Looking after the branches, for as long as the pool is served.
//!
//! One thread asks once a second which branches have given reason to be looked at, and hears at once when mounts come
//! and go. Each branch is looked at by a thread of its own, for a sick disk may keep whoever touches it.
//!
//! Of a branch that is gone the pool lets go: one whose mount is not where it was, whose root cannot be read, or whose
//! disk is not there. It keeps nothing open there but the files that its users have open, so that the disk can be
//! unmounted and repaired. It stays listed, and is a branch again once there is a mount in the old place that can be
//! read: never the directory below.

use super::topology::{Gone, Topology};
use canopy_config::overlap;
use canopy_pool::block_device;
use canopy_pool::branch::Branch;
use canopy_pool::branch::health::{CheckResult, Health};
use canopy_sys::mountinfo::{self, Mounted};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

struct BranchMonitor {
    topology: Weak<Topology>,
    /// Branches that a thread is looking at, by path. A leaf among locks.
    looked_at: Mutex<HashSet<PathBuf>>,
}

/// Starts to look after the branches, until the pool is gone.
pub(crate) fn start(topology: &Arc<Topology>) -> std::io::Result<()> {
    let monitor = BranchMonitor { topology: Arc::downgrade(topology), looked_at: Mutex::default() };
    let monitor = Arc::new(monitor);
    thread::Builder::new().name("canopy-health".into()).spawn(move || monitor.run()).map(drop)
}

impl BranchMonitor {
    fn run(self: &Arc<Self>) {
        // It tells of changes to whoever polls it (proc_pid_mountinfo(5)).
        let table = File::open("/proc/self/mountinfo").ok();
        loop {
            let changed = mounts_change(table.as_ref());
            let Some(topology) = self.topology.upgrade() else { return };
            let branches = topology.pool.branches();
            if changed {
                topology.settle_access_times(&topology.settings.config(), &branches);
            }
            let is_gone = |branch: &Arc<Branch>| branch.health.health() == Health::Gone;
            let left = changed && !topology.have_left(&branches).is_empty();
            if left || branches.iter().any(is_gone) {
                go_on_without(&topology);
            }
            for branch in topology.pool.branches().iter().filter(|branch| branch.needs_check()) {
                self.look_at_branch(branch);
            }
            for (path, gone) in topology.gone() {
                if changed || gone.condition.needs_check() {
                    self.look_for(path, gone);
                }
            }
        }
    }

    /// Looks at a branch, unless a thread is still at it.
    fn look_at_branch(self: &Arc<Self>, branch: &Arc<Branch>) {
        let branch = Arc::clone(branch);
        self.look(branch.path.clone(), move |topology| {
            let news = branch.check_health();
            let Some((topology, illness)) = topology.upgrade().zip(news) else { return };
            // What is remembered of its space may be from before.
            topology.pool.forget_space();
            let path = branch.path.display();
            match illness.health {
                Health::Well => tracing::info!("branch {path} is well again: it takes part in everything"),
                // Told when it is let go of.
                Health::Gone => go_on_without(&topology),
                _ => tracing::warn!(
                    "branch {path}: {illness}; nothing is made or changed there until it is well again"
                ),
            }
        });
    }

    /// Looks whether a branch is back.
    fn look_for(self: &Arc<Self>, path: PathBuf, gone: Gone) {
        self.look(path.clone(), move |topology| {
            let Some(pool_at) = topology.upgrade().map(|topology| topology.settings.mountpoint().to_owned())
            else {
                return;
            };
            let news = gone.condition.look(|| is_back(&path, &gone.mountpoint, &pool_at));
            let well = news.is_some_and(|illness| illness.health == Health::Well);
            let Some(topology) = topology.upgrade().filter(|_| well) else { return };
            let _changing = topology.settings.changing();
            if !topology.is_gone(&path) {
                return;
            }
            match topology.take_back(&path) {
                Ok(()) => {
                    if let Some(branch) = topology.pool.branches().iter().find(|branch| branch.path == path) {
                        branch.health.inherit(&gone.condition);
                    }
                    topology.is_back(&path);
                    tracing::info!("branch {} is back: it takes part in everything", path.display());
                    topology.coherence.invalidate_names();
                }
                Err(_) => {
                    gone.condition.look(|| Err((Health::Gone, Errno::NODEV)));
                }
            }
        });
    }

    /// Runs a look in a thread of its own, one a path at a time: a sick disk may keep it.
    fn look(self: &Arc<Self>, path: PathBuf, look: impl FnOnce(&Weak<Topology>) + Send + 'static) {
        if !self.looked_at.lock().insert(path.clone()) {
            return;
        }
        let (monitor, at) = (Arc::clone(self), path.clone());
        let started = thread::Builder::new().name("canopy-look".into()).spawn(move || {
            look(&monitor.topology);
            monitor.looked_at.lock().remove(&at);
        });
        if let Err(why) = started {
            tracing::warn!("branch {} cannot be looked at: {why}", path.display());
            self.looked_at.lock().remove(&path);
        }
    }
}

/// Waits for a second, or until mounts have changed; true if they may have.
fn mounts_change(table: Option<&File>) -> bool {
    let Some(table) = table else {
        thread::sleep(EVERY);
        return true;
    };
    let timeout = Timespec { tv_sec: EVERY.as_secs().cast_signed(), tv_nsec: 0 };
    match poll(&mut [PollFd::new(table, PollFlags::PRI)], Some(&timeout)) {
        Ok(changed) => changed > 0,
        Err(_) => {
            thread::sleep(EVERY);
            true
        }
    }
}

/// Lets go of branches that are gone, now.
fn go_on_without(topology: &Topology) {
    let _changing = topology.settings.changing();
    if topology.let_go(&topology.settings.config()) {
        topology.coherence.invalidate_names();
    }
}

/// Is there a mount where the branch had one, and can the branch be read there?
fn is_back(path: &Path, mountpoint: &Path, pool: &Path) -> CheckResult {
    let gone = |errno| (Health::Gone, errno);
    let listed = mountinfo::list().map_err(|_| gone(Errno::IO))?;
    let there = |mounted: &&Mounted| mounted.mountpoint.starts_with(mountpoint);
    mountinfo::holding_in(&listed, path).filter(there).ok_or(gone(Errno::NODEV))?;
    overlap::refuse_overlap(path, pool).map_err(|_| gone(Errno::NODEV))?;
    let errno = |why: std::io::Error| gone(Errno::from_io_error(&why).unwrap_or(Errno::IO));
    fs::read_dir(path).map_err(errno)?.next().transpose().map_err(errno)?;
    // Of a disk that was pulled there is what the kernel remembers.
    block_device::answers(File::open(path).map_err(errno)?.as_fd()).map_err(gone)
}
