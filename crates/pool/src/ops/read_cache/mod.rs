//! Reading files from copies on a fast disk.
//!
//! A handle always has the original open; beside that, an open file may have a copy, from which the daemon reads while the copy
//! is known to be right. So it can go at any moment: when somebody opens the file for writing, truncates it, or changes it on its
//! branch. Names, attributes and locks are those of the original. Whoever uses the copy has looked at the original's times since
//! the last writer closed it.

mod asked;
mod follow;
mod tend;

pub use asked::{AddState, Refusal, add, drop_copies, list};
pub(crate) use follow::{following, renamed};
pub use tend::{is_due, tend};

use crate::node::Node;
use crate::node::read_cache::{CacheFigures, CopyData, OpenCopy, Spool, Waiting, Worth};
use crate::pool::{Op, Pool};
use canopy_branch::branch::Branch;
use canopy_branch::cached::{FileId, Store, Version};
use canopy_branch::fs::stat::{self, Attr};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// Files of this size on are read from their copies while these are being made, if a cache says so. Smaller ones have been copied
/// before their reader has come far.
const SPOOLED_FROM: u64 = 64 << 20;

/// Notes that a file is opened for reading. Returns its copy, if there is one and it is right now, or one is about to be made that
/// the file can be read from meanwhile.
pub(crate) fn consult(
    op: &Op<'_>,
    node: &Node,
    branch: &Arc<Branch>,
    fd: &Arc<OwnedFd>,
    attr: &Attr,
) -> Option<OpenCopy> {
    let rules = &op.config.read_cache;
    if rules.is_empty() || attr.size == 0 || attr.dev != branch.dev || !attr.is_regular() {
        return None;
    }
    // A store through a mapping that is left of a writer changes the file, and nobody tells.
    if node.mapped.load(Ordering::Relaxed) {
        return None;
    }
    let path = op.nodes.locate(node.id).ok()?.1?;
    let rule = rules.rule(&path)?;
    let (id, version) = (FileId::of(branch.seed.number(), attr), Version::of(attr));
    let now = seconds_now();
    let (home, wanted) = op.read_cache.read(id, &version, &path, now, |reads| reads.suffice(rule.when, now));
    let copy = home.and_then(|home| match home.store.get(&id, &version) {
        Ok(fd) => Some(OpenCopy { data: CopyData::Whole(Arc::new(fd)), version, counts: home.counts }),
        Err(errno) => {
            if errno == Errno::NOENT {
                op.read_cache.take(&id);
            }
            None
        }
    });
    if let Some(copy) = copy {
        copy.counts.opened(true, attr.size);
        // Elsewhere the server is asked, whatever is in memory here.
        if !branch.is_remote() {
            op.read_cache.keep_original(&id, fd.as_fd(), now);
        }
        return Some(copy);
    }
    let counts = op.read_cache.counts(&rule.dirs);
    if let Some(counts) = &counts {
        counts.opened(false, attr.size);
    }
    if !wanted {
        return None;
    }
    // Not the descriptor itself: a move of the file waits for its users.
    let fd = rustix::io::fcntl_dupfd_cloexec(&**fd, 0).ok()?;
    let (branch, dirs, spool) = (Arc::clone(branch), rule.dirs.clone(), Arc::new(Spool::default()));
    let file = Waiting { id, version, branch, fd, dirs, path: (*path).into(), asked: false, spool };
    let spool = op.read_cache.wait(file)?;
    let spools = rule.spool && attr.size >= SPOOLED_FROM && op.read_cache.is_at_rest(&version);
    let counts = counts.filter(|_| spools)?;
    Some(OpenCopy { data: CopyData::Growing(spool), version, counts })
}

/// Changes for how long a file must have rested that gets a copy, for tests.
pub fn set_rests(pool: &Pool, long: Duration) {
    pool.read_cache.set_rests(long);
}

/// Notes that a file on a branch is gone.
pub(crate) fn gone(op: &Op<'_>, branch: &Branch, fd: &impl AsFd) {
    if !op.config.read_cache.is_empty()
        && let Ok(attr) = stat::of(fd.as_fd())
    {
        op.read_cache.gone(FileId::of(branch.seed.number(), &attr));
    }
}

/// Closes what is kept of a file on a branch, because it is about to leave that, or has gone where it may be removed at any time.
pub(crate) fn leaves(op: &Op<'_>, branch: &Branch, attr: impl FnOnce() -> Option<Attr>) {
    if !op.config.read_cache.is_empty()
        && let Some(attr) = attr()
    {
        op.read_cache.give_up_original(&FileId::of(branch.seed.number(), &attr));
    }
}

/// Returns how many bytes the copies on the filesystem of a branch take.
pub(crate) fn bytes_on(op: &Op<'_>, branch: &Branch) -> u64 {
    if op.config.read_cache.is_empty() { 0 } else { op.read_cache.bytes(|store| store.dev == branch.dev) }
}

/// Removes copies from the filesystem of a branch, until so many bytes are available there or none is left. Returns whether any
/// went.
pub(crate) fn make_room(op: &Op<'_>, branch: &Branch, wanted: u64) -> bool {
    if op.config.read_cache.is_empty() || !op.read_cache.has_homes_on(branch.dev) {
        return false;
    }
    let mut any = false;
    // One that is open gives its room back when it is closed.
    loop {
        let available = op
            .read_cache
            .homes()
            .iter()
            .find(|home| home.store.dev == branch.dev)
            .map(|home| home.store.space());
        let Some(Ok((_, available))) = available else { return any };
        if available >= wanted || !drop_worst(op, |store| store.dev == branch.dev, wanted - available, None) {
            return any;
        }
        any = true;
    }
}

/// Removes the copies that are worth least, of so many bytes. Returns whether any went.
fn drop_worst(op: &Op<'_>, of: impl Fn(&Store) -> bool, bytes: u64, keep: Option<Worth>) -> bool {
    let mut any = false;
    for (id, store, version, bytes) in op.read_cache.take_worst(of, bytes, seconds_now(), keep) {
        match store.remove(&id, &version) {
            Ok(()) => any = true,
            Err(errno) => {
                tracing::debug!("a cached copy cannot be removed: {errno}");
                op.read_cache.give_back(id, store, version, bytes);
            }
        }
    }
    any
}

/// Returns what the directories of the caches hold, and what came of them. Asks no disk.
pub fn figures(pool: &Pool) -> Vec<CacheFigures> {
    pool.read_cache.figures()
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}
