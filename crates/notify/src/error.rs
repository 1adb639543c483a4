//! Why a command fails. Each message is one line with a remedy where there is one.

use canopy_base::text::os_error;
use canopy_sys::shown::Show as _;
use std::io;
use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mistake in a file.
    #[error("{}:{line}: {what}", .file.shown())]
    Mistake { file: PathBuf, line: usize, what: String },
    #[error("{}: {}{}", .file.shown(), os_error(.why), for_root(.why))]
    File { file: PathBuf, why: io::Error },
    #[error(
        "nobody is told of anything: {} does not exist, and no pool's file has [[notify]] (canopy notify --help shows \
         an example)", .0.shown()
    )]
    NoTargets(PathBuf),
    #[error("{0}")]
    Usage(String),
    #[error("{} has no receiver '{name}' ({})", .file.shown(), known_ones(.known))]
    NoReceiver { name: String, file: PathBuf, known: Vec<String> },
    #[error("{0} of {1} test messages could not be sent")]
    NotSent(usize, usize),
    #[error("{what}: {}", os_error(.why))]
    System { what: &'static str, why: io::Error },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |why| Error::System { what, why }
    }

    pub(crate) fn file(file: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        move |why| Error::File { file: file.into(), why }
    }
}

fn for_root(why: &io::Error) -> &'static str {
    if why.kind() == io::ErrorKind::PermissionDenied { " (run it as root)" } else { "" }
}

fn known_ones(known: &[String]) -> String {
    if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) }
}
