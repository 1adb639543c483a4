//! What is kept from one mount of a pool to the next with `missing=remember`: the records of its branches, and on which mounts
//! they were.

use super::Plan;
use crate::error::Error;
use crate::model::Config;
use crate::state;
use canopy_base::hash;
use canopy_branch::branch::BranchSpec;
use canopy_pool::config::MissingNames;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The longest name of a file that most filesystems take, less what is added to it.
const LONGEST: usize = 240;
/// The file of places. No record has this name, which would be that of the branch `places`.
const PLACES: &str = "places";
/// A file in a directory that is a branch as it is, whether a disk is mounted there or not.
pub(crate) const MARK: &str = ".mergerfs.branch";

/// Where a branch was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BranchPlace {
    pub branch: PathBuf,
    /// Where what it was on was mounted.
    pub mountpoint: PathBuf,
    /// The pattern that it was found by; empty if it was named.
    pub pattern: OsString,
}

impl BranchPlace {
    /// Returns whether nothing is mounted there any more. What is at its path is a directory of another disk then.
    pub fn is_away(&self, mounts: &[MountEntry]) -> bool {
        let on = mountinfo::holding_in(mounts, &self.branch);
        on.is_some_and(|on| self.mountpoint != on.mountpoint && self.mountpoint.starts_with(&on.mountpoint))
            && !self.branch.join(MARK).exists()
    }
}

/// Returns the directory of what is kept for the pool at a mountpoint.
pub fn directory(config: &Config, mountpoint: &Path) -> PathBuf {
    let dir = config.catalogue.dir().map_or_else(state::directory, Path::to_owned);
    dir.join(file_name(mountpoint))
}

/// Returns where the record of a branch is.
pub fn record(config: &Config, mountpoint: &Path, branch: &Path) -> PathBuf {
    directory(config, mountpoint).join(file_name(branch) + ".names")
}

/// Returns where the branches of a pool were. Of a damaged file, nothing.
pub fn places(dir: &Path) -> Vec<BranchPlace> {
    let bytes = fs::read(dir.join(PLACES)).unwrap_or_default();
    let mut parts = bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).map(OsString::from_vec);
    let mut found = Vec::new();
    while let (Some(branch), Some(mountpoint), Some(pattern)) = (parts.next(), parts.next(), parts.next()) {
        found.push(BranchPlace { branch: branch.into(), mountpoint: mountpoint.into(), pattern });
    }
    found
}

/// Replaces what is kept of where the branches are.
pub fn keep_places(dir: &Path, places: &[BranchPlace]) -> io::Result<()> {
    let parts = |place: &BranchPlace| -> Vec<u8> {
        let parts = [place.branch.as_os_str(), place.mountpoint.as_os_str(), &place.pattern];
        parts.iter().flat_map(|part| [part.as_bytes(), b"\0"].concat()).collect()
    };
    state::keep(&dir.join(PLACES), &places.iter().flat_map(parts).collect::<Vec<u8>>(), 0o600)
}

/// Adds the branches to a plan that patterns of it have matched before, and that are missing now. Leaves those out whose disks
/// are not mounted where they were; returns a warning for each.
///
/// Errors: if the pool may not be mounted without one.
pub fn leave_out_missing(plan: &mut Plan) -> Result<Vec<String>, Error> {
    if plan.config.pool.missing == MissingNames::Hide {
        return Ok(Vec::new());
    }
    // Its last part may be a mount whose server is gone.
    let mountpoint = match (plan.mountpoint.parent().map(fs::canonicalize), plan.mountpoint.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => plan.mountpoint.clone(),
    };
    let mountpoint = fs::canonicalize(&mountpoint).unwrap_or(mountpoint);
    let places = places(&directory(&plan.config, &mountpoint));
    let Ok(mounts) = mountinfo::list() else { return Ok(Vec::new()) };
    let mut list = plan.config.branches.as_slice().to_vec();
    for place in places.iter().filter(|place| !place.pattern.is_empty()) {
        let found_with = |spec: &BranchSpec| {
            plan.config.patterns.iter().any(|(pattern, path)| *pattern == place.pattern && *path == spec.path)
        };
        let Some(like) = list.iter().rposition(found_with) else { continue };
        if list.iter().all(|spec| spec.path != place.branch) {
            let spec = BranchSpec { path: place.branch.clone(), ..list[like].clone() };
            // As it would be if the pattern matched it.
            let at = list.iter().position(|other| found_with(other) && other.path > spec.path);
            list.insert(at.unwrap_or(like + 1), spec);
        }
    }
    let is_wanted = |place: &&BranchPlace| list.iter().any(|spec| spec.path == place.branch);
    let mut warnings = Vec::new();
    for place in places.iter().filter(is_wanted).filter(|place| place.is_away(&mounts)) {
        let (path, mountpoint) = (place.branch.clone(), place.mountpoint.clone());
        if !plan.config.allow_missing {
            return Err(Error::BranchAway { path, mountpoint });
        }
        warnings.push(away_warning(place));
        plan.missing.push(path.clone());
        plan.gone.push((path, mountpoint));
    }
    plan.config.branches = list.into_iter().collect();
    Ok(warnings)
}

/// Returns the warning for a branch whose disk is not mounted where it was.
fn away_warning(place: &BranchPlace) -> String {
    format!(
        "branch {path} is missing, because nothing is mounted at {disk}, as there was when the pool was mounted before: its names \
         stay (mount its disk; if the directory is meant: touch {path}/.mergerfs.branch, and mount the pool again)",
        path = place.branch.shown(),
        disk = place.mountpoint.shown()
    )
}

/// Returns a name for the file of a path, of which a long one has only the end, and a hash of the whole.
fn file_name(path: &Path) -> String {
    let name = state::name_of(path);
    if name.len() <= LONGEST {
        return name;
    }
    let hash = hash::keyed(0, OsStr::as_bytes(path.as_os_str()));
    format!("{hash:016x}{}", &name[name.len() - LONGEST + 16..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_branch_of_each_pool_has_a_file_of_its_own() {
        let config = Config::default();
        let file = |pool: &str, branch: &str| record(&config, Path::new(pool), Path::new(branch));
        let long = "/long".repeat(100);
        let files = [
            file("/pool", "/mnt/disk1"),
            file("/pool", "/mnt-disk1"),
            file("/pool/mnt", "/disk1"),
            file("/pool", &long),
            file("/pool", &format!("/x{long}")),
        ];
        for (at, one) in files.iter().enumerate() {
            assert!(files[at + 1..].iter().all(|other| other != one), "{}", one.shown());
            assert!(
                one.file_name().is_some_and(|name| name.len() < 255 && name.as_bytes().ends_with(b".names"))
            );
        }
    }

    #[test]
    fn places_are_read_as_they_were_written() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(places(home.path()), []);
        let place = |branch: &str, mountpoint: &str, pattern: &str| BranchPlace {
            branch: branch.into(),
            mountpoint: mountpoint.into(),
            pattern: pattern.into(),
        };
        let all = [place("/mnt/a\nb", "/mnt/a\nb", "/mnt/*"), place("/data/x", "/", "")];
        keep_places(home.path(), &all).unwrap();
        assert_eq!(places(home.path()), all);
        fs::write(home.path().join(PLACES), "/mnt\0/mn").unwrap();
        assert_eq!(places(home.path()), []);
    }

    #[test]
    fn a_branch_is_away_if_only_what_was_below_its_mount_is_there() {
        let both = b"20 1 8:1 / / rw - ext4 /dev/a rw\n30 20 8:17 / /disk rw - xfs /dev/b rw\n";
        let root = mountinfo::parse(&both[..33]);
        let both = mountinfo::parse(both);
        assert_eq!((root.len(), both.len()), (1, 2));
        let is_away = |mountpoint: &str, mounts: &[MountEntry]| {
            let branch = "/disk/media".into();
            BranchPlace { branch, mountpoint: mountpoint.into(), pattern: OsString::new() }.is_away(mounts)
        };
        assert!(is_away("/disk", &root) && !is_away("/disk", &both));
        assert!(!is_away("/", &root), "a directory of this disk");
        assert!(!is_away("/", &both), "a disk has come there");
        assert!(!is_away("", &root) && !is_away("/disk", &[]), "where mounts are not shown");
    }
}
