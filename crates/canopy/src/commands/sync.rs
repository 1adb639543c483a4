//! `canopy sync`: writes to disk what was written to a pool. Kernels before Linux 7.4 do not ask the daemon at syncfs(2).

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::terminal::eprint_line;
use canopy_control::{BranchReport, OsText};
use clap::Args;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Write everything in a pool to its disks
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct SyncArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub mount: PathBuf,
    /// How long the disks may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
}

const NOTES: &str = "\
`sync -f` of a pool does nothing before Linux 7.4. This writes what the kernel
has cached of the pool to the branches, and then all branches to their disks, at
the same time. A branch that fails, or does not answer in time, is reported, and
the exit status is 1.

Examples:
  canopy sync /pool
  canopy sync media --timeout 60";

pub fn run(args: &SyncArgs) -> Result<(), Error> {
    let client = ControlClient::at(&args.mount)?;
    let report = client.status()?;
    let until = Instant::now() + Duration::from_secs(args.timeout);
    // First, for the kernel may have data that no branch has yet.
    let pool = vec![(OsText::from(client.mountpoint()), None)];
    let branches = report
        .branches
        .iter()
        .filter(|branch| !branch.awaited)
        .map(|branch| (branch.path.clone(), Some(branch.clone())))
        .collect();
    let failed = sync_all(pool, until) + sync_all(branches, until);
    if failed > 0 { Err(Error::NotSynced { path: args.mount.clone(), failed }) } else { Ok(()) }
}

/// Syncs filesystems at the same time, and tells of those that fail. Returns how many.
fn sync_all(places: Vec<(OsText, Option<BranchReport>)>, until: Instant) -> usize {
    let (done, results) = mpsc::channel();
    let mut waits: Vec<OsText> = Vec::new();
    let mut failed = 0;
    for (path, branch) in places {
        match start(path.clone(), branch, done.clone()) {
            Ok(()) => waits.push(path),
            Err(why) => failed += tell(&path, &why),
        }
    }
    drop(done);
    while !waits.is_empty() {
        match results.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((path, result)) => {
                waits.retain(|other| other.to_path() != path.to_path());
                if let Err(why) = result {
                    failed += tell(&path, &why);
                }
            }
            // The threads of those that do not answer end with this process.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return failed + waits.iter().map(|path| tell(path, "it does not answer")).sum::<usize>();
            }
        }
    }
    failed
}

fn tell(path: &OsText, why: &str) -> usize {
    eprint_line(&format!("{} is not synced: {why}", path.one_line()));
    1
}

type Synced = (OsText, Result<(), String>);

fn start(path: OsText, branch: Option<BranchReport>, done: Sender<Synced>) -> Result<(), String> {
    let sync = move || {
        let synced = sync_one(&path.to_path(), branch.as_ref());
        // Nobody waits any more if it has taken too long.
        let _ = done.send((path, synced));
    };
    thread::Builder::new().spawn(sync).map(drop).map_err(|why| why.to_string())
}

/// Syncs the filesystem of a directory: the pool's root, or the directory that the pool has as this branch.
fn sync_one(path: &Path, branch: Option<&BranchReport>) -> Result<(), String> {
    let said = |errno: Errno| std::io::Error::from(errno).to_string();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir: OwnedFd = rustix::fs::open(path, flags, Mode::empty()).map_err(said)?;
    if let Some(branch) = branch {
        let found = rustix::fs::fstat(dir.as_fd()).map_err(said)?;
        match (branch.dev, branch.ino) {
            (0, 0) => return Err("the pool runs without it".into()),
            known if known != (found.st_dev, found.st_ino) => {
                return Err("the pool has another directory open there".into());
            }
            _ => {}
        }
    }
    rustix::fs::syncfs(dir).map_err(said)
}
