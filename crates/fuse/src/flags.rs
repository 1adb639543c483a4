//! The flags of the FUSE kernel interface (include/uapi/linux/fuse.h).
//!
//! Unknown bits are kept, because they may have a meaning for a newer kernel.
#![allow(missing_docs, reason = "undocumented constants are as in the kernel's header")]

use bitflags::bitflags;

bitflags! {
    /// Features that kernel and server negotiate in INIT: the word `flags` in the lower half, `flags2` in the upper.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InitFlags: u64 {
        /// Several reads of one file may be in flight at once.
        const ASYNC_READ = 1 << 0;
        /// The kernel sends POSIX record locks to the server.
        const POSIX_LOCKS = 1 << 1;
        const FILE_OPS = 1 << 2;
        /// `O_TRUNC` arrives with OPEN instead of in a separate SETATTR.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// The server answers LOOKUP of "." and "..", which NFS export needs.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes may be larger than 4 KiB.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask instead of the kernel.
        const DONT_MASK = 1 << 6;
        const SPLICE_WRITE = 1 << 7;
        const SPLICE_MOVE = 1 << 8;
        const SPLICE_READ = 1 << 9;
        /// The kernel sends flock(2) locks to the server.
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        /// The kernel drops cached pages when it sees that size or mtime has changed.
        const AUTO_INVAL_DATA = 1 << 12;
        /// The kernel reads directories with READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel uses READDIRPLUS only when it expects the attributes to be needed.
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        /// The kernel delays and combines writes. Excludes [`InitFlags::PASSTHROUGH`].
        const WRITEBACK_CACHE = 1 << 16;
        /// `ENOSYS` as the reply to OPEN means success without a handle.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Several lookups and readdirs in one directory may be in flight at once.
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        /// The kernel checks POSIX access control lists. Needs `default_permissions`.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort gives `ECONNABORTED` instead of `ENODEV`.
        const ABORT_ERROR = 1 << 21;
        /// `init_out.max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// The kernel caches the targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const MAP_ALIGNMENT = 1 << 26;
        const SUBMOUNTS = 1 << 27;
        /// The server clears suid, sgid and file capabilities when a request asks for it.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has its longer header.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        const INIT_RESERVED = 1 << 31;
        const SECURITY_CTX = 1 << 32;
        const HAS_INODE_DAX = 1 << 33;
        /// Requests that create files carry the supplementary group that decides about sgid directories.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Names can be expired instead of invalidated. The kernel only announces this flag.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Files that are open with `FOPEN_DIRECT_IO` support shared mmap.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// The kernel can resend requests in flight. It only announces this flag.
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// `FOPEN_*`: properties of an open file, from the reply to an open.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        /// No FLUSH on close (7.35).
        const NOFLUSH = 1 << 5;
        /// Direct writes to one inode may run in parallel (7.36).
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// [`Reply::opened`](crate::reply::Reply::opened) sets it when there is a backing id.
        const PASSTHROUGH = 1 << 7;
    }

    /// `FUSE_OPEN_*`: what the kernel asks for in an open, beyond the flags of open(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpenInFlags: u32 {
        const KILL_SUIDGID = 1 << 0;
    }

    /// `FATTR_*`: which fields a SETATTR sets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FattrFlags: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }

    /// `FUSE_WRITE_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WriteFlags: u32 {
        /// Writeback from the page cache; the handle may be that of another open of the file.
        const CACHE = 1 << 0;
        const LOCKOWNER = 1 << 1;
        const KILL_SUIDGID = 1 << 2;
    }

    /// `FUSE_READ_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReadFlags: u32 {
        const LOCKOWNER = 1 << 1;
    }

    /// `FUSE_GETATTR_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct GetattrFlags: u32 {
        const FH = 1 << 0;
    }

    /// `FUSE_RELEASE_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReleaseFlags: u32 {
        const FLUSH = 1 << 0;
        const FLOCK_UNLOCK = 1 << 1;
    }

    /// `FUSE_FSYNC_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FsyncFlags: u32 {
        const FDATASYNC = 1 << 0;
    }

    /// `FUSE_IOCTL_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct IoctlFlags: u32 {
        const COMPAT = 1 << 0;
        const UNRESTRICTED = 1 << 1;
        const RETRY = 1 << 2;
        const BITS_32 = 1 << 3;
        const DIR = 1 << 4;
        const COMPAT_X32 = 1 << 5;
    }

    /// `FUSE_SETXATTR_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SetxattrFlags: u32 {
        /// Clear sgid, because the caller who sets an access ACL is not in the file's group.
        const ACL_KILL_SGID = 1 << 0;
    }

    /// `FUSE_LK_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LkFlags: u32 {
        /// A flock(2) lock instead of a POSIX lock.
        const FLOCK = 1 << 0;
    }

    /// `FUSE_POLL_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PollFlags: u32 {
        const SCHEDULE_NOTIFY = 1 << 0;
    }

    /// `FUSE_ATTR_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttrFlags: u32 {
        const SUBMOUNT = 1 << 0;
        const DAX = 1 << 1;
    }
}

impl InitFlags {
    /// Combines the words `flags` and `flags2` of the wire format.
    #[must_use]
    pub const fn from_words(flags: u32, flags2: u32) -> InitFlags {
        InitFlags::from_bits_retain(flags as u64 | (flags2 as u64) << 32)
    }

    /// Returns the words `flags` and `flags2` of the wire format.
    #[must_use]
    pub const fn words(self) -> (u32, u32) {
        (self.bits() as u32, (self.bits() >> 32) as u32)
    }

    /// Returns all flags that a kernel of version 7.`minor` can offer.
    #[must_use]
    pub fn known_at(minor: u32) -> InitFlags {
        let newer: [(u32, InitFlags); 13] = [
            (32, InitFlags::SUBMOUNTS),
            (33, InitFlags::HANDLE_KILLPRIV_V2.union(InitFlags::SETXATTR_EXT)),
            (36, InitFlags::INIT_EXT.union(InitFlags::INIT_RESERVED).union(InitFlags::SECURITY_CTX)),
            (36, InitFlags::HAS_INODE_DAX),
            (38, InitFlags::CREATE_SUPP_GROUP.union(InitFlags::HAS_EXPIRE_ONLY)),
            (39, InitFlags::DIRECT_IO_ALLOW_MMAP),
            (40, InitFlags::PASSTHROUGH),
            (40, InitFlags::NO_EXPORT_SUPPORT),
            (40, InitFlags::HAS_RESEND),
            (41, InitFlags::ALLOW_IDMAP),
            (42, InitFlags::OVER_IO_URING),
            (43, InitFlags::REQUEST_TIMEOUT),
            // Unknown flags are newer than the newest known version.
            (super::abi::MINOR + 1, InitFlags::from_bits_retain(!InitFlags::all().bits())),
        ];
        newer
            .iter()
            .filter(|(since, _)| *since > minor)
            .fold(InitFlags::from_bits_retain(u64::MAX), |flags, (_, new)| {
                InitFlags::from_bits_retain(flags.bits() & !new.bits())
            })
    }

    /// Returns the names of the flags in lower case, separated by commas. Unknown flags appear as one hexadecimal number.
    #[must_use]
    pub fn describe(self) -> String {
        let mut text = String::new();
        for (name, _) in self.iter_names() {
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(&name.to_ascii_lowercase());
        }
        let unknown = self.bits() & !InitFlags::all().bits();
        if unknown != 0 {
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(&format!("{unknown:#x}"));
        }
        if text.is_empty() { "none".into() } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_split_at_bit_32() {
        let flags = InitFlags::PASSTHROUGH | InitFlags::ASYNC_READ;
        assert_eq!(flags.words(), (1, 1 << 5));
        assert_eq!(InitFlags::from_words(1, 1 << 5), flags);
    }

    #[test]
    fn older_versions_offer_fewer_flags() {
        let old = InitFlags::known_at(31);
        assert!(old.contains(InitFlags::MAX_PAGES | InitFlags::MAP_ALIGNMENT));
        assert!(!old.intersects(InitFlags::INIT_EXT | InitFlags::PASSTHROUGH | InitFlags::SUBMOUNTS));
        let new = InitFlags::known_at(45);
        assert!(new.contains(InitFlags::all()));
        assert_eq!(new.bits() & (1 << 60), 0);
        assert!(!InitFlags::known_at(39).contains(InitFlags::PASSTHROUGH));
        assert!(InitFlags::known_at(40).contains(InitFlags::PASSTHROUGH));
    }

    #[test]
    fn known_flags_are_described_by_name() {
        assert_eq!(
            (InitFlags::PASSTHROUGH | InitFlags::from_bits_retain(1 << 60)).describe(),
            "passthrough, 0x1000000000000000"
        );
        assert_eq!(InitFlags::empty().describe(), "none");
    }
}
