//! Why a pool cannot be served. Nothing stays mounted then. Each message is one line with the culprit and what to do.

use canopy_branch::branch::BranchError;
use canopy_fuse::mount::MountError;
use canopy_fuse::session::SessionError;
use canopy_sys::shown::Show as _;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Branches(#[from] BranchError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot take over from the process before: {0}")]
    Takeover(io::Error),
    #[error("cannot confine the worker threads: {0}")]
    Confine(io::Error),
    #[error(
        "branch {} lies outside the branches that landlock=true confines pool {pool} to (canopy umount {pool}, then mount it with this branch too)",
        .branch.shown(), pool = .pool.shown()
    )]
    OutsideOfLandlock { branch: PathBuf, pool: PathBuf },
    #[error("environment variable {variable}: {why}")]
    Environment { variable: &'static str, why: String },
    #[error("log.file {} cannot be written: {why}", .path.shown())]
    LogFile { path: PathBuf, why: io::Error },
}
