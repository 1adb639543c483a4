//! Converts values between the pool's types and the protocol's.

use canopy_config::AttrOverrides;
use canopy_fuse::abi;
use canopy_fuse::flags::OpenFlags;
use canopy_fuse::request as wire;
use canopy_pool as pool;
use canopy_pool::aggregate::Figures;
use std::time::Duration;

pub(crate) fn node(id: wire::NodeId) -> canopy_base::ids::NodeId {
    canopy_base::ids::NodeId(id.0)
}

pub(crate) fn caller(header: &wire::Header, umask: u32) -> pool::Caller {
    pool::Caller { uid: header.uid, gid: header.gid, pid: header.pid, umask }
}

/// Returns the mode, owner and group that users of the pool see.
fn shown_as(attr: &canopy_branch::fs::stat::Attr, shown: AttrOverrides) -> (u32, u32, u32) {
    let AttrOverrides { uid, gid, umask } = shown;
    let mode = umask.0.map_or(attr.mode, |umask| attr.mode & !0o7777 | 0o777 & !umask);
    (mode, uid.0.unwrap_or(attr.uid), gid.0.unwrap_or(attr.gid))
}

pub(crate) fn attr(attr: &canopy_branch::fs::stat::Attr, shown: AttrOverrides) -> abi::Attr {
    let (mode, uid, gid) = shown_as(attr, shown);
    abi::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec.cast_unsigned(),
        mtime: attr.mtime.sec.cast_unsigned(),
        ctime: attr.ctime.sec.cast_unsigned(),
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode,
        nlink: attr.nlink,
        uid,
        gid,
        rdev: abi::encode_dev(attr.rdev.0, attr.rdev.1),
        blksize: attr.blksize,
        flags: 0,
    }
}

pub(crate) fn statx(attr: &canopy_branch::fs::stat::Attr, shown: AttrOverrides) -> abi::Statx {
    let (mode, uid, gid) = shown_as(attr, shown);
    let time = |t: canopy_branch::fs::stat::Time| abi::SxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
    abi::Statx {
        mask: attr.mask,
        blksize: attr.blksize,
        attributes: attr.attributes,
        attributes_mask: attr.attributes_mask,
        nlink: attr.nlink,
        uid,
        gid,
        mode: mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: attr.rdev.0,
        rdev_minor: attr.rdev.1,
        ..abi::Statx::default()
    }
}

/// Builds the answer to a lookup. `entry_ttl` and `attr_ttl`: how long the kernel may cache the name and the
/// attributes.
pub(crate) fn entry(
    entry: &pool::Entry,
    entry_ttl: Duration,
    attr_ttl: Duration,
    shown: AttrOverrides,
) -> abi::EntryOut {
    let (entry_ttl, attr_ttl) = if entry.brief { Default::default() } else { (entry_ttl, attr_ttl) };
    abi::EntryOut::new(
        entry.node.0,
        u64::from(entry.generation),
        attr(&entry.attr, shown),
        entry_ttl,
        attr_ttl,
    )
}

/// Returns the flags in the answer to an open, and the id of its backing file.
pub(crate) fn travel(travel: &pool::OpenFlags) -> (OpenFlags, Option<u32>) {
    let mut flags = OpenFlags::empty();
    flags.set(OpenFlags::DIRECT_IO, travel.direct_io);
    flags.set(OpenFlags::KEEP_CACHE, travel.keep_cache);
    flags.set(OpenFlags::PARALLEL_DIRECT_WRITES, travel.parallel_direct_writes);
    flags.set(OpenFlags::NOFLUSH, travel.no_flush);
    (flags, travel.passthrough)
}

pub(crate) fn changes(set: &wire::Setattr) -> pool::SetAttr {
    let time = |t: wire::SetTime| match t {
        wire::SetTime::Now => pool::SetTime::Now,
        wire::SetTime::At(at) => {
            pool::SetTime::At(canopy_branch::fs::stat::Time { sec: at.sec, nsec: at.nsec })
        }
    };
    pool::SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        // A branch updates ctime by itself with every change; it cannot be set.
        kill_suidgid: set.kill_suidgid,
    }
}

pub(crate) fn statfs(figures: &Figures) -> abi::Kstatfs {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    abi::Kstatfs {
        blocks: figures.blocks,
        bfree: figures.bfree,
        bavail: figures.bavail,
        files: figures.files,
        ffree: figures.ffree,
        bsize: narrow(figures.bsize),
        namelen: narrow(figures.namemax),
        frsize: narrow(figures.frsize),
        ..abi::Kstatfs::default()
    }
}
