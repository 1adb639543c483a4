//! Notifications to systemd for services of `Type=notify` (sd_notify(3)). Without systemd they are dropped.
//!
//! The crate `sd-notify` (0.5) does not support sockets in the abstract namespace.

use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, UCred, sendmsg_addr,
};
use rustix::process::{Pid, getgid, getppid, getuid};
use std::env;
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

/// The variable with the socket: a path, or `@` and a name in the abstract namespace.
const VARIABLE: &str = "NOTIFY_SOCKET";
/// The variables with the time after which systemd ends a service that does not answer, in microseconds, and with the process
/// that is to answer. With `survive` that is the keeper, whose child serves and answers.
const LIMIT: &str = "WATCHDOG_USEC";
const WATCHED: &str = "WATCHDOG_PID";

/// The process in whose name this one speaks.
static SPEAKER: OnceLock<Pid> = OnceLock::new();

/// Has this process speak for its parent, the only one to which systemd may listen (`NotifyAccess=main`).
pub fn speak_for_parent() {
    if let Some(parent) = getppid() {
        let _ = SPEAKER.set(parent);
    }
}

/// Sends lines of `KEY=VALUE` if there is a socket. A failure is only logged, because the pool works all the same.
pub fn notify(lines: &[&str]) {
    let Some(socket) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return };
    if let Err(why) = send(&socket, lines.join("\n").as_bytes()) {
        tracing::warn!("{VARIABLE}={}: {why}", socket.to_string_lossy());
    }
}

/// Answers the watchdog of systemd, if the service has one (`WatchdogSec=`), as long as requests make progress. `progress` tells
/// whether they have since it was asked before, and `None` once the pool is not served any more.
///
/// `starter`: the process that has started this one, if one has.
pub fn answer_watchdog(
    mut progress: impl FnMut() -> Option<bool> + Send + 'static,
    starter: Option<u32>,
) -> io::Result<()> {
    let own = [Some(std::process::id()), Some(std::os::unix::process::parent_id()), starter];
    let Some(every) = watchdog(env::var(LIMIT).ok(), env::var(WATCHED).ok(), &own) else { return Ok(()) };
    let answer = move || {
        let mut answered = true;
        while let Some(progress) = progress() {
            match (answered, progress) {
                (true, false) => tracing::error!(
                    "requests have made no progress for {every:?}, and wait for no branch: the watchdog of systemd gets \
                     no answer"
                ),
                (false, true) => tracing::info!("requests make progress again"),
                _ => {}
            }
            answered = progress;
            if progress {
                notify(&["WATCHDOG=1"]);
            }
            thread::sleep(every);
        }
    };
    thread::Builder::new().name("canopy-sd".into()).spawn(answer).map(drop)
}

/// Returns how often the watchdog is to be answered: twice in its time (sd_watchdog_enabled(3)). `None` if there is none, or it
/// is another process's.
fn watchdog(limit: Option<String>, watched: Option<String>, own: &[Option<u32>]) -> Option<Duration> {
    let limit: u64 = limit?.parse().ok().filter(|&limit| limit > 0)?;
    let is_ours = watched.is_none_or(|watched| {
        watched.parse().is_ok_and(|watched: u32| own.iter().flatten().any(|&process| process == watched))
    });
    is_ours.then(|| Duration::from_micros(limit.div_ceil(2)))
}

fn send(socket: &OsStr, text: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(socket)?,
        _ => return Err(io::Error::other("neither a path nor an abstract name")),
    };
    let unbound = UnixDatagram::unbound()?;
    // The kernel lets those who have CAP_SYS_ADMIN name another process (unix(7)).
    if let Some(&pid) = SPEAKER.get()
        && send_as(pid, &unbound, socket, text).is_ok()
    {
        return Ok(());
    }
    unbound.send_to_addr(text, &address).map(|_| ())
}

fn send_as(pid: Pid, from: &UnixDatagram, socket: &OsStr, text: &[u8]) -> Result<(), Errno> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmCredentials(UCred { pid, uid: getuid(), gid: getgid() }));
    sendmsg_addr(from, &address, &[IoSlice::new(text)], &mut control, SendFlags::empty()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_answered_twice_in_its_time_by_the_process_that_it_watches() {
        let asks = |limit: &str, watched: Option<&str>| {
            watchdog(Some(limit.to_owned()), watched.map(str::to_owned), &[Some(7), Some(5), None])
        };
        let soon = Some(Duration::from_secs(15));
        assert_eq!((asks("30000000", None), asks("30000000", Some("5"))), (soon, soon));
        assert_eq!((asks("30000000", Some("6")), asks("0", None), asks("x", Some("7"))), (None, None, None));
        assert_eq!(watchdog(None, Some("7".into()), &[Some(7)]), None);
    }

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
