//! Copies stay right when the pool itself changes anything of a file but its data.

use crate::pool::Op;
use canopy_branch::branch::Branch;
use canopy_branch::cached::{FileId, Store, Version};
use canopy_branch::fs::stat::{self, Attr};
use canopy_branch::relocate::lease::LeasedFile;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// A file whose copy is right, and that nobody writes.
struct Followed {
    source: LeasedFile,
    id: FileId,
    before: Version,
    store: Arc<Store>,
}

/// Runs a change of anything of a file but its data and size; `attr` is what the file was some time ago, and `open` opens it for reading. If its copy is right, it is
/// right afterwards.
pub(crate) fn following<T>(
    op: &Op<'_>,
    branch: &Branch,
    attr: Option<&Attr>,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
    change: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let followed = attr.and_then(|attr| follow(op, branch, attr, open));
    let done = change()?;
    if let Some(followed) = followed {
        restamp(op, &followed);
    }
    Ok(done)
}

fn follow(
    op: &Op<'_>,
    branch: &Branch,
    attr: &Attr,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
) -> Option<Followed> {
    if op.config.read_cache.is_empty() || !attr.is_regular() {
        return None;
    }
    let id = FileId::of(branch.seed.number(), attr);
    let (store, before) = op.read_cache.copy_of(&id)?;
    // Nobody begins to write the file as long as it is leased, and nobody does now.
    let source = LeasedFile::hold_now(open().ok()?).ok()?;
    let now = stat::of(source.as_fd()).ok()?;
    (FileId::of(id.branch, &now) == id && Version::of(&now) == before).then_some(Followed {
        source,
        id,
        before,
        store,
    })
}

fn restamp(op: &Op<'_>, followed: &Followed) {
    let Followed { source, id, before, store } = followed;
    let Ok(now) = stat::of(source.as_fd()).map(|attr| Version::of(&attr)) else { return };
    // A writer right after might leave a time of now as it is.
    let times_tell =
        now.mtime == before.mtime || op.read_cache.is_at_rest(&Version { ctime: before.ctime, ..now });
    if now == *before || now.size != before.size || !times_tell || source.check().is_err() {
        return;
    }
    // It may be about to go, under the name that it had.
    if store.restamp(id, before, &now).is_ok() && !op.read_cache.restamped(id, before, now) {
        let _ = store.remove(id, &now);
    }
}

/// Notes that a path of the pool has become another one.
pub(crate) fn renamed(op: &Op<'_>, from: &[u8], to: &[u8]) {
    if !op.config.read_cache.is_empty() {
        op.read_cache.renamed(from, to);
    }
}
