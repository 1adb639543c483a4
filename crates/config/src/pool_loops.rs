//! Pools on pools: a branch may lie on another pool, but no pool may come back to itself that way. A request to it would
//! wait for another one, and that for the next.
//!
//! Other pools are asked which directories they hold. What is mounted by others later, or joined by other filesystems
//! (bindfs, overlayfs), is not seen.

use crate::control_api::{self, BranchReport, PoolReport, SRCMOUNTS, STATUS};
use crate::error::Error;
use crate::overlap::is_visible_below;
use canopy_sys::mountinfo::{self, Mounted};
use rustix::fs::{major, minor};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How long another pool has to answer. It asks no branch for that.
const PATIENCE: Duration = Duration::from_secs(3);
/// Nobody has so many pools on each other.
const DEPTH: u32 = 16;

type Device = (u32, u32);

/// A directory that a pool holds as a branch.
struct Held {
    path: PathBuf,
    device: Option<Device>,
}

/// Refuses a branch that leads back to the pool, which is, or will be, at this mountpoint. `own` is its device, once it
/// is mounted.
pub fn check(branch: &Path, mountpoint: &Path, own: Option<Device>) -> Result<(), Error> {
    let Ok(stat) = rustix::fs::stat(branch) else { return Ok(()) };
    let device = (major(stat.st_dev), minor(stat.st_dev));
    if Some(device) == own {
        let (branch, mountpoint) = (branch.to_owned(), mountpoint.to_owned());
        return Err(Error::BranchIsOwnPool { branch, mountpoint });
    }
    let mounts = mountinfo::list().unwrap_or_default();
    let leads_back = |held: &Held| {
        (own.is_some() && held.device == own)
            || mountpoint.starts_with(&held.path)
            || is_visible_below(mountpoint, &held.path, &mounts)
    };
    match search(device, &mounts, &ask, &leads_back, DEPTH) {
        None => Ok(()),
        Some((pool, inner)) => {
            Err(Error::PoolLoop { branch: branch.to_owned(), pool, inner, mountpoint: mountpoint.to_owned() })
        }
    }
}

/// The pool, and its branch, that is sought among those that a filesystem joins.
fn search(
    device: Device,
    mounts: &[Mounted],
    ask: &dyn Fn(&Path) -> Vec<Held>,
    sought: &dyn Fn(&Held) -> bool,
    depth: u32,
) -> Option<(PathBuf, PathBuf)> {
    // The mount of the whole pool answers; others may be bound elsewhere.
    let whole =
        |mounted: &&Mounted| mounted.device == device && mounted.is_pool() && mounted.root == Path::new("/");
    let pool = mounts.iter().find(whole)?;
    for held in ask(&pool.mountpoint) {
        if sought(&held) {
            return Some((pool.mountpoint.clone(), held.path));
        }
        if let Some(device) = held.device.filter(|_| depth > 0)
            && let Some(found) = search(device, mounts, ask, sought, depth - 1)
        {
            return Some(found);
        }
    }
    None
}

/// What a pool holds; nothing when it does not answer.
fn ask(pool: &Path) -> Vec<Held> {
    let (sender, answer) = channel();
    let control = control_api::control_file(pool);
    // A pool that hangs keeps this thread, and nobody else.
    let asked = thread::Builder::new().name("canopy-asks".into()).spawn(move || {
        let _ = sender.send([STATUS, SRCMOUNTS].map(|key| control_api::read(&control, key).ok()));
    });
    let told = asked.ok().and_then(|_| answer.recv_timeout(PATIENCE).ok());
    let Some([status, sources]) = told else {
        tracing::warn!("pool {} does not answer: what it joins is not known", pool.display());
        return Vec::new();
    };
    if let Some(told) = status.and_then(|json| serde_json::from_slice::<PoolReport>(&json).ok()) {
        let held = |branch: &BranchReport| Held {
            path: branch.path.to_path(),
            device: Some((major(branch.dev), minor(branch.dev))),
        };
        return told.branches.iter().map(held).collect();
    }
    // Another program, which tells paths only.
    let sources = sources.unwrap_or_default();
    let paths = sources.split(|&byte| byte == b':').filter(|path| !path.is_empty());
    let held = |path: &[u8]| {
        let path = PathBuf::from(OsStr::from_bytes(path));
        let device = mountinfo::list()
            .ok()
            .and_then(|mounts| mountinfo::holding_in(&mounts, &path).map(|mounted| mounted.device));
        Held { path, device }
    };
    paths.map(held).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(number: u32, at: &str, root: &str) -> Mounted {
        Mounted {
            id: number,
            parent: 0,
            device: (0, number),
            root: root.into(),
            mountpoint: at.into(),
            peers: None,
            master: None,
            fstype: "fuse.canopy".into(),
            source: "x".into(),
            options: String::new(),
            super_options: String::new(),
        }
    }

    #[test]
    fn what_lies_on_what_is_found() {
        let mounts =
            [pool(5, "/bound", "/sub"), pool(5, "/p5", "/"), pool(6, "/p6", "/"), pool(7, "/p7", "/")];
        // 5 lies on 6 and a disk; 6 on 7; 7 on 6 again, which others have brought about.
        let ask = |pool: &Path| {
            let held = |path: &str, device| Held { path: path.into(), device: Some((0, device)) };
            match pool.to_str() {
                Some("/p5") => vec![held("/disk", 1), held("/p6/d", 6)],
                Some("/p6") => vec![held("/p7", 7)],
                Some("/p7") => vec![held("/p6/e", 6), held("/other", 2)],
                _ => panic!("{} is asked", pool.display()),
            }
        };
        let find = |device: u32, name: &str| {
            search((0, device), &mounts, &ask, &|held| held.path == Path::new(name), DEPTH)
        };
        assert_eq!(find(5, "/disk"), Some(("/p5".into(), "/disk".into())));
        assert_eq!(find(5, "/p7"), Some(("/p6".into(), "/p7".into())));
        assert_eq!(find(7, "/disk"), None, "and it ends");
        assert_eq!(find(1, "/disk"), None, "no pool");
    }
}
