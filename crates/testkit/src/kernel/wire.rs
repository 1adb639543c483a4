//! Messages: requests as a kernel writes them, and what it reads.

use canopy_fuse::Opcode;
use canopy_fuse::abi::{self, InHeader, InitIn, OutHeader};
use canopy_fuse::flags::InitFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An answer, or a notification if `unique` is 0.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) unique: u64,
    /// Positive. The code of a notification.
    pub(super) errno: i32,
    pub(super) payload: Vec<u8>,
}

impl Reply {
    pub(super) fn parse(message: &[u8]) -> Reply {
        let (header, payload) = OutHeader::read_from_prefix(message).expect("a header");
        assert_eq!(header.len as usize, message.len(), "the length in the header");
        let errno = if header.unique == 0 { header.error } else { -header.error };
        assert!(errno >= 0, "{header:?}");
        Reply { unique: header.unique, errno, payload: payload.to_vec() }
    }
}

/// Returns a request of a caller (uid, gid, pid), whose body has these parts.
pub(super) fn request(
    opcode: Opcode,
    unique: u64,
    nodeid: u64,
    (uid, gid, pid): (u32, u32, u32),
    body: &[&[u8]],
) -> Vec<u8> {
    let len = size_of::<InHeader>() + body.iter().map(|part| part.len()).sum::<usize>();
    let len = u32::try_from(len).expect("a short request");
    let header =
        InHeader { len, opcode: opcode as u32, unique, nodeid, uid, gid, pid, total_extlen: 0, padding: 0 };
    [header.as_bytes()].iter().chain(body).copied().flatten().copied().collect()
}

/// Returns the body of INIT.
pub(super) fn init(offers: InitFlags) -> [&'static [u8]; 1] {
    let bits = (offers | InitFlags::INIT_EXT).bits();
    let init = InitIn {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: 128 << 10,
        flags: bits as u32,
        flags2: (bits >> 32) as u32,
        ..InitIn::default()
    };
    // Once a kernel.
    [Box::leak(init.as_bytes().into())]
}

/// Reads a structure from the beginning of an answer; the rest follows.
pub(super) fn take<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> (T, &[u8]) {
    T::read_from_prefix(bytes).expect("an answer of the operation's length")
}
