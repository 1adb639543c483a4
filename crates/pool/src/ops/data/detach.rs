//! A writer beside readers past the daemon, where there is no ample room: he gets a node of his own for the same file.
//!
//! All opens of a node go past the daemon, or none does, and who writes past it keeps the file from moving when its branch
//! is full. So the names lead to a new node from then on, by which everybody is served by the daemon, while those who
//! have the file open go on reading the branch. The open is answered with ESTALE, which makes the kernel look the name
//! up again (`cow`).
//!
//! Two nodes are two sets of locks, and what is mapped by one is seen by the other once it is written back. So it is not
//! done while anybody writes the file: beside such a writer it could not move anyway.

use super::cow::looks_up_again;
use super::open::Room;
use crate::error::{Error, Result};
use crate::ids::Caller;
use crate::node::Node;
use crate::node::open_file::{self, OpenFile};
use crate::pool::Pool;
use crate::relocate::lease::is_written;
use rustix::fs::OFlags;
use std::sync::Arc;

impl Pool {
    /// Before an open, without any lock held. Errors: `ESTALE` when the name has to be looked up again first.
    pub(crate) fn detach_before_write(&self, caller: &Caller, node: &Arc<Node>, flags: u32) -> Result<()> {
        let Some(open) = self.read_past_daemon(node, flags) else { return Ok(()) };
        // Who has no way to look up again joins the others.
        if self.pending_detach.take(caller.pid, node.id) || !looks_up_again(caller) {
            return Ok(());
        }
        if !open.is_detached() && !self.detach(node, &open)? {
            return Ok(());
        }
        self.pending_detach.put(caller.pid, node.id);
        Err(Error::Stale)
    }

    /// The same for an open that holds locks already: it is to begin again without.
    pub(crate) fn must_detach(&self, node: &Arc<Node>, flags: u32) -> bool {
        self.read_past_daemon(node, flags).is_some()
    }

    /// What is open of a node, if others read it past the daemon and he who opens it with these flags must not.
    fn read_past_daemon(&self, node: &Arc<Node>, flags: u32) -> Option<Arc<OpenFile>> {
        let flags = OFlags::from_bits_retain(flags as _);
        if !open_file::writes(flags) {
            return None;
        }
        let open = node.opened().filter(|open| open.backing.is_some())?;
        let place = open.location();
        let scarce = matches!(self.room(&place.branch, flags, || 0), Room::Scarce);
        (scarce && !is_written(&place.fd)).then_some(open)
    }

    /// Gives the names of a node to a new one; false when somebody writes by this one.
    fn detach(&self, node: &Arc<Node>, open: &Arc<OpenFile>) -> Result<bool> {
        let names = {
            // Nobody opens anything meanwhile.
            let _held = self.lock_tree()?;
            let key = match node.key() {
                Some(key) if !open.is_written() => key,
                _ => return Ok(false),
            };
            let branches = self.branches.load();
            let number = self.shown_ino(&branches, node)?;
            self.dir_cache.idle_files.close(node);
            open.detach_names();
            self.detached.put(key);
            self.nodes.names_detached(node, key, number, self.keeps_inode_numbers())
        };
        let kernel = self.kernel.load();
        // From now on it changes by another node.
        kernel.invalidate_attr(node.id);
        names.iter().for_each(|(parent, name)| kernel.forget_name(*parent, name));
        Ok(true)
    }

    /// May he join those who have an open file whose names lead elsewhere by now? Only to read it, and if he has not come by
    /// a name (`/proc/self/fd`): who has is sent back to it once.
    pub(crate) fn may_join(&self, caller: &Caller, node: &Node, flags: OFlags) -> bool {
        if open_file::writes(flags) {
            return false;
        }
        let again = self.pending_detach.take(caller.pid, node.id) || !looks_up_again(caller);
        if !again {
            self.pending_detach.put(caller.pid, node.id);
        }
        again
    }
}
