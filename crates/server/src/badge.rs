//! Finds the process that serves a mount.
//!
//! The kernel shows which connection an open `/dev/fuse` belongs to (Linux 6.16), but as a number that it may give to
//! another mount as soon as the first is unmounted, while the first server still has the device open. So a Canopy
//! daemon holds a badge: an open memfd (memfd_create(2)) whose name, visible in `/proc/PID/fd`, contains the unique
//! id of its mount, which the kernel never gives again (`STATX_MNT_ID_UNIQUE`, Linux 6.8).
//!
//! While operations wait for a branch, the daemon writes its status into the badge: the control file cannot be reached
//! while the root of the pool waits for that branch.

use canopy_config::program_name::Name;
use canopy_fuse::mount::unique_mount_id;
use canopy_sys::mountinfo::{self, MountEntry};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

const PREFIX: &str = "canopy-serves-";

/// Marks this process as the server of a mount while the value lives.
pub struct Badge(OwnedFd);

impl Badge {
    /// Creates the badge for the mount with this unique id.
    pub fn new(id: u64) -> Result<Badge, Errno> {
        rustix::fs::memfd_create(format!("{PREFIX}{id}"), MemfdFlags::CLOEXEC).map(Badge)
    }

    /// Replaces the report that the badge holds. A reader that comes in between gets a mixture, which is no valid report.
    pub(crate) fn publish(&self, report: &[u8]) -> Result<(), Errno> {
        rustix::fs::ftruncate(&self.0, 0)?;
        rustix::io::pwrite(&self.0, report, 0).map(drop)
    }
}

/// Returns the report that the server of a mount has published, and its age; `None` if it has published none, or may
/// not be read by this process. Does not ask the server.
pub fn published_report(mounted: &MountEntry) -> Option<(Vec<u8>, Duration)> {
    servers_of(mounted).into_iter().find_map(|server| read_report(Path::new(&format!("/proc/{server}"))))
}

fn read_report(process: &Path) -> Option<(Vec<u8>, Duration)> {
    let is_badge =
        |file: &Path| fs::read_link(file).is_ok_and(|link| link.to_str().and_then(badge_of).is_some());
    let files = fs::read_dir(process.join("fd")).ok()?.flatten().map(|entry| entry.path());
    files.filter(|file| is_badge(file)).find_map(|file| {
        let mut file = fs::File::open(file).ok()?;
        let mut report = Vec::new();
        file.read_to_end(&mut report).ok()?;
        let age = file.metadata().ok()?.modified().ok()?.elapsed().unwrap_or_default();
        (!report.is_empty()).then_some((report, age))
    })
}

/// What the open files of a process say about what it serves.
#[derive(Default)]
struct OpenFiles {
    /// The mounts that its badges name.
    badges: Vec<u64>,
    /// The connections of its FUSE devices.
    connections: Vec<u32>,
}

/// Returns the processes that serve the filesystem of a mount: usually one, none where the kernel does not show it.
pub fn servers_of(mounted: &MountEntry) -> Vec<Pid> {
    let same_filesystem = |other: &MountEntry| other.device == mounted.device;
    let listed = mountinfo::list().unwrap_or_default();
    // Every bind mount has an id of its own.
    let ids: Vec<u64> = listed
        .iter()
        .filter(|other| same_filesystem(other))
        .filter_map(|other| unique_mount_id(&other.mountpoint))
        .collect();
    let user = mounted.super_options.split(',').find_map(|word| word.strip_prefix("user_id=")?.parse().ok());
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Servers::default();
    for entry in processes.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let process = entry.path();
        // Usually the processes of other users cannot be read. None of them serves a pool of this user.
        let (Some(pid), Some(held)) = (pid, held_by(&process)) else { continue };
        let numbered = || held.connections.contains(&mounted.device.1) && has_our_name(&process);
        if held.badges.iter().any(|id| ids.contains(id)) && user_of(&process) == user {
            found.by_badge.push(pid);
        } else if held.badges.is_empty() && numbered() && user_of(&process) == user {
            found.by_number.push(pid);
        }
    }
    found.certain()
}

/// The processes that may serve a mount, by what shows it.
#[derive(Default)]
struct Servers {
    by_badge: Vec<Pid>,
    /// Of an older version, on an older kernel, or a stranger whose mount is gone and had the same number.
    by_number: Vec<Pid>,
}

impl Servers {
    /// A number counts only where no badge is shown.
    fn certain(self) -> Vec<Pid> {
        if self.by_badge.is_empty() { self.by_number } else { self.by_badge }
    }
}

fn held_by(process: &Path) -> Option<OpenFiles> {
    let mut held = OpenFiles::default();
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

/// Parses the link of such a file: `/memfd:NAME (deleted)`.
fn badge_of(link: &str) -> Option<u64> {
    link.strip_prefix("/memfd:")?.strip_prefix(PREFIX)?.strip_suffix(" (deleted)")?.parse().ok()
}

fn connection_of(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

fn has_our_name(process: &Path) -> bool {
    fs::read_to_string(process.join("comm")).is_ok_and(|name| Name::from_fstype(name.trim()).is_some())
}

/// Returns the effective uid of a process. (The owner of its directory in /proc is less reliable: some belong to
/// root.)
fn user_of(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_names_the_connection_of_a_device() {
        let info = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t40\n";
        assert_eq!(connection_of(info), Some(40));
        assert_eq!(connection_of("pos:\t0\n"), None);
    }

    #[test]
    fn a_recycled_number_does_not_count_beside_a_badge() {
        let [own, stranger] = [7, 8].map(|pid| Pid::from_raw(pid).unwrap());
        let servers = |by_badge: &[Pid]| Servers { by_badge: by_badge.to_vec(), by_number: vec![stranger] };
        assert_eq!(servers(&[own]).certain(), [own]);
        assert_eq!(servers(&[]).certain(), [stranger]);
    }

    #[test]
    fn a_badge_is_visible_while_it_lives() {
        let own = Path::new("/proc/self");
        let visible = |id| held_by(own).is_some_and(|held| held.badges.contains(&id));
        let badge = Badge::new(u64::MAX - 7).unwrap();
        assert!(visible(u64::MAX - 7) && !visible(7));
        assert_eq!(read_report(own), None);
        for report in [&b"a longer report"[..], b"short"] {
            badge.publish(report).unwrap();
            let (read, age) = read_report(own).unwrap();
            assert!(read == report && age < Duration::from_secs(60));
        }
        badge.publish(b"").unwrap();
        assert_eq!(read_report(own), None);
        drop(badge);
        assert!(!visible(u64::MAX - 7));
        assert_eq!(badge_of("/memfd:canopy-serves-12 (deleted)"), Some(12));
        assert_eq!(badge_of("/tmp/memfd:canopy-serves-12 (deleted)"), None);
        assert_eq!(user_of(own), Some(rustix::process::geteuid().as_raw()));
    }
}
