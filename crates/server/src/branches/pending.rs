//! Branches that do not exist yet.
//!
//! A running pool takes the path of a disk that will be mounted later, as a mount does where that is asked for. Such a
//! path is part of the list that users see, and a branch as soon as there is a directory: a thread looks for it, for as
//! long as one is missing.

use crate::branches::access_times;
use crate::branches::monitor;
use crate::coherence::invalidate::forget_names;
use crate::control::Control;
use crate::dispatch::Dispatch;
use canopy_config::{Config, overlap, pool_loops};
use canopy_pool::Pool;
use canopy_pool::branch::{Branch, BranchList, BranchSpec};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// The thread that looks for missing branches.
#[derive(Default)]
pub(crate) struct Watch {
    running: AtomicBool,
}

/// Puts a list in force, as far as its branches are there. Nothing changes when it fails.
///
/// Errors: `EINVAL` for a branch that lies within the pool or around it, `EEXIST` for one that is a branch already, `EXDEV` for one outside of what the workers may
/// reach, and whatever opening one gives, other than that it does not exist.
pub(crate) fn take_branches(serving: &Dispatch, config: &Config, mountpoint: &Path) -> Result<(), Errno> {
    let list = &config.branches;
    serving.care.keep_only(list.as_slice());
    // None is opened anew where its mount is not there any more.
    monitor::let_go(serving, config);
    for branch in list.iter() {
        overlap::not_around(&branch.path, mountpoint).map_err(|error| {
            tracing::warn!("{error}");
            Errno::INVAL
        })?;
    }
    serving.control.on_ground(list)?;
    not_twice(serving, list)?;
    let own = serving.control.device();
    for branch in list.iter().filter(|spec| !is_branch(&serving.pool, spec)) {
        pool_loops::check(&branch.path, mountpoint, own).map_err(|error| {
            tracing::warn!("{}", error.line());
            Errno::INVAL
        })?;
    }
    let is_there = |spec: &&BranchSpec| {
        !serving.care.is_gone(&spec.path)
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
    take(serving, config, list.iter().filter(is_there).cloned().collect())
}

/// Refuses a directory that is in the list already, under whichever path. Those that the pool was mounted with stay.
fn not_twice(serving: &Dispatch, list: &BranchList) -> Result<(), Errno> {
    let held = serving.pool.branches();
    let before = serving.control.branches();
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

fn take(serving: &Dispatch, config: &Config, list: BranchList) -> Result<(), Errno> {
    let pool = &serving.pool;
    let branches = pool.branches().update(&list).map_err(|error| {
        tracing::warn!("{error}");
        error.errno()
    })?;
    // Before they are in force: what they hold must be watched once it is relied upon.
    serving.watch.settle(serving, config, &branches);
    access_times::settle(serving, config, &branches);
    serving.care.learn(&branches);
    pool.set_branches(branches);
    Ok(())
}

/// Puts a branch in force again that the pool has let go of. Called while the list cannot change.
pub(crate) fn take_back(serving: &Dispatch, path: &Path) -> Result<(), Errno> {
    let config = serving.control.config();
    let wanted = |spec: &&BranchSpec| spec.path == path || is_branch(&serving.pool, spec);
    take(serving, &config, config.branches.iter().filter(wanted).cloned().collect())
}

/// Looks for the branches that are missing from now on, if any are. Called while the list cannot change.
pub(crate) fn watch(serving: &Dispatch, list: &BranchList) {
    let watch = &serving.control.missing;
    if !some_missing(serving, list) || watch.running.swap(true, Ordering::Relaxed) {
        return;
    }
    let pool = serving.own.clone();
    if let Err(why) = thread::Builder::new().name("canopy-missing".into()).spawn(move || run(&pool)) {
        tracing::error!("branches that do not exist yet are not looked for: {why}");
        watch.running.store(false, Ordering::Relaxed);
    }
}

fn run(pool: &Weak<Dispatch>) {
    loop {
        thread::sleep(EVERY);
        // It ends with the pool.
        let Some(serving) = pool.upgrade() else { return };
        if !look(&serving.control, &serving) {
            return;
        }
    }
}

/// Takes on what has come; true while something is missing.
fn look(control: &Control, serving: &Dispatch) -> bool {
    let usable = |spec: &&BranchSpec| {
        is_branch(&serving.pool, spec)
            // What has come may be a symlink, into the pool for one.
            || !serving.care.is_gone(&spec.path)
                && fs::canonicalize(&spec.path).is_ok_and(|path| {
                    path.is_dir()
                        && control.is_on_ground(&path)
                        && overlap::not_around(&path, control.mountpoint()).is_ok()
                        && pool_loops::check(&path, control.mountpoint(), control.device()).is_ok()
            })
    };
    // A disk that hangs is waited for without holding up changes.
    let come = control.branches().iter().any(|spec| !is_branch(&serving.pool, spec) && usable(&spec));
    let _changing = control.changing();
    let list = control.branches();
    let left = come && monitor::let_go(serving, &control.config());
    if left {
        forget_names(serving);
    } else if come && take(serving, &control.config(), list.iter().filter(usable).cloned().collect()).is_ok()
    {
        tracing::info!("the branches are {} now", serving.pool.branches().to_list());
        forget_names(serving);
    }
    let more = some_missing(serving, &list);
    control.missing.running.store(more, Ordering::Relaxed);
    more
}

fn is_branch(pool: &Pool, spec: &BranchSpec) -> bool {
    pool.branches().iter().any(|branch| branch.path == spec.path)
}

/// Those that the pool has let go of are looked for by others.
fn some_missing(serving: &Dispatch, list: &BranchList) -> bool {
    list.iter().any(|spec| !is_branch(&serving.pool, spec) && !serving.care.is_gone(&spec.path))
}
