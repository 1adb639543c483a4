//! `canopy probe`: the child that queries a branch or a pool which may never answer
//! ([`canopy_monitor::probe`]).

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::mount::wait_for_branches;
use crate::mount_lookup;
use canopy_branch::branch::probe::read_without_trace;
use canopy_branch::fs::disk::Disk;
use canopy_branch::fs::filesystem_id::FilesystemId;
use canopy_branch::fs::reserved::ASIDE;
use canopy_control::{EXPLAIN, ExplainReport, OsText, PoolReport};
use canopy_monitor::probe::{Cause, Failure};
use canopy_monitor::{BranchSpace, DaemonFigures, sleep};
use canopy_sys::mountinfo;
use clap::Args;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::mount::OpenTreeFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Query a branch or pool that may never answer, for canopy status
#[derive(Args, Debug)]
pub struct ProbeArgs {
    #[arg(value_parser = ["below", "branch", "create", "figures", "pool", "power", "resting", "space"])]
    /// `below`, answered by whether a mountpoint hides files; `branch` and `resting`, answered by [`BranchFacts`]; `power`, by whether a disk sleeps; `space`, by [`BranchSpace`]; `pool`, by [`PoolReport`]; `figures`, by
    /// [`DaemonFigures`]; `create`, by the [`ExplainReport`] for a new file in the root of the pool.
    pub what: String,
    pub path: PathBuf,
}

/// The state of a branch directory, as any process in this namespace sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BranchFacts {
    pub dev: u64,
    pub ino: u64,
    /// Equal for branches on one filesystem, as subvolumes are.
    pub filesystem: u64,
    pub fstype: String,
    pub source: OsText,
    /// The mountpoint of its filesystem.
    pub mounted_at: OsText,
    /// `MAJOR:MINOR`; the same for all subvolumes of one filesystem.
    pub device: String,
    /// Bytes. Reserved blocks count as used.
    pub size: u64,
    pub used: u64,
    pub available: u64,
    /// 0 if the filesystem does not count them.
    pub inodes: u64,
    pub inodes_free: u64,
    pub read_only: bool,
    /// It is marked as a branch, whether it is a mount or not; or it rests, and is not looked at.
    pub marked: bool,
    /// Errors that the filesystem has counted; null if it does not count them.
    pub errors: Option<u64>,
    /// The names in /dev of the whole disks below it.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Something is set aside there (canopy copies); false if it rests.
    #[serde(default)]
    pub has_aside: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let cause = match error {
            Error::PoolDead(_) => Cause::Ended,
            Error::PoolMute(_) => Cause::Mute,
            Error::UnknownKey { .. } | Error::NotCanopy(_) => Cause::Foreign,
            _ => Cause::Other,
        };
        Failure { cause, why: error.line() }
    }
}

/// Runs a query, in the child.
pub fn run(args: &ProbeArgs) {
    // It was started as /proc/self/exe. Who looks for what has woken a disk is to know it.
    let _ = rustix::thread::set_name(c"canopy");
    // Whoever waits for the answer counts the time from here.
    crate::terminal::print("\n");
    let json = match args.what.as_str() {
        "below" => serde_json::to_vec(&below(&args.path).map_err(Failure::from)),
        "pool" => serde_json::to_vec(&pool(&args.path).map_err(Failure::from)),
        "create" => serde_json::to_vec(&create(&args.path).map_err(Failure::from)),
        "figures" => serde_json::to_vec(&figures(&args.path).map_err(Failure::from)),
        "power" => serde_json::to_vec(&sleep::ask(&args.path).map_err(Failure::from)),
        "space" => serde_json::to_vec(&space(&args.path).map_err(Failure::from)),
        what => serde_json::to_vec(&branch(&args.path, what == "resting").map_err(Failure::from)),
    };
    crate::terminal::print_exactly(&json.unwrap_or_default());
}

fn pool(path: &Path) -> Result<PoolReport, Error> {
    ControlClient::at(path)?.status_through_pool()
}

/// Returns whether a mountpoint hides files: those of its directory, or another mount. A copy of the mount around it, which
/// lacks what is mounted there, shows the directory.
fn below(mountpoint: &Path) -> io::Result<bool> {
    let listed = mountinfo::list()?;
    let there = listed.iter().filter(|mounted| mounted.mountpoint == mountpoint);
    if there.filter(|mounted| !mounted.is_pool()).count() > 0 {
        return Ok(true);
    }
    let (Some(parent), Some(name)) = (mountpoint.parent(), mountpoint.file_name()) else { return Ok(false) };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let around = rustix::mount::open_tree(rustix::fs::CWD, parent, flags)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(&around, name, flags, Mode::empty())?;
    let is_entry = |entry: rustix::fs::DirEntry| !matches!(entry.file_name().to_bytes(), b"." | b"..");
    Ok(rustix::fs::Dir::read_from(&dir)?.any(|entry| entry.is_ok_and(is_entry)))
}

fn figures(path: &Path) -> Result<DaemonFigures, Error> {
    let client = ControlClient::at(path)?;
    let pool = client.status()?;
    // An older daemon counts nothing.
    Ok(DaemonFigures { pool, metrics: client.metrics().ok() })
}

/// Asks for nothing that a disk would have to wake up for.
fn space(path: &Path) -> io::Result<BranchSpace> {
    let space = rustix::fs::statvfs(path)?;
    let dir = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(BranchSpace {
        size: space.f_blocks.saturating_mul(space.f_frsize),
        available: space.f_bavail.saturating_mul(space.f_frsize),
        inodes: space.f_files,
        inodes_free: space.f_favail,
        disks: Disk::below_dir(dir.as_fd())?.into_iter().map(|disk| disk.number()).collect(),
    })
}

fn create(path: &Path) -> Result<ExplainReport, Error> {
    ControlClient::at(path)?.explain(path, &format!("{EXPLAIN}create"))
}

/// `rests`: its disk may sleep, so nothing is read that might not be in memory.
fn branch(path: &Path, rests: bool) -> io::Result<BranchFacts> {
    let meta = fs::metadata(path)?;
    let space = rustix::fs::statvfs(path)?;
    // The calls above may be answered from the cache of a disk that is gone.
    if !rests {
        read_without_trace(path)?;
    }
    let mounted = mount_lookup::mount_of(path).map_err(|error| io::Error::other(error.line()))?;
    let mounted = mounted.ok_or_else(|| io::Error::other("it is on no mount"))?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok(BranchFacts {
        dev: meta.dev(),
        ino: meta.ino(),
        filesystem: filesystem(path)?,
        errors: errors(&mounted),
        fstype: mounted.fstype,
        source: OsText::from(mounted.source.as_os_str()),
        mounted_at: OsText::from(mounted.mountpoint.as_path()),
        device: format!("{}:{}", mounted.device.0, mounted.device.1),
        size: bytes(space.f_blocks),
        used: bytes(space.f_blocks.saturating_sub(space.f_bavail)),
        available: bytes(space.f_bavail),
        inodes: space.f_files,
        inodes_free: space.f_ffree,
        read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
        has_aside: !rests && path.join(OsStr::from_bytes(ASIDE)).is_dir(),
        marked: rests || wait_for_branches::is_marked(path, wait_for_branches::BRANCH),
        disks: whole_disks(path)?,
    })
}

/// Returns the disks that would take the files of a directory with them, below partitions, LVM, dm-crypt and md.
fn whole_disks(path: &Path) -> io::Result<Vec<String>> {
    let dir = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let parts = Disk::below_dir(dir.as_fd())?;
    let whole: BTreeSet<String> = parts.iter().flat_map(Disk::whole).map(|disk| disk.name).collect();
    Ok(whole.into_iter().collect())
}

fn filesystem(path: &Path) -> io::Result<u64> {
    let dir = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(FilesystemId::of(dir.as_fd()).filesystem)
}

/// Returns the errors that the filesystem has counted since it was made (ext4) or the counters were reset (btrfs).
fn errors(mounted: &mountinfo::MountEntry) -> Option<u64> {
    let device = fs::canonicalize(Path::new(&mounted.source)).ok()?;
    let device = device.file_name()?;
    match mounted.fstype.as_str() {
        "ext4" => {
            let counter = Path::new("/sys/fs/ext4").join(device).join("errors_count");
            fs::read_to_string(counter).ok()?.trim().parse().ok()
        }
        "btrfs" => {
            let mut pools = fs::read_dir("/sys/fs/btrfs").ok()?.flatten().map(|entry| entry.path());
            let own = pools.find(|pool| pool.join("devices").join(device).exists())?;
            let devices = fs::read_dir(own.join("devinfo")).ok()?.flatten();
            devices.map(|entry| error_stats(&entry.path().join("error_stats"))).sum()
        }
        _ => None,
    }
}

/// Adds up the lines `KIND NUMBER` for one device (Linux 5.14).
fn error_stats(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
