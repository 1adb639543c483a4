//! What a pool could consist of, and what would hurt.

use crate::machine::Filesystem;
use canopy_sys::shown::Show as _;
use std::path::Path;

/// A filesystem and whether it is proposed as a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub filesystem: Filesystem,
    /// Why it is not proposed.
    pub left_out: Option<&'static str>,
}

/// Proposes branches among what is mounted: one on each disk that is not the system's.
pub fn candidates(mut found: Vec<Filesystem>) -> Vec<Candidate> {
    found.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    let reason = |one: &Filesystem| {
        let larger = |other: &Filesystem| {
            other.shares_disk(one) && (other.size, &one.mountpoint) > (one.size, &other.mountpoint)
        };
        if one.read_only {
            Some("is read-only")
        } else if one.on_system_disk {
            Some("is on the system's disk")
        } else if !one.has_owners() {
            Some("knows no owners and links")
        } else if found.iter().any(larger) {
            Some("shares its disk with a larger one")
        } else {
            None
        }
    };
    let reasons: Vec<_> = found.iter().map(reason).collect();
    found.into_iter().zip(reasons).map(|(filesystem, left_out)| Candidate { filesystem, left_out }).collect()
}

/// Returns what will hurt if these are the branches of a pool, each in a sentence.
pub fn warnings(branches: &[Filesystem]) -> Vec<String> {
    let mut found = Vec::new();
    for (index, branch) in branches.iter().enumerate() {
        let (path, fstype) = (branch.path.shown(), &branch.fstype);
        if branch.read_only {
            found.push(format!("{path} is mounted read-only: the pool cannot write there."));
        }
        if branch.on_system_disk {
            found.push(format!("{path} is on the system's disk: a full pool then fills the system, too."));
        } else if branch.is_directory() {
            found.push(format!(
                "{path} is a directory on {}: if a disk should be mounted there, mount it first.",
                branch.mountpoint.shown()
            ));
        }
        if !branch.has_owners() {
            found.push(format!(
                "{path} is {fstype}, which keeps no owners, permissions or hard links; files lose them there."
            ));
        }
        if !branch.has_xattrs() {
            found.push(format!(
                "{path} is {fstype}, which has no extended attributes; setting one fails there."
            ));
        }
        for other in &branches[..index] {
            let other_path = other.path.shown();
            if other.path == branch.path {
                found.push(format!("{path} is given twice."));
            } else if branch.path.starts_with(&other.path) || other.path.starts_with(&branch.path) {
                found.push(format!("{other_path} and {path} lie in one another: files would appear twice."));
            } else if branch.mountpoint == other.mountpoint {
                found.push(format!(
                    "{other_path} and {path} are on one filesystem: its free space counts twice."
                ));
            } else if branch.shares_disk(other) {
                found.push(format!("{other_path} and {path} are on one disk: if it fails, both are lost."));
            }
        }
    }
    found
}

/// Returns why a mountpoint cannot be used with these branches.
pub fn refuse_mountpoint(mountpoint: &Path, branches: &[Filesystem]) -> Option<String> {
    let place = mountpoint.shown();
    if !mountpoint.is_absolute() {
        return Some(format!("mountpoint {place} is not an absolute path"));
    }
    let inside = branches.iter().find(|one| mountpoint.starts_with(&one.path) && one.path != Path::new("/"));
    let over = branches.iter().find(|one| one.path.starts_with(mountpoint));
    match (inside, over) {
        (_, Some(one)) => Some(format!("the pool at {place} would hide its branch {}", one.path.shown())),
        (Some(one), None) => Some(format!("mountpoint {place} lies in the branch {}", one.path.shown())),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filesystem(path: &str, fstype: &str, disk: &str, size: u64) -> Filesystem {
        Filesystem {
            path: path.into(),
            mountpoint: path.into(),
            fstype: fstype.into(),
            label: None,
            size,
            available: size / 2,
            read_only: false,
            disks: [disk.to_owned()].into(),
            on_system_disk: disk == "sda",
        }
    }

    #[test]
    fn one_branch_is_proposed_on_each_data_disk() {
        let mut read_only = filesystem("/mnt/cd", "ext4", "sde", 1);
        read_only.read_only = true;
        let found = candidates(vec![
            filesystem("/mnt/d2", "xfs", "sdc", 10),
            filesystem("/srv", "ext4", "sda", 10),
            filesystem("/mnt/d1", "ext4", "sdb", 5),
            filesystem("/mnt/d1b", "ext4", "sdb", 6),
            filesystem("/mnt/stick", "exfat", "sdd", 10),
            filesystem("/mnt/d3", "ext4", "sdf", 10),
            filesystem("/mnt/d4", "ext4", "sdf", 10),
            read_only,
        ]);
        let table: Vec<_> = found
            .iter()
            .map(|one| (one.filesystem.path.to_str().expect("text"), one.left_out.unwrap_or("")))
            .collect();
        assert_eq!(
            table,
            [
                ("/mnt/cd", "is read-only"),
                ("/mnt/d1", "shares its disk with a larger one"),
                ("/mnt/d1b", ""),
                ("/mnt/d2", ""),
                ("/mnt/d3", ""),
                ("/mnt/d4", "shares its disk with a larger one"),
                ("/mnt/stick", "knows no owners and links"),
                ("/srv", "is on the system's disk"),
            ]
        );
    }

    #[test]
    fn what_hurts_is_said() {
        let good = [filesystem("/mnt/d1", "ext4", "sdb", 1), filesystem("/mnt/d2", "btrfs", "sdc", 1)];
        assert_eq!(warnings(&good), Vec::<String>::new());
        let mut directory = filesystem("/mnt/d1/x", "ext4", "sdb", 1);
        directory.mountpoint = "/mnt/d1".into();
        let bad = [
            filesystem("/mnt/d1", "ext4", "sdb", 1),
            directory,
            filesystem("/mnt/d1b", "ext4", "sdb", 1),
            filesystem("/srv", "ext4", "sda", 1),
            filesystem("/mnt/stick", "exfat", "sdd", 1),
        ];
        let said = warnings(&bad).join("\n");
        for needle in [
            "in one another",
            "/mnt/d1b are on one disk",
            "/srv is on the system's",
            "exfat, which keeps no owners",
            "exfat, which has no extended",
        ] {
            assert!(said.contains(needle), "no {needle} in {said}");
        }
    }

    #[test]
    fn a_mountpoint_lies_beside_the_branches() {
        let branches = [filesystem("/mnt/d1", "ext4", "sdb", 1)];
        let refused = |path: &str| refuse_mountpoint(Path::new(path), &branches).is_some();
        assert!(refused("media") && refused("/mnt") && refused("/mnt/d1") && refused("/mnt/d1/pool"));
        assert!(!refused("/mnt/media") && !refused("/mnt/d10"));
    }
}
