//! A request that outlives the buffer it was read into.

use std::ffi::{CStr, CString};

use super::file::{Create, WriteIo};
use super::header::{Extensions, Groups, Header};
use super::name::Name;
use super::op::{Op, Request};

/// A copy of a request that borrows nothing.
#[derive(Debug)]
pub struct OwnedRequest {
    header: Header,
    /// The operation with placeholders for `parts`.
    op: Op<'static>,
    parts: Parts<CString, Vec<u8>>,
    groups: Option<Vec<u8>>,
}

/// What a request may borrow: up to two strings and data.
#[derive(Debug, Default)]
struct Parts<S, D> {
    first: S,
    second: S,
    data: D,
}

impl OwnedRequest {
    /// Copies a request. Returns `None` for requests without a reply and for those that never reach a handler.
    #[must_use]
    pub fn of(request: &Request<'_>) -> Option<OwnedRequest> {
        let parts = borrowed(&request.op);
        let op = with(&request.op, &Parts { first: c"-", second: c"-", data: &[][..] })?;
        Some(OwnedRequest {
            header: request.header,
            op,
            parts: Parts {
                first: parts.first.to_owned(),
                second: parts.second.to_owned(),
                data: parts.data.to_owned(),
            },
            groups: request.ext.groups.map(|groups| groups.0.to_owned()),
        })
    }

    /// Returns the request.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        let parts =
            Parts { first: &*self.parts.first, second: &*self.parts.second, data: &self.parts.data[..] };
        // `with` has succeeded for this operation in `of`.
        let op = with(&self.op, &parts).unwrap_or(Op::Destroy);
        Request { header: self.header, op, ext: Extensions { groups: self.groups.as_deref().map(Groups) } }
    }
}

fn borrowed<'a>(op: &Op<'a>) -> Parts<&'a CStr, &'a [u8]> {
    let (first, second, data): (&CStr, &CStr, &[u8]) = match *op {
        Op::Lookup { name }
        | Op::Mknod { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Unlink { name }
        | Op::Rmdir { name }
        | Op::Link { name, .. } => (name.0, c"", &[]),
        Op::Symlink { name, target } => (name.0, target, &[]),
        Op::Rename { name, newname, .. } => (name.0, newname.0, &[]),
        Op::Create(create) => (create.name.0, c"", &[]),
        Op::Write(io) => (c"", c"", io.data),
        Op::Setxattr { name, value, .. } => (name, c"", value),
        Op::Getxattr { name, .. } | Op::Removexattr { name } => (name, c"", &[]),
        Op::Ioctl { data, .. } => (c"", c"", data),
        _ => (c"", c"", &[]),
    };
    Parts { first, second, data }
}

/// Returns the same operation with `parts` in place of what it borrows.
fn with<'b>(op: &Op<'_>, parts: &Parts<&'b CStr, &'b [u8]>) -> Option<Op<'b>> {
    let (name, data) = (Name(parts.first), parts.data);
    Some(match *op {
        Op::Lookup { .. } => Op::Lookup { name },
        Op::Getattr { handle } => Op::Getattr { handle },
        Op::Setattr(set) => Op::Setattr(set),
        Op::Statx { handle, sx_flags, mask } => Op::Statx { handle, sx_flags, mask },
        Op::Readlink => Op::Readlink,
        Op::Symlink { .. } => Op::Symlink { name, target: parts.second },
        Op::Mknod { mode, rdev, umask, .. } => Op::Mknod { name, mode, rdev, umask },
        Op::Mkdir { mode, umask, .. } => Op::Mkdir { name, mode, umask },
        Op::Unlink { .. } => Op::Unlink { name },
        Op::Rmdir { .. } => Op::Rmdir { name },
        Op::Rename { newdir, flags, .. } => Op::Rename { name, newdir, newname: Name(parts.second), flags },
        Op::Link { old, .. } => Op::Link { old, name },
        Op::Open { flags, open_flags } => Op::Open { flags, open_flags },
        Op::Read(io) => Op::Read(io),
        Op::Write(WriteIo { handle, offset, write_flags, flags, lock_owner, .. }) => {
            Op::Write(WriteIo { handle, offset, data, write_flags, flags, lock_owner })
        }
        Op::Release { handle, flags, release_flags, lock_owner } => {
            Op::Release { handle, flags, release_flags, lock_owner }
        }
        Op::Flush { handle, lock_owner } => Op::Flush { handle, lock_owner },
        Op::Fsync { handle, datasync } => Op::Fsync { handle, datasync },
        Op::Opendir { flags, open_flags } => Op::Opendir { flags, open_flags },
        Op::Readdir(io) => Op::Readdir(io),
        Op::Readdirplus(io) => Op::Readdirplus(io),
        Op::Releasedir { handle, flags, release_flags, lock_owner } => {
            Op::Releasedir { handle, flags, release_flags, lock_owner }
        }
        Op::Fsyncdir { handle, datasync } => Op::Fsyncdir { handle, datasync },
        Op::Create(Create { flags, mode, umask, open_flags, .. }) => {
            Op::Create(Create { name, flags, mode, umask, open_flags })
        }
        Op::Tmpfile(tmpfile) => Op::Tmpfile(tmpfile),
        Op::Statfs => Op::Statfs,
        Op::Setxattr { flags, setxattr_flags, .. } => {
            Op::Setxattr { name: parts.first, value: data, flags, setxattr_flags }
        }
        Op::Getxattr { size, .. } => Op::Getxattr { name: parts.first, size },
        Op::Listxattr { size } => Op::Listxattr { size },
        Op::Removexattr { .. } => Op::Removexattr { name: parts.first },
        Op::Access { mask } => Op::Access { mask },
        Op::Getlk(lock) => Op::Getlk(lock),
        Op::Setlk(lock) => Op::Setlk(lock),
        Op::Setlkw(lock) => Op::Setlkw(lock),
        Op::Ioctl { handle, flags, cmd, arg, in_size, out_size, .. } => {
            Op::Ioctl { handle, flags, cmd, arg, in_size, out_size, data }
        }
        Op::Fallocate { handle, offset, length, mode } => Op::Fallocate { handle, offset, length, mode },
        Op::Lseek { handle, offset, whence } => Op::Lseek { handle, offset, whence },
        Op::CopyFileRange(copy) => Op::CopyFileRange(copy),
        Op::Poll { handle, kernel_handle, flags, events } => {
            Op::Poll { handle, kernel_handle, flags, events }
        }
        Op::Bmap { block, blocksize } => Op::Bmap { block, blocksize },
        Op::Syncfs => Op::Syncfs,
        Op::Destroy => Op::Destroy,
        Op::Init(_)
        | Op::Forget { .. }
        | Op::BatchForget(_)
        | Op::Interrupt { .. }
        | Op::NotifyReply { .. }
        | Op::SetupMapping(_)
        | Op::RemoveMapping { .. }
        | Op::CuseInit(_)
        | Op::Unknown(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::opcode::Opcode;
    use crate::request::{Dialect, NodeId};
    use zerocopy::{FromZeros, IntoBytes};

    fn bytes(opcode: Opcode, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let len = (size_of::<abi::InHeader>() + body.len()) as u32;
        let header = abi::InHeader {
            len,
            opcode: opcode as u32,
            unique: 9,
            nodeid: 4,
            pid: 6,
            ..abi::InHeader::new_zeroed()
        };
        [header.as_bytes(), &body].concat()
    }

    #[test]
    fn a_copy_equals_the_request_and_outlives_its_buffer() {
        let dialect = Dialect { minor: abi::MINOR, setxattr_ext: true };
        let write = abi::WriteIn { fh: 3, offset: 77, size: 4, ..abi::WriteIn::new_zeroed() };
        let rename = abi::Rename2In { newdir: 12, flags: 2, ..abi::Rename2In::new_zeroed() };
        let attribute = abi::SetxattrIn { size: 5, flags: 1, ..abi::SetxattrIn::new_zeroed() };
        let create = abi::CreateIn { flags: 1, mode: 0o644, umask: 2, open_flags: 1 };
        for raw in [
            bytes(Opcode::Lookup, &[b"name\0"]),
            bytes(Opcode::Symlink, &[b"name\0to/where\0"]),
            bytes(Opcode::Rename2, &[rename.as_bytes(), b"old\0new\0"]),
            bytes(Opcode::Write, &[write.as_bytes(), b"data"]),
            bytes(Opcode::Setxattr, &[attribute.as_bytes(), b"user.x\0value"]),
            bytes(Opcode::Create, &[create.as_bytes(), b"name\0"]),
            bytes(Opcode::Statfs, &[]),
        ] {
            let request = Request::decode(&raw, dialect).unwrap();
            let shown = format!("{request:?}");
            let owned = OwnedRequest::of(&request).unwrap();
            drop(raw);
            assert_eq!(format!("{:?}", owned.request()), shown);
            assert_eq!(owned.request().header.node, NodeId(4));
        }
        let forget = bytes(Opcode::Forget, &[&1_u64.to_ne_bytes()]);
        assert!(OwnedRequest::of(&Request::decode(&forget, dialect).unwrap()).is_none());
    }
}
