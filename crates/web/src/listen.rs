//! Where the program listens, and the connections that it takes.

use crate::answer::Answer;
use crate::app::App;
use crate::error::{Error, Result};
use crate::routes;
use canopy_sys::shown::Show as _;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::unistd::{Gid, Group};
use std::convert::Infallible;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

const CONNECTIONS: usize = 128;
/// How long a request line with its headers may take, and how long a connection may be idle.
const HEAD_DEADLINE: Duration = Duration::from_secs(15);
const LARGEST_HEAD: usize = 32 << 10;

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ListenAddress {
    /// # Errors
    /// If it is no address, or one that others on the network reach while there is neither TLS nor a word that there need be none.
    pub fn parse(text: &str, may_be_open: bool) -> Result<ListenAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            let why = "a socket needs an absolute path, as unix:/run/canopy-web/socket";
            let is_absolute = path.starts_with('/');
            return if is_absolute {
                Ok(ListenAddress::Unix(path.into()))
            } else {
                Err(Error::Address { text: text.into(), why })
            };
        }
        let why = "is no address: say ADDRESS:PORT, as 127.0.0.1:7373 or [::1]:7373, or unix:PATH";
        let address: SocketAddr = text.parse().map_err(|_| Error::Address { text: text.into(), why })?;
        if address.ip().is_loopback() || may_be_open {
            Ok(ListenAddress::Tcp(address))
        } else {
            Err(Error::OpenAddress(text.into()))
        }
    }
}

/// What listens.
pub enum Listener {
    Tcp(TcpListener, Option<TlsAcceptor>),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// `group` may connect to a socket, besides its owner.
    ///
    /// # Errors
    /// If the address is in use or not allowed.
    pub async fn bind(
        place: &ListenAddress,
        group: Option<&str>,
        tls: Option<TlsAcceptor>,
    ) -> Result<Listener> {
        match (place, group) {
            (ListenAddress::Tcp(_), Some(_)) => Err(Error::GroupWithoutSocket),
            (ListenAddress::Unix(_), _) if tls.is_some() => Err(Error::TlsOnSocket),
            (ListenAddress::Tcp(address), None) => {
                let bound = TcpListener::bind(address).await;
                bound
                    .map(|bound| Listener::Tcp(bound, tls))
                    .map_err(|why| Error::Listen { place: address.to_string(), why })
            }
            (ListenAddress::Unix(path), group) => unix(path, group).await,
        }
    }

    /// The address that a browser asks; that of a socket is for those who lead another there.
    #[must_use]
    pub fn address(&self) -> String {
        match self {
            Listener::Tcp(listener, tls) => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                listener
                    .local_addr()
                    .map_or_else(|_| String::new(), |address| format!("{scheme}://{address}"))
            }
            Listener::Unix(_, path) => format!("unix:{}", path.shown()),
        }
    }

    /// Answers requests for ever.
    pub async fn serve(&self, app: &Arc<App>) {
        let turns = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // Further connections wait in the kernel. Nobody closes the semaphore.
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
            let app = Arc::clone(app);
            match self {
                Listener::Tcp(listener, tls) => match (listener.accept().await, tls) {
                    (Ok((stream, _)), None) => {
                        drop(tokio::spawn(connection(TokioIo::new(stream), app, turn)));
                    }
                    (Ok((stream, _)), Some(tls)) => {
                        drop(tokio::spawn(secret_connection(tls.clone(), stream, app, turn)));
                    }
                    (Err(_), _) => pause().await,
                },
                Listener::Unix(listener, _) => match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(connection(TokioIo::new(stream), app, turn))),
                    Err(_) => pause().await,
                },
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// There are too many open files, or the other end has gone: neither is over at once.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn unix(path: &Path, group: Option<&str>) -> Result<Listener> {
    let failed = |why| Error::Listen { place: path.shown().to_string(), why };
    let group: Option<Gid> = match group {
        Some(name) => {
            let found = Group::from_name(name).ok().flatten();
            Some(found.ok_or_else(|| Error::NoGroup(name.to_owned()))?.gid)
        }
        None => None,
    };
    // A socket that nobody listens on was left by a program that was killed.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).await.is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused)
    {
        fs::remove_file(path).map_err(failed)?;
    }
    // Nobody can connect between bind and chmod.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = Listener::Unix(bound.map_err(failed)?, path.to_owned());
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group.as_raw())).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
    }
    Ok(listener)
}

/// As `connection`, behind TLS. Who does not finish the handshake holds a connection no longer than who sends no request.
async fn secret_connection(tls: TlsAcceptor, stream: TcpStream, app: Arc<App>, turn: OwnedSemaphorePermit) {
    if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_DEADLINE, tls.accept(stream)).await {
        connection(TokioIo::new(stream), app, turn).await;
    }
}

async fn connection<S: Read + Write + Unpin>(stream: S, app: Arc<App>, _turn: OwnedSemaphorePermit) {
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let app = Arc::clone(&app);
        async move { Ok::<Answer, Infallible>(routes::answer(app, request).await) }
    });
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(LARGEST_HEAD);
    // What a client does wrong is its own matter.
    let _ = protocol.serve_connection(stream, service).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_others_reach_need_a_word() {
        for text in ["127.0.0.1:7373", "[::1]:0", "127.8.8.8:1"] {
            assert!(matches!(ListenAddress::parse(text, false), Ok(ListenAddress::Tcp(_))), "{text}");
        }
        for text in ["0.0.0.0:7373", "[::]:7373", "192.168.1.2:80", "[::ffff:192.168.1.2]:80"] {
            let line = ListenAddress::parse(text, false).unwrap_err().to_string();
            assert!(
                line.starts_with(&format!("--listen {text}: others")) && line.contains("--without-tls"),
                "{line}"
            );
            assert!(ListenAddress::parse(text, true).is_ok(), "{text}");
        }
        for text in ["", "7373", "localhost:7373", "127.0.0.1", "unix:", "unix:socket", "127.0.0.1:70000"] {
            assert!(matches!(ListenAddress::parse(text, true), Err(Error::Address { .. })), "{text}");
        }
        assert_eq!(ListenAddress::parse("unix:/run/a", false).unwrap(), ListenAddress::Unix("/run/a".into()));
    }
}
