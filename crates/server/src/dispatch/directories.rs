//! Operations on directory listings.

use super::{Call, Dispatch, fail, number};
use crate::coherence::Part;
use crate::control;
use crate::translate::convert;
use canopy_base::ids::NodeId;
use canopy_fuse::flags::OpenFlags;
use canopy_fuse::request::FileIo;
use canopy_fuse::{Replied, Reply};
use canopy_pool::ops;
use rustix::io::Errno;
use std::cell::RefCell;
use std::time::{Duration, Instant};

impl Dispatch {
    pub(super) fn opendir(&self, call: &Call<'_>, reply: Reply<'_>) -> Replied {
        if self.coherence.kernel_opens_directories() {
            // The kernel does not ask again.
            return reply.error(Errno::NOSYS.raw_os_error());
        }
        if let Err(error) = ops::readdir::opendir(&self.pool, call.node) {
            return fail(reply, error);
        }
        let mut flags = OpenFlags::empty();
        // Events that have arrived by now are processed first.
        if let Some(reuse) = call.answer.listing_cache(call.node, || self.watch.caught_up()) {
            flags |= OpenFlags::CACHE_DIR;
            flags.set(OpenFlags::KEEP_CACHE, reuse);
        }
        // There is no handle: a listing belongs to its directory.
        reply.opened(0, flags, None)
    }

    pub(super) fn readdir(&self, call: &Call<'_>, reply: Reply<'_>, io: &FileIo) -> Replied {
        let begun = Instant::now();
        let mut out = reply.dir(io.size as usize);
        let listed = ops::readdir::readdir(&self.pool, call.node, io.offset, |entry| {
            control::is_control_file(call.node, entry.name)
                || !out.push(entry.ino, entry.next, u32::from(entry.kind), entry.name)
        });
        match listed {
            Ok(names) => {
                call.answer.listed(call.node, part(io, begun, out.is_empty()), names);
                out.finish()
            }
            Err(error) => out.error(number(error)),
        }
    }

    pub(super) fn readdirplus(&self, call: &Call<'_>, reply: Reply<'_>, io: &FileIo) -> Replied {
        let (dir, shown) = (call.node, call.answer.ttl().shown);
        let begun = Instant::now();
        let out = RefCell::new(reply.plus(io.size as usize));
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut hidden = None;
        let listed = ops::readdir::readdirplus(
            &self.pool,
            dir,
            io.offset,
            |name| out.borrow_mut().grant(name.len()),
            |entry, node| {
                if control::is_control_file(dir, entry.name) {
                    hidden = node.map(|node| node.node);
                    return Duration::ZERO;
                }
                // Without a node the kernel learns only the name.
                let (head, ttl) = node.as_ref().map_or_else(Default::default, |node| {
                    let (entry_ttl, attr_ttl) = call.answer.entry_ttls(dir, entry.name, node);
                    (convert::entry(node, entry_ttl, attr_ttl, shown), entry_ttl.min(attr_ttl))
                });
                nodes.extend(node.map(|node| node.node));
                let full =
                    out.borrow_mut().push(&head, entry.ino, entry.next, u32::from(entry.kind), entry.name);
                debug_assert!(!full, "there was room for it");
                ttl
            },
        );
        let out = out.into_inner();
        if let Some(node) = hidden {
            ops::names::lookup::take_back(&self.pool, node);
        }
        match listed {
            Ok(names) => {
                call.answer.listed(dir, part(io, begun, out.is_empty()), names);
                out.finish()
            }
            Err(error) => {
                for node in nodes {
                    ops::names::lookup::take_back(&self.pool, node);
                }
                out.error(number(error))
            }
        }
    }
}

/// Returns which part of a listing the answer to a request is.
fn part(io: &FileIo, begun: Instant, is_empty: bool) -> Part {
    match io.offset {
        _ if is_empty => Part::End,
        0 => Part::First(begun),
        _ => Part::Later,
    }
}
