//! The file of a record: a head that names the branch, and frames, each with a checksum. Only the last frame can be cut off by a
//! kill; any other damage makes the whole file unusable.

use super::rows::Listing;
use crate::fs::packed::{Packer, Unpacker};
use canopy_base::hash;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: &[u8; 16] = b"canopy names 001";
/// Of a checksum that tells damage, not forgery: only the daemon's user can write the file.
const KEY: u64 = 0x6e61_6d65_7320_6f66;
/// Kind, length and checksum.
const PREFIX: usize = 1 + 4 + 8;
/// The most bytes of one frame: some ten million names in one directory.
const LARGEST: u32 = 1 << 30;

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    /// A directory as it was read, which has this handle.
    Dir { path: Box<[u8]>, handle: Box<[u8]>, listing: Listing },
    /// Something has happened in the directory with this handle; `deep`: to directories in it.
    Stale { handle: Box<[u8]>, deep: bool },
    /// Something has happened, and it is not known where.
    AllStale,
    /// The directory and all below it are not there any more.
    Drop(Box<[u8]>),
    /// All that there was has been read.
    Whole,
    /// The name was removed from the pool while the branch was missing.
    Removed(Box<[u8]>),
    /// The branch is not missed.
    Forgotten,
    /// All above is what the branch holds while it is in this state. Says nothing unless it is the last frame.
    State(Box<[u8]>),
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Frame::Dir { .. } => DIR,
            Frame::Stale { .. } => 2,
            Frame::AllStale => 3,
            Frame::Drop(_) => 4,
            Frame::Whole => 5,
            Frame::Removed(_) => 6,
            Frame::Forgotten => 7,
            Frame::State(_) => STATE,
        }
    }

    /// Returns the bytes of the frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Packer(vec![0; PREFIX]);
        match self {
            Frame::Dir { path, handle, listing } => {
                out.bytes(path);
                out.bytes(handle);
                listing.encode(&mut out);
            }
            Frame::Stale { handle, deep } => {
                out.bytes(handle);
                out.number(u64::from(*deep));
            }
            Frame::Drop(bytes) | Frame::Removed(bytes) | Frame::State(bytes) => out.bytes(bytes),
            Frame::AllStale | Frame::Whole | Frame::Forgotten => {}
        }
        let mut bytes = out.0;
        let sum = hash::keyed(KEY ^ u64::from(self.kind()), &bytes[PREFIX..]);
        let length = (bytes.len() - PREFIX) as u32;
        bytes[0] = self.kind();
        bytes[1..5].copy_from_slice(&length.to_le_bytes());
        bytes[5..PREFIX].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(kind: u8, payload: &[u8]) -> Option<Frame> {
        let mut from = Unpacker(payload);
        let frame = match kind {
            DIR => {
                let (path, handle) = (from.bytes()?.into(), from.bytes()?.into());
                Frame::Dir { path, handle, listing: Listing::decode(&mut from)? }
            }
            2 => Frame::Stale { handle: from.bytes()?.into(), deep: from.number()? != 0 },
            3 => Frame::AllStale,
            4 => Frame::Drop(from.bytes()?.into()),
            5 => Frame::Whole,
            6 => Frame::Removed(from.bytes()?.into()),
            7 => Frame::Forgotten,
            STATE => Frame::State(from.bytes()?.into()),
            _ => return None,
        };
        from.0.is_empty().then_some(frame)
    }
}

const DIR: u8 = 1;
/// Programs that do not know it take a record with it for damaged: of a branch that is missing they know nothing then.
const STATE: u8 = 8;

/// Returns the head of the record of a branch.
pub(super) fn head(branch: &[u8]) -> Vec<u8> {
    let mut out = Packer(MAGIC.to_vec());
    out.bytes(branch);
    out.0
}

/// Reads the first `size` bytes of a file, and passes each frame to `take` with its place and its length. Returns the end of what is
/// whole.
///
/// # Errors
/// `InvalidData` for what is not the record of this branch, or is damaged.
pub(super) fn read(
    file: &File,
    size: u64,
    branch: &[u8],
    mut take: impl FnMut(Frame, u64, u32),
) -> io::Result<u64> {
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    let head = head(branch);
    let mut found = vec![0; head.len()];
    file.read_exact_at(&mut found, 0)?;
    if found != head {
        return Err(damaged());
    }
    let mut at = head.len() as u64;
    let mut bytes = Vec::new();
    while at < size {
        let mut prefix = [0; PREFIX];
        let rest = size - at;
        let here = prefix.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        file.read_exact_at(&mut prefix[..here], at)?;
        let length = u32::from_le_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        let whole = PREFIX as u64 + u64::from(length);
        if rest < PREFIX as u64 || rest < whole {
            // Of a directory that was being read: it is stale until a whole frame says what it holds. A cut state says nothing.
            // Another cut would lose that something was changed.
            return if matches!(prefix[0], DIR | STATE) { Ok(at) } else { Err(damaged()) };
        }
        if length > LARGEST {
            return Err(damaged());
        }
        bytes.resize(length as usize, 0);
        file.read_exact_at(&mut bytes, at + PREFIX as u64)?;
        let sum = u64::from_le_bytes(prefix[5..].try_into().map_err(|_| damaged())?);
        if sum != hash::keyed(KEY ^ u64::from(prefix[0]), &bytes) {
            return Err(damaged());
        }
        take(Frame::decode(prefix[0], &bytes).ok_or_else(damaged)?, at, whole as u32);
        at += whole;
    }
    Ok(at)
}

/// Reads the listing of the frame at a place.
pub(super) fn listing_at(file: &File, at: u64, whole: u32) -> io::Result<Listing> {
    let mut bytes = vec![0; whole as usize];
    file.read_exact_at(&mut bytes, at)?;
    let payload = bytes.get(PREFIX..).unwrap_or_default();
    match Frame::decode(bytes.first().copied().unwrap_or_default(), payload) {
        Some(Frame::Dir { listing, .. }) => Ok(listing),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
