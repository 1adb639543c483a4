//! Landlock: what of the filesystem a thread, and those it starts, may reach (landlock(7)). Neither rustix nor the C
//! library has its system calls.
//!
//! Rules can be added while they are made and never afterwards. A directory covers what lies below it, mounts too.
//! Attributes are not ruled, nor is going through a directory. Whoever is restricted can neither mount nor unmount.

use crate::errno::last_errno;
use bitflags::bitflags;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

bitflags! {
    /// `LANDLOCK_ACCESS_FS_*` (include/uapi/linux/landlock.h).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u64 {
        const EXECUTE = 1 << 0;
        const WRITE_FILE = 1 << 1;
        const READ_FILE = 1 << 2;
        const READ_DIR = 1 << 3;
        const REMOVE_DIR = 1 << 4;
        const REMOVE_FILE = 1 << 5;
        const MAKE_CHAR = 1 << 6;
        const MAKE_DIR = 1 << 7;
        const MAKE_REG = 1 << 8;
        const MAKE_SOCK = 1 << 9;
        const MAKE_FIFO = 1 << 10;
        const MAKE_BLOCK = 1 << 11;
        const MAKE_SYM = 1 << 12;
        const REFER = 1 << 13;
        const TRUNCATE = 1 << 14;

        /// What has a meaning for a file that is no directory.
        const OF_FILES = Self::EXECUTE.bits() | Self::WRITE_FILE.bits() | Self::READ_FILE.bits()
            | Self::TRUNCATE.bits();
    }
}

/// `struct landlock_ruleset_attr`, as far as Linux 5.13 has it: what is ruled.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: RawFd,
}

const CREATE_RULESET_VERSION: libc::c_uint = 1;
const RULE_PATH_BENEATH: libc::c_int = 1;

/// Which version the kernel has.
///
/// Errors: `ENOSYS` where it has none, `EOPNOTSUPP` where it is turned off.
pub fn version() -> Result<u32, Errno> {
    // SAFETY: with this flag the call takes no attributes, and returns a plain number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttr>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).map_err(|_| last_errno())
}

/// Rules that are in the making.
pub struct Rules {
    set: OwnedFd,
    ruled: Access,
}

impl Rules {
    /// Rules that forbid everything.
    ///
    /// Errors: as [`version`]; `EOPNOTSUPP` also before its version 2 (Linux 5.19), which lets nothing be renamed from
    /// one directory to another.
    pub fn new() -> Result<Rules, Errno> {
        let ruled = match version()? {
            0 | 1 => return Err(Errno::OPNOTSUPP),
            2 => Access::all() - Access::TRUNCATE,
            _ => Access::all(),
        };
        let attr = RulesetAttr { handled_access_fs: ruled.bits() };
        // SAFETY: the attributes live over the call and have the size that is told.
        let set = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size_of::<RulesetAttr>(), 0)
        };
        let set = RawFd::try_from(set).ok().filter(|set| *set >= 0).ok_or_else(last_errno)?;
        // SAFETY: the kernel has just opened this descriptor for us, with O_CLOEXEC.
        Ok(Rules { set: unsafe { OwnedFd::from_raw_fd(set) }, ruled })
    }

    /// Allows this for a file, or for a directory and what lies below it.
    pub fn allow(&self, what: impl AsFd, access: Access) -> Result<(), Errno> {
        let attr = PathBeneathAttr {
            allowed_access: (access & self.ruled).bits(),
            parent_fd: what.as_fd().as_raw_fd(),
        };
        // SAFETY: the attributes live over the call and are of the type that the rule's type tells.
        let done = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.set.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const attr,
                0,
            )
        };
        if done == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Puts the rules in force for the calling thread and those that it starts from now on, for good. The thread must
    /// have `no_new_privs` or CAP_SYS_ADMIN.
    ///
    /// Errors: `EPERM` when it has neither, `E2BIG` beneath 16 other sets of rules.
    pub fn enforce(&self) -> Result<(), Errno> {
        // SAFETY: the call takes plain integers and concerns the credentials of this thread only.
        let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.set.as_raw_fd(), 0) };
        if done == 0 { Ok(()) } else { Err(last_errno()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn only_what_is_allowed_can_be_reached() {
        let Ok(rules) = Rules::new() else { return }; // the kernel has no Landlock
        let tmp = tempfile::tempdir().unwrap();
        let (inside, outside) = (tmp.path().join("in"), tmp.path().join("out"));
        for dir in [&inside, &outside] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("f"), "x").unwrap();
        }
        rules.allow(File::open(&inside).unwrap(), Access::all() - Access::EXECUTE).unwrap();
        let work = || {
            rustix::thread::set_no_new_privs(true).unwrap();
            rules.enforce().unwrap();
            fs::rename(inside.join("f"), inside.join("g")).unwrap();
            fs::write(inside.join("f"), "new").unwrap();
            for denied in [
                fs::read(outside.join("f")).map(drop),
                fs::write(outside.join("f"), ""),
                fs::rename(inside.join("f"), outside.join("g")),
                fs::remove_file(outside.join("f")),
                fs::create_dir(outside.join("d")),
            ] {
                let errno = Errno::from_io_error(&denied.unwrap_err());
                assert!(matches!(errno, Some(Errno::ACCESS | Errno::XDEV)), "{errno:?}");
            }
            // Those that it starts are not better off.
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(fs::read(outside.join("f")).is_err())).join().unwrap();
            });
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        assert_eq!(fs::read(outside.join("f")).unwrap(), b"x", "another thread is free");
    }
}
