//! What the pool knows about filesystems by their type: `f_type` of statfs(2), numbers from
//! include/uapi/linux/magic.h.

/// ext2, ext3 and ext4.
pub const EXT: u64 = 0xEF53;
pub const XFS: u64 = 0x5846_5342;
pub const BTRFS: u64 = 0x9123_683E;
pub const TMPFS: u64 = 0x0102_1994;
pub const F2FS: u64 = 0xF2F5_2010;
pub const ZFS: u64 = 0x2FC1_2FC1;
pub const NFS: u64 = 0x6969;
pub const FUSE: u64 = 0x6573_5546;

/// Filesystems that another machine or another program serves: 9P, AFS, BeeGFS, Ceph, CIFS, SMB2, Coda, FUSE, GPFS,
/// Lustre and NFS.
const REMOTE: [u64; 12] = [
    0x0102_1997,
    0x5346_414f,
    0x1983_0326,
    0x00c3_6400,
    0xff53_4d42,
    0xfe53_4d42,
    0x517b,
    0x7375_7245,
    FUSE,
    0x4750_4653,
    0x0bd0_0bd0,
    NFS,
];

/// Returns true for filesystems that do nothing at close(2): their `file_operations` have no `flush`. Written data is
/// then in the page cache, and only fsync(2) reports whether it reached the disk. Others, such as NFS, write back at
/// close.
pub fn closes_quietly(kind: u64) -> bool {
    matches!(kind, EXT | XFS | BTRFS | TMPFS)
}

/// Returns true for filesystems that keep a file's inode number and birth time for as long as the file lives, and
/// record the birth time as exactly as their clock goes.
pub(crate) fn has_stable_inodes(kind: u64) -> bool {
    matches!(kind, EXT | XFS | BTRFS | TMPFS)
}

/// Returns true for filesystems that tell holes from data by themselves (`SEEK_DATA` of lseek(2)). Others call everything
/// data, or cannot be told from those that do: a FUSE server need not support it, nor an NFS server before 4.2.
pub(crate) fn reports_holes(kind: u64) -> bool {
    matches!(kind, EXT | XFS | BTRFS | TMPFS | F2FS | ZFS)
}

/// Returns true for filesystems that keep blocks for root, or for a user or group (fs/ext4/balloc.c
/// ext4_has_free_clusters, fs/f2fs/f2fs.h __allow_reserved_blocks).
pub fn keeps_reserve(kind: u64) -> bool {
    matches!(kind, EXT | F2FS)
}

/// Returns true for filesystems that another machine or another program serves.
pub fn is_remote(kind: u64) -> bool {
    REMOTE.contains(&kind)
}
