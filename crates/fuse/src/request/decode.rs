//! From bytes to a [`Request`]: one match over the opcodes.

use std::ffi::CStr;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::{CopyRange, Setattr, WriteIo, datasync};
use super::{
    Create, Dialect, Extensions, FileIo, Forgets, Groups, Header, Lock, Malformed, Name, NodeId, Op, Request,
    Tmpfile,
};
use crate::abi;
use crate::flags::{GetattrFlags, IoctlFlags, OpenInFlags, PollFlags, ReleaseFlags};
use crate::opcode::Opcode;

/// What follows the header.
///
/// On `/dev/fuse` everything is in one piece. In an io_uring entry the operation's first structure stands apart, in
/// an area of fixed size, and the rest follows in the payload.
pub(super) struct Body<'a> {
    apart: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// The operation's structure. A longer one, from a newer kernel, is read by the part known here.
    pub(super) fn fixed<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        match self.apart.take() {
            Some(area) => T::read_from_prefix(area).map(|(value, _)| value).map_err(|_| Malformed::Short),
            None => {
                let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed::Short)?;
                self.rest = rest;
                Ok(value)
            }
        }
    }

    /// The next string, up to its NUL.
    pub(super) fn string(&mut self) -> Result<&'a CStr, Malformed> {
        let string = CStr::from_bytes_until_nul(self.rest).map_err(|_| Malformed::Name)?;
        self.rest = &self.rest[string.count_bytes() + 1..];
        Ok(string)
    }

    /// The next path component.
    pub(super) fn name(&mut self) -> Result<Name<'a>, Malformed> {
        Name::new(self.string()?)
    }

    /// The name of an extended attribute: anything but empty.
    pub(super) fn attribute(&mut self) -> Result<&'a CStr, Malformed> {
        let name = self.string()?;
        if name.is_empty() { Err(Malformed::Name) } else { Ok(name) }
    }

    /// The data, which must be all that is left.
    pub(super) fn data(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        if self.rest.len() == len as usize {
            Ok(std::mem::take(&mut self.rest))
        } else {
            Err(Malformed::DataLength)
        }
    }

    /// Whether nothing follows a string: a name must not be cut by a NUL inside it.
    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Name) }
    }

    pub(super) fn remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

impl Header {
    /// Reads the header of a request.
    ///
    /// # Errors
    /// [`Malformed::NoHeader`] when `bytes` are too few.
    pub fn decode(bytes: &[u8]) -> Result<(Header, u32), Malformed> {
        let (raw, _) = abi::InHeader::read_from_prefix(bytes).map_err(|_| Malformed::NoHeader)?;
        let header = Header {
            unique: raw.unique,
            opcode: raw.opcode,
            node: NodeId(raw.nodeid),
            uid: raw.uid,
            gid: raw.gid,
            pid: raw.pid,
            total_extlen: raw.total_extlen,
        };
        Ok((header, raw.len))
    }
}

impl<'a> Request<'a> {
    /// Decodes a request that lies in one piece, as read from `/dev/fuse`.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &'a [u8], dialect: Dialect) -> Result<Request<'a>, Malformed> {
        let (header, len) = Header::decode(bytes)?;
        if len as usize != bytes.len() {
            return Err(Malformed::Length);
        }
        decode(header, Body { apart: None, rest: &bytes[size_of::<abi::InHeader>()..] }, dialect)
    }

    /// Decodes a request in the three pieces of an io_uring entry: header, the operation's own structure (in an area
    /// that may be longer), and payload (of exactly the length sent).
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode_split(
        header: &[u8],
        operation: &'a [u8],
        payload: &'a [u8],
        dialect: Dialect,
    ) -> Result<Request<'a>, Malformed> {
        let (header, _) = Header::decode(header)?;
        decode(header, Body { apart: Some(operation), rest: payload }, dialect)
    }
}

fn decode<'a>(header: Header, mut body: Body<'a>, dialect: Dialect) -> Result<Request<'a>, Malformed> {
    let extensions = usize::from(header.total_extlen) * 8;
    let cut = body.rest.len().checked_sub(extensions).ok_or(Malformed::Extension)?;
    let (rest, blocks) = body.rest.split_at(cut);
    body.rest = rest;
    let op = match header.opcode().filter(|op| op.minor() <= dialect.minor) {
        Some(opcode) => operation(opcode, &mut body, dialect)?,
        None => Op::Unknown(header.opcode),
    };
    Ok(Request { header, op, ext: decode_extensions(blocks)? })
}

fn operation<'a>(opcode: Opcode, body: &mut Body<'a>, dialect: Dialect) -> Result<Op<'a>, Malformed> {
    let only_name = |body: &mut Body<'a>| -> Result<Name<'a>, Malformed> {
        let name = body.name()?;
        body.end()?;
        Ok(name)
    };
    Ok(match opcode {
        Opcode::Init => Op::Init(decode_init(body)?),
        Opcode::Lookup => Op::Lookup { name: only_name(body)? },
        Opcode::Forget => Op::Forget { nlookup: body.fixed::<abi::ForgetIn>()?.nlookup },
        Opcode::BatchForget => Op::BatchForget(Forgets::decode(body)?),
        Opcode::Getattr => {
            let raw: abi::GetattrIn = body.fixed()?;
            Op::Getattr { handle: handle_if(raw.getattr_flags, raw.fh) }
        }
        Opcode::Setattr => Op::Setattr(Setattr::decode(body)?),
        Opcode::Statx => {
            let raw: abi::StatxIn = body.fixed()?;
            Op::Statx {
                handle: handle_if(raw.getattr_flags, raw.fh),
                sx_flags: raw.sx_flags,
                mask: raw.sx_mask,
            }
        }
        Opcode::Readlink => Op::Readlink,
        Opcode::Symlink => {
            let name = body.name()?;
            let target = body.string()?;
            body.end()?;
            Op::Symlink { name, target }
        }
        Opcode::Mknod => {
            let raw: abi::MknodIn = body.fixed()?;
            Op::Mknod { name: only_name(body)?, mode: raw.mode, rdev: raw.rdev, umask: raw.umask }
        }
        Opcode::Mkdir => {
            let raw: abi::MkdirIn = body.fixed()?;
            Op::Mkdir { name: only_name(body)?, mode: raw.mode, umask: raw.umask }
        }
        Opcode::Unlink => Op::Unlink { name: only_name(body)? },
        Opcode::Rmdir => Op::Rmdir { name: only_name(body)? },
        Opcode::Rename => {
            let raw: abi::RenameIn = body.fixed()?;
            Op::Rename { name: body.name()?, newdir: NodeId(raw.newdir), newname: only_name(body)?, flags: 0 }
        }
        Opcode::Rename2 => {
            let raw: abi::Rename2In = body.fixed()?;
            Op::Rename {
                name: body.name()?,
                newdir: NodeId(raw.newdir),
                newname: only_name(body)?,
                flags: raw.flags,
            }
        }
        Opcode::Link => {
            let raw: abi::LinkIn = body.fixed()?;
            Op::Link { old: NodeId(raw.oldnodeid), name: only_name(body)? }
        }
        Opcode::Open => {
            let raw: abi::OpenIn = body.fixed()?;
            Op::Open { flags: raw.flags, open_flags: OpenInFlags::from_bits_retain(raw.open_flags) }
        }
        Opcode::Opendir => {
            let raw: abi::OpenIn = body.fixed()?;
            Op::Opendir { flags: raw.flags, open_flags: OpenInFlags::from_bits_retain(raw.open_flags) }
        }
        Opcode::Read => Op::Read(FileIo::decode(body)?),
        Opcode::Readdir => Op::Readdir(FileIo::decode(body)?),
        Opcode::Readdirplus => Op::Readdirplus(FileIo::decode(body)?),
        Opcode::Write => Op::Write(WriteIo::decode(body)?),
        Opcode::Release => {
            let raw: abi::ReleaseIn = body.fixed()?;
            let release_flags = ReleaseFlags::from_bits_retain(raw.release_flags);
            Op::Release { handle: raw.fh, flags: raw.flags, release_flags, lock_owner: raw.lock_owner }
        }
        Opcode::Releasedir => {
            let raw: abi::ReleaseIn = body.fixed()?;
            let release_flags = ReleaseFlags::from_bits_retain(raw.release_flags);
            Op::Releasedir { handle: raw.fh, flags: raw.flags, release_flags, lock_owner: raw.lock_owner }
        }
        Opcode::Flush => {
            let raw: abi::FlushIn = body.fixed()?;
            Op::Flush { handle: raw.fh, lock_owner: raw.lock_owner }
        }
        Opcode::Fsync => {
            let raw: abi::FsyncIn = body.fixed()?;
            Op::Fsync { handle: raw.fh, datasync: datasync(raw.fsync_flags) }
        }
        Opcode::Fsyncdir => {
            let raw: abi::FsyncIn = body.fixed()?;
            Op::Fsyncdir { handle: raw.fh, datasync: datasync(raw.fsync_flags) }
        }
        Opcode::Create => Op::Create(Create::decode(body)?),
        Opcode::Tmpfile => Op::Tmpfile(Tmpfile::decode(body)?),
        Opcode::Statfs => Op::Statfs,
        Opcode::Setxattr => super::xattr::decode_set(body, dialect)?,
        Opcode::Getxattr => super::xattr::decode_get(body)?,
        Opcode::Listxattr => Op::Listxattr { size: body.fixed::<abi::GetxattrIn>()?.size },
        Opcode::Removexattr => super::xattr::decode_remove(body)?,
        Opcode::Access => Op::Access { mask: body.fixed::<abi::AccessIn>()?.mask },
        Opcode::Getlk => Op::Getlk(Lock::decode(body)?),
        Opcode::Setlk => Op::Setlk(Lock::decode(body)?),
        Opcode::Setlkw => Op::Setlkw(Lock::decode(body)?),
        Opcode::Interrupt => Op::Interrupt { unique: body.fixed::<abi::InterruptIn>()?.unique },
        Opcode::Ioctl => {
            let raw: abi::IoctlIn = body.fixed()?;
            Op::Ioctl {
                handle: raw.fh,
                flags: IoctlFlags::from_bits_retain(raw.flags),
                cmd: raw.cmd,
                arg: raw.arg,
                in_size: raw.in_size,
                out_size: raw.out_size,
                data: body.data(raw.in_size)?,
            }
        }
        Opcode::Fallocate => {
            let raw: abi::FallocateIn = body.fixed()?;
            Op::Fallocate { handle: raw.fh, offset: raw.offset, length: raw.length, mode: raw.mode }
        }
        Opcode::Lseek => {
            let raw: abi::LseekIn = body.fixed()?;
            Op::Lseek { handle: raw.fh, offset: raw.offset, whence: raw.whence }
        }
        Opcode::CopyFileRange => Op::CopyFileRange(CopyRange::decode(body, false)?),
        Opcode::CopyFileRange64 => Op::CopyFileRange(CopyRange::decode(body, true)?),
        Opcode::Poll => {
            let raw: abi::PollIn = body.fixed()?;
            let flags = PollFlags::from_bits_retain(raw.flags);
            Op::Poll { handle: raw.fh, kernel_handle: raw.kh, flags, events: raw.events }
        }
        Opcode::Bmap => {
            let raw: abi::BmapIn = body.fixed()?;
            Op::Bmap { block: raw.block, blocksize: raw.blocksize }
        }
        Opcode::Syncfs => {
            body.fixed::<abi::SyncfsIn>()?;
            Op::Syncfs
        }
        Opcode::Destroy => Op::Destroy,
        Opcode::NotifyReply => {
            let raw: abi::NotifyRetrieveIn = body.fixed()?;
            Op::NotifyReply { offset: raw.offset, data: body.data(raw.size)? }
        }
        Opcode::SetupMapping => Op::SetupMapping(body.fixed()?),
        Opcode::RemoveMapping => {
            let raw: abi::RemoveMappingIn = body.fixed()?;
            let mappings = body.remaining();
            if Some(mappings.len()) != (raw.count as usize).checked_mul(size_of::<abi::RemoveMappingOne>()) {
                return Err(Malformed::DataLength);
            }
            Op::RemoveMapping { count: raw.count, mappings }
        }
        Opcode::CuseInit => Op::CuseInit(body.fixed()?),
    })
}

/// GETATTR's and STATX's handle, which counts only with `FUSE_GETATTR_FH`.
fn handle_if(flags: u32, fh: u64) -> Option<u64> {
    GetattrFlags::from_bits_retain(flags).contains(GetattrFlags::FH).then_some(fh)
}

/// INIT is 16 bytes up to 7.35 and 64 since; nothing between.
fn decode_init(body: &mut Body<'_>) -> Result<abi::InitIn, Malformed> {
    if body.apart.is_none() && body.rest.len() == size_of::<abi::InitInCompat>() {
        let raw: abi::InitInCompat = body.fixed()?;
        let (major, minor, max_readahead, flags) = (raw.major, raw.minor, raw.max_readahead, raw.flags);
        return Ok(abi::InitIn { major, minor, max_readahead, flags, ..abi::InitIn::default() });
    }
    body.fixed()
}

/// Walks the blocks after the operation. Blocks of unknown types are passed over.
fn decode_extensions(mut blocks: &[u8]) -> Result<Extensions<'_>, Malformed> {
    let mut found = Extensions::default();
    while !blocks.is_empty() {
        let (header, _) = abi::ExtHeader::read_from_prefix(blocks).map_err(|_| Malformed::Extension)?;
        let size = header.size as usize;
        if size < size_of::<abi::ExtHeader>() || size > blocks.len() || !size.is_multiple_of(8) {
            return Err(Malformed::Extension);
        }
        let (block, rest) = blocks.split_at(size);
        if header.typ == abi::EXT_GROUPS {
            let content = &block[size_of::<abi::ExtHeader>()..];
            let (count, gids) = u32::read_from_prefix(content).map_err(|_| Malformed::Extension)?;
            let bytes = (count as usize).checked_mul(4).ok_or(Malformed::Extension)?;
            found.groups = Some(Groups(gids.get(..bytes).ok_or(Malformed::Extension)?));
        }
        blocks = rest;
    }
    Ok(found)
}
