//! The attribute changes of a SETATTR.

use super::body::Body;
use super::malformed::Malformed;
use crate::abi;
use crate::flags::FattrFlags;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// Seconds since the epoch; may be negative.
    pub sec: i64,
    /// Nanoseconds, less than 1,000,000,000.
    pub nsec: u32,
}

/// The new value of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the server's clock.
    Now,
    /// The given time.
    At(Timestamp),
}

/// The changes that a SETATTR asks for. `None` means no change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setattr {
    /// Which fields are set (`FATTR_*`), as sent by the kernel.
    pub valid: FattrFlags,
    /// The handle of the open file through which the change is made.
    pub handle: Option<u64>,
    /// The new mode, including the file type.
    pub mode: Option<u32>,
    /// The new owner.
    pub uid: Option<u32>,
    /// The new group.
    pub gid: Option<u32>,
    /// The new size in bytes.
    pub size: Option<u64>,
    /// The new access time.
    pub atime: Option<SetTime>,
    /// The new modification time.
    pub mtime: Option<SetTime>,
    /// The new change time, sent only with the writeback cache.
    pub ctime: Option<Timestamp>,
    /// The lock owner that makes the change, for mandatory locks.
    pub lock_owner: Option<u64>,
    /// Whether to clear suid and sgid like the VFS (only with `HANDLE_KILLPRIV_V2`).
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
