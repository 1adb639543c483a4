//! A copy of a file, held open on its branch while it is compared and removed.
//!
//! The pool identifies a file by its inode on a branch, and a handle keeps using the inode that it has opened. So a copy
//! goes only while nobody has it open, which a write lease shows: also the daemon's handles, passthrough and mappings
//! count. Who opens it afterwards by its name finds the copy that stays.

pub(crate) mod aside;
pub(crate) mod checksum;

use crate::pace::Pace;
use crate::pool_link::{BranchLink, PoolLink};
use crate::progress::Progress;
use crate::stop::Stop;
use crate::survey::FileCopy;
use canopy_branch::fs::{generation, stat};
use canopy_branch::relocate::aside::give_way;
use canopy_sys::ioctl::dedupe::share_equal;
use canopy_sys::ioctl::extents::extents;
use canopy_sys::lease;
use rustix::fs::{AtFlags, FileType, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Returns the digest that a stored checksum has, if it was taken of a file of this size and time.
pub(crate) fn digest(stored: &[u8], size: u64, modified: i128) -> Option<String> {
    let checksum = checksum::Checksum::parse(stored)?;
    ((checksum.size, checksum.modified) == (size, modified)).then(|| checksum.digest.to_string())
}

/// Bytes that are compared at once, and between two looks at signals and leases.
pub(crate) const CHUNK: usize = 1 << 20;

/// Bytes whose blocks are shared at once, as filesystems limit it.
const SHARED_AT_ONCE: u64 = 16 << 20;
const NO_REFLINKS: &str =
    "its filesystem has no reflinks (btrfs and XFS have them; --link hard makes hard links)";

/// Why a file stays that a process has leased (fcntl(2), `F_SETLEASE`): nobody else can open it meanwhile.
pub(crate) const LEASED: &str = "a program holds a lease on it";

/// Which lease a copy is held with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lease {
    None,
    /// Nobody writes it.
    Unwritten,
    /// Nobody has it open.
    Alone,
}

/// What has become of a copy that went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyFate {
    Removed,
    /// What it holds is nowhere else: it was changed apart from the others.
    SetAside,
}

/// Why a copy stays.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum NotTouched {
    Because(String),
    Stopped,
}

impl From<Errno> for NotTouched {
    fn from(errno: Errno) -> NotTouched {
        NotTouched::Because(match errno {
            Errno::NOLCK => LEASED.into(),
            Errno::AGAIN | Errno::BUSY => "open in a program".into(),
            Errno::ACCESS | Errno::PERM => "not permitted, or immutable (sudo canopy ...)".into(),
            Errno::INVAL | Errno::OPNOTSUPP => "one of the filesystems lacks leases".into(),
            Errno::STALE | Errno::NOENT | Errno::NOTDIR | Errno::LOOP => "it changed in the meantime".into(),
            errno => canopy_base::text::os_error(errno),
        })
    }
}

/// A copy that is open for reading.
#[derive(Debug)]
pub(crate) struct HeldCopy<'b> {
    branch: &'b BranchLink,
    path: &'b Path,
    stat: Stat,
    lease: Lease,
    file: File,
}

impl<'b> HeldCopy<'b> {
    /// Opens a copy. It must be as it was when it was looked at.
    ///
    /// Errors: `ENOLCK` while another process has leased it; those of the lease.
    pub(crate) fn open(
        branch: &'b BranchLink,
        path: &'b Path,
        copy: &FileCopy,
        lease: Lease,
    ) -> Result<HeldCopy<'b>, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = match branch.open(path, flags | OFlags::NOATIME) {
            Err(Errno::PERM) => branch.open(path, flags),
            other => other,
        };
        let file = file.map_err(|errno| if errno == Errno::AGAIN { Errno::NOLCK } else { errno })?;
        match lease {
            Lease::None => {}
            Lease::Unwritten => lease::take(file.as_fd())?,
            Lease::Alone => lease::take_alone(file.as_fd())?,
        }
        let held = HeldCopy { branch, path, stat: copy.stat, lease, file: file.into() };
        held.check()?;
        Ok(held)
    }

    /// Opens a copy that stays and one that is to go in its favour: with leases that let it go, or only to compare them.
    pub(crate) fn pair(
        pool: &'b PoolLink,
        path: &'b Path,
        [stays, goes]: [&FileCopy; 2],
        to_remove: bool,
    ) -> Result<[HeldCopy<'b>; 2], NotTouched> {
        let because = |why: &str| Err(NotTouched::Because(why.into()));
        let [kept, other] = [stays, goes].map(|copy| &pool.branches[copy.branch]);
        if [stays, goes].iter().any(|copy| copy.kind() != FileType::RegularFile) {
            return because("not all copies are files");
        }
        if !other.gives() {
            return because("its branch is RO, gone or failing");
        }
        if !kept.is_well {
            return because("the branch with the other copy is gone or failing");
        }
        if stays.key() == goes.key() {
            return because("both branches show the same file");
        }
        let [shared, alone] = if to_remove { [Lease::Unwritten, Lease::Alone] } else { [Lease::None; 2] };
        Ok([HeldCopy::open(kept, path, stays, shared)?, HeldCopy::open(other, path, goes, alone)?])
    }

    /// Fails if the copy has changed, or if another process wants to open it.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        let holds = match self.lease {
            Lease::None => true,
            Lease::Unwritten => lease::holds(self.file.as_fd()),
            Lease::Alone => lease::holds_alone(self.file.as_fd()),
        };
        let now = rustix::fs::fstat(&self.file)?;
        let of = |stat: &Stat| {
            let changed = (stat.st_ctime, stat.st_ctime_nsec);
            (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec, changed)
        };
        match (holds, of(&now) == of(&self.stat)) {
            (false, _) => Err(Errno::BUSY),
            (true, false) => Err(Errno::STALE),
            (true, true) => Ok(()),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    fn attributes(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
        let mut names = vec![0; 65536];
        let length = match rustix::fs::flistxattr(&self.file, names.as_mut_slice()) {
            Err(Errno::OPNOTSUPP) => 0,
            other => other?,
        };
        // Labels of security modules belong to the machine, and XFS lists ACLs twice.
        let own = |name: &&[u8]| {
            !name.is_empty()
                && (!name.starts_with(b"security.") || *name == b"security.capability")
                && !name.starts_with(b"trusted.SGI_ACL_")
                // It is about the content, which is compared.
                && *name != checksum::NAME.as_bytes()
        };
        let mut found = BTreeMap::new();
        for name in names[..length].split(|&byte| byte == 0).filter(own) {
            let mut value = vec![0; 65536];
            let length = rustix::fs::fgetxattr(&self.file, name, value.as_mut_slice())?;
            value.truncate(length);
            found.insert(name.to_vec(), value);
        }
        Ok(found)
    }

    /// Fails unless both copies have the same size, owner, mode, extended attributes and ACL.
    pub(crate) fn require_same_attributes(&self, other: &HeldCopy<'_>) -> Result<(), NotTouched> {
        let differ = |what: &str| Err(NotTouched::Because(format!("the copies differ in {what}")));
        let (one, two) = (&self.stat, &other.stat);
        if one.st_size != two.st_size {
            return differ("size");
        }
        if (one.st_uid, one.st_gid) != (two.st_uid, two.st_gid) {
            return differ("owner");
        }
        if one.st_mode != two.st_mode {
            return differ("mode");
        }
        if self.attributes()? != other.attributes()? {
            return differ("attributes");
        }
        Ok(())
    }

    /// Fails unless both copies have the same attributes and content.
    pub(crate) fn require_equal(
        &self,
        other: &HeldCopy<'_>,
        (pace, progress): (&mut Pace, &Progress),
        stop: &Stop,
    ) -> Result<(), NotTouched> {
        self.require_same_attributes(other)?;
        let (mut left, mut right, mut at) = (vec![0; CHUNK], vec![0; CHUNK], 0_u64);
        let size = u64::try_from(self.stat.st_size).unwrap_or(0);
        while at < size {
            let length = usize::try_from(size - at).map_or(CHUNK, |rest| rest.min(CHUNK));
            read_exactly(&self.file, &mut left[..length], at)?;
            read_exactly(&other.file, &mut right[..length], at)?;
            if left[..length] != right[..length] {
                return Err(NotTouched::Because("the copies differ in content".into()));
            }
            at += length as u64;
            progress.inc(length as u64);
            pace.keep(length as u64, &mut || {
                if stop.is_set() {
                    Err(NotTouched::Stopped)
                } else {
                    self.check().and_then(|()| other.check()).map_err(NotTouched::from)
                }
            })?;
        }
        Ok(())
    }

    /// Fails unless both files were changed at the same time.
    pub(crate) fn require_same_times(&self, other: &HeldCopy<'_>) -> Result<(), NotTouched> {
        let changed = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
        if changed(&self.stat) == changed(&other.stat) {
            Ok(())
        } else {
            Err(NotTouched::Because("the files differ in the time of their last change".into()))
        }
    }

    /// Returns whether all blocks are those of another file.
    pub(crate) fn shares_blocks_of(&self, other: &HeldCopy<'_>) -> Result<bool, NotTouched> {
        let without = |what: &str| Err(NotTouched::Because(what.into()));
        // With a length of 0, nothing is shared.
        match share_equal(other.file.as_fd(), self.file.as_fd(), 0, 0) {
            Ok(_) => {}
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY) => return without(NO_REFLINKS),
            Err(errno) => return Err(errno.into()),
        }
        match (extents(self.file.as_fd())?, extents(other.file.as_fd())?) {
            (Some(own), Some(others)) => Ok(own == others),
            _ => without("it is so small that it takes no blocks"),
        }
    }

    /// Shares the blocks of another file. The kernel compares them before, block by block, and nothing else changes.
    pub(crate) fn share_blocks_of(&self, other: &HeldCopy<'_>, stop: &Stop) -> Result<(), NotTouched> {
        let (mut at, size) = (0, u64::try_from(self.stat.st_size).unwrap_or(0));
        while at < size {
            if stop.is_set() {
                return Err(NotTouched::Stopped);
            }
            self.check().and_then(|()| other.check())?;
            let length = (size - at).min(SHARED_AT_ONCE);
            match share_equal(other.file.as_fd(), self.file.as_fd(), at, length) {
                Ok(Some(0)) | Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY) => {
                    return Err(NotTouched::Because(NO_REFLINKS.into()));
                }
                Ok(Some(shared)) => at += shared,
                Ok(None) => return Err(NotTouched::from(Errno::STALE)),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn is_at_its_name(&self) -> bool {
        let own = (self.stat.st_dev, self.stat.st_ino);
        self.branch.stat(self.path).is_ok_and(|found| (found.st_dev, found.st_ino) == own)
    }

    /// Writes the copy and its name to disk.
    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.file)?;
        rustix::fs::fsync(self.branch.dir(self.path.parent().unwrap_or(Path::new("")))?)
    }

    /// Removes this copy, if the other one is there and on disk. The directory keeps its times.
    ///
    /// A process that has found the file by its name, but not opened it yet, breaks the lease a moment later. So the
    /// copy first gets a name that the pool does not show; if the lease is broken then, it gets its own name back.
    ///
    /// A process that breaks the lease of the other copy after that has found it by the name, and waits until both leases are
    /// released. So the copies were the same when the names changed, and what it writes then must be seen under the name.
    pub(crate) fn remove_in_favour_of(self, stays: &HeldCopy<'_>) -> Result<CopyFate, Errno> {
        stays.sync()?;
        let dir = self.branch.dir(self.path.parent().unwrap_or(Path::new("")))?;
        let name = self.path.file_name().unwrap_or_default();
        let aside = aside::name(name, &self.stat);
        let before = rustix::fs::fstat(&dir)?;
        stays.check()?;
        self.check()?;
        if !self.is_at_its_name() {
            return Err(Errno::STALE);
        }
        // What cannot be read is not known to be only left behind.
        if let Some(newest) = generation::read(stays.file.as_fd())?
            && generation::was_apart(generation::read(self.file.as_fd())?, newest.number)
        {
            let place = (dir.as_fd(), self.path.as_os_str().as_bytes());
            give_way(self.branch.root()?, place, &stat::of(self.file.as_fd())?, newest.number)?;
            return Ok(CopyFate::SetAside);
        }
        rustix::fs::renameat_with(&dir, name, &dir, &aside, RenameFlags::NOREPLACE)?;
        let moved = rustix::fs::statat(&dir, &aside, AtFlags::SYMLINK_NOFOLLOW);
        // Two branches may show one file, through a bind mount: then the other name is gone, too.
        let may_go = moved.is_ok_and(|now| (now.st_dev, now.st_ino) == (self.stat.st_dev, self.stat.st_ino))
            && lease::holds_alone(self.file.as_fd())
            && stays.is_at_its_name();
        let done =
            if may_go { rustix::fs::unlinkat(&dir, &aside, AtFlags::empty()) } else { Err(Errno::BUSY) };
        if done.is_err() {
            rustix::fs::renameat_with(&dir, &aside, &dir, name, RenameFlags::NOREPLACE)?;
        }
        aside::set_times(dir.as_fd(), &before);
        done.map(|()| CopyFate::Removed)
    }

    /// Puts another link of a file in place of this one, which must be equal. The directory keeps its times.
    ///
    /// The link gets a hidden name first, and then the two change their names at once: a name is never without a file. What
    /// has the hidden name then is the file, and goes unless somebody has opened it, as in [`Self::remove_in_favour_of`].
    pub(crate) fn replace_by_link_of(self, stays: &HeldCopy<'_>) -> Result<(), Errno> {
        let from = self.branch.dir(stays.path.parent().unwrap_or(Path::new("")))?;
        let dir = self.branch.dir(self.path.parent().unwrap_or(Path::new("")))?;
        let (other, name) =
            (stays.path.file_name().unwrap_or_default(), self.path.file_name().unwrap_or_default());
        let aside = aside::name(name, &self.stat);
        let before = rustix::fs::fstat(&dir)?;
        stays.check()?;
        self.check()?;
        rustix::fs::linkat(&from, other, &dir, &aside, AtFlags::empty())?;
        let has = |name: &OsStr, held: &HeldCopy<'_>| {
            let found = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
            found.is_ok_and(|found| (found.st_dev, found.st_ino) == (held.stat.st_dev, held.stat.st_ino))
        };
        let may_go = has(&aside, stays) && self.is_at_its_name() && self.check().is_ok();
        let swap = || rustix::fs::renameat_with(&dir, &aside, &dir, name, RenameFlags::EXCHANGE);
        let swapped = if may_go { swap() } else { Err(Errno::STALE) };
        let done = swapped.and_then(|()| {
            let may_go = has(&aside, &self) && has(name, stays) && lease::holds_alone(self.file.as_fd());
            if may_go { Ok(()) } else { swap().and(Err(Errno::BUSY)) }
        });
        // Either the file, or the link that was made for it.
        let removed = if done.is_ok() || has(&aside, stays) {
            rustix::fs::unlinkat(&dir, &aside, AtFlags::empty())
        } else {
            Ok(())
        };
        aside::set_times(dir.as_fd(), &before);
        done.and(removed)
    }
}

/// Reads a whole buffer. `STALE` if the file is shorter.
pub(crate) fn read_exactly(file: &File, buffer: &mut [u8], at: u64) -> Result<(), Errno> {
    file.read_exact_at(buffer, at).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => Errno::STALE,
        _ => Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })
}

pub(crate) fn write_exactly(file: &File, bytes: &[u8], at: u64) -> Result<(), Errno> {
    file.write_all_at(bytes, at).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
