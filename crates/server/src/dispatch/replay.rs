//! Requests that the kernel sends again because the process that had taken them died.
//!
//! Most may simply be carried out once more. For those that may not ([`Operation::once`]), this decides by what is there
//! whether the process before has done them already.

use super::{Call, Dispatch};
use crate::survival::in_flight::{Begun, InFlight, Noted};
use crate::translate::convert;
use crate::translate::operation::Operation;
use canopy_base::error::{Error, Result};
use canopy_base::ids::HandleId;
use canopy_fuse::request::{Create, Name, WriteIo};
use canopy_fuse::{Op, Request};
use canopy_pool::ops;
use canopy_pool::{Entry, Opened};
use rustix::io::Errno;

impl Dispatch {
    /// Notes a request that must not be carried out twice, and returns what a process before has begun of it. After a
    /// takeover, also finds the nodes again that it is about.
    pub(super) fn note(
        &self,
        request: &Request<'_>,
        operation: &Operation<'_>,
    ) -> Result<(Option<Noted<'_>>, Option<Begun>)> {
        self.in_flight.iter().for_each(InFlight::answered);
        if self.takes_over {
            self.recall(request)?;
        }
        let Some(in_flight) = &self.in_flight else { return Ok((None, None)) };
        if !operation.once {
            return Ok((None, None));
        }
        let begun = in_flight.begun_before(request.header.unique);
        Ok((in_flight.begin(request.header.unique, begun.as_ref()), begun))
    }

    /// Keeps what a process before has begun of a request that waits, until it is handled once more.
    #[cold]
    pub(super) fn waits(&self, call: &mut Call<'_>) {
        if let (Some(in_flight), Some(begun)) = (&self.in_flight, call.begun.take()) {
            // Nothing of it is erased: this process may die, too.
            std::mem::forget(call.noted.take());
            in_flight.put_back(call.header.unique, begun);
        }
    }

    /// Finds the nodes of a request again that the kernel knows from a process before.
    fn recall(&self, request: &Request<'_>) -> Result<()> {
        let other = match request.op {
            Op::Forget { .. } | Op::BatchForget(_) | Op::Interrupt { .. } => return Ok(()),
            // They are about a handle. The kernel sends them late, when it may have forgotten the node, or the directories
            // above it: what is found again then, nobody forgets any more.
            Op::Release { .. } | Op::Releasedir { .. } => return Ok(()),
            Op::Link { old, .. } => Some(old),
            Op::Rename { newdir, .. } => Some(newdir),
            _ => None,
        };
        ops::adopt::recall(&self.pool, convert::node(request.header.node))?;
        other.map_or(Ok(()), |other| ops::adopt::recall(&self.pool, convert::node(other)))
    }

    /// Closes the handle that the process before has opened for this request, and has not told the kernel. Notes the one
    /// that will be opened.
    pub(super) fn close_unanswered(&self, call: &Call<'_>) {
        if let Some(Begun { detail, .. }) = call.begun
            && detail != 0
        {
            let _ = ops::data::open::release(&self.pool, HandleId(detail));
        }
        if let Some(noted) = &call.noted {
            noted.detail(ops::adopt::reserve_handle(&self.pool).0);
        }
    }

    /// Passes on the result of a request that makes a name. If it failed because the name is there, and the process before
    /// may have made it, it has succeeded.
    pub(super) fn made_before(&self, call: &Call<'_>, name: Name<'_>, made: Result<Entry>) -> Result<Entry> {
        let (Some(begun), Err(error)) = (&call.begun, &made) else { return made };
        if error.errno() != Errno::EXIST {
            return made;
        }
        let Ok(entry) = ops::data::cow::lookup_for(&self.pool, &call.caller(0), call.node, name.as_bytes())
        else {
            return made;
        };
        if begun.may_have_made(entry.attr.btime) {
            return Ok(entry);
        }
        ops::names::lookup::take_back(&self.pool, entry.node);
        made
    }

    /// As `made_before`, for a request that also opens the file. The kernel checks no rights to it, so it has to be the caller's.
    pub(super) fn created_before(
        &self,
        call: &Call<'_>,
        create: &Create<'_>,
        made: Result<(Entry, Opened)>,
    ) -> Result<(Entry, Opened)> {
        let Err(error) = made else { return made };
        let entry = self.made_before(call, create.name, Err(error))?;
        if entry.attr.uid != call.header.uid {
            ops::names::lookup::take_back(&self.pool, entry.node);
            return Err(Error::Exists);
        }
        let opened = ops::data::open::open(&self.pool, &call.caller(0), entry.node, create.flags, false);
        opened
            .map(|opened| (entry, opened))
            .inspect_err(|_| ops::names::lookup::take_back(&self.pool, entry.node))
    }

    /// Passes on the result of a request. If it failed with the errno that tells that it was done, the process before has
    /// done it.
    pub(super) fn done_before(&self, call: &Call<'_>, done: Errno, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if call.begun.is_some() && error.errno() == done => Ok(()),
            result => result,
        }
    }

    /// Returns how many bytes of an append the process before has written. Otherwise notes the size of the file. No
    /// other client appends meanwhile: the kernel has locked the file since the request began.
    pub(super) fn appended_before(&self, call: &Call<'_>, io: &WriteIo<'_>) -> usize {
        let Some(noted) = &call.noted else { return 0 };
        let size = ops::names::lookup::getattr(&self.pool, call.node, Some(HandleId(io.handle)))
            .ok()
            .map(|attr| attr.size + 1);
        match (&call.begun, size) {
            (Some(begun), Some(size)) if begun.detail != 0 => {
                usize::try_from(size.saturating_sub(begun.detail))
                    .map_or(io.data.len(), |bytes| bytes.min(io.data.len()))
            }
            (_, size) => {
                noted.detail(size.unwrap_or(0));
                0
            }
        }
    }

    /// Returns whether the process before has done this change of a file's size from within (fallocate(2) with
    /// `FALLOC_FL_COLLAPSE_RANGE` or `FALLOC_FL_INSERT_RANGE`). Otherwise notes the size.
    pub(super) fn resized_before(&self, call: &Call<'_>, handle: HandleId, mode: u32) -> bool {
        const COLLAPSE_RANGE: u32 = 0x08;
        const INSERT_RANGE: u32 = 0x20;
        if mode & (COLLAPSE_RANGE | INSERT_RANGE) == 0 {
            return false;
        }
        let size = || {
            ops::names::lookup::getattr(&self.pool, call.node, Some(handle)).ok().map(|attr| attr.size + 1)
        };
        match (&call.begun, &call.noted) {
            (Some(begun), _) if begun.detail != 0 => size().is_some_and(|size| size != begun.detail),
            (_, Some(noted)) => {
                noted.detail(size().unwrap_or(0));
                false
            }
            _ => false,
        }
    }
}
