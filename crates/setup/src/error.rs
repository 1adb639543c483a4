//! What a command cannot do, in one line that names the cause and a fix.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Refused(String),
    #[error("the mounted filesystems cannot be listed: {0}")]
    Mounts(io::Error),
}
