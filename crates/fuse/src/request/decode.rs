//! Decodes a [`Request`].

use zerocopy::FromBytes;

use super::attr::Setattr;
use super::body::Body;
use super::file::{CopyRange, Create, FileIo, Lock, Tmpfile, WriteIo};
use super::forget::Forgets;
use super::header::{Dialect, Extensions, Groups, Header, NodeId};
use super::malformed::Malformed;
use super::op::{Op, Request};
use crate::abi;
use crate::flags::{
    FsyncFlags, GetattrFlags, IoctlFlags, OpenInFlags, PollFlags, ReleaseFlags, SetxattrFlags,
};
use crate::opcode::Opcode;

impl<'a> Request<'a> {
    /// Decodes a contiguous request, as read from `/dev/fuse`.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &'a [u8], dialect: Dialect) -> Result<Request<'a>, Malformed> {
        let (header, len) = Header::decode(bytes)?;
        if len as usize != bytes.len() {
            return Err(Malformed::Length);
        }
        decode(header, Body::contiguous(&bytes[size_of::<abi::InHeader>()..]), dialect)
    }

    /// Decodes a request from the three parts of an io_uring entry: header, operation structure (in an area that may be
    /// longer), and payload (of exactly the length sent).
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
        decode(header, Body::split(operation, payload), dialect)
    }
}

fn decode<'a>(header: Header, mut body: Body<'a>, dialect: Dialect) -> Result<Request<'a>, Malformed> {
    let extensions = body.split_off(usize::from(header.total_extlen) * 8)?;
    let op = match header.opcode().filter(|op| op.minor() <= dialect.minor) {
        Some(opcode) => operation(opcode, &mut body, dialect)?,
        None => Op::Unknown(header.opcode),
    };
    Ok(Request { header, op, ext: decode_extensions(extensions)? })
}

fn operation<'a>(opcode: Opcode, body: &mut Body<'a>, dialect: Dialect) -> Result<Op<'a>, Malformed> {
    Ok(match opcode {
        Opcode::Init => Op::Init(init(body)?),
        Opcode::Lookup => Op::Lookup { name: body.last_name()? },
        Opcode::Forget => Op::Forget { nlookup: body.fixed::<abi::ForgetIn>()?.nlookup },
        Opcode::BatchForget => Op::BatchForget(Forgets::decode(body)?),
        Opcode::Getattr => {
            let raw: abi::GetattrIn = body.fixed()?;
            Op::Getattr { handle: handle_if(raw.getattr_flags, raw.fh) }
        }
        Opcode::Setattr => Op::Setattr(Setattr::decode(body)?),
        Opcode::Statx => statx(body)?,
        Opcode::Readlink => Op::Readlink,
        Opcode::Symlink => Op::Symlink { name: body.name()?, target: body.last_string()? },
        Opcode::Mknod => mknod(body)?,
        Opcode::Mkdir => mkdir(body)?,
        Opcode::Unlink => Op::Unlink { name: body.last_name()? },
        Opcode::Rmdir => Op::Rmdir { name: body.last_name()? },
        Opcode::Rename => {
            let raw: abi::RenameIn = body.fixed()?;
            rename(body, raw.newdir, 0)?
        }
        Opcode::Rename2 => {
            let raw: abi::Rename2In = body.fixed()?;
            rename(body, raw.newdir, raw.flags)?
        }
        Opcode::Link => {
            let raw: abi::LinkIn = body.fixed()?;
            Op::Link { old: NodeId(raw.oldnodeid), name: body.last_name()? }
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
            let abi::ReleaseIn { fh: handle, flags, release_flags, lock_owner } = body.fixed()?;
            let release_flags = ReleaseFlags::from_bits_retain(release_flags);
            Op::Release { handle, flags, release_flags, lock_owner }
        }
        Opcode::Releasedir => {
            let abi::ReleaseIn { fh: handle, flags, release_flags, lock_owner } = body.fixed()?;
            let release_flags = ReleaseFlags::from_bits_retain(release_flags);
            Op::Releasedir { handle, flags, release_flags, lock_owner }
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
        Opcode::Setxattr => setxattr(body, dialect)?,
        Opcode::Getxattr => {
            let raw: abi::GetxattrIn = body.fixed()?;
            Op::Getxattr { name: body.last_xattr_name()?, size: raw.size }
        }
        Opcode::Listxattr => Op::Listxattr { size: body.fixed::<abi::GetxattrIn>()?.size },
        Opcode::Removexattr => Op::Removexattr { name: body.last_xattr_name()? },
        Opcode::Access => Op::Access { mask: body.fixed::<abi::AccessIn>()?.mask },
        Opcode::Getlk => Op::Getlk(Lock::decode(body)?),
        Opcode::Setlk => Op::Setlk(Lock::decode(body)?),
        Opcode::Setlkw => Op::Setlkw(Lock::decode(body)?),
        Opcode::Interrupt => Op::Interrupt { unique: body.fixed::<abi::InterruptIn>()?.unique },
        Opcode::Ioctl => ioctl(body)?,
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
        Opcode::Poll => poll(body)?,
        Opcode::Bmap => {
            let raw: abi::BmapIn = body.fixed()?;
            Op::Bmap { block: raw.block, blocksize: raw.blocksize }
        }
        Opcode::Syncfs => body.fixed::<abi::SyncfsIn>().map(|_| Op::Syncfs)?,
        Opcode::Destroy => Op::Destroy,
        Opcode::NotifyReply => {
            let raw: abi::NotifyRetrieveIn = body.fixed()?;
            Op::NotifyReply { offset: raw.offset, data: body.data(raw.size)? }
        }
        Opcode::SetupMapping => Op::SetupMapping(body.fixed()?),
        Opcode::RemoveMapping => remove_mapping(body)?,
        Opcode::CuseInit => Op::CuseInit(body.fixed()?),
    })
}

/// Decodes INIT, which is 16 bytes long up to 7.35 and 64 bytes since.
fn init(body: &mut Body<'_>) -> Result<abi::InitIn, Malformed> {
    if body.is_all(size_of::<abi::InitInCompat>()) {
        let raw: abi::InitInCompat = body.fixed()?;
        let (major, minor, max_readahead, flags) = (raw.major, raw.minor, raw.max_readahead, raw.flags);
        return Ok(abi::InitIn { major, minor, max_readahead, flags, ..abi::InitIn::default() });
    }
    body.fixed()
}

fn statx<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let raw: abi::StatxIn = body.fixed()?;
    let handle = handle_if(raw.getattr_flags, raw.fh);
    Ok(Op::Statx { handle, sx_flags: raw.sx_flags, mask: raw.sx_mask })
}

fn mknod<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let raw: abi::MknodIn = body.fixed()?;
    Ok(Op::Mknod { name: body.last_name()?, mode: raw.mode, rdev: raw.rdev, umask: raw.umask })
}

fn mkdir<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let raw: abi::MkdirIn = body.fixed()?;
    Ok(Op::Mkdir { name: body.last_name()?, mode: raw.mode, umask: raw.umask })
}

/// Decodes the names of RENAME or RENAME2, which differ only in their structures.
fn rename<'a>(body: &mut Body<'a>, newdir: u64, flags: u32) -> Result<Op<'a>, Malformed> {
    let name = body.name()?;
    Ok(Op::Rename { name, newdir: NodeId(newdir), newname: body.last_name()?, flags })
}

/// Decodes SETXATTR, whose structure is 8 bytes long, or 16 if `FUSE_SETXATTR_EXT` was negotiated.
fn setxattr<'a>(body: &mut Body<'a>, dialect: Dialect) -> Result<Op<'a>, Malformed> {
    let (size, flags, extra) = if dialect.setxattr_ext {
        let raw: abi::SetxattrIn = body.fixed()?;
        (raw.size, raw.flags, raw.setxattr_flags)
    } else {
        let raw: abi::SetxattrInCompat = body.fixed()?;
        (raw.size, raw.flags, 0)
    };
    let name = body.xattr_name()?;
    let value = body.data(size)?;
    Ok(Op::Setxattr { name, value, flags, setxattr_flags: SetxattrFlags::from_bits_retain(extra) })
}

fn ioctl<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let abi::IoctlIn { fh: handle, flags, cmd, arg, in_size, out_size } = body.fixed()?;
    let flags = IoctlFlags::from_bits_retain(flags);
    Ok(Op::Ioctl { handle, flags, cmd, arg, in_size, out_size, data: body.data(in_size)? })
}

fn poll<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let raw: abi::PollIn = body.fixed()?;
    let flags = PollFlags::from_bits_retain(raw.flags);
    Ok(Op::Poll { handle: raw.fh, kernel_handle: raw.kh, flags, events: raw.events })
}

fn remove_mapping<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let raw: abi::RemoveMappingIn = body.fixed()?;
    let mappings = body.remaining();
    if Some(mappings.len()) != (raw.count as usize).checked_mul(size_of::<abi::RemoveMappingOne>()) {
        return Err(Malformed::DataLength);
    }
    Ok(Op::RemoveMapping { count: raw.count, mappings })
}

/// Decodes the only flag of FSYNC and FSYNCDIR.
fn datasync(flags: u32) -> bool {
    FsyncFlags::from_bits_retain(flags).contains(FsyncFlags::FDATASYNC)
}

/// Returns the handle of GETATTR or STATX, which is valid only with `FUSE_GETATTR_FH`.
fn handle_if(flags: u32, fh: u64) -> Option<u64> {
    GetattrFlags::from_bits_retain(flags).contains(GetattrFlags::FH).then_some(fh)
}

/// Decodes the extension blocks after the operation. Blocks of unknown types are ignored.
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
