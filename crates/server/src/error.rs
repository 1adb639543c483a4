//! Why a pool cannot be served; nothing stays mounted then. One line each: the culprit, and the mend.

use canopy_fuse::mount::MountError;
use canopy_fuse::session::SessionError;
use canopy_pool::branch::BranchError;
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
    Watching(std::io::Error),
    #[error("cannot confine the threads that serve: {0}")]
    Confine(std::io::Error),
    #[error(
        "branch {} lies outside of those that pool {pool} is confined to by landlock=true (canopy umount {pool}, and mount it with this branch too)",
        .branch.display(), pool = .pool.display()
    )]
    OutsideOfLandlock { branch: PathBuf, pool: PathBuf },
    #[error("environment variable {variable}: {why}")]
    Environment { variable: &'static str, why: String },
    #[error("log.file {} cannot be written: {why}", .path.display())]
    LogFile { path: PathBuf, why: io::Error },
}
