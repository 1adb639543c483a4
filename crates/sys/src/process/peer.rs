//! Who is at the other end of a Unix socket (unix(7)).

use crate::errno::last_errno;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// `SO_PEERPIDFD` (include/uapi/asm-generic/socket.h).
const SO_PEERPIDFD: libc::c_int = 77;

/// The process that has connected, as it was then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Its effective user id.
    pub uid: u32,
    /// 0 if this process does not see it.
    pub pid: u32,
}

/// Returns who has connected a socket, or made the pair.
///
/// # Errors
/// Those of getsockopt(2).
pub fn credentials(socket: impl AsFd) -> Result<Credentials, Errno> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    option(socket, libc::SO_PEERCRED, &mut found)?;
    Ok(Credentials { uid: found.uid, pid: u32::try_from(found.pid).unwrap_or(0) })
}

/// Returns a descriptor of the process that has connected a socket: whoever gets its number later is another.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5, `ESRCH` or `EINVAL` if the process has gone.
pub fn process(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut fd: RawFd = -1;
    option(socket, SO_PEERPIDFD, &mut fd)?;
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `T` is what the option is documented to fill in, without padding and valid for all bits.
fn option<T: Copy>(socket: impl AsFd, name: libc::c_int, value: &mut T) -> Result<(), Errno> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to `value`, which is that large and valid for all bits.
    let done = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, name, std::ptr::from_mut(value).cast(), &raw mut length)
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(credentials(&one), Ok(Credentials { uid, pid: std::process::id() }));
        match process(&one) {
            Ok(process) => assert!(crate::fd::is_open(process.as_raw_fd())),
            Err(errno) => assert_eq!(errno, Errno::NOPROTOOPT, "before Linux 6.5"),
        }
    }
}
