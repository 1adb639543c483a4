//! Why a command fails. Each message is one line with a remedy where there is one.

use canopy_base::text::os_error;
use canopy_sys::shown::Show as _;
use std::io;
use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] canopy_config::Error),
    /// A mistake in a file.
    #[error("{}:{line}: {what}", .file.shown())]
    Mistake { file: PathBuf, line: usize, what: String },
    #[error("{}: {}{}", .file.shown(), os_error(.why), for_root(.why))]
    File { file: PathBuf, why: io::Error },
    #[error("{0}")]
    Usage(String),
    #[error("nothing is scheduled: no pool's file has [[schedule]] (canopy jobs --help shows an example)")]
    Nothing,
    #[error("{} describes the pool, and has no [[schedule]]", .0.shown())]
    NoSchedule(PathBuf),
    #[error("no job is called '{name}' ({})", known_jobs(.known))]
    NoJob { name: String, known: Vec<String> },
    #[error("several pools have a job '{name}' (canopy jobs POOL {action} {name}, where POOL is {})", .pools.join(" or "))]
    Ambiguous { name: String, action: &'static str, pools: Vec<String> },
    #[error("{0} runs already (canopy jobs shows since when)")]
    Running(String),
    #[error("another process runs the jobs of this machine already (systemctl status canopy-jobs)")]
    Watched,
    #[error("the pool {0} is not mounted (canopy mount {0})")]
    NotMounted(String),
    #[error("{name} has not run yet (canopy jobs {pool} run {name})")]
    NoLog { name: String, pool: String },
    /// A job has failed. Its own output says more.
    #[error("{name}: {why}")]
    Failed { name: String, why: String },
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

fn known_jobs(known: &[String]) -> String {
    if known.is_empty() { "there is none".to_owned() } else { format!("there is: {}", known.join(", ")) }
}
