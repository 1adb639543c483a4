//! What the pool asks of whoever serves it to the kernel. Without a mount there is nobody to ask.

use crate::ids::NodeId;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

pub trait Kernel: Send + Sync + 'static {
    /// Registers a branch's file for passthrough, until what it returns is dropped.
    ///
    /// Errors: `EPERM` without CAP_SYS_ADMIN, `ELOOP` where the branch is itself stacked too deep,
    /// `ENOTTY`/`EOPNOTSUPP` where the kernel has no passthrough (fs/fuse/backing.c).
    fn open_backing(&self, file: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno>;

    /// Has the pool been told of all that others have changed on its branches before this call
    /// ([`Pool::name_changed`](crate::pool::Pool::name_changed) and its like)? False where not everything is watched. Called
    /// without any lock held.
    fn caught_up(&self) -> bool;

    /// Forget the cached attributes of a node, before this returns: the answers to some requests that change
    /// them carry none. Must not wait for anything: the kernel waits for an answer about that very node.
    fn invalidate_attr(&self, node: NodeId);

    /// Have a name looked up again, soon: it is not what the kernel takes it for. Must not wait for anything: the
    /// kernel keeps the directory locked until it has its answer.
    fn forget_name(&self, parent: NodeId, name: &[u8]);

    /// Has the process that waits for the calling thread's operation been killed? It waits for the answer all the same, so
    /// an operation that takes long ends early where it can.
    fn caller_is_killed(&self) -> bool {
        false
    }
}

/// A file registered for passthrough; its end takes the registration back.
pub trait BackingFile: Send + Sync {
    /// What an open's answer names it by; never 0.
    fn id(&self) -> u32;
}

/// Nobody listens: no passthrough, nothing cached.
pub struct NoKernel;

impl Kernel for NoKernel {
    fn open_backing(&self, _: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    fn caught_up(&self) -> bool {
        false
    }
    fn invalidate_attr(&self, _: NodeId) {}
    fn forget_name(&self, _: NodeId, _: &[u8]) {}
}
