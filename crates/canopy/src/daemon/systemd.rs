//! Notifications to systemd for services of `Type=notify` (sd_notify(3)). Without systemd they are dropped.
//!
//! The crate `sd-notify` (0.5) does not support sockets in the abstract namespace.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the socket: a path, or `@` and a name in the abstract namespace.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends lines of `KEY=VALUE` if there is a socket. A failure is only logged, because the pool works all the same.
pub fn notify(lines: &[&str]) {
    let Some(socket) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return };
    if let Err(why) = send(&socket, lines.join("\n").as_bytes()) {
        tracing::warn!("{VARIABLE}={}: {why}", socket.to_string_lossy());
    }
}

fn send(socket: &OsStr, text: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(socket)?,
        _ => return Err(io::Error::other("neither a path nor an abstract name")),
    };
    UnixDatagram::unbound()?.send_to_addr(text, &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_paths_or_abstract_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let name = format!("canopy-test-{}", std::process::id());
        let abstracted = SocketAddr::from_abstract_name(&name).unwrap();
        let ends = [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstracted).unwrap(), format!("@{name}").into()),
        ];
        for (socket, name) in ends {
            send(&name, b"READY=1").unwrap();
            let mut text = [0; 64];
            let length = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1", "{name:?}");
        }
        assert!(send(OsStr::new("vsock:2:1"), b"READY=1").is_err());
        assert!(send(dir.path().join("none").as_os_str(), b"READY=1").is_err());
    }
}
