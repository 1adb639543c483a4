//! Keeping what a file holds that is about to be emptied in place.
//!
//! The file itself stays: its number, its other names and whoever has it open. So what it holds is copied into the trash: by reflink,
//! which takes no room and no time, or, on filesystems without, byte by byte as long as that is quick and there is ample room. The
//! copy has no name until it is whole; then the file is emptied. Whatever goes wrong, the file is emptied as without a trash.

use super::keep::not_kept;
use super::{Trash, Who};
use crate::branch::Branch;
use crate::branch::space::Space;
use crate::fs::pinned;
use crate::fs::stat::{self, Attr};
use crate::relocate::lease::{LeasedFile, readable};
use crate::relocate::{copy_data, copy_owner_mode_and_xattrs, set_times};
use canopy_base::path::join;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;

/// The most bytes that are copied where files cannot share blocks: whoever saves a document does not notice it.
const LARGEST: u64 = 16 << 20;
/// So many times the room of a copy has to be left for others.
const LEFT: u64 = 8;

/// A copy in the trash of a file that is about to be emptied.
pub struct Copied {
    dir: Arc<OwnedFd>,
    name: Vec<u8>,
    blocks: u64,
}

impl Trash {
    /// Copies what an open file holds, `name` in the directory `path` of the pool, into the trash. `None` if it cannot be kept.
    pub fn copy(
        &self,
        branch: &Branch,
        file: BorrowedFd<'_>,
        (path, name): (&[u8], &[u8]),
        attr: &Attr,
        who: &Who,
    ) -> Option<Copied> {
        let known = self.of(branch.id);
        let copied = branch.changes(|| {
            let source = LeasedFile { file: readable(file)?, leased: false };
            known.at_place(self, branch, path, who, |to| copy_to(branch, &source, attr, to, name))
        });
        match copied {
            Ok(dir) => {
                self.count(&known, attr.blocks);
                Some(Copied { dir, name: name.to_vec(), blocks: attr.blocks })
            }
            Err(errno) => {
                not_kept(branch, &join(path, name), errno);
                None
            }
        }
    }

    /// Removes a copy of a file that was not emptied.
    pub fn take_back(&self, branch: &Branch, copied: &Copied) {
        let removed = rustix::fs::unlinkat(&*copied.dir, copied.name.as_slice(), AtFlags::empty());
        if branch.changes(|| removed).is_ok() {
            self.discount(&self.of(branch.id), copied.blocks);
        }
    }
}

/// Errors: `EXIST` if the name is taken, `FBIG` for a file that is too large to be copied.
fn copy_to(
    branch: &Branch,
    source: &LeasedFile,
    attr: &Attr,
    to: BorrowedFd<'_>,
    name: &[u8],
) -> Result<(), Errno> {
    match stat::at(to, name) {
        Ok(_) => return Err(Errno::EXIST),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    canopy_sys::creds::as_daemon()?;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let target = match rustix::fs::openat(to, c".", flags, Mode::RUSR | Mode::WUSR) {
        // The directory is gone; there are no names of others that it could lack.
        Err(Errno::NOENT) => return Err(Errno::AGAIN),
        other => other?,
    };
    if rustix::fs::ioctl_ficlone(&target, source.as_fd()).is_err() {
        let bytes = attr.blocks * 512;
        if bytes > LARGEST || Space::of(branch.root())?.avail / LEFT < bytes {
            return Err(Errno::FBIG);
        }
        copy_data(source, target.as_fd(), attr.size, &|| true)?;
    }
    copy_owner_mode_and_xattrs(source.as_fd(), target.as_fd(), attr)?;
    set_times(target.as_fd(), attr)?;
    match pinned::link(target.as_fd(), to, name) {
        Err(Errno::NOENT) => Err(Errno::AGAIN),
        other => other,
    }
}
