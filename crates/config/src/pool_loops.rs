//! Pools with branches on other pools. A pool must not contain itself that way: a request would wait for another request
//! to the same pool, without end.
//!
//! The other pools report their branches. Loops through later mounts and through other filesystems, such as bindfs and
//! overlayfs, go unnoticed.

use crate::error::Error;
use crate::overlap::is_visible_below;
use canopy_control::{BranchReport, PoolReport, SRCMOUNTS, STATUS};
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use rustix::fs::{major, minor};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How long another pool may take to answer. It does so without accessing its branches.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// How many pools on top of each other are followed; more than any setup has.
const MAX_DEPTH: u32 = 16;

type Device = (u32, u32);

/// A branch of another pool.
struct InnerBranch {
    path: PathBuf,
    device: Option<Device>,
}

/// Refuses a branch that leads back to the pool at `mountpoint`. `own` is the device of the pool once it is mounted.
pub fn check(branch: &Path, mountpoint: &Path, own: Option<Device>) -> Result<(), Error> {
    let Ok(stat) = rustix::fs::stat(branch) else { return Ok(()) };
    let device = (major(stat.st_dev), minor(stat.st_dev));
    if Some(device) == own {
        let (branch, mountpoint) = (branch.to_owned(), mountpoint.to_owned());
        return Err(Error::BranchIsOwnPool { branch, mountpoint });
    }
    let mounts = mountinfo::list().unwrap_or_default();
    let leads_back = |inner: &InnerBranch| {
        (own.is_some() && inner.device == own)
            || mountpoint.starts_with(&inner.path)
            || is_visible_below(mountpoint, &inner.path, &mounts)
    };
    match search(device, &mounts, &branches_of, &leads_back, MAX_DEPTH) {
        None => Ok(()),
        Some((pool, inner)) => {
            Err(Error::PoolLoop { branch: branch.to_owned(), pool, inner, mountpoint: mountpoint.to_owned() })
        }
    }
}

/// Searches the branches of the pool on `device`, and of the pools below it. Returns the mountpoint of a pool and its
/// branch for which `sought` is true.
fn search(
    device: Device,
    mounts: &[MountEntry],
    branches_of: &dyn Fn(&Path) -> Vec<InnerBranch>,
    sought: &dyn Fn(&InnerBranch) -> bool,
    depth: u32,
) -> Option<(PathBuf, PathBuf)> {
    // Only a mount of the whole pool has the control file; a bind mount may show a part.
    let whole = |mounted: &&MountEntry| {
        mounted.device == device && mounted.is_pool() && mounted.root == Path::new("/")
    };
    let pool = mounts.iter().find(whole)?;
    for inner in branches_of(&pool.mountpoint) {
        if sought(&inner) {
            return Some((pool.mountpoint.clone(), inner.path));
        }
        if let Some(device) = inner.device.filter(|_| depth > 0)
            && let Some(found) = search(device, mounts, branches_of, sought, depth - 1)
        {
            return Some(found);
        }
    }
    None
}

/// Returns the branches of a pool; none if it does not answer.
fn branches_of(pool: &Path) -> Vec<InnerBranch> {
    let (sender, answer) = channel();
    let control = canopy_control::control_file(pool);
    // A pool that hangs blocks only this thread.
    let asking = thread::Builder::new().name("canopy-query".into()).spawn(move || {
        let _ = sender.send([STATUS, SRCMOUNTS].map(|key| canopy_control::read(&control, key).ok()));
    });
    let reply = asking.ok().and_then(|_| answer.recv_timeout(REPLY_TIMEOUT).ok());
    let Some([status, sources]) = reply else {
        tracing::warn!("pool {} does not answer: its branches are not known", pool.shown());
        return Vec::new();
    };
    if let Some(report) = status.and_then(|json| serde_json::from_slice::<PoolReport>(&json).ok()) {
        let inner = |branch: &BranchReport| InnerBranch {
            path: branch.path.to_path(),
            device: Some((major(branch.dev), minor(branch.dev))),
        };
        return report.branches.iter().map(inner).collect();
    }
    // Another program, such as mergerfs, which reports only paths.
    let sources = sources.unwrap_or_default();
    let paths = sources.split(|&byte| byte == b':').filter(|path| !path.is_empty());
    let inner = |path: &[u8]| {
        let path = PathBuf::from(OsStr::from_bytes(path));
        let device = mountinfo::list()
            .ok()
            .and_then(|mounts| mountinfo::holding_in(&mounts, &path).map(|mounted| mounted.device));
        InnerBranch { path, device }
    };
    paths.map(inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(number: u32, at: &str, root: &str) -> MountEntry {
        MountEntry {
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
    fn branches_are_found_through_nested_pools() {
        let mounts =
            [pool(5, "/bound", "/sub"), pool(5, "/p5", "/"), pool(6, "/p6", "/"), pool(7, "/p7", "/")];
        // Pool 5 has branches on 6 and on a disk, 6 on 7, and 7 on 6 again, a loop from elsewhere.
        let branches_of = |pool: &Path| {
            let inner = |path: &str, device| InnerBranch { path: path.into(), device: Some((0, device)) };
            match pool.to_str() {
                Some("/p5") => vec![inner("/disk", 1), inner("/p6/d", 6)],
                Some("/p6") => vec![inner("/p7", 7)],
                Some("/p7") => vec![inner("/p6/e", 6), inner("/other", 2)],
                _ => panic!("{} must not be asked", pool.display()),
            }
        };
        let find = |device: u32, name: &str| {
            search((0, device), &mounts, &branches_of, &|inner| inner.path == Path::new(name), MAX_DEPTH)
        };
        assert_eq!(find(5, "/disk"), Some(("/p5".into(), "/disk".into())));
        assert_eq!(find(5, "/p7"), Some(("/p6".into(), "/p7".into())));
        assert_eq!(find(7, "/disk"), None, "and the search ends");
        assert_eq!(find(1, "/disk"), None, "no pool");
    }
}
