//! Operations on open files.

use super::{Call, Dispatch, done, fail, number};
use crate::parking;
use crate::translate::convert;
use canopy_base::error::Error;
use canopy_base::ids::HandleId;
use canopy_fuse::flags::{OpenInFlags, WriteFlags};
use canopy_fuse::request::{CopyRange, FileIo, WriteIo};
use canopy_fuse::{NoData, Replied, Reply};
use canopy_pool::ops;
use canopy_pool::{Via, Whence, WriteKind};
use rustix::io::Errno;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Dispatch {
    pub(super) fn open(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        flags: u32,
        open_flags: OpenInFlags,
    ) -> Replied {
        let kill = open_flags.contains(OpenInFlags::KILL_SUIDGID);
        self.close_unanswered(call);
        match ops::data::open::open(&self.pool, &call.caller(0), call.node, flags, kill) {
            Ok(opened) => {
                let (flags, backing) = convert::travel(&opened.travel);
                reply.opened(opened.handle.0, flags, backing)
            }
            Err(error) => fail(reply, error),
        }
    }

    pub(super) fn read(&self, reply: Reply<'_>, io: &FileIo) -> Replied {
        // Only reads on behalf of a caller carry a lock owner (fs/fuse/file.c fuse_send_read); the others fill the
        // page cache.
        let via = Via::with_flags(HandleId(io.handle), io.flags).for_pages(io.lock_owner.is_none());
        reply.data_or_later(io.size as usize, |buffer| {
            ops::data::io::read(&self.pool, via, io.offset, buffer).map_err(|error| match error {
                Error::Wait(cause) => NoData::Later(parking::wait(cause)),
                error => NoData::Error(number(error)),
            })
        })
    }

    pub(super) fn write(&self, call: &Call<'_>, reply: Reply<'_>, io: &WriteIo<'_>) -> Replied {
        let kind = WriteKind {
            from_cache: io.write_flags.contains(WriteFlags::CACHE),
            kill_suidgid: io.write_flags.contains(WriteFlags::KILL_SUIDGID).then(|| call.caller(0)),
        };
        let via = Via::with_flags(HandleId(io.handle), io.flags);
        let before = self.appended_before(call, io);
        let written = if before == io.data.len() && before > 0 {
            Ok(0)
        } else {
            ops::data::io::write(&self.pool, via, io.offset + before as u64, &io.data[before..], kind)
        };
        match written {
            Ok(written) => reply.written((before + written) as u32),
            Err(error) => fail(reply, error),
        }
    }

    pub(super) fn fallocate(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        handle: HandleId,
        mode: u32,
        (offset, length): (u64, u64),
    ) -> Replied {
        let allocated = if self.resized_before(call, handle, mode) {
            Ok(())
        } else {
            ops::data::io::fallocate(&self.pool, handle, mode, offset, length)
        };
        done(reply, self.changed(call, allocated))
    }

    pub(super) fn lseek(&self, reply: Reply<'_>, handle: u64, offset: u64, whence: u32) -> Replied {
        let whence = match whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            // The kernel computes the others from the size that it knows (fs/fuse/file.c).
            _ => return reply.error(Errno::INVAL.raw_os_error()),
        };
        match ops::data::io::lseek(&self.pool, HandleId(handle), offset, whence) {
            Ok(offset) => reply.lseek(offset),
            Err(error) => fail(reply, error),
        }
    }

    pub(super) fn copy_file_range(&self, reply: Reply<'_>, copy: &CopyRange) -> Replied {
        let from = (HandleId(copy.handle_in), copy.offset_in);
        let to = (HandleId(copy.handle_out), copy.offset_out);
        match ops::data::io::copy_file_range(&self.pool, from, to, copy.len) {
            Ok(bytes) => reply.copied(bytes, copy.reply64),
            Err(error) => fail(reply, error),
        }
    }
}
