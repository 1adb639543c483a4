//! SETATTR.

use super::body::Body;
use super::malformed::Malformed;
use crate::abi;
use crate::flags::FattrFlags;

/// A point in time: seconds since the epoch, which may be negative, and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// Since the epoch.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

/// What a timestamp is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock when it acts.
    Now,
    /// A given time.
    At(Timestamp),
}

/// The changes a SETATTR asks for; `None` leaves a field alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setattr {
    /// Which fields are given (`FATTR_*`), as it stands on the wire.
    pub valid: FattrFlags,
    /// The open file by which the change is made.
    pub handle: Option<u64>,
    /// With the file type.
    pub mode: Option<u32>,
    /// The new owner.
    pub uid: Option<u32>,
    /// The new group.
    pub gid: Option<u32>,
    /// In bytes.
    pub size: Option<u64>,
    /// The new access time.
    pub atime: Option<SetTime>,
    /// The new modification time.
    pub mtime: Option<SetTime>,
    /// Only sent with the writeback cache.
    pub ctime: Option<Timestamp>,
    /// Whose lock the change respects, with mandatory locking.
    pub lock_owner: Option<u64>,
    /// Clear suid and sgid as the VFS would (only with `HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
}

impl Setattr {
    pub(super) fn decode(body: &mut Body<'_>) -> Result<Setattr, Malformed> {
        let raw: abi::SetattrIn = body.fixed()?;
        let valid = FattrFlags::from_bits_retain(raw.valid);
        let has = |flag| valid.contains(flag);
        let at = |sec: u64, nsec| Timestamp { sec: sec.cast_signed(), nsec };
        let time = |set, now, value| match (has(now), has(set)) {
            (true, _) => Some(SetTime::Now),
            (false, true) => Some(SetTime::At(value)),
            (false, false) => None,
        };
        Ok(Setattr {
            valid,
            handle: has(FattrFlags::FH).then_some(raw.fh),
            mode: has(FattrFlags::MODE).then_some(raw.mode),
            uid: has(FattrFlags::UID).then_some(raw.uid),
            gid: has(FattrFlags::GID).then_some(raw.gid),
            size: has(FattrFlags::SIZE).then_some(raw.size),
            atime: time(FattrFlags::ATIME, FattrFlags::ATIME_NOW, at(raw.atime, raw.atimensec)),
            mtime: time(FattrFlags::MTIME, FattrFlags::MTIME_NOW, at(raw.mtime, raw.mtimensec)),
            ctime: has(FattrFlags::CTIME).then(|| at(raw.ctime, raw.ctimensec)),
            lock_owner: has(FattrFlags::LOCKOWNER).then_some(raw.lock_owner),
            kill_suidgid: has(FattrFlags::KILL_SUIDGID),
        })
    }
}
