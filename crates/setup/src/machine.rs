//! What is mounted on this machine, and on which disks.

use canopy_sys::mountinfo::{self, MountEntry};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Filesystems on disks of this machine. Others are not asked anything, because they may not answer.
const ON_DISKS: [&str; 16] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "reiserfs", "nilfs2", "vfat",
    "exfat", "ntfs", "ntfs3", "fuseblk",
];
/// Filesystems that know neither owners nor links.
const WITHOUT_OWNERS: [&str; 5] = ["vfat", "exfat", "ntfs", "ntfs3", "fuseblk"];
const WITHOUT_XATTRS: [&str; 2] = ["vfat", "exfat"];

/// A filesystem, or the directory of one that is to be a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filesystem {
    /// The directory: where it is mounted, or one below.
    pub path: PathBuf,
    pub mountpoint: PathBuf,
    pub fstype: String,
    pub label: Option<String>,
    pub size: u64,
    pub available: u64,
    pub read_only: bool,
    /// The disks that hold it, such as `sda`; empty if that is not known.
    pub disks: BTreeSet<String>,
    /// It shares a disk with the system.
    pub on_system_disk: bool,
}

impl Filesystem {
    pub fn has_xattrs(&self) -> bool {
        !WITHOUT_XATTRS.contains(&self.fstype.as_str())
    }

    pub fn has_owners(&self) -> bool {
        !WITHOUT_OWNERS.contains(&self.fstype.as_str())
    }

    /// Returns whether nothing is mounted at its path, so that it is a directory of another filesystem.
    pub fn is_directory(&self) -> bool {
        self.path != self.mountpoint
    }

    /// Returns whether two are on one disk, as far as that is known.
    pub fn shares_disk(&self, other: &Filesystem) -> bool {
        self.disks.intersection(&other.disks).next().is_some()
    }
}

/// Returns the filesystems on disks that are mounted, except for those of the system and of boot loaders.
pub fn filesystems() -> io::Result<Vec<Filesystem>> {
    let mounts = mountinfo::list()?;
    let system = system_disks(&mounts);
    let mut seen = BTreeSet::new();
    let chosen = mounts.iter().filter(|mounted| {
        ON_DISKS.contains(&mounted.fstype.as_str())
            && !is_system_path(&mounted.mountpoint)
            // A bind mount of a directory shows a part of what is mounted elsewhere. A subvolume has a root of its own.
            && (mounted.root == Path::new("/") || mounted.fstype == "btrfs")
            && mounted.mountpoint.is_dir()
            && seen.insert((mounted.device, mounted.root.clone()))
    });
    Ok(chosen.filter_map(|mounted| describe(&mounted.mountpoint, mounted, &system).ok()).collect())
}

/// Describes a directory and the filesystem that holds it.
pub fn directory(path: &Path) -> io::Result<Filesystem> {
    let path = path.canonicalize()?;
    if !path.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let mounts = mountinfo::list()?;
    let mounted = mountinfo::holding_in(&mounts, &path).ok_or(io::ErrorKind::NotFound)?;
    describe(&path, mounted, &system_disks(&mounts))
}

fn describe(path: &Path, mounted: &MountEntry, system: &BTreeSet<String>) -> io::Result<Filesystem> {
    let space = statvfs(path)?;
    let disks = disks_of(mounted);
    let on_system_disk = mounted.mountpoint == Path::new("/") || disks.intersection(system).next().is_some();
    Ok(Filesystem {
        path: path.to_owned(),
        mountpoint: mounted.mountpoint.clone(),
        fstype: mounted.fstype.clone(),
        label: label(mounted),
        size: space.f_blocks * space.f_frsize,
        available: space.f_bavail * space.f_frsize,
        read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
        disks,
        on_system_disk,
    })
}

/// Directories that the system itself mounts.
fn is_system_path(path: &Path) -> bool {
    let below = [
        "/boot",
        "/efi",
        "/usr",
        "/var",
        "/etc",
        "/nix",
        "/snap",
        "/tmp",
        "/run/lock",
        "/proc",
        "/sys",
        "/dev",
    ];
    path == Path::new("/") || path == Path::new("/home") || below.iter().any(|dir| path.starts_with(dir))
}

/// Returns the disks that hold the system.
pub fn system_disks(mounts: &[MountEntry]) -> BTreeSet<String> {
    let system = mounts
        .iter()
        .filter(|mounted| ["/", "/usr", "/boot"].iter().any(|path| mounted.mountpoint == Path::new(path)));
    system.flat_map(disks_of).collect()
}

/// Returns the whole disks below a mount: through partitions, and what device mapper and md are made of.
fn disks_of(mounted: &MountEntry) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (major, minor) = mounted.device;
    let mut start = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
    if start.is_err() {
        // The device number of a btrfs is made up; its source is one of its disks.
        let name =
            fs::canonicalize(&mounted.source).ok().and_then(|device| Some(device.file_name()?.to_owned()));
        start = name.map_or(Err(io::ErrorKind::NotFound.into()), |name| {
            fs::canonicalize(Path::new("/sys/class/block").join(name))
        });
    }
    if let Ok(device) = start {
        collect_disks(&device, &mut found, 0);
    }
    found
}

fn collect_disks(device: &Path, found: &mut BTreeSet<String>, depth: u32) {
    let parts: Vec<PathBuf> = fs::read_dir(device.join("slaves"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.path().canonicalize().ok())
        .collect();
    // Device mapper stacks a few layers, never this many.
    if !parts.is_empty() && depth < 16 {
        parts.iter().for_each(|part| collect_disks(part, found, depth + 1));
    } else if device.join("partition").exists() {
        device.parent().into_iter().for_each(|disk| collect_disks(disk, found, depth + 1));
    } else if let Some(name) = device.file_name() {
        found.insert(name.to_string_lossy().into_owned());
    }
}

/// Returns the label, as udev links it.
fn label(mounted: &MountEntry) -> Option<String> {
    let device = fs::canonicalize(&mounted.source).ok()?;
    let links = fs::read_dir("/dev/disk/by-label").ok()?.flatten();
    let mut links = links.filter(|link| link.path().canonicalize().is_ok_and(|target| target == device));
    Some(links.next()?.file_name().to_string_lossy().replace("\\x20", " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_the_system_is_on_its_disk() {
        let root = directory(Path::new("/")).expect("the root");
        assert!(root.on_system_disk && !root.is_directory() && root.size > 0);
        let below = directory(Path::new("/proc/../etc")).expect("a directory");
        assert_eq!(below.path, Path::new("/etc"));
        assert!(directory(Path::new("/no/such/directory")).is_err());
        assert!(directory(Path::new("/etc/passwd")).is_err());
    }

    #[test]
    fn the_list_has_no_system_paths_and_no_place_twice() {
        let found = filesystems().expect("the mounts");
        assert!(
            found.iter().all(|one| one.mountpoint != Path::new("/") && !one.mountpoint.starts_with("/boot"))
        );
        let places: BTreeSet<&Path> = found.iter().map(|one| one.path.as_path()).collect();
        assert_eq!(places.len(), found.len());
    }
}
