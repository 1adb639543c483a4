//! Requests by which a queue comes to its waiting requests: this process has a child ask for an attribute of the mounted
//! root that no filesystem has.
//!
//! Over io_uring a request that finds no idle worker waits for one that answers a request, and is not passed to one that
//! joins later. A new worker gets the next request that is sent on its processor, and from then on those that wait. The
//! kernel sends such a request without any process where it knows a regular file (`FUSE_NOTIFY_RETRIEVE`); where it knows
//! none, a child has to send one.
//!
//! It asks for an extended attribute whose name begins with `security.`. For these the kernel checks no permissions of the
//! root, which might send a request that waits for a branch, and takes no lock that a client may hold (fs/xattr.c). The
//! answer is made here, so that it waits for nothing either. A thread of this process must not send it: if the process is
//! killed, a request that a worker had received would keep that thread, and with it the rings, for ever
//! ([`canopy_sys::process::child`]).

use std::ffi::{CStr, CString};

use canopy_sys::process::child::Caller;

use crate::request::{NodeId, Op, Request};

/// The attribute.
const NAME: &CStr = c"security.canopy.nudge";
/// The most children at once. Usually they end at once; but another filesystem may have been mounted over this one, and
/// may not answer.
const MOST: usize = 16;

/// What a child process and the transport can ask the kernel about.
#[derive(Clone, Debug, Default)]
pub struct Landmarks {
    /// Some regular files that the kernel most likely knows, such as recent or open ones.
    pub files: Vec<NodeId>,
    /// The path of the mounted root. A child process may ask the kernel for something there that this crate answers, so that
    /// requests which wait in a queue are served; without it they may wait until one is sent on their processor.
    pub root: Option<CString>,
    /// The path of a regular file there. Where the kernel knows none, a child process looks it up, so that workers which are no
    /// longer needed can leave; without it they stay.
    pub file: Option<CString>,
}

/// Returns the landmarks as they are now. Called while requests wait for a disk, so it must not access a disk itself.
pub(crate) type FindLandmarks = dyn Fn() -> Landmarks + Send + Sync;

/// Returns whether a request is one of these.
pub(super) fn is_wake_call(request: &Request<'_>) -> bool {
    request.header.node == NodeId::ROOT && matches!(request.op, Op::Getxattr { name, .. } if name == NAME)
}

/// The children that have not ended.
#[derive(Default)]
pub(super) struct WakeCalls(Vec<Caller>);

impl WakeCalls {
    /// Has a child ask for the attribute of a file, from the processors of this thread. If the file is the mounted root, that
    /// is a request; if another, the kernel knows it then. Returns whether there is a child that tries.
    pub(super) fn send(&mut self, path: &CStr) -> bool {
        self.collect();
        if self.0.len() >= MOST {
            return false;
        }
        match Caller::getxattr(path, NAME) {
            Ok(child) => {
                self.0.push(child);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "cannot start a process that sends a request");
                false
            }
        }
    }

    /// Forgets the children that have ended.
    pub(super) fn collect(&mut self) {
        self.0.retain(|child| !child.has_ended());
    }

    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }
}
