//! What the pool asks of its server, which talks to the kernel. A pool without a mount has nothing to ask.

use canopy_base::ids::{Known, NodeId};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// The connection to the kernel.
pub trait Kernel: Send + Sync + 'static {
    /// Registers a branch's file for passthrough, until the returned value is dropped.
    ///
    /// Errors: `EPERM` without CAP_SYS_ADMIN, `ELOOP` where the branch is itself stacked too deep,
    /// `ENOTTY`/`EOPNOTSUPP` where the kernel has no passthrough (fs/fuse/backing.c).
    fn open_backing(&self, file: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno>;

    /// Takes over a file that another process has registered for passthrough under this id, which is still open.
    fn adopt_backing(&self, id: u32) -> Box<dyn BackingFile>;

    /// Returns true if the pool has been notified (`ops::external_changes::tell` and its
    /// like) of every change that others made on its branches before this call. False where not every branch is
    /// watched. Called without a lock held.
    fn caught_up(&self) -> bool;

    /// Invalidates the kernel's cached attributes of a node, before this returns: the replies to some requests that
    /// change attributes carry none. Must not block: the kernel waits for a reply about that very node.
    fn invalidate_attr(&self, node: NodeId);

    /// Drops what the kernel has cached of a file, before this returns. The kernel waits for pages that are being read.
    fn drop_pages(&self, node: NodeId);

    /// Makes the kernel look a name up, and list its directory, again soon, because what it has cached is wrong. Must not
    /// block: the kernel keeps the directory locked until it has its reply.
    fn forget_name(&self, parent: NodeId, name: &[u8]);

    /// Asks the kernel to forget nodes that no process uses: too many are known. Must not block.
    fn forget_unused(&self, _: &[Known]) {}

    /// Returns the id of the thread that waits for the calling thread's operation; 0 if there is none, or none that is
    /// visible here.
    fn caller_thread(&self) -> u32 {
        0
    }

    /// Returns the user whose operation the calling thread carries out; [`u32::MAX`] if the request does not say.
    fn caller_uid(&self) -> u32 {
        u32::MAX
    }

    /// Returns true if the process that waits for the calling thread's operation has been killed. It still waits for
    /// the reply, so a long operation ends early where it can.
    fn caller_is_killed(&self) -> bool {
        false
    }

    /// Returns true if a signal has reached the process that waits for the calling thread's operation, which may be one
    /// that it handles. For operations that ioctl(2) lets a signal end.
    fn caller_is_interrupted(&self) -> bool {
        self.caller_is_killed()
    }
}

/// A file registered for passthrough. Dropping it removes the registration.
pub trait BackingFile: Send + Sync {
    /// Returns the id that names it in the reply to an open; never 0.
    fn id(&self) -> u32;
}

/// A pool without a mount: no passthrough, and nothing is cached.
pub struct NoKernel;

struct NoBacking(u32);

impl BackingFile for NoBacking {
    fn id(&self) -> u32 {
        self.0
    }
}

impl Kernel for NoKernel {
    fn open_backing(&self, _: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    fn adopt_backing(&self, id: u32) -> Box<dyn BackingFile> {
        Box::new(NoBacking(id))
    }
    fn caught_up(&self) -> bool {
        false
    }
    fn invalidate_attr(&self, _: NodeId) {}
    fn drop_pages(&self, _: NodeId) {}
    fn forget_name(&self, _: NodeId, _: &[u8]) {}
}
