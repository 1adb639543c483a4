//! The room that the trash and cached copies take, and give back: it counts as free, and goes before anything fails or moves for lack of room.

use crate::node::{Node, Orphan};
use crate::ops::read_cache;
use crate::pool::{Op, Pool};
use canopy_branch::branch::Branch;
use canopy_branch::branch::space::Space;
use canopy_branch::fs::stat;
use canopy_branch::trash::holds;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So much of a disk is made free at once, one in so many parts, so that not each write makes room anew.
const SHARE: u64 = 64;
/// But no more than so many bytes.
const MOST: u64 = 1 << 30;

/// Returns how many bytes a branch gets back for whoever needs them. The trash gives none without a rule, which leaves alone what is there.
pub(crate) fn bytes_that_go(op: &Op<'_>, branch: &Branch) -> u64 {
    let trash = if op.config.trash.is_empty() { 0 } else { op.trash.bytes(branch.id) };
    trash + read_cache::bytes_on(op, branch)
}

/// Returns the space of a branch as policies count it. Where the trash alone keeps it below its minfreespace, that goes soon.
pub(crate) fn counted(op: &Op<'_>, branch: &Branch, min_free: u64, space: Space) -> Space {
    let bytes = bytes_that_go(op, branch);
    if bytes == 0 {
        return space;
    }
    if !op.config.trash.is_empty() && (space.avail < min_free || space.inodes == Some(0)) {
        op.trash.wants_room(branch.id, min_free);
    }
    Space {
        avail: space.avail.saturating_add(bytes),
        used: space.used.saturating_sub(bytes),
        inodes: space.inodes.map(|inodes| inodes.max(1)),
        ..space
    }
}

/// Removes old trash of a branch that is full, for so many bytes more. Returns whether any went.
pub(crate) fn gives_way(op: &Op<'_>, branch: &Branch, errno: Errno, wanted: u64) -> bool {
    let bytes = bytes_that_go(op, branch);
    if errno != Errno::NOSPC || bytes == 0 {
        return false;
    }
    let Ok(space) = branch.reads(|| Space::of(branch.root())) else { return false };
    // What does not fit without any trash costs none.
    if wanted > space.avail.saturating_add(bytes) {
        return false;
    }
    let more = wanted.saturating_add((space.size() / SHARE).min(MOST));
    let gone = make_room(op, branch, space.avail.saturating_add(more));
    if gone {
        op.space.clear();
    }
    gone
}

/// Makes so many bytes available on a branch: cached copies go first, as nobody misses them.
fn make_room(op: &Op<'_>, branch: &Branch, wanted: u64) -> bool {
    let copies = read_cache::make_room(op, branch, wanted);
    copies | (!op.config.trash.is_empty() && op.trash.make_room(branch, wanted).unwrap_or(false))
}

/// As `gives_way`, on the branch of a file.
pub(crate) fn gives_way_to(op: &Op<'_>, node: &Node, errno: Errno, wanted: u64) -> bool {
    let opened = node.opened().map(|open| Arc::clone(&open.location().branch));
    let known =
        || op.branches.iter().find(|branch| node.key().is_some_and(|key| key.dev == branch.dev)).cloned();
    opened.or_else(known).is_some_and(|branch| gives_way(op, &branch, errno, wanted))
}

/// Runs an operation on a branch, again after old trash has made room if it fails for lack of that.
pub(crate) fn making_way<T>(
    op: &Op<'_>,
    branch: &Branch,
    mut operation: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match operation() {
        Err(errno) if gives_way(op, branch, errno, 0) => operation(),
        other => other,
    }
}

/// Makes so many bytes available on a branch, as far as old trash can.
pub(crate) fn clear(op: &Op<'_>, branch: &Branch, wanted: u64) {
    if bytes_that_go(op, branch) > 0 && make_room(op, branch, wanted) {
        op.space.clear();
    }
}

/// Recognizes an open file that the process before this one has put into the trash: no name leads to it, and nothing of what that
/// process knew says why.
pub(crate) fn recognize(op: &Op<'_>, node: &Node) {
    let may_be = !op.config.trash.is_empty()
        && op.succeeds.load(Ordering::Relaxed)
        && !node.is_dir()
        && node.orphan().is_none()
        && op.nodes.names(node.id).next().is_none();
    if !may_be {
        return;
    }
    let Some(location) = node.opened().map(|open| open.location()) else { return };
    let branch = Arc::clone(&location.branch);
    let found = branch.reads(|| {
        let attr = stat::of(location.fd.as_fd())?;
        if holds(&branch, location.fd.as_fd(), &attr)? {
            return Ok(Some(rustix::io::fcntl_dupfd_cloexec(&location.fd, 0)?));
        }
        Ok::<_, Errno>(None)
    });
    if let Ok(Some(fd)) = found {
        node.set_orphan(Arc::new(Orphan { branch, fd, kept: true }));
    }
}

/// Has the trash looked through soon: others have taken something out of it.
pub fn recount(pool: &Pool) {
    pool.trash.recount();
}

/// Returns how many bytes a branch gets back when its trash goes, as far as that is known.
pub fn bytes(pool: &Pool, branch: &Branch) -> u64 {
    pool.trash.bytes(branch.id)
}

/// Returns why the trash of a branch cannot be used, if a rule wants it.
pub fn unusable(pool: &Pool, branch: &Branch) -> Option<Errno> {
    pool.trash.unusable(branch.id).filter(|_| !pool.config().trash.is_empty())
}

/// Returns the branches of which the trash is to be looked at: because time has passed, or because room is short. Closes what is
/// open of it and not in use. Asks no disk. Comes about once a second.
pub fn due(pool: &Pool) -> Vec<Arc<Branch>> {
    pool.trash.close_idle();
    if pool.config().trash.is_empty() {
        return Vec::new();
    }
    let all = pool.all_branches();
    pool.trash.retain(|id| all.by_id(id).is_some());
    let is_due = |branch: &&Arc<Branch>| {
        pool.trash.is_due(branch.id) || pool.headroom.is_pressed(branch.id) && pool.trash.bytes(branch.id) > 0
    };
    all.iter().filter(|branch| !branch.is_silent()).filter(is_due).cloned().collect()
}

/// Removes from the trash of a branch what has been there for as long as it is kept, and what others need the room of. `now` in
/// seconds since 1970. Waits for the branch.
pub fn tend(pool: &Pool, branch: &Branch, now: i64) {
    let config = pool.config();
    let keep = |path: &[u8]| config.trash.keep(path).and_then(|keep| i64::try_from(keep.as_secs()).ok());
    if pool.trash.takes_turn(branch.id)
        && let Err(errno) = pool.trash.age(branch, now, keep)
    {
        tracing::warn!("{:?}: the trash cannot be looked through: {errno}", branch.path);
    }
    let pressed = if pool.headroom.is_pressed(branch.id) { pool.headroom.relief() } else { 0 };
    let wanted = pool.trash.wanted(branch.id).max(pressed);
    if wanted > 0 && pool.trash.make_room(branch, wanted).unwrap_or(false) {
        pool.space.clear();
    }
}
