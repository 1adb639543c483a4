//! Why there are no figures. One line each.

use rustix::io::Errno;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("interrupted: everything it had made is removed again")]
    Interrupted,
    #[error(
        "{place} has {have} MiB to spare, and these tables need {need} (--quick needs less, --dir DIR measures elsewhere)"
    )]
    Space { place: String, have: u64, need: u64 },
    #[error("no pool to measure with -o {options}: {why}")]
    NoPool { options: String, why: String },
    #[error("serving {} failed: {why}", .mountpoint.display())]
    Serve { mountpoint: PathBuf, why: String },
    #[error("no floor to measure against: {why}")]
    NoFloor { why: String },
    #[error("the server at {} ended while it was measured: {why}", .point.display())]
    ServerEnded { point: PathBuf, why: String },
    #[error("{} cannot be used: {why}", .path.display())]
    Unusable { path: PathBuf, why: String },
    #[error("cannot {what} {}: {errno}", .path.display())]
    Failed { what: &'static str, path: PathBuf, errno: Errno },
    #[error("{} holds {found} entries and not {expected}: its listing is wrong", .path.display())]
    Listing { path: PathBuf, found: usize, expected: usize },
}

/// A system call's error with what was tried, and on what.
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
