//! `canopy umount`: unmounts a pool, and waits until its daemon has released the branches.

use crate::error::Error;
use crate::mount::unmount;
use crate::terminal::eprint_line;
use canopy_config::source::named;
use canopy_server::badge;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Unmount a pool
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct UmountArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub mountpoint: PathBuf,
    /// Detach it at once; it ends when it is no longer in use
    #[arg(short, long)]
    pub lazy: bool,
}

const NOTES: &str = "\
Waits until the daemon has released its branches, so that the disks can be
unmounted as well. Files that are in use keep the pool mounted; the error says
how to find them.

Examples:
  canopy umount /pool
  canopy umount --lazy media";

/// How long the daemon may take to exit after the unmount.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: &UmountArgs) -> Result<(), Error> {
    let named = named::mountpoint(&args.mountpoint)?;
    let path = mountinfo::listed_path(&named).map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => Error::NotMounted(named.clone()),
        _ => Error::Unmount { path: named.clone(), why: why.to_string() },
    })?;
    let mounted = mountinfo::at(&path).map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    let Some(mounted) = mounted else { return Err(Error::NotMounted(path)) };
    if !mounted.is_pool() {
        return Err(Error::NotAPool { path, fstype: mounted.fstype });
    }
    // Before the unmount, because the daemon cannot be found from the mount afterwards.
    let servers =
        if args.lazy || is_mounted_elsewhere(&mounted) { Vec::new() } else { badge::servers_of(&mounted) };
    let servers: Vec<OwnedFd> =
        servers.into_iter().filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect();
    unmount::unmount(&path, args.lazy)?;
    let deadline = Instant::now() + PATIENCE;
    if !servers.into_iter().all(|server| exits_before(server, deadline))
        && let Some(holder) = holder(mounted.device)
    {
        eprint_line(&format!(
            "{} is unmounted here, but {holder} still has it mounted, so its daemon still runs and uses its branches \
             (end that process or container)",
            path.shown()
        ));
    }
    Ok(())
}

/// Returns a process in whose mount namespace, as of a container, a filesystem is still mounted.
fn holder(device: (u32, u32)) -> Option<String> {
    let word = format!(" {}:{} ", device.0, device.1);
    let holds = |process: &Path| {
        fs::read_to_string(process.join("mountinfo")).is_ok_and(|mounts| mounts.contains(&word))
    };
    let mut processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let process = processes.find(|process| holds(process))?;
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Some(format!("{} (pid {})", name.trim(), process.file_name()?.to_string_lossy()))
}

/// Returns whether the pool is also mounted elsewhere, so that its daemon keeps running.
fn is_mounted_elsewhere(mounted: &MountEntry) -> bool {
    let listed = mountinfo::list().unwrap_or_default();
    listed.iter().any(|other| other.device == mounted.device && other.id != mounted.id)
}

fn exits_before(server: OwnedFd, deadline: Instant) -> bool {
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
    use rustix::process::Pid;

    #[test]
    fn waits_until_a_process_exits() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let open = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let (first, second) = (open(), open());
        assert!(!exits_before(first, Instant::now() + Duration::from_millis(20)));
        child.kill().unwrap();
        assert!(exits_before(second, Instant::now() + Duration::from_secs(20)));
        child.wait().unwrap();
    }
}
