//! The reasons why a connection does not use io_uring.

use rustix::io::Errno;

/// The smallest usable payload: the largest value of an extended attribute (`XATTR_SIZE_MAX`) and its name.
pub(super) const MIN_PAYLOAD: usize = 65_536 + 4096;

/// The reason why a connection does not use io_uring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UringUnavailable {
    /// The server did not ask for it.
    #[error("io_uring is not wanted")]
    NotWanted,
    /// `fuse.enable_uring` is off.
    #[error("no io_uring: the module parameter fuse.enable_uring is off")]
    TurnedOff,
    /// The kernel is older than 6.14, or built without it.
    #[error("no io_uring: the kernel does not offer it (it needs Linux 6.14)")]
    NotOffered,
    /// Messages of this many bytes are too small for some requests.
    #[error("no io_uring: messages of {0} bytes are too small for it ({MIN_PAYLOAD} are not)")]
    SmallMessages(usize),
    /// io_uring_setup(2), allocating memory or starting a thread has failed.
    #[error("no io_uring: {}", refusal(*.0))]
    Resources(Errno),
    /// The kernel refused the entries.
    #[error("no io_uring: the kernel refused the queues: {0}")]
    Refused(Errno),
}

fn refusal(errno: Errno) -> String {
    match errno {
        Errno::PERM => "not permitted (kernel.io_uring_disabled, or a seccomp filter)".into(),
        errno => format!("cannot set it up: {errno}"),
    }
}

impl UringUnavailable {
    /// Converts an error of creating an entry or a thread.
    pub(super) fn resources(error: &std::io::Error) -> UringUnavailable {
        UringUnavailable::Resources(Errno::from_io_error(error).unwrap_or(Errno::NOMEM))
    }
}
