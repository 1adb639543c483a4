//! How a node, with all its handles, is led to another file: when it moves, when its copy cannot be read, and when one of the
//! copies that are written together has failed.

use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::node::open_file::{FileLocation, OpenFile};
use crate::ops::resolve;
use crate::pool::Op;
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::FileKey;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::Arc;

/// The handles of a node, with the other file opened for each. They still use the one before.
pub(crate) struct Lead {
    open: Option<Arc<OpenFile>>,
    handles: Vec<(Arc<FileHandle>, OwnedFd)>,
}

impl Lead {
    /// Opens the other file for each handle, or for none. The caller has claimed the node's file.
    pub(crate) fn prepare(
        op: &Op<'_>,
        node: &Arc<Node>,
        reopen: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
    ) -> Result<Lead, Errno> {
        let mut handles = Vec::new();
        for handle in op.files.matching(|handle| Arc::ptr_eq(&handle.node, node)) {
            let fd = reopen(handle.flags - OFlags::TRUNC)?;
            handles.push((handle, fd));
        }
        Ok(Lead { open: node.opened(), handles })
    }

    /// Records where the handles are going to lead, for a process that takes over.
    pub(crate) fn announce(&self) {
        self.handles.iter().for_each(|(handle, fd)| handle.moves_to(fd));
    }

    /// Takes that back.
    pub(crate) fn give_up(self) {
        self.handles.iter().for_each(|(handle, _)| handle.stays());
    }

    /// Has the node, with its handles, use the other file. `shown`: the inode number that clients know.
    pub(crate) fn go(self, op: &Op<'_>, node: &Node, key: FileKey, shown: u64, to: (&Arc<Branch>, OwnedFd)) {
        let (branch, pinned) = to;
        op.nodes.moved(node, key, if resolve::keeps_inode_numbers(op) { shown } else { 0 });
        if let Some(open) = self.open {
            open.move_to(FileLocation::new(branch.clone(), Arc::new(pinned), None));
        }
        for (handle, fd) in self.handles {
            handle.move_to(Arc::new(fd));
            handle.count_for(branch.traffic);
        }
    }
}

/// Forgets what was known of the names of a node that leads to another copy now, and has the mover look at them.
pub(crate) fn names_show_another(op: &Op<'_>, node: &Node) {
    for (dir, name) in op.nodes.names(node.id) {
        resolve::dirs::dir_rewritten(op, &dir);
        resolve::generations::note_closed(op, &dir, &name);
    }
}
