//! Waits for branches that are mounts themselves. At boot, they may be mounted after the pool.

use crate::error::Error;
use canopy_config::BranchesWait;
use canopy_sys::shown::Show as _;
use rustix::fs::lgetxattr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which missing branches are checked.
const PAUSE: Duration = Duration::from_millis(333);
/// The prefix of a file that marks a branch; the name of the mark follows.
const MARK_FILE: &str = ".mergerfs.";
/// Marks a directory as a branch, whether it is a mount or not.
pub const BRANCH: &str = "branch";
/// Marks a directory that a branch is mounted on.
const BRANCH_MOUNTS_HERE: &str = "branch_mounts_here";

/// Waits until every branch is mounted or the timeout expires. Returns a warning if branches are missing and the pool may
/// be mounted without them.
pub fn wait(wait: &BranchesWait, branches: &[PathBuf], mountpoint: &Path) -> Result<Option<String>, Error> {
    if wait.timeout.is_zero() {
        return Ok(None);
    }
    let device = fs::metadata(mountpoint).map_or_else(
        |why| {
            tracing::error!("{}: {why}", mountpoint.shown());
            0
        },
        |meta| meta.dev(),
    );
    let mut missing: Vec<&PathBuf> = branches.iter().filter(|branch| !is_mounted(branch, device)).collect();
    missing.iter().for_each(|branch| mount_from_fstab(branch));
    let deadline = Instant::now() + wait.timeout;
    let mut logged = false;
    loop {
        missing.retain(|branch| {
            let ready = is_mounted(branch, device);
            if ready {
                tracing::info!("branch {} is ready", branch.shown());
            }
            !ready
        });
        let left = deadline.saturating_duration_since(Instant::now());
        if missing.is_empty() || left.is_zero() {
            break;
        }
        if !logged {
            logged = true;
            missing
                .iter()
                .for_each(|branch| tracing::info!("branch {} is not ready: waiting", branch.shown()));
        }
        thread::sleep(PAUSE.min(left));
    }
    if missing.is_empty() {
        return Ok(None);
    }
    let error = Error::BranchesNotMounted {
        branches: missing.into_iter().cloned().collect(),
        seconds: wait.timeout.as_secs(),
    };
    if wait.fail { Err(error) } else { Ok(Some(error.line())) }
}

/// Returns whether a branch is mounted. Its marks decide. Without marks, it is mounted if it is on another device than the
/// mountpoint.
fn is_mounted(branch: &Path, device: u64) -> bool {
    if is_marked(branch, BRANCH) {
        return true;
    }
    if is_marked(branch, BRANCH_MOUNTS_HERE) {
        return false;
    }
    fs::symlink_metadata(branch).is_ok_and(|meta| meta.dev() != device)
}

/// Returns whether a directory has this mark, as an attribute or as a file in it.
pub fn is_marked(branch: &Path, mark: &str) -> bool {
    lgetxattr(branch, canopy_control::attribute(mark), &mut [0_u8; 0][..]).is_ok()
        || fs::symlink_metadata(branch.join(format!("{MARK_FILE}{mark}"))).is_ok()
}

/// Mounts the fstab entry of a branch.
fn mount_from_fstab(branch: &Path) {
    let mut command = Command::new("mount");
    // A branch may be a pool itself, which must not notify systemd for this one.
    command.arg(branch).stdin(Stdio::null()).env_remove("NOTIFY_SOCKET");
    match command.output() {
        Ok(output) if output.status.success() => tracing::info!("branch {}: mounted", branch.shown()),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
            tracing::warn!("branch {} cannot be mounted: {why}", branch.shown());
        }
        Err(why) => tracing::warn!("branch {} cannot be mounted: mount: {why}", branch.shown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{XattrFlags, setxattr};

    #[test]
    fn the_mark_on_the_branch_wins() {
        let dir = tempfile::tempdir().unwrap();
        let (path, own) = (dir.path(), fs::metadata(dir.path()).unwrap().dev());
        assert!(!is_mounted(path, own), "the same device");
        assert!(is_mounted(path, own + 1), "another device");
        assert!(!is_mounted(&path.join("none"), own + 1));
        fs::write(path.join(".mergerfs.branch_mounts_here"), "").unwrap();
        assert!(!is_mounted(path, own + 1), "a mount would hide the mark");
        fs::write(path.join(".mergerfs.branch"), "").unwrap();
        assert!(is_mounted(path, own), "the mark on the branch itself wins");
    }

    #[test]
    fn marks_can_be_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, own) = (dir.path(), fs::metadata(dir.path()).unwrap().dev());
        let mark = |name: &str| setxattr(path, canopy_control::attribute(name), b"", XattrFlags::empty());
        if mark("branch_mounts_here").is_err() {
            return; // this filesystem has no attributes
        }
        assert!(!is_mounted(path, own + 1));
        fs::write(path.join(".mergerfs.branch"), "").unwrap();
        assert!(is_mounted(path, own));
        fs::remove_file(path.join(".mergerfs.branch")).unwrap();
        mark("branch").unwrap();
        assert!(is_mounted(path, own));
    }
}
