//! What the pool asks of the kernel, through the FUSE session.

use crate::interrupts::Interrupts;
use crate::survival::Ledger;
use crate::watch::{PendingEvents, Watch};
use canopy_base::ids::Known;
use canopy_fuse::NodeId;
use canopy_fuse::backing::{Backing, BackingError, BackingId};
use canopy_fuse::notify::Notifier;
use canopy_pool::kernel::{BackingFile, Kernel};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::ffi::CString;
use std::sync::{Arc, Weak};

pub(crate) struct KernelLink {
    pub(crate) backing: Backing,
    /// Where the registrations are recorded.
    pub(crate) ledger: Option<Ledger>,
    pub(crate) notifier: Notifier,
    pub(crate) events: Arc<PendingEvents>,
    pub(crate) watch: Weak<Watch>,
    pub(crate) interrupts: Arc<Interrupts>,
}

struct RegisteredFile(BackingId);

impl BackingFile for RegisteredFile {
    fn id(&self) -> u32 {
        self.0.raw()
    }
}

impl Kernel for KernelLink {
    fn open_backing(&self, file: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno> {
        match self.backing.open(file) {
            Ok(id) => {
                if let Some(ledger) = &self.ledger {
                    ledger.record_backing(id.raw());
                }
                Ok(Box::new(RegisteredFile(id)))
            }
            Err(BackingError::Permission) => Err(Errno::PERM),
            Err(BackingError::TooDeep) => Err(Errno::LOOP),
            Err(BackingError::Unsupported) => Err(Errno::NOTTY),
            Err(BackingError::File(why)) => Err(Errno::from_io_error(&why).unwrap_or(Errno::IO)),
        }
    }

    fn adopt_backing(&self, id: u32) -> Box<dyn BackingFile> {
        Box::new(RegisteredFile(self.backing.adopt(id)))
    }

    fn caught_up(&self) -> bool {
        self.events.is_empty() || self.watch.upgrade().is_some_and(|watch| watch.catch_up())
    }

    fn invalidate_attr(&self, node: canopy_base::ids::NodeId) {
        if let Err(why) = self.notifier.inval_attributes_now(NodeId(node.0)) {
            tracing::debug!("cannot invalidate the attributes of {node}: {why}");
        }
    }

    fn drop_pages(&self, node: canopy_base::ids::NodeId) {
        if let Err(why) = self.notifier.inval_data_now(NodeId(node.0)) {
            tracing::debug!("cannot drop the cached data of {node}: {why}");
        }
    }

    fn forget_name(&self, parent: canopy_base::ids::NodeId, name: &[u8]) {
        // Only queues the notification; another thread sends it.
        if let Ok(name) = CString::new(name)
            && let Err(why) = self.notifier.expire_entry(NodeId(parent.0), &name)
        {
            tracing::debug!("cannot have a name in {parent} looked up again: {why}");
        }
        // A cached listing may lack the name.
        let _ = self.notifier.inval_inode(NodeId(parent.0), 0, 0);
    }

    fn forget_unused(&self, nodes: &[Known]) {
        if self.notifier.can_prune() {
            let _ = self.notifier.prune(nodes.iter().map(|known| NodeId(known.node.0)));
            return;
        }
        // Not directories: processes may be in them, and filesystems mounted on them.
        for known in nodes.iter().filter(|known| !known.is_dir) {
            if let Ok(name) = CString::new(&*known.name) {
                let _ = self.notifier.inval_entry(NodeId(known.parent.0), &name);
            }
        }
    }

    fn caller_thread(&self) -> u32 {
        self.interrupts.caller_thread()
    }

    fn caller_uid(&self) -> u32 {
        self.interrupts.caller_uid()
    }

    fn caller_is_killed(&self) -> bool {
        self.interrupts.caller_is_killed()
    }

    fn caller_is_interrupted(&self) -> bool {
        self.interrupts.caller_is_interrupted()
    }
}
