//! Disks and partitions that nothing uses: they are not mounted, or have no filesystem.

use canopy_sys::mountinfo::MountEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A disk or partition that is not mounted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Unused {
    pub name: String,
    pub size: u64,
    /// `None` if it has no filesystem.
    pub fstype: Option<String>,
    pub label: Option<String>,
}

/// Kinds of devices that are no disks.
const OTHERS: [&str; 6] = ["loop", "ram", "zram", "sr", "fd", "nbd"];
/// What is on partitions that others put together, or that are not for files.
const PARTS: [&str; 5] = ["swap", "LVM2_member", "linux_raid_member", "zfs_member", "bcache"];

/// Returns the disks and partitions that are not mounted and not part of something else. Those of the system's disks that
/// have no filesystem are for starting it.
pub fn unused(mounts: &[MountEntry], system: &BTreeSet<String>) -> Vec<Unused> {
    scan(Path::new("/sys/class/block"), Path::new("/run/udev/data"), mounts, system)
}

fn scan(sys: &Path, udev: &Path, mounts: &[MountEntry], system: &BTreeSet<String>) -> Vec<Unused> {
    let mut found: Vec<Unused> = fs::read_dir(sys)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let path = entry.path();
            let is_empty =
                |dir: &str| fs::read_dir(path.join(dir)).map_or(true, |mut list| list.next().is_none());
            if OTHERS.iter().any(|other| name.starts_with(other))
                || !is_empty("holders")
                || has_partitions(&path)
            {
                return None;
            }
            let read = |file: &str| Some(fs::read_to_string(path.join(file)).ok()?.trim().to_owned());
            // Sectors of 512 bytes, whatever the disk has.
            let size = read("size")?.parse::<u64>().ok().filter(|&size| size > 0)? * 512;
            let device = read("dev")?;
            let numbers: Vec<u32> = device.split(':').filter_map(|number| number.parse().ok()).collect();
            let source = format!("/dev/{name}");
            let mounted = mounts
                .iter()
                .any(|mounted| numbers == [mounted.device.0, mounted.device.1] || *mounted.source == *source);
            // Without what udev knows, a disk may have anything.
            let known = fs::read_to_string(udev.join(format!("b{device}"))).ok()?;
            let known = properties(&known);
            let fstype = known.get("ID_FS_TYPE").cloned();
            let is_part = fstype.as_deref().is_some_and(|fstype| PARTS.contains(&fstype));
            let of_system = || system.iter().any(|disk| name.starts_with(disk.as_str()));
            if mounted || is_part || of_system() {
                return None;
            }
            Some(Unused { name, size, fstype, label: known.get("ID_FS_LABEL").cloned() })
        })
        .collect();
    found.sort();
    found
}

fn has_partitions(device: &Path) -> bool {
    let inside = fs::read_dir(device).into_iter().flatten().flatten();
    inside.into_iter().any(|entry| entry.path().join("partition").exists())
}

/// Returns the properties in a file of udev's database.
fn properties(text: &str) -> BTreeMap<&str, String> {
    let pairs = text.lines().filter_map(|line| line.strip_prefix("E:")?.split_once('='));
    pairs.map(|(key, value)| (key, value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_sys::mountinfo;

    #[test]
    fn what_nothing_uses_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sys, udev) = (dir.path().join("sys"), dir.path().join("udev"));
        fs::create_dir(&udev).expect("a directory");
        let device = |name: &str, dev: &str, inside: &[&str], known: Option<&str>| {
            let path = sys.join(name);
            fs::create_dir_all(path.join("holders")).expect("a directory");
            fs::write(path.join("size"), "2048\n").expect("a size");
            fs::write(path.join("dev"), format!("{dev}\n")).expect("a number");
            for part in inside {
                fs::create_dir_all(path.join(part)).expect("a directory");
                fs::write(path.join(part).join("partition"), "1\n").expect("a number");
            }
            if let Some(known) = known {
                fs::write(udev.join(format!("b{dev}")), known).expect("properties");
            }
        };
        device("sda1", "8:1", &[], Some("E:ID_FS_TYPE=ext4\n"));
        device("sdb", "8:16", &["sdb1"], Some("E:ID_PART_TABLE_TYPE=gpt\n"));
        device("sdb1", "8:17", &[], Some("E:ID_FS_TYPE=ext4\nE:ID_FS_LABEL=two\n"));
        device("sdc1", "8:33", &[], Some("E:ID_FS_TYPE=ext4\n"));
        device("sdd", "8:48", &[], Some("I:1\n"));
        device("sde", "8:64", &[], None);
        device("sdf", "8:80", &["holders/dm-0"], Some("E:ID_FS_TYPE=crypto_LUKS\n"));
        device("sdg1", "8:97", &[], Some("E:ID_FS_TYPE=swap\n"));
        device("loop0", "7:0", &[], Some("E:ID_FS_TYPE=ext4\n"));
        let mounts = mountinfo::parse(b"30 1 8:33 / /mnt/c rw - ext4 /dev/sdc1 rw\n");
        let found = scan(&sys, &udev, &mounts, &["sda".to_owned()].into());
        let unused = |name: &str, fstype: Option<&str>, label: Option<&str>| Unused {
            name: name.into(),
            size: 1 << 20,
            fstype: fstype.map(str::to_owned),
            label: label.map(str::to_owned),
        };
        assert_eq!(found, [unused("sdb1", Some("ext4"), Some("two")), unused("sdd", None, None)]);
    }
}
