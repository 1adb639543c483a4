//! Looking after the branches, for as long as the pool is served.
//!
//! One thread asks once a second which branches have given reason to be looked at, and hears at once when mounts come
//! and go. Each branch is looked at by a thread of its own, for a sick disk may keep whoever touches it.
//!
//! Of a branch that is gone the pool lets go: one whose mount is not where it was, whose root cannot be read, or whose
//! disk is not there. It keeps nothing open there but the files that its users have open, so that the disk can be
//! unmounted and repaired. It stays listed, and is a branch again once there is a mount in the old place that can be
//! read: never the directory below.

use crate::branches::access_times;
use crate::branches::pending;
use crate::coherence::invalidate::forget_names;
use crate::dispatch::Dispatch;
use canopy_config::{Config, overlap};
use canopy_pool::branch::{Branch, BranchId, BranchSpec, Branches};
use canopy_pool::disk;
use canopy_pool::health::{Condition, Finding, Health, Illness};
use canopy_sys::mountinfo::{self, Mounted};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

const EVERY: Duration = Duration::from_secs(1);

/// What is known of the branches beyond themselves. Its locks are leaves.
#[derive(Default)]
pub(crate) struct Care {
    /// Those that somebody looks at.
    looked_at: Mutex<HashSet<PathBuf>>,
    /// The mount that each branch in force lies on.
    anchors: Mutex<HashMap<BranchId, Anchor>>,
    /// Those that the pool has let go of, by their paths. Changed while the configuration cannot be; what is told here
    /// before it leaves the branches, and until it is one again, is never missing from both.
    gone: Mutex<HashMap<PathBuf, Gone>>,
}

#[derive(Clone)]
struct Anchor {
    mount_id: u32,
    mountpoint: PathBuf,
}

#[derive(Clone)]
struct Gone {
    /// Where something must be mounted.
    mountpoint: PathBuf,
    condition: Arc<Condition>,
}

impl Care {
    /// Has the pool let go of the branch at this path?
    pub(crate) fn is_gone(&self, path: &Path) -> bool {
        self.gone.lock().contains_key(path)
    }

    /// Why the pool has let go of a branch.
    pub(crate) fn gone(&self, path: &Path) -> Option<Illness> {
        // Until it is a branch again it is gone, however well it is by now.
        let still = Illness { health: Health::Gone, since: SystemTime::now(), cause: Errno::NODEV };
        self.gone.lock().get(path).map(|gone| gone.condition.illness().unwrap_or(still))
    }

    /// Those that are not listed any more are nobody's concern.
    pub(crate) fn keep_only(&self, listed: &[BranchSpec]) {
        self.gone.lock().retain(|path, _| listed.iter().any(|spec| spec.path == *path));
    }

    /// Remembers on which mounts the branches lie.
    pub(crate) fn learn(&self, branches: &Branches) {
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
    fn have_left(&self, branches: &Branches) -> Vec<BranchId> {
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
}

/// Starts to look after the branches, until the pool is gone.
pub(crate) fn watch(serving: &Arc<Dispatch>) -> std::io::Result<()> {
    serving.care.learn(&serving.pool.branches());
    let pool = Arc::downgrade(serving);
    thread::Builder::new().name("canopy-health".into()).spawn(move || run(&pool)).map(drop)
}

fn run(pool: &Weak<Dispatch>) {
    // It tells of changes to whoever polls it (proc_pid_mountinfo(5)).
    let table = File::open("/proc/self/mountinfo").ok();
    loop {
        let changed = mounts_change(table.as_ref());
        let Some(serving) = pool.upgrade() else { return };
        let branches = serving.pool.branches();
        if changed {
            access_times::settle(&serving, &serving.control.config(), &branches);
        }
        let is_gone = |branch: &Arc<Branch>| branch.health.health() == Health::Gone;
        let left = changed && !serving.care.have_left(&branches).is_empty();
        if left || branches.iter().any(is_gone) {
            go_on_without(&serving);
        }
        for branch in serving.pool.branches().iter().filter(|branch| branch.wants_a_look()) {
            look_at_branch(&serving, branch);
        }
        let gone: Vec<_> = serving.care.gone.lock().clone().into_iter().collect();
        for (path, gone) in gone {
            if changed || gone.condition.wants_a_look() {
                look_for(&serving, path, gone);
            }
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
fn go_on_without(serving: &Dispatch) {
    let _changing = serving.control.changing();
    if let_go(serving, &serving.control.config()) {
        forget_names(serving);
    }
}

/// Lets go of the branches that have left, or whose roots cannot be read; true if there were any. Called while the
/// configuration cannot change.
pub(crate) fn let_go(serving: &Dispatch, config: &Config) -> bool {
    let branches = serving.pool.branches();
    let left = serving.care.have_left(&branches);
    for branch in branches.iter().filter(|branch| left.contains(&branch.id)) {
        branch.health.look(|| Err((Health::Gone, Errno::NODEV)));
    }
    let leaving: Vec<_> =
        branches.iter().filter(|branch| branch.health.health() == Health::Gone).cloned().collect();
    if leaving.is_empty() {
        return false;
    }
    let mut told = Vec::new();
    for branch in &leaving {
        let path = branch.path.clone();
        let anchor = serving.care.anchors.lock().get(&branch.id).cloned();
        let why = match left.contains(&branch.id) {
            true => "its mount is not there any more".to_owned(),
            false => branch.health.illness().map_or_else(String::new, |illness| illness.to_string()),
        };
        told.push(format!("branch {}: {why}; the pool goes on without it until it is back", path.display()));
        let mountpoint = anchor.map_or_else(|| path.clone(), |anchor| anchor.mountpoint);
        let gone = Gone { mountpoint, condition: Arc::clone(&branch.health) };
        serving.care.gone.lock().insert(path, gone);
    }
    let rest = branches.without(&leaving);
    serving.watch.settle(serving, config, &rest);
    serving.pool.set_branches(rest);
    told.iter().for_each(|told| tracing::warn!("{told}"));
    true
}

/// Looks at a branch, unless somebody is still at it.
fn look_at_branch(serving: &Dispatch, branch: &Arc<Branch>) {
    let branch = Arc::clone(branch);
    look(serving, branch.path.clone(), move |serving| {
        let news = branch.look_after();
        let Some((serving, illness)) = serving.upgrade().zip(news) else { return };
        // What is remembered of its space may be from before.
        serving.pool.forget_space();
        let path = branch.path.display();
        match illness.health {
            Health::Well => tracing::info!("branch {path} is well again: it takes part in everything"),
            // Told when it is let go of.
            Health::Gone => go_on_without(&serving),
            _ => tracing::warn!(
                "branch {path}: {illness}; nothing is made or changed there until it is well again"
            ),
        }
    });
}

/// Looks whether a branch is back.
fn look_for(serving: &Dispatch, path: PathBuf, gone: Gone) {
    look(serving, path.clone(), move |serving| {
        let Some(pool_at) = serving.upgrade().map(|serving| serving.control.mountpoint().to_owned()) else {
            return;
        };
        let news = gone.condition.look(|| is_back(&path, &gone.mountpoint, &pool_at));
        let well = news.is_some_and(|illness| illness.health == Health::Well);
        let Some(serving) = serving.upgrade().filter(|_| well) else { return };
        let _changing = serving.control.changing();
        if !serving.care.is_gone(&path) {
            return;
        }
        match pending::take_back(&serving, &path) {
            Ok(()) => {
                if let Some(branch) = serving.pool.branches().iter().find(|branch| branch.path == path) {
                    branch.health.inherit(&gone.condition);
                }
                serving.care.gone.lock().remove(&path);
                tracing::info!("branch {} is back: it takes part in everything", path.display());
                forget_names(&serving);
            }
            Err(_) => {
                gone.condition.look(|| Err((Health::Gone, Errno::NODEV)));
            }
        }
    });
}

/// Is there a mount where the branch had one, and can the branch be read there?
fn is_back(path: &Path, mountpoint: &Path, pool: &Path) -> Finding {
    let gone = |errno| (Health::Gone, errno);
    let listed = mountinfo::list().map_err(|_| gone(Errno::IO))?;
    let there = |mounted: &&Mounted| mounted.mountpoint.starts_with(mountpoint);
    mountinfo::holding_in(&listed, path).filter(there).ok_or(gone(Errno::NODEV))?;
    overlap::not_around(path, pool).map_err(|_| gone(Errno::NODEV))?;
    let errno = |why: std::io::Error| gone(Errno::from_io_error(&why).unwrap_or(Errno::IO));
    fs::read_dir(path).map_err(errno)?.next().transpose().map_err(errno)?;
    // Of a disk that was pulled there is what the kernel remembers.
    disk::answers(File::open(path).map_err(errno)?.as_fd()).map_err(gone)
}

/// Runs a look in a thread of its own, one a path at a time.
fn look(serving: &Dispatch, path: PathBuf, look: impl FnOnce(&Weak<Dispatch>) + Send + 'static) {
    if !serving.care.looked_at.lock().insert(path.clone()) {
        return;
    }
    let (pool, at) = (serving.own.clone(), path.clone());
    let started = thread::Builder::new().name("canopy-look".into()).spawn(move || {
        look(&pool);
        if let Some(serving) = pool.upgrade() {
            serving.care.looked_at.lock().remove(&at);
        }
    });
    if let Err(why) = started {
        tracing::warn!("branch {} cannot be looked at: {why}", path.display());
        serving.care.looked_at.lock().remove(&path);
    }
}
