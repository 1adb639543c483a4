//! Holding a file still while it is copied and its names change.
//!
//! The pool knows who writes a file through it, and not who else does: by a mapping of the branch's own file, which may
//! outlive its descriptor, by the preload library, or on the branch. What these write after the copy would be lost. The
//! kernel knows them all: it grants a read lease only while nobody can write the file, mappings included, and lets
//! nobody in who wants to without taking the lease back first. So a file is what was copied if the lease has held all
//! the time. A file that cannot be leased is not moved.

use crate::branch::health::OpKind;
use crate::error::Error;
use crate::fs::{beneath, stat};
use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::node::open_file::OpenFile;
use crate::pool::Pool;
use crate::relocate::lease::{LeasedFile, readable, reopen_as_owner};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long operations that are under way may hold on to a descriptor, such as an fsync(2) on a slow disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node's file, held still. Its end lets the handles write again, wherever the file is by then.
pub(crate) struct FrozenFile<'p> {
    // Goes first: it would keep the handles from being opened for writing.
    still: LeasedFile,
    _withheld: RevokedWriters<'p>,
}

impl AsRef<LeasedFile> for FrozenFile<'_> {
    fn as_ref(&self) -> &LeasedFile {
        &self.still
    }
}

struct RevokedWriters<'p> {
    pool: &'p Pool,
    node: Arc<Node>,
}

impl Drop for RevokedWriters<'_> {
    fn drop(&mut self) {
        if let Err(errno) = self.pool.restore_writers(&self.node) {
            // Whoever writes by them tries again.
            tracing::warn!("files that were held still could not be opened for writing again: {errno}");
        }
    }
}

impl Pool {
    /// Holds a node's file still: against others by a lease, for which the pool's own descriptors that could write it are
    /// exchanged for one that cannot. The caller holds the node's `moving` exclusively, so that nobody uses them, or opens
    /// the file for writing, and no other lock.
    ///
    /// Errors: as [`LeasedFile::hold`], and what opening the file for writing fails with.
    pub(crate) fn freeze(&self, node: &Arc<Node>) -> Result<FrozenFile<'_>, Errno> {
        let file = {
            let _held = self.tree.shared();
            let primary = self.primary(&self.branches.load(), node).map_err(Error::errno)?;
            readable(&primary.fd)?
        };
        let withheld = RevokedWriters { pool: self, node: node.clone() };
        if let Some(open) = node.opened() {
            self.revoke_writers(node, &open, &file)?;
        }
        Ok(FrozenFile { still: LeasedFile::hold(file)?, _withheld: withheld })
    }

    fn revoke_writers(&self, node: &Arc<Node>, open: &OpenFile, file: &OwnedFd) -> Result<(), Errno> {
        let handles = self.files.matching(|handle| Arc::ptr_eq(&handle.node, node) && handle.writable());
        if !handles.is_empty() {
            // What could not be opened again is not closed.
            match beneath::reopen(file, OFlags::RDWR | OFlags::NONBLOCK) {
                Err(Errno::ACCESS) if stat::of(file.as_fd())?.uid == rustix::process::geteuid().as_raw() => {}
                other => drop(other?),
            }
        }
        let stand_in = Arc::new(beneath::reopen(file, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let until = Instant::now() + PATIENCE;
        let place = close(open.replace_fds(&stand_in), until)?;
        let mut taken: Vec<_> = handles.iter().map(|handle| handle.move_to(stand_in.clone())).collect();
        taken.extend(place.into_descriptors());
        taken.retain(|fd| can_write(fd));
        // Who opened the file first shares his with the place.
        taken.sort_by_key(Arc::as_ptr);
        taken.dedup_by(|one, other| Arc::ptr_eq(one, other));
        taken.into_iter().try_for_each(|fd| close(fd, until).map(drop))
    }

    /// Opens for writing whatever handle of a node should be open so and is not, for a move has taken that away. True if
    /// there was any. The caller holds the node's `moving` exclusively.
    pub(crate) fn restore_writers(&self, node: &Arc<Node>) -> Result<bool, Errno> {
        let waits = |handle: &FileHandle| {
            Arc::ptr_eq(&handle.node, node) && handle.writable() && !can_write(&handle.fd())
        };
        let handles = self.files.matching(waits);
        for handle in &handles {
            let place = handle.open.location();
            let fd = reopen_as_owner(place.fd.as_fd(), handle.flags - OFlags::TRUNC);
            handle.move_to(Arc::new(fd.map_err(|errno| place.branch.record_error(errno, OpKind::Read))?));
        }
        Ok(!handles.is_empty())
    }
}

/// Is this descriptor one that the kernel counts as a writer's?
fn can_write(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR))
}

/// Takes back a descriptor that nobody will use anew, once those are done who use it now.
fn close<T>(mut shared: Arc<T>, until: Instant) -> Result<T, Errno> {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(own) => return Ok(own),
            Err(_) if Instant::now() > until => return Err(Errno::BUSY),
            Err(still_used) => shared = still_used,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::list::{BranchList, BranchSpec};
    use crate::branch::{self, Branches};
    use crate::config::Config;
    use crate::ids::{Caller, NodeId};
    use crate::ops::attrs::setattr::SetAttr;
    use crate::ops::data::io::WriteKind;
    use std::fs;

    /// Opening a file anew may fail, say for want of descriptors, when a move is given up.
    #[test]
    fn a_writer_whose_handle_was_not_reopened_reopens_it() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("f"), "content").unwrap();
        let spec = BranchSpec { path: home.path().to_owned(), mode: branch::Mode::Rw, min_free: None };
        let branches = Branches::open(&std::iter::once(spec).collect::<BranchList>()).unwrap();
        let pool = Pool::new(Config { min_free: 0, ..Config::default() }, branches);
        let caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
        let node = pool.lookup(NodeId::ROOT, b"f").unwrap().node;
        let handle = pool.open(&caller, node, OFlags::RDWR.bits(), false).unwrap().handle;
        let withhold = || {
            let reader = fs::File::open(home.path().join("f")).unwrap();
            drop(pool.files.get(handle).unwrap().move_to(Arc::new(reader.into())));
        };
        withhold();
        assert_eq!(pool.write(handle, 0, b"C", WriteKind::default()).unwrap(), 1);
        withhold();
        pool.fallocate(handle, 0, 0, 8).unwrap();
        withhold();
        let set = SetAttr { size: Some(4), ..SetAttr::default() };
        pool.setattr(&caller, node, Some(handle), &set).unwrap();
        assert_eq!(fs::read(home.path().join("f")).unwrap(), b"Cont");
        // What is wrong for another reason is told as ever.
        assert_eq!(pool.fallocate(handle, 0, 0, 0).map_err(Error::errno), Err(Errno::INVAL));
        pool.release(handle).unwrap();
    }
}
