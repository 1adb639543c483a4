//! A copy of a file that is made under a temporary name in its future directory.

use super::chattr::named_in;
use super::clone_dirs::move_into_place;
use super::copy::copy_data;
use super::journal::JournalEntry;
use super::kept_times::with_times_kept;
use super::lease::{LeasedFile, reopen_as_owner};
use super::metadata::{Losses, copy_file_metadata, prepare_for_data};
use crate::fs::beneath;
use crate::fs::reserved::temporary_name;
use crate::fs::stat::{self, Attr, FileKey};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// A copy of a file. Dropping it removes the copy, unless it has got a name.
pub struct Replica {
    dir: OwnedFd,
    temporary: Option<Vec<u8>>,
    file: OwnedFd,
    entry: Option<JournalEntry>,
    losses: Losses,
}

impl Replica {
    /// Creates an empty file in the directory `path` of a branch. `entry` describes it, and is erased when this is
    /// dropped.
    ///
    /// A copy that is never to be `named` is made without any name where the filesystem supports that (`O_TMPFILE`);
    /// link(2) can still give it its first name, as it can to the original.
    pub fn begin(
        root: BorrowedFd<'_>,
        path: &[u8],
        named: bool,
        entry: JournalEntry,
    ) -> Result<Replica, Errno> {
        let made = || {
            canopy_sys::creds::as_daemon()?;
            // Not O_PATH: the directory is synced through it.
            let dir = beneath::open(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
            if !named {
                let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
                if let Ok(file) = rustix::fs::openat(&dir, c".", flags, Mode::RUSR | Mode::WUSR) {
                    return Ok((dir, None, file));
                }
            }
            let temporary = temporary_name();
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = with_times_kept(dir.as_fd(), || {
                rustix::fs::openat(&dir, temporary.as_slice(), flags, Mode::RUSR | Mode::WUSR)
            })?;
            Ok((dir, Some(temporary), file))
        };
        match made() {
            Ok((dir, temporary, file)) => {
                Ok(Replica { dir, temporary, file, entry: Some(entry), losses: Losses::Refused })
            }
            Err(errno) => {
                entry.erase();
                Err(errno)
            }
        }
    }

    /// Takes a copy for one that has been made and has its names.
    pub fn existing(dir: OwnedFd, file: OwnedFd, entry: JournalEntry) -> Replica {
        Replica { dir, temporary: None, file, entry: Some(entry), losses: Losses::Refused }
    }

    /// Says what becomes of a file that would lose something here.
    pub(crate) fn with_losses(mut self, losses: Losses) -> Replica {
        self.losses = losses;
        self
    }

    /// Copies data and metadata. The copy is on disk when this returns. Errors: `EINTR` if it is not `wanted` any
    /// more.
    pub fn fill(&self, source: &LeasedFile, attr: &Attr, wanted: &dyn Fn() -> bool) -> Result<(), Errno> {
        prepare_for_data(source.as_fd(), self.file.as_fd(), attr, self.losses)?;
        copy_data(source, self.file.as_fd(), attr.size, wanted)?;
        self.copy_metadata(source.as_fd(), attr)
    }

    /// Copies the metadata once more.
    pub fn copy_metadata(&self, source: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
        copy_file_metadata(source, self.file.as_fd(), attr, self.losses)?;
        let copy = stat::of(self.file.as_fd())?;
        if copy.size != attr.size {
            return Err(Errno::IO);
        }
        rustix::fs::fsync(&self.file)
    }

    /// Returns the copy's identity.
    pub fn key(&self) -> Result<FileKey, Errno> {
        stat::of(self.file.as_fd()).map(|attr| attr.key())
    }

    /// Reopens the copy with flags of open(2), whatever its mode: the caller has the original open.
    pub fn reopen(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        reopen_as_owner(self.file.as_fd(), flags)
    }

    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Gives the copy one more name, which must be free.
    pub fn link(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let temporary = self.temporary.as_deref().ok_or(Errno::NOENT)?;
        self.named_in(dir, || rustix::fs::linkat(&self.dir, temporary, dir, name, AtFlags::empty()))
    }

    /// As `link`, in place of whatever has the name.
    pub(crate) fn link_over(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let other = temporary_name();
        self.link(dir, &other)?;
        self.named_in(dir, || rustix::fs::renameat(dir, other.as_slice(), dir, name)).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(dir, other.as_slice(), AtFlags::empty());
        })
    }

    /// Gives the copy its name in its own directory, which must be free.
    pub fn place(&mut self, name: &[u8]) -> Result<(), Errno> {
        let temporary = self.temporary.as_deref().ok_or(Errno::NOENT)?;
        if stat::at(&self.dir, name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.named_in(self.dir.as_fd(), || move_into_place(self.dir.as_fd(), temporary, name))?;
        self.temporary = None;
        Ok(())
    }

    /// Takes the place of `name` in its directory. The change is on disk when this returns.
    pub fn replace(&mut self, name: &[u8]) -> Result<(), Errno> {
        let temporary = self.temporary.as_deref().ok_or(Errno::NOENT)?;
        self.named_in(self.dir.as_fd(), || rustix::fs::renameat(&self.dir, temporary, &self.dir, name))?;
        self.temporary = None;
        rustix::fs::fsync(&self.dir)
    }

    fn named_in(&self, dir: BorrowedFd<'_>, naming: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        named_in(dir, self.file.as_fd(), false, naming)
    }

    /// Keeps the journal entry, because the work that it describes is not finished.
    pub(crate) fn keep_entry(&mut self) {
        self.entry = None;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let unlink = || rustix::fs::unlinkat(&self.dir, temporary.as_slice(), AtFlags::empty());
            match with_times_kept(self.dir.as_fd(), unlink) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    tracing::warn!("cannot remove a copy under construction: {errno}");
                    return;
                }
            }
        }
        if let Some(entry) = self.entry.take() {
            entry.erase();
        }
    }
}
