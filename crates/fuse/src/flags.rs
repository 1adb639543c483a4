//! The bit sets of the FUSE kernel interface (include/uapi/linux/fuse.h).
//!
//! Bits that have no name here are kept, not dropped: a newer kernel may mean something by them.
#![allow(missing_docs, reason = "a constant without a word is what the header says")]

use bitflags::bitflags;

bitflags! {
    /// What kernel and server can agree upon in INIT: the word `flags` below, `flags2` in the upper half.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InitFlags: u64 {
        /// Several reads of one file may be under way at once.
        const ASYNC_READ = 1 << 0;
        /// POSIX record locks are sent to the server.
        const POSIX_LOCKS = 1 << 1;
        const FILE_OPS = 1 << 2;
        /// `O_TRUNC` arrives with OPEN instead of a SETATTR of its own.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of "." and ".." is answered, as NFS export needs.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than 4 KiB.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask, not the kernel.
        const DONT_MASK = 1 << 6;
        const SPLICE_WRITE = 1 << 7;
        const SPLICE_MOVE = 1 << 8;
        const SPLICE_READ = 1 << 9;
        /// flock(2) locks are sent to the server.
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        /// Cached pages are dropped when size or mtime is seen to have changed.
        const AUTO_INVAL_DATA = 1 << 12;
        /// Directories are read with READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// ... but only when the attributes seem to be wanted.
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        /// The kernel gathers writes. Excludes [`InitFlags::PASSTHROUGH`].
        const WRITEBACK_CACHE = 1 << 16;
        /// OPEN may be answered with `ENOSYS`, meaning success without a handle.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Several lookups and readdirs in one directory may be under way at once.
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        /// The kernel checks POSIX access control lists. Needs `default_permissions`.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort gives `ECONNABORTED` instead of `ENODEV`.
        const ABORT_ERROR = 1 << 21;
        /// `init_out.max_pages` counts.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const MAP_ALIGNMENT = 1 << 26;
        const SUBMOUNTS = 1 << 27;
        /// The server clears suid, sgid and file capabilities where it is told to.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR carries its longer header.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` counts.
        const INIT_EXT = 1 << 30;
        const INIT_RESERVED = 1 << 31;
        const SECURITY_CTX = 1 << 32;
        const HAS_INODE_DAX = 1 << 33;
        /// Requests that create carry the supplementary group that matters for sgid directories.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Names can be expired instead of invalidated. Said by the kernel, needs no answer.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mmap of files open with `FOPEN_DIRECT_IO`.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Requests in progress can be sent again. Said by the kernel, needs no answer.
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// `FOPEN_*`: what the answer to an open says about the open file.
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
        /// Set by [`Reply::opened`](crate::reply::Reply::opened) when a backing id is given.
        const PASSTHROUGH = 1 << 7;
    }

    /// `FUSE_OPEN_*`: what the kernel adds to an open.
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
        /// Written back from the page cache; the handle is a guess.
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
        /// Clear sgid, since an access ACL is being set by somebody outside of the group.
        const ACL_KILL_SGID = 1 << 0;
    }

    /// `FUSE_LK_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LkFlags: u32 {
        /// A flock(2) lock, not a POSIX one.
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
    /// Puts the two words of the wire together.
    #[must_use]
    pub const fn from_words(flags: u32, flags2: u32) -> InitFlags {
        InitFlags::from_bits_retain(flags as u64 | (flags2 as u64) << 32)
    }

    /// `flags` and `flags2` as they stand on the wire.
    #[must_use]
    pub const fn words(self) -> (u32, u32) {
        (self.bits() as u32, (self.bits() >> 32) as u32)
    }

    /// Everything that a kernel speaking 7.`minor` can offer.
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
            // Whatever has no name here came after the newest version known here.
            (super::abi::MINOR + 1, InitFlags::from_bits_retain(!InitFlags::all().bits())),
        ];
        newer
            .iter()
            .filter(|(since, _)| *since > minor)
            .fold(InitFlags::from_bits_retain(u64::MAX), |flags, (_, new)| {
                InitFlags::from_bits_retain(flags.bits() & !new.bits())
            })
    }

    /// The names of the bits, in lower case, with commas; unknown bits as one hexadecimal number.
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
    fn older_versions_know_less() {
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
    fn description_names_what_is_known() {
        assert_eq!(
            (InitFlags::PASSTHROUGH | InitFlags::from_bits_retain(1 << 60)).describe(),
            "passthrough, 0x1000000000000000"
        );
        assert_eq!(InitFlags::empty().describe(), "none");
    }
}
