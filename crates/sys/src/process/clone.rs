//! clone(2), and not clone3(2), whose flags no seccomp(2) filter can see: those of systemd's `RestrictNamespaces=` and of some
//! containers refuse it.

use rustix::io::Errno;
use rustix::process::Pid;
use std::os::raw::c_int;
use std::sync::atomic::AtomicU32;

use crate::errno::last_errno;

/// How a process is to be started.
#[derive(Default)]
pub(super) struct Clone<'a> {
    /// Of clone(2), without a signal.
    pub(super) flags: c_int,
    /// What the parent gets when the child has ended; 0 for none.
    pub(super) exit_signal: c_int,
    /// Where the kernel writes the child's id, as the flags say.
    pub(super) thread_id: Option<&'a AtomicU32>,
}

impl Clone<'_> {
    /// Starts a process that continues here on a copy of this stack, as after fork(2). Returns `None` in it.
    ///
    /// # Safety
    /// Without `CLONE_VM`. The word is valid in both processes until they end. If there are other threads, the child may make
    /// system calls only: they may have held any lock when memory was copied.
    pub(super) unsafe fn start(&self) -> Result<Option<Pid>, Errno> {
        let word = self.thread_id.map_or(std::ptr::null_mut(), AtomicU32::as_ptr);
        let flags = i64::from(self.flags | self.exit_signal);
        let (stack, tls) = (std::ptr::null_mut::<u8>(), std::ptr::null_mut::<u8>());
        // The order of the last two differs. The TLS of this thread goes on in the child.
        #[cfg(not(target_arch = "aarch64"))]
        let (fourth, fifth) = (word.cast::<u8>(), tls);
        #[cfg(target_arch = "aarch64")]
        let (fourth, fifth) = (tls, word.cast::<u8>());
        // SAFETY: the word is valid, and the stack of the caller is used where none is given. The caller answers for the rest.
        match unsafe { libc::syscall(libc::SYS_clone, flags, stack, word, fourth, fifth) } {
            -1 => Err(last_errno()),
            child => Ok(i32::try_from(child).ok().and_then(Pid::from_raw)),
        }
    }
}
