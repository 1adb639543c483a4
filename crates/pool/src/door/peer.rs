//! A process at the other end of a socket. It does not wait for its answer as the caller of a system call does, so it may have
//! ended, or have executed another program, since it connected.

use canopy_sys::process::peer::{self, Credentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Who has connected, as the kernel says it.
#[derive(Debug)]
pub struct Peer {
    pub(super) connected: Credentials,
    /// `None` before Linux 6.5: its number may be another's by now.
    pub(super) process: Option<OwnedFd>,
}

impl Peer {
    /// # Errors
    /// Those of getsockopt(2).
    pub fn of(socket: impl AsFd) -> Result<Peer, Errno> {
        Ok(Peer { connected: peer::credentials(&socket)?, process: peer::process(&socket).ok() })
    }

    /// Its effective user when it connected.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.connected.uid
    }

    /// Returns whether the kernel says which process it is, so that it may get what not everybody may.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.process.is_some()
    }

    /// Returns whether what `/proc` shows under its number is still this process.
    pub(super) fn is_there(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}
