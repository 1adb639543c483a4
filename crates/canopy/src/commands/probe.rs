//! Queries branches and pools that may never answer, each in its own process.
//!
//! A thread that waits for a hung disk or daemon can keep its process from exiting, but a child process can be left
//! behind. `canopy probe` is that child. It writes one line of JSON to its standard output.

use crate::control_client::ControlClient;
use crate::deadline_command::{self, RunningCommand};
use crate::error::Error;
use crate::mount::wait_for_branches;
use crate::mount_lookup;
use canopy_config::control_api::{EXPLAIN, ExplainReport, OsText, PoolReport, STATUS};
use canopy_config::text::os_error;
use canopy_sys::mountinfo;
use clap::Args;
use rustix::fs::StatVfsMountFlags;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Query a branch or pool that may never answer, for canopy status
#[derive(Args, Debug)]
pub struct ProbeArgs {
    #[arg(value_parser = ["branch", "create", "pool"])]
    pub what: String,
    pub path: PathBuf,
}

/// The state of a branch directory, as any process in this namespace sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BranchFacts {
    pub dev: u64,
    pub ino: u64,
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
    /// It is marked as a branch, whether it is a mount or not.
    pub marked: bool,
    /// Errors that the filesystem has counted; null if it does not count them.
    pub errors: Option<u64>,
}

/// Why there is no answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub cause: Cause,
    pub why: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// The directory does not exist.
    Missing,
    /// The pool's daemon has ended.
    Ended,
    /// The pool does not answer attribute requests.
    Mute,
    /// The pool is served by another program.
    Foreign,
    Other,
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

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let cause = if error.kind() == io::ErrorKind::NotFound { Cause::Missing } else { Cause::Other };
        Failure { cause, why: os_error(error) }
    }
}

/// The outcome of a query.
#[derive(Clone, Debug)]
pub enum Answer<T> {
    Answered(T),
    Failed(Failure),
    /// Not in time.
    TimedOut,
}

impl<T> Answer<T> {
    pub fn ok(self) -> Option<T> {
        match self {
            Answer::Answered(answer) => Some(answer),
            Answer::Failed(_) | Answer::TimedOut => None,
        }
    }
}

/// Starts a query. `what` is `branch`, answered by [`BranchFacts`]; `pool`, answered by [`PoolReport`]; or `create`,
/// answered by the [`ExplainReport`] for a new file in the root of the pool.
pub fn start(what: &str, path: &Path) -> io::Result<RunningCommand> {
    deadline_command::start(Command::new("/proc/self/exe").args(["probe", what]).arg(path))
}

/// Waits for the answer to a query.
pub fn answer<T: DeserializeOwned>(query: RunningCommand, deadline: Instant) -> Answer<T> {
    let Some(bytes) = query.output_before(deadline) else { return Answer::TimedOut };
    match serde_json::from_slice::<Result<T, Failure>>(&bytes) {
        Ok(Ok(facts)) => Answer::Answered(facts),
        Ok(Err(failure)) => Answer::Failed(failure),
        Err(why) => Answer::Failed(Failure { cause: Cause::Other, why: format!("the probe failed: {why}") }),
    }
}

/// Runs a query, in the child.
pub fn run(args: &ProbeArgs) {
    let json = match args.what.as_str() {
        "pool" => serde_json::to_vec(&pool(&args.path).map_err(Failure::from)),
        "create" => serde_json::to_vec(&create(&args.path).map_err(Failure::from)),
        _ => serde_json::to_vec(&branch(&args.path).map_err(Failure::from)),
    };
    crate::terminal::print(&String::from_utf8_lossy(&json.unwrap_or_default()));
}

fn pool(path: &Path) -> Result<PoolReport, Error> {
    let report = ControlClient::at(path)?.get(STATUS)?;
    serde_json::from_slice(report.as_bytes()).map_err(|_| Error::NotCanopy(path.to_owned()))
}

fn create(path: &Path) -> Result<ExplainReport, Error> {
    ControlClient::at(path)?.explain(path, &format!("{EXPLAIN}create"))
}

fn branch(path: &Path) -> io::Result<BranchFacts> {
    let meta = fs::metadata(path)?;
    let space = rustix::fs::statvfs(path)?;
    // The calls above may be answered from the cache of a disk that is gone.
    match fs::read_dir(path).map(|mut entries| entries.next().transpose()) {
        Err(why) | Ok(Err(why)) if why.kind() != io::ErrorKind::PermissionDenied => return Err(why),
        _ => {}
    }
    let mounted = mount_lookup::mount_of(path).map_err(|error| io::Error::other(error.line()))?;
    let mounted = mounted.ok_or_else(|| io::Error::other("it is on no mount"))?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok(BranchFacts {
        dev: meta.dev(),
        ino: meta.ino(),
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
        marked: wait_for_branches::is_marked(path, wait_for_branches::BRANCH),
    })
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
