//! `link-cow`: opening one of several hard links for writing replaces that name's file by a copy.
//!
//! All names of a file share one node, and an open request carries only the node. If one name of the node is known, the
//! open used that one. If several are known, the pool answers the open with ESTALE. The kernel then looks up every
//! component of the path again, from the same thread (fs/namei.c do_filp_open, LOOKUP_REVAL), and opens the result.
//! The lookup that leads to the node reveals the name, and the pool makes the copy before it answers that lookup.
//!
//! A caller that cannot look the name up again gets the shared file: kernel threads (NFS exports), and programs that
//! open through `/proc/self/fd`; the latter get ESTALE once, and then the file.

use crate::door::Caller;
use crate::node::{Node, open_file};
use crate::ops::moves;
use crate::ops::names;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use rustix::fs::OFlags;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Runs `lookup` for a caller whose open may have been answered with `ESTALE`.
///
/// Errors: also [`Error::Wait`] while a file moves of which such a caller is to get a copy.
pub fn lookup_for(
    pool: &Pool,
    caller: &Caller,
    parent: NodeId,
    name: &[u8],
) -> Result<crate::ops::names::lookup::Entry> {
    let op = &mut Op::begin(pool);
    if op.pending_cow.count.load(Ordering::Relaxed) > 0
        && let Some(node) = op.nodes.child(parent, name)
        && op.pending_cow.take(caller.pid, node.id)
        && let Err(error) = moves::break_link::replace_link_by_copy(op, &node, parent, name)
    {
        // So the same lookup comes here again, or the open that follows succeeds.
        op.pending_cow.put(caller.pid, node.id);
        if matches!(error, Error::Wait(_)) {
            return Err(error);
        }
        tracing::debug!("a hard link is opened as it is: {error}");
    }
    names::lookup::lookup(pool, parent, name)
}

/// Replaces the hard link that an open for writing names by a copy.
///
/// Errors: `ESTALE` when the kernel has to look the name up again first; [`Error::Wait`] while the file moves.
pub(crate) fn break_link(op: &mut Op<'_>, caller: &Caller, id: NodeId, flags: u32) -> Result<()> {
    if !op.config.link_cow || !open_file::writes(OFlags::from_bits_retain(flags as _)) {
        return Ok(());
    }
    let node = op.nodes.get(id)?;
    if node.is_dir() || node.opened().is_some() || !is_linked(op, &node)? {
        return Ok(());
    }
    match op.nodes.known(id).as_slice() {
        [] => {}
        [(parent, name)] => match moves::break_link::replace_link_by_copy(op, &node, *parent, name) {
            Ok(true) => {}
            // Another name became known meanwhile, and the node stays with it.
            Ok(false) => return Err(Error::Stale),
            Err(wait @ Error::Wait(_)) => return Err(wait),
            Err(error) => tracing::debug!("a hard link is opened as it is: {error}"),
        },
        _ => return send_back(op, caller, id),
    }
    Ok(())
}

fn send_back(op: &Op<'_>, caller: &Caller, id: NodeId) -> Result<()> {
    if op.pending_cow.take(caller.pid, id) || !looks_up_again(caller) {
        return Ok(());
    }
    op.pending_cow.put(caller.pid, id);
    Err(Error::Stale)
}

fn is_linked(op: &mut Op<'_>, node: &Arc<Node>) -> Result<bool> {
    let _held = op.using(Uses::node(node.id));
    let attr = resolve::places::primary(op, node)?.attr;
    Ok(attr.is_regular() && attr.nlink > 1)
}

/// Returns whether the caller looks names up again after `ESTALE`. Kernel threads do not; the flags in
/// `/proc/pid/stat`, which any user may read, identify them (proc_pid_stat(5)).
pub(crate) fn looks_up_again(caller: &Caller) -> bool {
    const PF_KTHREAD: u32 = 0x0020_0000;
    // The index after the name, which may contain any byte: state, ppid, pgrp, session, tty_nr, tpgid, flags.
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
