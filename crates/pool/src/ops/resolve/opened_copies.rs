//! Copies that are opened before the first of them is changed.

use crate::node::{Node, open_file};
use crate::ops::resolve::{self, Place};
use crate::pool::Op;
use canopy_base::error::Result;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;

/// Opening a copy may have to wait for a lease on it. So whoever opens several copies, or changes something else before, opens
/// all of them first: who waits has changed nothing.
#[derive(Default)]
pub(crate) struct OpenedCopies<'p>(SmallVec<[(&'p Place, Result<OwnedFd, Errno>); 2]>);

impl<'p> OpenedCopies<'p> {
    /// Errors: [`Error::Wait`](canopy_base::error::Error::Wait) while a copy is leased. Any other error is the answer of
    /// [`OpenedCopies::of`].
    pub(crate) fn open(
        op: &Op<'_>,
        node: &Node,
        places: &[&'p Place],
        flags: OFlags,
    ) -> Result<OpenedCopies<'p>> {
        let mut opened = SmallVec::new();
        for &place in places {
            match place.branch.reads(|| resolve::writable::reopen(op, node, &place.branch, &place.fd, flags))
            {
                Err(Errno::AGAIN) => return Err(node.waits_for_lease(Errno::AGAIN, open_file::writes(flags))),
                other => opened.push((place, other)),
            }
        }
        Ok(OpenedCopies(opened))
    }

    /// Returns the file of a place. Errors: those of opening it, and `EBADF` if that was not asked for.
    pub(crate) fn of(&self, place: &Place) -> Result<BorrowedFd<'_>, Errno> {
        match self.0.iter().find(|(other, _)| std::ptr::eq(*other, place)) {
            Some((_, Ok(file))) => Ok(file.as_fd()),
            Some((_, Err(errno))) => Err(*errno),
            None => Err(Errno::BADF),
        }
    }
}
