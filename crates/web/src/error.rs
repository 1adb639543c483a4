//! What keeps the program from starting, and a page from being shown.

use canopy_base::text::os_error;
use canopy_sys::shown::Show as _;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--listen {text}: {why}")]
    Address { text: String, why: &'static str },
    #[error(
        "--listen {0}: others on the network could read along and act as you, because there is no TLS (give \
         --certificate and --key; or listen on 127.0.0.1 or unix:PATH, and reach it by ssh -L or through a proxy with TLS; or say \
         --without-tls)"
    )]
    OpenAddress(String),
    #[error("cannot listen on {place}: {}{}", os_error(.why), if .why.kind() == io::ErrorKind::AddrInUse { " (another program does; choose another port with --listen)" } else { "" })]
    Listen { place: String, why: io::Error },
    #[error("there is no group {0} (--group takes the name of one)")]
    NoGroup(String),
    #[error(
        "--user-header only goes with --listen unix:PATH (any program of this machine could send it to an address)"
    )]
    HeaderWithoutSocket,
    #[error("--user-header {0}: this is no name of a header that a proxy sets, such as X-Remote-User")]
    Header(String),
    #[error("{}: {why}", .path.shown())]
    Tls { path: PathBuf, why: String },
    #[error(
        "--certificate and --key go with an address, not with a socket (what leads to the socket has TLS)"
    )]
    TlsOnSocket,
    #[error("--group only goes with --listen unix:PATH")]
    GroupWithoutSocket,
    #[error("{}: {why} (others could let themselves in; choose another directory with --state)", .path.shown())]
    UnsafeState { path: PathBuf, why: &'static str },
    #[error("cannot {what} {}: {}", .path.shown(), os_error(.why))]
    File { what: &'static str, path: PathBuf, why: io::Error },
    #[error("cannot start: {}", os_error(.0))]
    Runtime(io::Error),
    #[error("canopy-web does not run here: there is no {} (start it with canopy web)", .0.shown())]
    NotRunning(PathBuf),
}

impl Error {
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |why| Error::File { what, path, why }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
