//! Checking a branch: what is wrong with it, if anything.

use super::Branch;
use super::access_times::AtimePolicy;
use super::health::{CheckResult, HealthReport};
use super::list::Mode;
use super::space::Space;
use super::state::Health;
use crate::fs::disk::Disk;
use crate::fs::reserved::temporary_name;
use crate::fs::{beneath, block_device};
use canopy_base::error::is_illness;
use canopy_sys::mountinfo;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::path::Path;

impl Branch {
    /// Checks the branch if there is reason to, and returns a report if its health has changed. A failing disk may
    /// block the caller for any length of time.
    pub fn check_health(&self) -> Option<HealthReport> {
        if !self.needs_check() {
            return None;
        }
        self.health.look(|| self.examine())
    }

    /// Returns the disks below the branch's root: several for a btrfs. None for filesystems without a disk, and for those
    /// that another program or machine serves. Does not touch the branch.
    pub fn disks(&self) -> Vec<Disk> {
        if self.is_remote() { Vec::new() } else { Disk::below(self.dev, self.root()) }
    }

    /// Returns whether files on the branch are opened on the mount with this id.
    pub fn is_on_mount(&self, mount: u32) -> bool {
        let is_copy = || match self.times.0.load().as_deref() {
            Some(AtimePolicy::PrivateMount(copy)) => {
                mountinfo::id_of(copy.as_fd()).is_ok_and(|id| id == mount)
            }
            _ => false,
        };
        let own = self.mount.or_else(|| mountinfo::id_of(self.root()).ok().map(u64::from));
        own == Some(u64::from(mount)) || is_copy()
    }

    /// Finds out what is wrong with the branch by doing what operations do there.
    fn examine(&self) -> CheckResult {
        let ill = |health: Health| {
            move |errno: Errno| if is_illness(errno) { Err((health, errno)) } else { Ok(()) }
        };
        readable_root(self).or_else(|errno| match errno {
            // The root was removed on the server.
            Errno::STALE => Err((Health::Gone, errno)),
            errno => ill(Health::Gone)(errno),
        })?;
        // What was read so far may have come from the page cache.
        block_device::answers(self.root()).map_err(|errno| (Health::Gone, errno))?;
        if self.mode == Mode::Ro {
            return Ok(());
        }
        match Space::of(self.root()) {
            Ok(space) if space.readonly => return Err((Health::ReadOnly, Errno::ROFS)),
            Ok(_) => {}
            Err(errno) => ill(Health::Failing)(errno)?,
        }
        writable_root(self).or_else(|errno| match errno {
            Errno::ROFS => Err((Health::ReadOnly, errno)),
            errno => ill(Health::Failing)(errno),
        })
    }
}

fn readable_root(branch: &Branch) -> Result<(), Errno> {
    let dir = beneath::open(branch.root(), b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    RawDir::new(&dir, &mut buffer).next().transpose().map(drop)
}

/// Reads the beginning of a directory, if the caller may, without changing when it was last read: that would be a write a day.
///
/// # Errors
/// Those of reading it.
pub fn read_without_trace(dir: &Path) -> Result<(), Errno> {
    let open = |more: OFlags| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        rustix::fs::open(dir, flags, rustix::fs::Mode::empty())
    };
    // For the owner and root.
    let opened = open(OFlags::NOATIME).or_else(|errno| match errno {
        Errno::PERM => open(OFlags::empty()),
        errno => Err(errno),
    });
    match opened {
        Ok(dir) => RawDir::new(&dir, &mut [MaybeUninit::uninit(); 1024]).next().transpose().map(drop),
        Err(Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Writes a small file to the disk and removes it. Where the filesystem supports `O_TMPFILE` the file has no name, so
/// that a crash leaves nothing.
fn writable_root(branch: &Branch) -> Result<(), Errno> {
    canopy_sys::creds::as_daemon()?;
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let try_out = |file: OwnedFd| {
        rustix::io::pwrite(&file, b"canopy", 0)?;
        rustix::fs::fsync(&file)
    };
    match rustix::fs::openat(branch.root(), c".", flags | OFlags::TMPFILE, mode) {
        Ok(file) => return try_out(file),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {}
        Err(errno) => return Err(errno),
    }
    let name = temporary_name();
    let create = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(branch.root(), name.as_slice(), create, mode)?;
    let written = try_out(file);
    let removed = rustix::fs::unlinkat(branch.root(), name.as_slice(), AtFlags::empty());
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::Branches;
    use crate::branch::list::{BranchList, FileSystem};

    #[test]
    fn a_check_uses_the_branch_and_leaves_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let list = BranchList::parse(tmp.path().as_os_str(), &FileSystem).unwrap();
        let branches = Branches::open(&list).unwrap();
        let branch = &branches[0];
        assert_eq!(branch.examine(), Ok(()));
        assert_eq!(branch.check_health(), None, "no error was recorded");
        branch.changes(|| Err::<(), _>(Errno::IO)).unwrap_err();
        assert_eq!((branch.check_health(), branch.health.is_well()), (None, true));
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0, "the check leaves nothing");
    }
}
