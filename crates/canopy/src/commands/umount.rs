//! `canopy umount`: ends a pool, and returns when it has let go of its branches.

use crate::cli::UmountArgs;
use crate::config::named;
use crate::error::Error;
use crate::mounts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the daemon has to end after the mount has.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: &UmountArgs) -> Result<(), Error> {
    let named = named::mountpoint(&args.mountpoint)?;
    let path = mounts::listed_path(&named).map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => Error::NotMounted(named.clone()),
        _ => Error::Unmount { path: named.clone(), why: why.to_string() },
    })?;
    let mounted = mounts::at(&path).map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    let Some(mounted) = mounted else { return Err(Error::NotMounted(path)) };
    if !mounted.is_pool() {
        return Err(Error::NotAPool { path, fstype: mounted.fstype });
    }
    // Found before the mount goes: afterwards nothing leads from one to the other.
    let servers = if args.lazy { Vec::new() } else { servers(mounted.device.1) };
    mounts::end(&path, args.lazy)?;
    let deadline = Instant::now() + PATIENCE;
    if !servers.into_iter().all(|server| ends_before(server, deadline)) {
        eprintln!("canopy: {} is unmounted, but its daemon has not ended yet", path.display());
    }
    Ok(())
}

/// The processes that serve a FUSE connection, as what tells when they end.
fn servers(connection: u32) -> Vec<OwnedFd> {
    serving(connection).into_iter().filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

/// The processes that serve a FUSE connection. They hold its device open, and the kernel tells
/// which connection a device belongs to (since Linux 6.16; before that none is found).
pub(super) fn serving(connection: u32) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            serves(&entry.path(), connection).then_some(pid)
        })
        .collect()
}

fn serves(process: &Path, connection: u32) -> bool {
    // Another user's process cannot be read, and is none that we could have started.
    let Ok(files) = fs::read_dir(process.join("fd")) else { return false };
    files.flatten().any(|file| {
        fs::read_link(file.path()).is_ok_and(|target| target == Path::new("/dev/fuse"))
            && fs::read_to_string(process.join("fdinfo").join(file.file_name()))
                .is_ok_and(|info| connection_of(&info) == Some(connection))
    })
}

fn connection_of(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

fn ends_before(server: OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
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
    fn waits_for_a_process_to_end() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let open = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let (first, second) = (open(), open());
        assert!(!ends_before(first, Instant::now() + Duration::from_millis(20)));
        child.kill().unwrap();
        assert!(ends_before(second, Instant::now() + Duration::from_secs(20)));
        child.wait().unwrap();
    }
}
