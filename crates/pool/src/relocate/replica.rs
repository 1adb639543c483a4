//! A copy of a file, made aside in the directory that is to hold it.

use super::clone_dirs::move_into_place;
use super::copy::copy_data;
use super::journal::JournalEntry;
use super::lease::{LeasedFile, reopen_as_owner};
use super::metadata::{copy_file_metadata, with_times_kept};
use crate::fs::beneath;
use crate::fs::reserved::temporary_name;
use crate::fs::stat::{self, Attr, FileKey};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// Until it is given a name, its end takes it away.
pub(crate) struct Replica {
    dir: OwnedFd,
    aside: Option<Vec<u8>>,
    file: OwnedFd,
    note: Option<JournalEntry>,
}

impl Replica {
    /// An empty file in the directory `path` of a branch. `note` tells of it, and goes when it is done.
    ///
    /// One that is never to be `named` is made without any name where the filesystem can: link(2) may give it its
    /// first one, as it may to the original.
    pub(crate) fn begin(
        root: BorrowedFd<'_>,
        path: &[u8],
        named: bool,
        note: JournalEntry,
    ) -> Result<Replica, Errno> {
        let made = || {
            canopy_sys::creds::as_daemon()?;
            // Really open: directories are synced through it.
            let dir = beneath::open(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
            if !named {
                let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
                if let Ok(file) = rustix::fs::openat(&dir, c".", flags, Mode::RUSR | Mode::WUSR) {
                    return Ok((dir, None, file));
                }
            }
            let aside = temporary_name();
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = with_times_kept(dir.as_fd(), || {
                rustix::fs::openat(&dir, aside.as_slice(), flags, Mode::RUSR | Mode::WUSR)
            })?;
            Ok((dir, Some(aside), file))
        };
        match made() {
            Ok((dir, aside, file)) => Ok(Replica { dir, aside, file, note: Some(note) }),
            Err(errno) => {
                note.erase();
                Err(errno)
            }
        }
    }

    /// Copies data and all that belongs to the file; on disk when this returns. Errors: `EINTR` when it is not `wanted` any
    /// more.
    pub(crate) fn fill(
        &self,
        source: &LeasedFile,
        attr: &Attr,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Errno> {
        copy_data(source, self.file.as_fd(), attr.size, wanted)?;
        self.copy_metadata(source.as_fd(), attr)
    }

    /// Once more all but the data.
    pub(crate) fn copy_metadata(&self, source: BorrowedFd<'_>, attr: &Attr) -> Result<(), Errno> {
        copy_file_metadata(source, self.file.as_fd(), attr)?;
        let copy = stat::of(self.file.as_fd())?;
        if copy.size != attr.size {
            return Err(Errno::IO);
        }
        rustix::fs::fsync(&self.file)
    }

    /// The file as it will be known.
    pub(crate) fn key(&self) -> Result<FileKey, Errno> {
        stat::of(self.file.as_fd()).map(|attr| attr.key())
    }

    /// The very file once more, with flags of open(2). Its mode keeps nobody from that who has the original open.
    pub(crate) fn reopen(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        reopen_as_owner(self.file.as_fd(), flags)
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Gives it one more name, which nothing may have yet.
    pub(crate) fn link(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let aside = self.aside.as_deref().ok_or(Errno::NOENT)?;
        rustix::fs::linkat(&self.dir, aside, dir, name, AtFlags::empty())
    }

    /// Its name in its own directory, which nothing may have yet.
    pub(crate) fn place(&mut self, name: &[u8]) -> Result<(), Errno> {
        let aside = self.aside.as_deref().ok_or(Errno::NOENT)?;
        if stat::at(&self.dir, name).is_ok() {
            return Err(Errno::EXIST);
        }
        move_into_place(self.dir.as_fd(), aside, name)?;
        self.aside = None;
        Ok(())
    }

    /// Takes the place of what has this name in its directory; on disk when this returns.
    pub(crate) fn replace(&mut self, name: &[u8]) -> Result<(), Errno> {
        let aside = self.aside.as_deref().ok_or(Errno::NOENT)?;
        rustix::fs::renameat(&self.dir, aside, &self.dir, name)?;
        self.aside = None;
        rustix::fs::fsync(&self.dir)
    }

    /// What the note tells of is not finished: it stays.
    pub(crate) fn keep_note(&mut self) {
        self.note = None;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            let unlink = || rustix::fs::unlinkat(&self.dir, aside.as_slice(), AtFlags::empty());
            match with_times_kept(self.dir.as_fd(), unlink) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    tracing::warn!("a copy under construction could not be removed: {errno}");
                    return;
                }
            }
        }
        if let Some(note) = self.note.take() {
            note.erase();
        }
    }
}
