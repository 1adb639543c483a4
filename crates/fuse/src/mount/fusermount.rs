//! fusermount, the set-user-ID program that mounts for unprivileged users.
//!
//! It opens `/dev/fuse`, mounts, and sends the descriptor over a socket whose number is in `_FUSE_COMMFD`. The socket is
//! its standard input, so that no other descriptor needs to survive the exec.

use std::io;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::error::MountError;
use super::spec::{MountSpec, helper_options};

const PROGRAMS: [&str; 2] = ["fusermount3", "fusermount"];

pub(super) fn mount(spec: &MountSpec, path: &Path) -> Result<OwnedFd, MountError> {
    for program in PROGRAMS {
        let failed =
            |error: io::Error| MountError::Helper { program: program.into(), message: error.to_string() };
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| failed(errno.into()))?;
        let spawned = Command::new(program)
            .arg("-o")
            .arg(helper_options(spec))
            .arg("--")
            .arg(path)
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        // The command is dropped here, and with it our copy of the other end, so reading ends when the helper exits.
        let child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        let received = receive(&ours);
        let output = child.wait_with_output().map_err(failed)?;
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // The message starts with the program's name, which our error adds too.
        let message = message.strip_prefix(&format!("{program}: ")).unwrap_or(&message).to_owned();
        return match received {
            Ok(Some(device)) if output.status.success() => Ok(device),
            Err(error) if message.is_empty() => Err(failed(error)),
            _ => Err(MountError::Helper { program: program.into(), message }),
        };
    }
    Err(MountError::NoHelper)
}

/// Receives a descriptor, which comes with one byte of data.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut found = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            found = fds.next().or(found);
        }
    }
    Ok(found)
}

pub(super) fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command.arg("-u");
        if lazy {
            command.arg("-z");
        }
        let output = command.arg("--").arg(path).stdin(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(rustix::io::Errno::PERM.into())
}
