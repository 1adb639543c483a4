//! The structures of the FUSE kernel interface, ABI 7.31 to 7.45 (include/uapi/linux/fuse.h).
//!
//! All numbers are in host byte order. Each structure states its size and the offset of every field, and the build fails
//! if the compiler lays it out differently.
#![allow(missing_docs, reason = "undocumented items are as in the kernel's header")]

use std::mem::offset_of;
use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The supported major version, the kernel's since Linux 2.6.14.
pub const MAJOR: u32 = 7;
/// The newest supported minor version.
pub const MINOR: u32 = 45;
/// The oldest supported minor version (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// The size of the smallest buffer that the kernel accepts for reading a request (`FUSE_MIN_READ_BUFFER`), in bytes.
pub const MIN_READ_BUFFER: usize = 8192;
/// Set in `unique` of a request that the kernel resends after [`NotifyCode::Resend`](crate::notify)
/// (`FUSE_UNIQUE_RESEND`).
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// The uid or gid of a caller whose id is not mapped on an idmapped mount (`FUSE_INVALID_UIDGID`).
pub const INVALID_ID: u32 = u32::MAX;

macro_rules! wire {
    ($(#[$meta:meta])* $name:ident = $size:literal { $($(#[$fmeta:meta])* $field:ident: $ty:ty = $offset:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() <= 8);
            $(assert!(offset_of!($name, $field) == $offset);)*
        };
    };
}

wire! {
    /// `fuse_in_header`, which starts every request.
    InHeader = 40 {
        /// Length of the whole request including this header, in bytes.
        len: u32 = 0,
        opcode: u32 = 4,
        unique: u64 = 8,
        nodeid: u64 = 16,
        uid: u32 = 24,
        gid: u32 = 28,
        pid: u32 = 32,
        /// Length of the extension blocks at the end of the request, in units of 8 bytes (7.38; zero before).
        total_extlen: u16 = 36,
        padding: u16 = 38,
    }
}
wire! {
    /// `fuse_out_header`, which starts every reply and notification.
    OutHeader = 16 {
        /// Length of the whole reply including this header, in bytes.
        len: u32 = 0,
        /// 0 or a negative errno. The notification's code when `unique` is 0.
        error: i32 = 4,
        unique: u64 = 8,
    }
}
wire! {
    /// `fuse_attr`: the attributes that stat(2) returns. Times are signed seconds since the epoch.
    Attr = 88 {
        ino: u64 = 0,
        size: u64 = 8,
        /// In units of 512 bytes.
        blocks: u64 = 16,
        atime: u64 = 24,
        mtime: u64 = 32,
        ctime: u64 = 40,
        atimensec: u32 = 48,
        mtimensec: u32 = 52,
        ctimensec: u32 = 56,
        mode: u32 = 60,
        nlink: u32 = 64,
        uid: u32 = 68,
        gid: u32 = 72,
        /// In the form of the kernel's `new_encode_dev`; see [`encode_dev`].
        rdev: u32 = 76,
        blksize: u32 = 80,
        /// [`crate::flags::AttrFlags`] (7.32).
        flags: u32 = 84,
    }
}
wire! {
    /// `fuse_sx_time`.
    SxTime = 16 { sec: i64 = 0, nsec: u32 = 8, reserved: i32 = 12 }
}
wire! {
    /// `fuse_statx` (7.39), with the layout of statx(2)'s buffer.
    Statx = 256 {
        /// `STATX_*` bits of the fields that are set.
        mask: u32 = 0,
        blksize: u32 = 4,
        attributes: u64 = 8,
        nlink: u32 = 16,
        uid: u32 = 20,
        gid: u32 = 24,
        mode: u16 = 28,
        spare0: u16 = 30,
        ino: u64 = 32,
        size: u64 = 40,
        blocks: u64 = 48,
        attributes_mask: u64 = 56,
        atime: SxTime = 64,
        btime: SxTime = 80,
        ctime: SxTime = 96,
        mtime: SxTime = 112,
        rdev_major: u32 = 128,
        rdev_minor: u32 = 132,
        dev_major: u32 = 136,
        dev_minor: u32 = 140,
        spare2: [u64; 14] = 144,
    }
}
wire! {
    /// `fuse_kstatfs`.
    Kstatfs = 80 {
        /// In units of `frsize`.
        blocks: u64 = 0,
        bfree: u64 = 8,
        bavail: u64 = 16,
        files: u64 = 24,
        ffree: u64 = 32,
        bsize: u32 = 40,
        namelen: u32 = 44,
        frsize: u32 = 48,
        padding: u32 = 52,
        spare: [u32; 6] = 56,
    }
}
wire! {
    /// `fuse_file_lock`. `typ` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`. `end` is inclusive; `u64::MAX >> 1` is the end of
    /// the file.
    FileLock = 24 { start: u64 = 0, end: u64 = 8, typ: u32 = 16, pid: u32 = 20 }
}
wire! {
    /// `fuse_entry_out`: the reply to LOOKUP and to every request that creates a name.
    EntryOut = 128 {
        /// 0 means that the name does not exist, which the kernel may cache.
        nodeid: u64 = 0,
        generation: u64 = 8,
        /// How long the kernel may cache the name, in seconds.
        entry_valid: u64 = 16,
        /// How long the kernel may cache the attributes, in seconds.
        attr_valid: u64 = 24,
        entry_valid_nsec: u32 = 32,
        attr_valid_nsec: u32 = 36,
        attr: Attr = 40,
    }
}
wire! {
    /// `fuse_attr_out`.
    AttrOut = 104 { attr_valid: u64 = 0, attr_valid_nsec: u32 = 8, dummy: u32 = 12, attr: Attr = 16 }
}
wire! {
    /// `fuse_statx_out`.
    StatxOut = 288 { attr_valid: u64 = 0, attr_valid_nsec: u32 = 8, flags: u32 = 12, spare: [u64; 2] = 16, stat: Statx = 32 }
}
wire! {
    /// `fuse_open_out`. `backing_id` is used only with `FOPEN_PASSTHROUGH` (7.40).
    OpenOut = 16 { fh: u64 = 0, open_flags: u32 = 8, backing_id: u32 = 12 }
}

wire! { ForgetIn = 8 { nlookup: u64 = 0 } }
wire! { ForgetOne = 16 { nodeid: u64 = 0, nlookup: u64 = 8 } }
wire! { BatchForgetIn = 8 { count: u32 = 0, dummy: u32 = 4 } }
wire! { GetattrIn = 16 { getattr_flags: u32 = 0, dummy: u32 = 4, fh: u64 = 8 } }
wire! { StatxIn = 24 { getattr_flags: u32 = 0, reserved: u32 = 4, fh: u64 = 8, sx_flags: u32 = 16, sx_mask: u32 = 20 } }
wire! { MknodIn = 16 { mode: u32 = 0, rdev: u32 = 4, umask: u32 = 8, padding: u32 = 12 } }
wire! { MkdirIn = 8 { mode: u32 = 0, umask: u32 = 4 } }
wire! { RenameIn = 8 { newdir: u64 = 0 } }
wire! { Rename2In = 16 { newdir: u64 = 0, flags: u32 = 8, padding: u32 = 12 } }
wire! { LinkIn = 8 { oldnodeid: u64 = 0 } }
wire! {
    SetattrIn = 88 {
        valid: u32 = 0,
        padding: u32 = 4,
        fh: u64 = 8,
        size: u64 = 16,
        lock_owner: u64 = 24,
        atime: u64 = 32,
        mtime: u64 = 40,
        ctime: u64 = 48,
        atimensec: u32 = 56,
        mtimensec: u32 = 60,
        ctimensec: u32 = 64,
        mode: u32 = 68,
        unused4: u32 = 72,
        uid: u32 = 76,
        gid: u32 = 80,
        unused5: u32 = 84,
    }
}
wire! { OpenIn = 8 { flags: u32 = 0, open_flags: u32 = 4 } }
wire! { CreateIn = 16 { flags: u32 = 0, mode: u32 = 4, umask: u32 = 8, open_flags: u32 = 12 } }
wire! { ReleaseIn = 24 { fh: u64 = 0, flags: u32 = 8, release_flags: u32 = 12, lock_owner: u64 = 16 } }
wire! { FlushIn = 24 { fh: u64 = 0, unused: u32 = 8, padding: u32 = 12, lock_owner: u64 = 16 } }
wire! {
    ReadIn = 40 {
        fh: u64 = 0,
        offset: u64 = 8,
        size: u32 = 16,
        read_flags: u32 = 20,
        lock_owner: u64 = 24,
        flags: u32 = 32,
        padding: u32 = 36,
    }
}
wire! {
    WriteIn = 40 {
        fh: u64 = 0,
        offset: u64 = 8,
        size: u32 = 16,
        write_flags: u32 = 20,
        lock_owner: u64 = 24,
        flags: u32 = 32,
        padding: u32 = 36,
    }
}
wire! { WriteOut = 8 { size: u32 = 0, padding: u32 = 4 } }
wire! { FsyncIn = 16 { fh: u64 = 0, fsync_flags: u32 = 8, padding: u32 = 12 } }
wire! {
    /// `fuse_setxattr_in` without `FUSE_SETXATTR_EXT`.
    SetxattrInCompat = 8 { size: u32 = 0, flags: u32 = 4 }
}
wire! { SetxattrIn = 16 { size: u32 = 0, flags: u32 = 4, setxattr_flags: u32 = 8, padding: u32 = 12 } }
wire! { GetxattrIn = 8 { size: u32 = 0, padding: u32 = 4 } }
wire! { GetxattrOut = 8 { size: u32 = 0, padding: u32 = 4 } }
wire! { LkIn = 48 { fh: u64 = 0, owner: u64 = 8, lk: FileLock = 16, lk_flags: u32 = 40, padding: u32 = 44 } }
wire! { AccessIn = 8 { mask: u32 = 0, padding: u32 = 4 } }
wire! {
    /// `fuse_init_in` as sent up to 7.35.
    InitInCompat = 16 { major: u32 = 0, minor: u32 = 4, max_readahead: u32 = 8, flags: u32 = 12 }
}
wire! {
    /// `fuse_init_in` since 7.36.
    InitIn = 64 {
        major: u32 = 0,
        minor: u32 = 4,
        max_readahead: u32 = 8,
        flags: u32 = 12,
        flags2: u32 = 16,
        unused: [u32; 11] = 20,
    }
}
wire! {
    /// `fuse_init_out`: 64 bytes since 7.23. Later fields replace reserved space.
    InitOut = 64 {
        major: u32 = 0,
        minor: u32 = 4,
        max_readahead: u32 = 8,
        flags: u32 = 12,
        max_background: u16 = 16,
        congestion_threshold: u16 = 18,
        max_write: u32 = 20,
        /// Granularity of timestamps, in nanoseconds.
        time_gran: u32 = 24,
        max_pages: u16 = 28,
        map_alignment: u16 = 30,
        flags2: u32 = 32,
        /// 7.40.
        max_stack_depth: u32 = 36,
        /// In seconds; 0 means none (7.43).
        request_timeout: u16 = 40,
        unused: [u16; 11] = 42,
    }
}
wire! { CuseInitIn = 16 { major: u32 = 0, minor: u32 = 4, unused: u32 = 8, flags: u32 = 12 } }
wire! { InterruptIn = 8 { unique: u64 = 0 } }
wire! { BmapIn = 16 { block: u64 = 0, blocksize: u32 = 8, padding: u32 = 12 } }
wire! { BmapOut = 8 { block: u64 = 0 } }
wire! { IoctlIn = 32 { fh: u64 = 0, flags: u32 = 8, cmd: u32 = 12, arg: u64 = 16, in_size: u32 = 24, out_size: u32 = 28 } }
wire! { IoctlOut = 16 { result: i32 = 0, flags: u32 = 4, in_iovs: u32 = 8, out_iovs: u32 = 12 } }
wire! { PollIn = 24 { fh: u64 = 0, kh: u64 = 8, flags: u32 = 16, events: u32 = 20 } }
wire! { PollOut = 8 { revents: u32 = 0, padding: u32 = 4 } }
wire! { FallocateIn = 32 { fh: u64 = 0, offset: u64 = 8, length: u64 = 16, mode: u32 = 24, padding: u32 = 28 } }
wire! { LseekIn = 24 { fh: u64 = 0, offset: u64 = 8, whence: u32 = 16, padding: u32 = 20 } }
wire! { LseekOut = 8 { offset: u64 = 0 } }
wire! {
    CopyFileRangeIn = 56 {
        fh_in: u64 = 0,
        off_in: u64 = 8,
        nodeid_out: u64 = 16,
        fh_out: u64 = 24,
        off_out: u64 = 32,
        len: u64 = 40,
        flags: u64 = 48,
    }
}
wire! {
    /// The reply to `COPY_FILE_RANGE_64` (7.45). The reply to the older request is [`WriteOut`].
    CopyFileRangeOut = 8 { bytes_copied: u64 = 0 }
}
wire! { SetupMappingIn = 40 { fh: u64 = 0, foffset: u64 = 8, len: u64 = 16, flags: u64 = 24, moffset: u64 = 32 } }
wire! { RemoveMappingIn = 4 { count: u32 = 0 } }
wire! { RemoveMappingOne = 16 { moffset: u64 = 0, len: u64 = 8 } }
wire! { SyncfsIn = 8 { padding: u64 = 0 } }
wire! { NotifyRetrieveIn = 40 { dummy1: u64 = 0, offset: u64 = 8, size: u32 = 16, dummy2: u32 = 20, dummy3: u64 = 24, dummy4: u64 = 32 } }

wire! {
    /// `fuse_dirent` without its name.
    Dirent = 24 { ino: u64 = 0, off: u64 = 8, namelen: u32 = 16, typ: u32 = 20 }
}
wire! {
    /// `fuse_direntplus` without its name.
    DirentPlus = 152 { entry: EntryOut = 0, dirent: Dirent = 128 }
}

wire! { NotifyRetrieveOut = 32 { notify_unique: u64 = 0, nodeid: u64 = 8, offset: u64 = 16, size: u32 = 24, padding: u32 = 28 } }
wire! { NotifyInvalInodeOut = 24 { ino: u64 = 0, off: i64 = 8, len: i64 = 16 } }
wire! { NotifyInvalEntryOut = 16 { parent: u64 = 0, namelen: u32 = 8, flags: u32 = 12 } }
wire! { NotifyDeleteOut = 24 { parent: u64 = 0, child: u64 = 8, namelen: u32 = 16, padding: u32 = 20 } }
wire! { NotifyPruneOut = 16 { count: u32 = 0, padding: u32 = 4, spare: u64 = 8 } }

wire! {
    /// `fuse_ext_header` (7.38), which starts an extension block. `size` includes the header and padding to 8 bytes.
    ExtHeader = 8 { size: u32 = 0, typ: u32 = 4 }
}
/// `FUSE_EXT_GROUPS`: supplementary groups of the caller. Types 0 to 31 are numbers of security contexts instead.
pub const EXT_GROUPS: u32 = 32;
/// `FUSE_MAX_NR_SECCTX`.
pub const EXT_MAX_SECCTX: u32 = 31;

wire! {
    /// `fuse_uring_ent_in_out` (7.42).
    UringEntInOut = 32 { flags: u64 = 0, commit_id: u64 = 8, payload_sz: u32 = 16, padding: u32 = 20, reserved: u64 = 24 }
}
wire! {
    /// `fuse_uring_req_header` (7.42): request or reply header, the operation's structure, the entry's structure.
    UringReqHeader = 288 { in_out: [u64; 16] = 0, op_in: [u64; 16] = 128, ring_ent_in_out: UringEntInOut = 256 }
}
wire! {
    /// `fuse_uring_cmd_req` (7.42): the command area of a submission.
    UringCmdReq = 24 { flags: u64 = 0, commit_id: u64 = 8, qid: u16 = 16, padding: [u8; 6] = 18 }
}

/// Rounds the length of a directory entry or an extension up to 8 bytes (`FUSE_REC_ALIGN`).
#[must_use]
pub const fn record_align(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Encodes a device number for FUSE: 12 bits of major, 20 of minor (`new_encode_dev`, include/linux/kdev_t.h).
#[must_use]
pub const fn encode_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Returns major and minor of a number encoded by [`encode_dev`] (`new_decode_dev`).
#[must_use]
pub const fn decode_dev(dev: u32) -> (u32, u32) {
    ((dev & 0xfff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xfff00))
}

impl EntryOut {
    /// Returns an entry for a name that exists. Once the kernel has it, it holds one more lookup of `nodeid`, until FORGET.
    #[must_use]
    pub fn new(
        nodeid: u64,
        generation: u64,
        attr: Attr,
        entry_ttl: Duration,
        attr_ttl: Duration,
    ) -> EntryOut {
        EntryOut {
            nodeid,
            generation,
            entry_valid: entry_ttl.as_secs(),
            entry_valid_nsec: entry_ttl.subsec_nanos(),
            attr_valid: attr_ttl.as_secs(),
            attr_valid_nsec: attr_ttl.subsec_nanos(),
            attr,
        }
    }

    /// Returns a negative entry: the name does not exist, and the kernel may cache that for `ttl`.
    #[must_use]
    pub fn negative(ttl: Duration) -> EntryOut {
        EntryOut { entry_valid: ttl.as_secs(), entry_valid_nsec: ttl.subsec_nanos(), ..EntryOut::default() }
    }
}

impl AttrOut {
    /// Returns attributes that the kernel may cache for `ttl`.
    #[must_use]
    pub fn new(attr: Attr, ttl: Duration) -> AttrOut {
        AttrOut { attr_valid: ttl.as_secs(), attr_valid_nsec: ttl.subsec_nanos(), dummy: 0, attr }
    }
}

impl StatxOut {
    /// Returns attributes that the kernel may cache for `ttl`.
    #[must_use]
    pub fn new(stat: Statx, ttl: Duration) -> StatxOut {
        StatxOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            stat,
            ..StatxOut::default()
        }
    }
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (8, 1), (259, 0x12345), (0xfff, 0xf_ffff)] {
            assert_eq!(decode_dev(encode_dev(major, minor)), (major, minor));
        }
        assert_eq!(encode_dev(8, 1), 0x801);
    }

    #[test]
    fn in_header_from_bytes() {
        #[rustfmt::skip]
        let bytes = [
            40, 0, 0, 0,  3, 0, 0, 0,  0x10, 0, 0, 0, 0, 0, 0, 0x80,
            2, 1, 0, 0, 0, 0, 0, 0,  0xe8, 3, 0, 0,  0xe9, 3, 0, 0,  7, 0, 0, 0,  2, 0, 0, 0u8,
        ];
        let header = InHeader::read_from_bytes(&bytes).unwrap();
        assert_eq!((header.len, header.opcode, header.nodeid), (40, 3, 0x102));
        assert_eq!(header.unique, UNIQUE_RESEND | 0x10);
        assert_eq!((header.uid, header.gid, header.pid, header.total_extlen), (1000, 1001, 7, 2));
    }

    #[test]
    fn out_header_to_bytes() {
        let header = OutHeader { len: 16, error: -2, unique: 0x0102_0304_0506_0708 };
        assert_eq!(header.as_bytes(), [16, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn entry_to_bytes() {
        let attr = Attr { ino: 5, mode: 0o100_644, ..Attr::default() };
        let entry = EntryOut::new(9, 1, attr, Duration::from_millis(1500), Duration::from_secs(2));
        let bytes = entry.as_bytes();
        assert_eq!(bytes[0..8], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..32], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..36], [0x00, 0x65, 0xcd, 0x1d]);
        assert_eq!(bytes[40], 5);
        assert_eq!(bytes[100..104], [0xa4, 0x81, 0, 0]);
        assert_eq!(EntryOut::negative(Duration::ZERO).as_bytes(), [0; 128]);
    }

    #[test]
    fn open_out_to_bytes() {
        let open = OpenOut { fh: 3, open_flags: 0x81, backing_id: 4 };
        assert_eq!(open.as_bytes(), [3, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 0, 4, 0, 0, 0]);
    }
}
