//! Operations on attributes, extended ones included.

use super::{Call, Dispatch, done, fail, number};
use crate::control;
use crate::translate::convert;
use canopy_base::ids::HandleId;
use canopy_branch::fs::stat::Attr;
use canopy_fuse::abi::{AttrOut, StatxOut};
use canopy_fuse::flags::{IoctlFlags, SetxattrFlags};
use canopy_fuse::request::Setattr;
use canopy_fuse::{Replied, Reply};
use canopy_pool::ops;
use rustix::io::Errno;
use std::ffi::CStr;

/// Where SELinux keeps a file's label.
const SELINUX_LABEL: &[u8] = b"security.selinux";

impl Dispatch {
    pub(super) fn getattr(&self, call: &Call<'_>, reply: Reply<'_>, handle: Option<u64>) -> Replied {
        attr_out(call, reply, ops::names::lookup::getattr(&self.pool, call.node, handle.map(HandleId)))
    }

    pub(super) fn statx(&self, call: &Call<'_>, reply: Reply<'_>, handle: Option<u64>) -> Replied {
        match ops::names::lookup::getattr(&self.pool, call.node, handle.map(HandleId)) {
            Ok(attr) => reply.statx(&StatxOut::new(
                convert::statx(&attr, call.answer.ttl().shown),
                call.answer.attr_ttl(call.node, &attr),
            )),
            Err(error) => fail(reply, error),
        }
    }

    pub(super) fn setattr(&self, call: &Call<'_>, reply: Reply<'_>, set: &Setattr) -> Replied {
        let handle = set.handle.map(HandleId);
        let attr = ops::attrs::setattr::setattr(
            &self.pool,
            &call.caller(0),
            call.node,
            handle,
            &convert::changes(set),
        );
        self.watch.note_own_change();
        attr_out(call, reply, attr)
    }

    pub(super) fn setxattr(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        name: &CStr,
        value: &[u8],
        (flags, setxattr_flags): (u32, SetxattrFlags),
    ) -> Replied {
        let kill = setxattr_flags.contains(SetxattrFlags::ACL_KILL_SGID);
        let set = ops::attrs::xattr::setxattr(
            &self.pool,
            &call.caller(0),
            call.node,
            name.to_bytes(),
            value,
            flags,
            kill,
        );
        let set = self.done_before(call, Errno::EXIST, set);
        done(reply, self.changed(call, set))
    }

    pub(super) fn getxattr(&self, call: &Call<'_>, reply: Reply<'_>, name: &CStr, size: u32) -> Replied {
        let (pool, name) = (&self.pool, name.to_bytes());
        let refusal = |error| self.without_label(name, number(error));
        match control::file_key(pool, call.node, name) {
            Some(Ok(value)) => reply.xattr(&value),
            Some(Err(error)) => fail(reply, error),
            None if size == 0 => match ops::attrs::xattr::getxattr(pool, call.node, name, &mut []) {
                Ok(size) => reply.xattr_size(size as u32),
                Err(error) => reply.error(refusal(error)),
            },
            None => reply.data(size as usize, |buffer| {
                ops::attrs::xattr::getxattr(pool, call.node, name, buffer).map_err(refusal)
            }),
        }
    }

    /// Returns the errno for an attribute that cannot be read. The label that a file does not have is answered with
    /// EOPNOTSUPP where no SELinux is. From ENODATA ls(1) would conclude that the next file may have one, and ask for
    /// each file. EOPNOTSUPP it remembers by device.
    fn without_label(&self, name: &[u8], errno: i32) -> i32 {
        if errno == Errno::NODATA.raw_os_error() && name == SELINUX_LABEL && !self.selinux {
            Errno::OPNOTSUPP.raw_os_error()
        } else {
            errno
        }
    }

    pub(super) fn listxattr(&self, call: &Call<'_>, reply: Reply<'_>, size: u32) -> Replied {
        let caller = call.caller(0);
        if size > 0 {
            let list = |buffer: &mut [u8]| {
                ops::attrs::xattr::listxattr(&self.pool, &caller, call.node, buffer).map_err(number)
            };
            return reply.data(size as usize, list);
        }
        match ops::attrs::xattr::listxattr(&self.pool, &caller, call.node, &mut []) {
            Ok(size) => reply.xattr_size(size as u32),
            Err(error) => fail(reply, error),
        }
    }

    pub(super) fn ioctl(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        flags: IoctlFlags,
        cmd: u32,
        data: &[u8],
    ) -> Replied {
        if flags.contains(IoctlFlags::UNRESTRICTED) {
            // Only CUSE may read and write its caller's memory.
            return reply.error(Errno::PERM.raw_os_error());
        }
        let answer = ops::attrs::ioctl::ioctl(&self.pool, &call.caller(0), call.node, cmd, data);
        match self.changed(call, answer) {
            Ok(answer) => reply.ioctl(0, |buffer| {
                let bytes = answer.bytes();
                let room = buffer.get_mut(..bytes.len()).ok_or(Errno::INVAL.raw_os_error())?;
                room.copy_from_slice(bytes);
                Ok(bytes.len())
            }),
            Err(error) => fail(reply, error),
        }
    }
}

fn attr_out(call: &Call<'_>, reply: Reply<'_>, attr: canopy_base::error::Result<Attr>) -> Replied {
    match attr {
        Ok(attr) => reply.attr(&AttrOut::new(
            convert::attr(&attr, call.answer.ttl().shown),
            call.answer.attr_ttl(call.node, &attr),
        )),
        Err(error) => fail(reply, error),
    }
}
