//! What a command cannot do, in one line that names the cause and a fix.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Refused(String),
    /// What was not done, and how it is done without a question.
    #[error("nothing was {0}, because nobody said yes ({1})")]
    NotAgreed(&'static str, &'static str),
    #[error("the mounted filesystems cannot be listed: {0}")]
    Mounts(io::Error),
}
