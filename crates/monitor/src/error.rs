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
    #[error("{} is not the mountpoint of a pool (canopy status lists pools)", .0.shown())]
    NoPool(PathBuf),
    #[error("several pools are mounted: name one (canopy top {})", .0.shown())]
    ManyPools(PathBuf),
    #[error("canopy top needs a terminal (canopy metrics prints the figures once)")]
    NoTerminal,
    #[error("no pool is mounted (canopy mount --help shows how)")]
    NoPools,
    #[error("cannot listen on {place}: {}", os_error(.why))]
    Listen { place: String, why: io::Error },
    #[error("{} exists and is not a socket (choose another path)", .0.shown())]
    NoSocket(PathBuf),
    #[error("{} is in use by another process (choose another path)", .0.shown())]
    SocketInUse(PathBuf),
    #[error("{} cannot be read: {} (sudo canopy log)", .path.shown(), os_error(.why))]
    Log { path: PathBuf, why: io::Error },
    #[error("there are no messages to read: {0}")]
    NoLog(String),
    #[error("the journal cannot be read: {0} (sudo canopy log)")]
    Journal(String),
    #[error("the messages are in several places, so one pool must be named: {0} (canopy log --follow POOL)")]
    SeveralLogs(String),
    #[error("{} cannot be written: {}", .path.shown(), os_error(.why))]
    Output { path: PathBuf, why: io::Error },
    #[error("{path} already exists (choose another name, or remove it: rm {path})", path = .0.shown())]
    OutputExists(PathBuf),
    #[error("cannot start canopy-web: {0}")]
    NoScreen(String),
    #[error("{what}: {}", os_error(.why))]
    System { what: &'static str, why: io::Error },
}

impl Error {
    /// Wraps errors of system calls that do not fail on a healthy machine.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |why| Error::System { what, why }
    }
}
