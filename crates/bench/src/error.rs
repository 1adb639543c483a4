//! Errors of the benchmark. Each message is one line.

use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("interrupted; everything that it made has been removed")]
    Interrupted,
    #[error(
        "{place} has {have} MiB free, but these tables need {need} (--quick needs less; --dir DIR uses another disk)"
    )]
    Space { place: String, have: u64, need: u64 },
    #[error("cannot start a pool with -o {options}: {why}")]
    NoPool { options: String, why: String },
    #[error("cannot start the filesystem of --against {command:?}: {why}")]
    NoAgainst { command: String, why: String },
    #[error("{program} in {} failed: {why}", .dir.shown())]
    Program { program: String, dir: PathBuf, why: String },
    #[error("serving {} failed: {why}", .mountpoint.shown())]
    Serve { mountpoint: PathBuf, why: String },
    #[error("cannot start the floor server: {why}")]
    NoFloor { why: String },
    #[error("the server at {} exited while it was being measured: {why}", .point.shown())]
    ServerEnded { point: PathBuf, why: String },
    #[error("{} cannot be used: {why}", .path.shown())]
    Unusable { path: PathBuf, why: String },
    #[error("cannot {what} {}: {errno}", .path.shown())]
    Failed { what: &'static str, path: PathBuf, errno: Errno },
    #[error("listing {} returned {found} entries instead of {expected}", .path.shown())]
    Listing { path: PathBuf, found: usize, expected: usize },
}

/// Adds to an error what was attempted, and on which path.
pub(crate) trait ErrorContext<T> {
    fn context(self, what: &'static str, path: impl AsRef<Path>) -> Result<T, Error>;
}

impl<T> ErrorContext<T> for Result<T, Errno> {
    fn context(self, what: &'static str, path: impl AsRef<Path>) -> Result<T, Error> {
        self.map_err(|errno| Error::Failed { what, path: path.as_ref().to_owned(), errno })
    }
}

impl<T> ErrorContext<T> for std::io::Result<T> {
    fn context(self, what: &'static str, path: impl AsRef<Path>) -> Result<T, Error> {
        self.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).context(what, path)
    }
}
