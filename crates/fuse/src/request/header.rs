//! The header that starts every request, and what may follow its operation.

use std::fmt;

use zerocopy::FromBytes;

use super::malformed::Malformed;
use crate::abi;
use crate::flags::InitFlags;
use crate::opcode::Opcode;

/// What the kernel calls a file or directory: chosen by the server in LOOKUP, alive until FORGET has given back every
/// lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount (`FUSE_ROOT_ID`); never looked up, never forgotten.
    pub const ROOT: NodeId = NodeId(1);
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who asks, about what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Names the request until it is answered; bit 63 marks one that is sent again.
    pub unique: u64,
    /// As it stands on the wire; see [`Opcode`] for those known here.
    pub opcode: u32,
    /// What the operation is about: a directory for those that take a name.
    pub node: NodeId,
    /// Of the caller, in the user namespace of the mount; [`abi::INVALID_ID`] when not mapped.
    pub uid: u32,
    /// Of the caller, as `uid`.
    pub gid: u32,
    /// 0 when the kernel asks on its own behalf.
    pub pid: u32,
    /// Length of the extension blocks, in units of 8 bytes.
    pub total_extlen: u16,
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

    /// The opcode, if it is known here.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_u32(self.opcode)
    }

    /// Whether the kernel waits for an answer. An unknown opcode is taken to want one.
    #[must_use]
    pub fn wants_answer(&self) -> bool {
        self.opcode().is_none_or(Opcode::wants_answer)
    }
}

/// What comes after a request that creates something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// The caller's supplementary groups that matter: the parent's group when the caller is in it and the parent is
    /// sgid (`FUSE_CREATE_SUPP_GROUP`).
    pub groups: Option<Groups<'a>>,
}

/// Group ids of an extension block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups<'a>(pub(super) &'a [u8]);

impl Iterator for Groups<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (gid, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*gid))
    }
}

/// The parts of the agreement that change how requests look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Requests that came with a later minor version are unknown.
    pub minor: u32,
    /// SETXATTR has its longer header.
    pub setxattr_ext: bool,
}

impl Dialect {
    /// What follows from an agreed version and flags.
    #[must_use]
    pub fn new(minor: u32, flags: InitFlags) -> Dialect {
        Dialect { minor, setxattr_ext: flags.contains(InitFlags::SETXATTR_EXT) }
    }
}
