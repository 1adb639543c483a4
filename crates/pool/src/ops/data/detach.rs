//! Gives a writer a new node for a file that others read by passthrough, if the branch is short of space, or if it must not map
//! the branch's own file.
//!
//! Either all opens of a node use passthrough or none does, and a passthrough writer keeps the file from moving when
//! its branch is full. So the pool moves the file's names to a new node, whose handles the daemon serves, while the
//! existing handles go on reading the branch. The pool answers the open with ESTALE, which makes the kernel look the
//! name up again (see `cow`).
//!
//! Two nodes have two sets of locks, and a change through a mapping of one node is visible through the other only after
//! it is written back. So a node is not detached while the file is open for writing: with such a writer the file could
//! not move anyway.

use super::cow::looks_up_again;
use super::open::Room;
use crate::door::Caller;
use crate::node::Node;
use crate::node::open_file::{self, OpenFile};
use crate::ops::data;
use crate::ops::moves;
use crate::ops::resolve;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use canopy_branch::fs::stat;
use canopy_branch::relocate::lease::is_written;
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::Arc;

/// Detaches the node's names before an open, if needed. The caller holds no lock.
///
/// Errors: `ESTALE` when the kernel has to look the name up again first; `EBUSY` where that does not help for an append-only file.
pub(crate) fn detach_before_write(
    op: &mut Op<'_>,
    caller: &Caller,
    node: &Arc<Node>,
    flags: u32,
) -> Result<()> {
    while let Some((open, why)) = read_past_daemon(op, node, flags) {
        let shares = || match why {
            Why::NoRoom => Ok(()),
            Why::AppendOnly => Err(Errno::BUSY.into()),
        };
        // A caller that cannot look the name up again shares the existing node, or does without.
        if op.pending_detach.take(caller.pid, node.id) || !looks_up_again(caller) {
            return shares();
        }
        if open.is_detached() {
            return again(op, caller, node);
        }
        match detach(op, node, &open)? {
            Detached::Now => return again(op, caller, node),
            Detached::NotWhileWritten => return shares(),
            // What is open now may be read through the daemon.
            Detached::NotOpen => {}
        }
    }
    Ok(())
}

/// Has the kernel look the name up again.
fn again(op: &Op<'_>, caller: &Caller, node: &Node) -> Result<()> {
    op.pending_detach.put(caller.pid, node.id);
    Err(Error::Stale)
}

/// What has become of a node's names.
enum Detached {
    /// They lead to a new node.
    Now,
    /// They stay, because a handle of this node is open for writing.
    NotWhileWritten,
    /// They stay, because those that read the file have closed it.
    NotOpen,
}

/// Why a handle must not use a file that others read by passthrough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its branch is short of space.
    NoRoom,
    /// chattr(1) has made it append-only since they opened it, and through a mapping of the branch's own file its data could be
    /// overwritten.
    AppendOnly,
}

/// Returns the node's open file if others read it by passthrough and a handle with these flags must not use it.
fn read_past_daemon(op: &Op<'_>, node: &Arc<Node>, flags: u32) -> Option<(Arc<OpenFile>, Why)> {
    let flags = OFlags::from_bits_retain(flags as _);
    if !open_file::writes(flags) {
        return None;
    }
    let open = node.opened().filter(|open| open.backing.is_some())?;
    let place = open.location();
    if flags.contains(OFlags::RDWR) && stat::of(place.fd.as_fd()).is_ok_and(|attr| attr.is_append_only()) {
        return Some((open, Why::AppendOnly));
    }
    let scarce = matches!(data::open::room(op, &place.branch, &place.fd, flags, None), Room::Scarce);
    (scarce && !is_written(&place.fd)).then_some((open, Why::NoRoom))
}

/// Moves the names of a node to a new node, if `open` is still what is open there.
fn detach(op: &mut Op<'_>, node: &Arc<Node>, open: &Arc<OpenFile>) -> Result<Detached> {
    let names = {
        // No open of it can run meanwhile.
        let _held = op.claim_file(node.id, 0)?;
        // Another writer may have come first. The names lead to a newer node then.
        if open.is_detached() {
            return Ok(Detached::Now);
        }
        // Its readers may have closed it while this waited, and others have opened it for writing since.
        if node.opened().is_none_or(|now| !Arc::ptr_eq(&now, open)) {
            return Ok(Detached::NotOpen);
        }
        let key = match node.key() {
            Some(key) if !open.is_written() => key,
            _ => return Ok(Detached::NotWhileWritten),
        };
        let number = moves::make_room::shown_ino(op, node)?;
        op.dir_cache.idle_files.close(node);
        open.detach_names();
        op.detached.put(key);
        op.nodes.names_detached(node, key, number, resolve::keeps_inode_numbers(op))
    };
    let kernel = op.kernel.load();
    // From now on, the file changes through another node.
    kernel.invalidate_attr(node.id);
    names.iter().for_each(|(parent, name)| kernel.forget_name(*parent, name));
    Ok(Detached::Now)
}

/// Returns whether an open may share an open file whose names now lead to another node. It may if it only reads
/// and did not come by a name (`/proc/self/fd`). As the request does not say, the first attempt is sent back to
/// look the name up again.
pub(crate) fn may_join(op: &Op<'_>, caller: &Caller, node: &Node, flags: OFlags) -> bool {
    if open_file::writes(flags) {
        return false;
    }
    let again = op.pending_detach.take(caller.pid, node.id) || !looks_up_again(caller);
    if !again {
        op.pending_detach.put(caller.pid, node.id);
    }
    again
}
