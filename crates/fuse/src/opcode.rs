//! Opcodes (`enum fuse_opcode`, include/uapi/linux/fuse.h).

macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $number:literal $text:literal $minor:literal),* $(,)?) => {
        /// The operation that a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "undocumented opcodes are as in the kernel's header")]
        pub enum Opcode { $($(#[$meta])* $name = $number),* }

        impl Opcode {
            /// All opcodes in ascending order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// Returns the opcode with this number, if it is known.
            #[must_use]
            pub const fn from_u32(number: u32) -> Option<Opcode> {
                match number { $($number => Some(Opcode::$name),)* _ => None }
            }

            /// Returns the kernel's name without the prefix `FUSE_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text),* }
            }

            /// Returns the minor version that introduced the opcode, or 31 for all up to 7.31.
            #[must_use]
            pub const fn minor(self) -> u32 {
                match self { $(Opcode::$name => $minor),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1 "LOOKUP" 31,
    Forget = 2 "FORGET" 31,
    Getattr = 3 "GETATTR" 31,
    Setattr = 4 "SETATTR" 31,
    Readlink = 5 "READLINK" 31,
    Symlink = 6 "SYMLINK" 31,
    Mknod = 8 "MKNOD" 31,
    Mkdir = 9 "MKDIR" 31,
    Unlink = 10 "UNLINK" 31,
    Rmdir = 11 "RMDIR" 31,
    Rename = 12 "RENAME" 31,
    Link = 13 "LINK" 31,
    Open = 14 "OPEN" 31,
    Read = 15 "READ" 31,
    Write = 16 "WRITE" 31,
    Statfs = 17 "STATFS" 31,
    Release = 18 "RELEASE" 31,
    Fsync = 20 "FSYNC" 31,
    Setxattr = 21 "SETXATTR" 31,
    Getxattr = 22 "GETXATTR" 31,
    Listxattr = 23 "LISTXATTR" 31,
    Removexattr = 24 "REMOVEXATTR" 31,
    Flush = 25 "FLUSH" 31,
    Init = 26 "INIT" 31,
    Opendir = 27 "OPENDIR" 31,
    Readdir = 28 "READDIR" 31,
    Releasedir = 29 "RELEASEDIR" 31,
    Fsyncdir = 30 "FSYNCDIR" 31,
    Getlk = 31 "GETLK" 31,
    Setlk = 32 "SETLK" 31,
    Setlkw = 33 "SETLKW" 31,
    Access = 34 "ACCESS" 31,
    Create = 35 "CREATE" 31,
    Interrupt = 36 "INTERRUPT" 31,
    Bmap = 37 "BMAP" 31,
    Destroy = 38 "DESTROY" 31,
    Ioctl = 39 "IOCTL" 31,
    Poll = 40 "POLL" 31,
    NotifyReply = 41 "NOTIFY_REPLY" 31,
    BatchForget = 42 "BATCH_FORGET" 31,
    Fallocate = 43 "FALLOCATE" 31,
    Readdirplus = 44 "READDIRPLUS" 31,
    Rename2 = 45 "RENAME2" 31,
    Lseek = 46 "LSEEK" 31,
    CopyFileRange = 47 "COPY_FILE_RANGE" 31,
    SetupMapping = 48 "SETUPMAPPING" 31,
    RemoveMapping = 49 "REMOVEMAPPING" 31,
    Syncfs = 50 "SYNCFS" 34,
    Tmpfile = 51 "TMPFILE" 37,
    Statx = 52 "STATX" 39,
    CopyFileRange64 = 53 "COPY_FILE_RANGE_64" 45,
    /// The first request on `/dev/cuse`. It does not occur on `/dev/fuse`.
    CuseInit = 4096 "CUSE_INIT" 31,
}

impl Opcode {
    /// Returns whether the kernel expects a reply. Replying to another request is an error.
    ///
    /// INTERRUPT may have a reply (`EAGAIN` or `ENOSYS`), but does not need one.
    #[must_use]
    pub const fn wants_answer(self) -> bool {
        !matches!(self, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply)
    }
}

/// Returns the name of an opcode number, for messages.
#[must_use]
pub fn name_of(number: u32) -> &'static str {
    Opcode::from_u32(number).map_or("UNKNOWN", Opcode::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_numbers_round_trip_and_ascend() {
        let numbers: Vec<u32> = Opcode::ALL.iter().map(|&op| op as u32).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b));
        for &op in Opcode::ALL {
            assert_eq!(Opcode::from_u32(op as u32), Some(op));
        }
        for unused in [0, 7, 19, 54, 4095, 4097, 1_048_576, 436_207_616, u32::MAX] {
            assert_eq!(Opcode::from_u32(unused), None);
            assert_eq!(name_of(unused), "UNKNOWN");
        }
    }
}
