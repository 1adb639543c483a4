//! Why a connection is not served over io_uring.

use rustix::io::Errno;

/// What one message must be able to carry: the largest value of an extended attribute (`XATTR_SIZE_MAX`), and its name.
pub(super) const MIN_PAYLOAD: usize = 65_536 + 4096;

/// Why a connection is not served over io_uring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UringUnavailable {
    /// The server did not ask for it.
    #[error("io_uring is not wanted")]
    NotWanted,
    /// `fuse.enable_uring` is off.
    #[error("no io_uring: the module parameter fuse.enable_uring is off")]
    TurnedOff,
    /// Linux before 6.14, or built without it.
    #[error("no io_uring: the kernel does not offer it (it needs Linux 6.14)")]
    NotOffered,
    /// Messages of so few bytes cannot carry every request.
    #[error("no io_uring: messages of {0} bytes are too small for it ({MIN_PAYLOAD} are not)")]
    SmallMessages(usize),
    /// io_uring_setup(2), memory or a thread was refused.
    #[error("no io_uring: {}", refusal(*.0))]
    Resources(Errno),
    /// The kernel did not take the entries.
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
    /// For a resource that is missing before the kernel is asked for anything.
    pub(super) fn resources(error: &std::io::Error) -> UringUnavailable {
        UringUnavailable::Resources(Errno::from_io_error(error).unwrap_or(Errno::NOMEM))
    }
}
