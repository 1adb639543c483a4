//! Which process serves a mount.
//!
//! The kernel tells which connection an open `/dev/fuse` belongs to (Linux 6.16), by a number that it gives to another
//! mount as soon as the first is gone, though whoever served that may still have the device open. So a daemon of ours
//! wears a badge: an open file without a disk (memfd_create(2)), whose name, which others see in `/proc/PID/fd`, holds
//! the number of its mount that is never given again (`STATX_MNT_ID_UNIQUE`, Linux 6.8).

use canopy_config::program_name::Name;
use canopy_fuse::mount::unique_mount_id;
use canopy_sys::mountinfo::{self, Mounted};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

const BADGE: &str = "canopy-serves-";

/// What this process is known by as the server of a mount, for as long as this lives.
pub struct Badge(#[expect(dead_code, reason = "it is there to be open")] OwnedFd);

impl Badge {
    /// For the mount of this unique id.
    pub fn wear(id: u64) -> Result<Badge, Errno> {
        rustix::fs::memfd_create(format!("{BADGE}{id}"), MemfdFlags::CLOEXEC).map(Badge)
    }
}

/// What a process holds that tells what it serves.
#[derive(Default)]
struct Held {
    /// The mounts that its badges name.
    badges: Vec<u64>,
    /// The connections of its FUSE devices.
    connections: Vec<u32>,
}

/// The processes that serve the filesystem of a mount: one, as a rule. None where the kernel does not tell.
pub fn of(mounted: &Mounted) -> Vec<Pid> {
    let same = |other: &Mounted| other.device == mounted.device;
    let listed = mountinfo::list().unwrap_or_default();
    // A bind mount has a number of its own.
    let ids: Vec<u64> = listed
        .iter()
        .filter(|other| same(other))
        .filter_map(|other| unique_mount_id(&other.mountpoint))
        .collect();
    let user = mounted.super_options.split(',').find_map(|word| word.strip_prefix("user_id=")?.parse().ok());
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let serves = |process: &Path| {
        // Another user's process cannot be read as a rule, and is none that we could have started.
        let held = held_by(process)?;
        let by_badge = held.badges.iter().any(|id| ids.contains(id));
        // One without any is of an older version, or runs on an older kernel.
        let by_number =
            held.badges.is_empty() && held.connections.contains(&mounted.device.1) && is_named_so(process);
        ((by_badge || by_number) && user_of(process) == user).then_some(())
    };
    processes
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            serves(&entry.path()).map(|()| pid)
        })
        .collect()
}

fn held_by(process: &Path) -> Option<Held> {
    let mut held = Held::default();
    for file in fs::read_dir(process.join("fd")).ok()?.flatten() {
        let Ok(target) = fs::read_link(file.path()) else { continue };
        if target == Path::new("/dev/fuse") {
            let info = fs::read_to_string(process.join("fdinfo").join(file.file_name()));
            held.connections.extend(info.ok().as_deref().and_then(connection_of));
        }
        held.badges.extend(target.to_str().and_then(badge_of));
    }
    Some(held)
}

/// As the link of such a file reads: `/memfd:NAME (deleted)`.
fn badge_of(link: &str) -> Option<u64> {
    link.strip_prefix("/memfd:")?.strip_prefix(BADGE)?.strip_suffix(" (deleted)")?.parse().ok()
}

fn connection_of(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

fn is_named_so(process: &Path) -> bool {
    fs::read_to_string(process.join("comm")).is_ok_and(|name| Name::from_fstype(name.trim()).is_some())
}

/// By whose rights it runs. (To whom its directory in /proc belongs says less: some belong to root.)
fn user_of(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_which_connection_a_device_belongs_to() {
        let info = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t40\n";
        assert_eq!(connection_of(info), Some(40));
        assert_eq!(connection_of("pos:\t0\n"), None);
    }

    #[test]
    fn a_badge_is_seen_for_as_long_as_it_is_worn() {
        let own = Path::new("/proc/self");
        let worn = |id| held_by(own).is_some_and(|held| held.badges.contains(&id));
        let badge = Badge::wear(u64::MAX - 7).unwrap();
        assert!(worn(u64::MAX - 7) && !worn(7));
        drop(badge);
        assert!(!worn(u64::MAX - 7));
        assert_eq!(badge_of("/memfd:canopy-serves-12 (deleted)"), Some(12));
        assert_eq!(badge_of("/tmp/memfd:canopy-serves-12 (deleted)"), None);
        assert_eq!(user_of(own), Some(rustix::process::geteuid().as_raw()));
    }
}
