//! What a pool could consist of, and what would hurt.

use crate::machine::Filesystem;
use canopy_base::text::bytes;
use canopy_config::fstab::{self, Line};
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
            Some("is on the system disk")
        } else if !one.has_owners() {
            Some("cannot store Unix owners, permissions and links")
        } else if found.iter().any(larger) {
            Some("shares its disk with a larger one")
        } else {
            None
        }
    };
    let reasons: Vec<_> = found.iter().map(reason).collect();
    found.into_iter().zip(reasons).map(|(filesystem, left_out)| Candidate { filesystem, left_out }).collect()
}

/// Returns the line of fstab for the disk of a branch, if that is not mounted.
fn away<'l>(branch: &Filesystem, lines: &'l [Line]) -> Option<&'l Line> {
    let line = fstab::disk_of(lines, &branch.path)?;
    let place = fstab::unescape(&line.mountpoint);
    (branch.mountpoint != Path::new(&place)).then_some(line)
}

/// Returns why these cannot be the branches of one pool.
pub fn refuse_branches(branches: &[Filesystem]) -> Option<String> {
    let pairs = branches
        .iter()
        .enumerate()
        .flat_map(|(index, one)| branches[..index].iter().map(move |other| (other, one)));
    pairs.into_iter().find_map(|(one, other)| {
        let (path, other_path) = (one.path.shown(), other.path.shown());
        if one.path == other.path {
            Some(format!("branch {path} is given twice"))
        } else if one.path.starts_with(&other.path) {
            Some(format!("branch {path} is inside the branch {other_path}: files would appear twice"))
        } else if other.path.starts_with(&one.path) {
            Some(format!("branch {other_path} is inside the branch {path}: files would appear twice"))
        } else {
            None
        }
    })
}

/// Free space that each disk keeps by default, and that small ones keep.
const MIN_FREE: u64 = 4 << 30;
const SHARE_OF_SMALL: u64 = 20;

/// Returns the free space that each disk should keep: 4 GiB, or a twentieth of the smallest disk if that is less.
pub fn min_free(branches: &[Filesystem]) -> u64 {
    let smallest = branches.iter().filter(|one| !one.read_only).map(|one| one.size).min().unwrap_or(u64::MAX);
    let share = smallest / SHARE_OF_SMALL;
    // Whole units are easier to read.
    let unit = if share >= 1 << 30 {
        1 << 30
    } else if share >= 1 << 20 {
        1 << 20
    } else {
        1
    };
    (share / unit * unit).min(MIN_FREE)
}

/// Returns what will hurt if these are the branches of a pool, each in a sentence.
pub fn warnings(branches: &[Filesystem], lines: &[Line], min_free: u64) -> Vec<String> {
    let mut found = Vec::new();
    for (index, branch) in branches.iter().enumerate() {
        let (path, fstype) = (branch.path.shown(), &branch.fstype);
        if branch.read_only {
            found.push(format!("{path} is mounted read-only: the pool cannot write there."));
        }
        if branch.on_system_disk && away(branch, lines).is_none() {
            found.push(format!("{path} is on the system disk: a full pool then fills the system as well."));
        } else if let Some(line) = away(branch, lines) {
            let place = line.mountpoint.clone();
            found.push(format!(
                "{place} is in fstab but not mounted: until it is, new files for {path} go to the disk below it (mount {place})."
            ));
        } else if branch.is_directory() {
            found.push(format!(
                "{path} is a directory on {}: if a disk should be mounted there, mount it first.",
                branch.mountpoint.shown()
            ));
        }
        if let Some(line) = fstab::disk_of(lines, &branch.path).filter(|line| line.holds_up_boot()) {
            found.push(format!(
                "{} lacks nofail in fstab: without this disk the machine does not start (canopy doctor --fix adds it).",
                line.mountpoint
            ));
        }
        if !branch.has_owners() {
            found.push(format!(
                "{path} is {fstype}, which cannot store owners, permissions or hard links; files lose them there."
            ));
        }
        if !branch.has_xattrs() {
            found.push(format!(
                "{path} is {fstype}, which has no extended attributes; setting one fails there."
            ));
        }
        for other in &branches[..index] {
            let other_path = other.path.shown();
            if branch.mountpoint == other.mountpoint {
                found.push(format!(
                    "{other_path} and {path} are on one filesystem: its free space counts twice."
                ));
            } else if branch.shares_disk(other) {
                found.push(format!("{other_path} and {path} are on one disk: if it fails, both are lost."));
            }
        }
    }
    let is_full = |branch: &&Filesystem| branch.available <= min_free;
    let full: Vec<String> = branches.iter().filter(is_full).map(|one| one.path.shown().to_string()).collect();
    let wanted = bytes(min_free);
    if full.is_empty() {
        return found;
    }
    if full.len() == branches.len() {
        found.push(format!(
            "every disk has less than {wanted} free (minfreespace): nothing can be created in the pool."
        ));
    } else {
        found.push(format!(
            "{} has less than {wanted} free (minfreespace), so no new files go there.",
            full.join(", ")
        ));
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
            size: size << 40,
            available: size << 39,
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
                ("/mnt/stick", "cannot store Unix owners, permissions and links"),
                ("/srv", "is on the system disk"),
            ]
        );
    }

    #[test]
    fn what_hurts_is_said() {
        let good = [filesystem("/mnt/d1", "ext4", "sdb", 1), filesystem("/mnt/d2", "btrfs", "sdc", 1)];
        assert_eq!(warnings(&good, &[], 0), Vec::<String>::new());
        let mut directory = filesystem("/mnt/d1/x", "ext4", "sdb", 1);
        directory.mountpoint = "/mnt/d1".into();
        let bad = [
            filesystem("/mnt/d1", "ext4", "sdb", 1),
            directory,
            filesystem("/mnt/d1b", "ext4", "sdb", 1),
            filesystem("/srv", "ext4", "sda", 1),
            filesystem("/mnt/stick", "exfat", "sdd", 1),
        ];
        let said = warnings(&bad, &[], 0).join("\n");
        let lines = fstab::parse("LABEL=a / ext4 defaults 0 1\nLABEL=b /mnt/d2 ext4 nofail 0 2\n");
        let mut away = filesystem("/mnt/d2", "ext4", "sda", 1);
        away.mountpoint = "/".into();
        let about_away = warnings(&[away], &lines, 0).join("\n");
        assert!(about_away.contains("/mnt/d2 is in fstab but not mounted"), "{about_away}");
        assert!(!about_away.contains("system disk"), "{about_away}");
        let fstab = |option: &str| fstab::parse(&format!("LABEL=b /mnt/d1 ext4 {option} 0 2\n"));
        for (option, expected) in [("defaults", 1), ("nofail", 0), ("noauto", 0)] {
            let said = warnings(&good, &fstab(option), 0);
            assert_eq!(
                said.iter().filter(|one| one.contains("lacks nofail")).count(),
                expected,
                "{option}: {said:?}"
            );
        }
        for needle in [
            "/mnt/d1b are on one disk",
            "/srv is on the system",
            "exfat, which cannot store owners",
            "exfat, which has no extended",
        ] {
            assert!(said.contains(needle), "no {needle} in {said}");
        }
    }

    #[test]
    fn branches_are_apart() {
        let one = |path: &str| filesystem(path, "ext4", "sdb", 1);
        for (paths, refused) in [
            (["/mnt/d1", "/mnt/d2"], None),
            (["/mnt/d1", "/mnt/d10"], None),
            (["/mnt/d1", "/mnt/d1"], Some("twice")),
            (["/mnt/d1/x", "/mnt/d1"], Some("inside")),
            (["/mnt/d1", "/mnt/d1/x"], Some("inside")),
        ] {
            let said = refuse_branches(&paths.map(one));
            let matches = said
                .as_deref()
                .map_or(refused.is_none(), |said| refused.is_some_and(|word| said.contains(word)));
            assert!(matches, "{paths:?}: {said:?}");
        }
    }

    #[test]
    fn small_disks_keep_less_free() {
        let sized = |sizes: &[u64]| -> Vec<Filesystem> {
            let one = |&size: &u64| Filesystem {
                size,
                available: size / 10 * 9,
                ..filesystem("/d", "ext4", "sdb", 1)
            };
            sizes.iter().map(one).collect()
        };
        const GIB: u64 = 1 << 30;
        for (sizes, expected) in [
            (vec![4096 * GIB, 8192 * GIB], 4 * GIB),
            (vec![80 * GIB], 4 * GIB),
            (vec![79 * GIB], 3 * GIB),
            (vec![2 * GIB, 8192 * GIB], 102 << 20),
            (vec![100 << 20], 5 << 20),
            (vec![1 << 20], (1 << 20) / 20),
            (vec![], 4 * GIB),
        ] {
            let branches = sized(&sizes);
            assert_eq!(min_free(&branches), expected, "{sizes:?}");
            assert!(warnings(&branches, &[], expected).iter().all(|said| !said.contains("minfreespace")));
        }
        let full = warnings(&sized(&[GIB]), &[], GIB).join(" ");
        assert!(full.contains("nothing can be created"), "{full}");
    }

    #[test]
    fn a_mountpoint_lies_beside_the_branches() {
        let branches = [filesystem("/mnt/d1", "ext4", "sdb", 1)];
        let refused = |path: &str| refuse_mountpoint(Path::new(path), &branches).is_some();
        assert!(refused("media") && refused("/mnt") && refused("/mnt/d1") && refused("/mnt/d1/pool"));
        assert!(!refused("/mnt/media") && !refused("/mnt/d10"));
    }
}
