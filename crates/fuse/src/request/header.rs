//! The header of a request, and the extensions that may follow its operation.

use std::fmt;

use zerocopy::FromBytes;

use super::malformed::Malformed;
use crate::abi;
use crate::flags::InitFlags;
use crate::opcode::Opcode;

/// The number that identifies a file or directory to the kernel. The server chooses it in the reply to LOOKUP, and it stays
/// valid until FORGET has released every lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount (`FUSE_ROOT_ID`), for which there is no LOOKUP and no FORGET.
    pub const ROOT: NodeId = NodeId(1);
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The header of a request: the caller and the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Identifies the request until it is answered. Bit 63 marks a request that was resent.
    pub unique: u64,
    /// The opcode as sent by the kernel; see [`Opcode`] for known ones.
    pub opcode: u32,
    /// The node that the operation is about. For operations with a name it is the directory.
    pub node: NodeId,
    /// The caller's uid in the user namespace of the mount; [`abi::INVALID_ID`] if it is not mapped.
    pub uid: u32,
    /// The caller's gid, likewise.
    pub gid: u32,
    /// The caller's process id, or 0 if the kernel acts on its own behalf.
    pub pid: u32,
    /// Length of the extension blocks, in units of 8 bytes.
    pub total_extlen: u16,
}

impl Header {
    /// Decodes the header of a request, and returns it with the length of the request that it states.
    ///
    /// # Errors
    /// [`Malformed::NoHeader`] when `bytes` is too short.
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

    /// Returns the opcode, if it is known.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_u32(self.opcode)
    }

    /// Returns whether the kernel expects a reply. For unknown opcodes it is assumed to.
    #[must_use]
    pub fn wants_answer(&self) -> bool {
        self.opcode().is_none_or(Opcode::wants_answer)
    }
}

/// The extensions of a request that creates a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// The caller's relevant supplementary groups: the group of the parent directory, if the caller is in it and the
    /// directory is sgid (`FUSE_CREATE_SUPP_GROUP`).
    pub groups: Option<Groups<'a>>,
}

/// An iterator over the group ids of an extension block.
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

/// The results of the negotiation that affect the form of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The negotiated minor version. Opcodes of later versions are unknown.
    pub minor: u32,
    /// Whether SETXATTR has its longer structure.
    pub setxattr_ext: bool,
}

impl Dialect {
    /// Derives it from the negotiated version and flags.
    #[must_use]
    pub fn new(minor: u32, flags: InitFlags) -> Dialect {
        Dialect { minor, setxattr_ext: flags.contains(InitFlags::SETXATTR_EXT) }
    }
}
