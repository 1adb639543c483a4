//! `link-cow`: whoever opens one of several hard links for writing gets a file of its own under that name.
//!
//! All names of a file are one node, and an open names only the node. Where the node has one known name, that was
//! it. Where it has several, the open is answered with ESTALE: the kernel then looks every name on its way up anew
//! (fs/namei.c do_filp_open, LOOKUP_REVAL), on behalf of the same thread, and opens what it finds. The lookup that
//! leads to the node tells which name it was, and the copy is made before it is answered.
//!
//! Who has no way to look up again gets the file that all names share: kernel threads (NFS exports), and programs
//! that open by `/proc/self/fd`, which are asked once and then served.

use crate::error::{Error, Result};
use crate::ids::{Caller, NodeId};
use crate::node::{Node, open_file};
use crate::pool::Pool;
use rustix::fs::OFlags;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// [`lookup`](Self::lookup) by somebody whose open may have been sent back for it.
    pub fn lookup_for(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
    ) -> Result<crate::ops::names::lookup::Entry> {
        if self.pending_cow.count.load(Ordering::Relaxed) > 0
            && let Some(node) = self.nodes.child(parent, name)
            && self.pending_cow.take(caller.pid, node.id)
            && let Err(error) = self.replace_link_by_copy(&node, parent, name)
        {
            tracing::debug!("a hard link is opened as it is: {error}");
            // The open that follows goes through.
            self.pending_cow.put(caller.pid, node.id);
        }
        self.lookup(parent, name)
    }

    /// Before an open. Errors: `ESTALE` when the name has to be looked up again first.
    pub(crate) fn break_link(&self, caller: &Caller, id: NodeId, flags: u32) -> Result<()> {
        if !self.config().link_cow || !open_file::writes(OFlags::from_bits_retain(flags as _)) {
            return Ok(());
        }
        let node = self.nodes.get(id)?;
        if node.is_dir() || node.opened().is_some() || !self.is_linked(&node)? {
            return Ok(());
        }
        match self.nodes.known(id).as_slice() {
            [] => {}
            [(parent, name)] => match self.replace_link_by_copy(&node, *parent, name) {
                Ok(true) => {}
                // Another name has become known meanwhile: the node is that one's.
                Ok(false) => return Err(Error::Stale),
                Err(error) => tracing::debug!("a hard link is opened as it is: {error}"),
            },
            _ => return self.send_back(caller, id),
        }
        Ok(())
    }

    /// The same for an open that has found out only now that the name exists.
    pub(crate) fn break_created(&self, caller: &Caller, node: &Node, nlink: u32, flags: u32) -> Result<()> {
        let writes = open_file::writes(OFlags::from_bits_retain(flags as _));
        match self.config().link_cow && writes && nlink > 1 && node.opened().is_none() {
            true => self.send_back(caller, node.id),
            false => Ok(()),
        }
    }

    fn send_back(&self, caller: &Caller, id: NodeId) -> Result<()> {
        if self.pending_cow.take(caller.pid, id) || !looks_up_again(caller) {
            return Ok(());
        }
        self.pending_cow.put(caller.pid, id);
        Err(Error::Stale)
    }

    fn is_linked(&self, node: &Arc<Node>) -> Result<bool> {
        let _held = self.tree.shared();
        let attr = self.primary(&self.branches.load(), node)?.attr;
        Ok(attr.is_regular() && attr.nlink > 1)
    }
}

/// Kernel threads do not. Who they are tells a file that everybody may read (proc_pid_stat(5)).
pub(crate) fn looks_up_again(caller: &Caller) -> bool {
    const PF_KTHREAD: u32 = 0x0020_0000;
    // Behind the name, which may hold anything: state, ppid, pgrp, session, tty_nr, tpgid, flags.
    const FLAGS: usize = 6;
    let stat = match caller.pid {
        0 => return false,
        pid => std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default(),
    };
    let name = stat.iter().rposition(|&byte| byte == b')');
    let rest = name.and_then(|end| std::str::from_utf8(&stat[end + 1..]).ok()).unwrap_or_default();
    let flags = rest.split_ascii_whitespace().nth(FLAGS).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD == 0)
}
