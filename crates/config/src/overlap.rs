//! Whether a branch and the mountpoint contain each other.

use crate::error::Error;
use canopy_sys::mountinfo::MountEntry;
use std::path::Path;

/// Refuses a branch that is the mountpoint, contains it, or lies inside it. Compares resolved paths and accesses neither:
/// the mountpoint may be a pool that is waiting for the answer.
pub fn refuse_overlap(branch: &Path, mountpoint: &Path) -> Result<(), Error> {
    let (own, around) = (branch.to_owned(), mountpoint.to_owned());
    if branch == mountpoint {
        return Err(Error::BranchIsMountpoint(own));
    }
    if mountpoint.starts_with(branch) {
        return Err(Error::MountpointInBranch { mountpoint: around, branch: own });
    }
    if branch.starts_with(mountpoint) {
        return Err(Error::BranchInMountpoint { branch: own, mountpoint: around });
    }
    Ok(())
}

/// Returns whether a mount at `inner` would appear below `outer` although neither path is inside the other. It does if
/// both are bind mounts of one tree and mounts propagate between them (shared subtrees, mount_namespaces(7)).
pub fn is_visible_below(inner: &Path, outer: &Path, mounts: &[MountEntry]) -> bool {
    let holder = |path: &Path| {
        mounts
            .iter()
            .filter(|mounted| path.starts_with(&mounted.mountpoint))
            // The longest path; of several mounts there, the last, which hides the others.
            .max_by_key(|mounted| mounted.mountpoint.as_os_str().len())
    };
    let (Some(from), Some(to)) = (holder(inner), holder(outer)) else { return false };
    let spreads = from.peers.is_some() && (from.peers == to.peers || from.peers == to.master);
    spreads && from.device == to.device && from.inside(inner).starts_with(to.inside(outer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_propagate_between_bind_mounts_of_a_peer_group() {
        let line = |device, root: &str, at: &str, peers: Option<u32>, master| MountEntry {
            id: 0,
            parent: 0,
            device: (8, device),
            root: root.into(),
            mountpoint: at.into(),
            peers,
            master,
            fstype: "ext4".into(),
            source: "/dev/sda".into(),
            options: "rw".into(),
            super_options: "rw".into(),
        };
        // inner, outer, mount of outer -> visible?
        let table = [
            ("/disk/a/m", "/bind", line(1, "/a", "/bind", Some(1), None), true),
            ("/disk/a/m", "/bind", line(1, "/a", "/bind", Some(2), Some(1)), true),
            ("/disk/a/m", "/bind", line(1, "/a", "/bind", Some(2), None), false),
            ("/disk/a/m", "/bind", line(1, "/a", "/bind", None, None), false),
            ("/disk/a/m", "/bind", line(2, "/a", "/bind", Some(1), None), false),
            ("/disk/a/m", "/bind", line(1, "/b", "/bind", Some(1), None), false),
            ("/disk/a/m", "/bind/x", line(1, "/a", "/bind", Some(1), None), false),
            ("/disk/a/x/m", "/bind/x", line(1, "/a", "/bind", Some(1), None), true),
        ];
        for (inner, outer, mount, seen) in table {
            let text = format!("{mount:?}");
            let mounts = [line(9, "/", "/", Some(9), None), line(1, "/", "/disk", Some(1), None), mount];
            assert_eq!(
                is_visible_below(Path::new(inner), Path::new(outer), &mounts),
                seen,
                "{inner} {outer} {text}"
            );
        }
    }
}
