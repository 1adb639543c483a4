//! clone3(2).

use rustix::io::Errno;
use rustix::process::Pid;

use crate::errno::last_errno;

/// `struct clone_args` in its first version (include/uapi/linux/sched.h, Linux 5.3).
#[repr(C)]
#[derive(Default)]
pub(super) struct CloneArgs {
    pub(super) flags: u64,
    pub(super) pidfd: u64,
    pub(super) child_tid: u64,
    pub(super) parent_tid: u64,
    pub(super) exit_signal: u64,
    pub(super) stack: u64,
    pub(super) stack_size: u64,
    pub(super) tls: u64,
}

impl CloneArgs {
    /// Starts a process that continues here on a copy of this stack, as after fork(2). Returns `None` in it.
    ///
    /// # Safety
    /// Without `CLONE_VM`. The addresses, if any, are valid in both processes. If there are other threads, the child may
    /// make system calls only: they may have held any lock when memory was copied.
    pub(super) unsafe fn start(&self) -> Result<Option<Pid>, Errno> {
        // SAFETY: the kernel reads the structure, which outlives the call. The caller answers for the rest.
        match unsafe { libc::syscall(libc::SYS_clone3, std::ptr::from_ref(self), size_of::<CloneArgs>()) } {
            -1 => Err(last_errno()),
            child => Ok(i32::try_from(child).ok().and_then(Pid::from_raw)),
        }
    }
}
