//! Freezing a file while it is copied and its names change.
//!
//! The pool knows the handles that write a file through it. It does not know other writers: a mapping of the branch's
//! file, which may outlive its descriptor, the preload library, or a process that writes on the branch. Their writes
//! after the copy would be lost. The kernel knows all of them: it grants a read lease only while no descriptor or
//! mapping can write the file, and it breaks the lease before it lets a writer open the file. So if the lease was held
//! throughout, the copy equals the file. A file that cannot be leased does not move.

use crate::node::Node;
use crate::node::handles::FileHandle;
use crate::node::open_file::OpenFile;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::{Op, State};
use canopy_base::error::Error;
use canopy_branch::fs::{beneath, stat};
use canopy_branch::relocate::lease::{LeasedFile, readable, reopen_as_owner};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for operations in flight to release a descriptor, such as an fsync(2) on a slow disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node's file that is frozen. Dropping it lets the handles write again, on whichever branch the file is by then.
pub(crate) struct FrozenFile<'p> {
    // Dropped first: the lease would keep the handles from being reopened for writing.
    still: LeasedFile,
    _writers: RevokedWriters<'p>,
}

impl AsRef<LeasedFile> for FrozenFile<'_> {
    fn as_ref(&self) -> &LeasedFile {
        &self.still
    }
}

struct RevokedWriters<'p> {
    state: &'p State,
    node: Arc<Node>,
}

impl Drop for RevokedWriters<'_> {
    fn drop(&mut self) {
        if let Err(errno) = restore_writers(self.state, &self.node) {
            // The next write through such a handle tries to reopen it.
            tracing::warn!("files that were held still could not be opened for writing again: {errno}");
        }
    }
}

/// Freezes a node's file with a lease. As a lease needs a file without writers, the pool's own writable descriptors
/// are first replaced by a read-only one.
///
/// The caller holds the node's `moving` exclusively, so that no operation uses those descriptors or opens the file
/// for writing, and no other lock.
///
/// Errors: those of [`LeasedFile::hold`] and of opening the file for writing.
pub(crate) fn freeze<'p>(op: &mut Op<'p>, node: &Arc<Node>) -> Result<FrozenFile<'p>, Errno> {
    let file = {
        let _held = op.using(Uses::node(node.id));
        let primary = resolve::places::primary(op, node).map_err(Error::errno)?;
        primary.branch.reads(|| readable(&primary.fd))?
    };
    let writers = RevokedWriters { state: op.state(), node: node.clone() };
    if let Some(open) = node.opened() {
        revoke_writers(op, node, &open, &file)?;
    }
    Ok(FrozenFile { still: LeasedFile::hold(file)?, _writers: writers })
}

fn revoke_writers(op: &Op<'_>, node: &Arc<Node>, open: &OpenFile, file: &OwnedFd) -> Result<(), Errno> {
    let handles = op.files.matching(|handle| Arc::ptr_eq(&handle.node, node) && handle.writable());
    if !handles.is_empty() {
        // Checks that the file can be reopened for writing before a writable descriptor is closed.
        match open.reads(|| beneath::reopen(file, OFlags::RDWR | OFlags::NONBLOCK)) {
            Err(Errno::ACCESS)
                if open.reads(|| stat::of(file.as_fd()))?.uid == rustix::process::geteuid().as_raw() => {}
            other => drop(other?),
        }
    }
    let stand_in = open.reads(|| beneath::reopen(file, OFlags::RDONLY | OFlags::NONBLOCK))?;
    let stand_in = Arc::new(stand_in);
    let until = Instant::now() + PATIENCE;
    let place = close(open.replace_fds(&stand_in), until)?;
    let mut taken: Vec<_> = handles.iter().map(|handle| handle.move_to(stand_in.clone())).collect();
    taken.extend(place.into_descriptors());
    taken.retain(|fd| can_write(fd));
    // The handle that opened the file first shares its descriptor with the location.
    taken.sort_by_key(Arc::as_ptr);
    taken.dedup_by(|one, other| Arc::ptr_eq(one, other));
    taken.into_iter().try_for_each(|fd| close(fd, until).map(drop))
}

/// Returns the node's handles that a move has made read-only.
pub(crate) fn revoked(state: &State, node: &Arc<Node>) -> Vec<Arc<FileHandle>> {
    state
        .files
        .matching(|handle| Arc::ptr_eq(&handle.node, node) && handle.writable() && !can_write(&handle.fd()))
}

/// Reopens for writing the node's handles that a move has made read-only. Returns true if there were any.
/// The caller holds the node's `moving` exclusively.
pub(crate) fn restore_writers(state: &State, node: &Arc<Node>) -> Result<bool, Errno> {
    let handles = revoked(state, node);
    for handle in &handles {
        let place = handle.open.location();
        let reopen = || reopen_as_owner(place.fd.as_fd(), handle.flags - OFlags::TRUNC);
        handle.move_to(Arc::new(place.branch.reads(reopen)?));
    }
    Ok(!handles.is_empty())
}

/// Returns whether the kernel counts this descriptor as a writer.
fn can_write(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR))
}

/// Waits until the current users of a descriptor are done and returns it. No new user can appear.
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
    use crate::config::Config;
    use crate::door::Caller;
    use crate::ops::attrs;
    use crate::ops::attrs::setattr::SetAttr;
    use crate::ops::data;
    use crate::ops::data::io::WriteKind;
    use crate::ops::names;
    use crate::pool::Pool;
    use canopy_base::ids::NodeId;
    use canopy_branch::branch;
    use canopy_branch::branch::Branches;
    use canopy_branch::branch::list::{BranchList, BranchSpec};
    use std::fs;

    /// When a move is given up, reopening the file may fail, for example for lack of descriptors.
    #[test]
    fn a_writer_whose_handle_was_not_reopened_reopens_it() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("f"), "content").unwrap();
        let spec = BranchSpec { path: home.path().to_owned(), mode: branch::Mode::Rw, min_free: None };
        let branches = Branches::open(&std::iter::once(spec).collect::<BranchList>()).unwrap();
        let pool = Pool::new(Config { min_free: 0, ..Config::default() }, branches);
        let caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
        let node = names::lookup::lookup(&pool, NodeId::ROOT, b"f").unwrap().node;
        let handle = data::open::open(&pool, &caller, node, OFlags::RDWR.bits(), false).unwrap().handle;
        let revoke = || {
            let reader = fs::File::open(home.path().join("f")).unwrap();
            drop(pool.files.get(handle).unwrap().move_to(Arc::new(reader.into())));
        };
        revoke();
        assert_eq!(data::io::write(&pool, handle, 0, b"C", WriteKind::default()).unwrap(), 1);
        revoke();
        data::io::fallocate(&pool, handle, 0, 0, 8).unwrap();
        revoke();
        let set = SetAttr { size: Some(4), ..SetAttr::default() };
        attrs::setattr::setattr(&pool, &caller, node, Some(handle), &set).unwrap();
        assert_eq!(fs::read(home.path().join("f")).unwrap(), b"Cont");
        // An error with another cause is returned unchanged.
        assert_eq!(data::io::fallocate(&pool, handle, 0, 0, 0).map_err(Error::errno), Err(Errno::INVAL));
        data::open::release(&pool, handle).unwrap();
    }
}
