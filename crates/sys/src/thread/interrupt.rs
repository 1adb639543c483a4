//! Interrupting a thread: tgkill(2).

use rustix::io::Errno;
use rustix::thread::Pid;

/// Sends SIGINT to a thread of this process, given its id in this PID namespace, so that what it waits for in the kernel ends.
/// The handler must exist: without one, the process ends.
///
/// Errors: `ESRCH` if there is no such thread any more.
pub fn interrupt(thread: Pid) -> Result<(), Errno> {
    let (process, thread) = (rustix::process::getpid().as_raw_nonzero().get(), thread.as_raw_nonzero().get());
    // SAFETY: the system call takes numbers only.
    match unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGINT) } {
        0 => Ok(()),
        _ => Err(crate::errno::last_errno()),
    }
}
