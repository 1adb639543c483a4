//! What administrators ask of the caches: `canopy cache`.

use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::node::read_cache::{Asked, CachedFile, Spool, Waiting};
use crate::ops::resolve;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::path::split;
use canopy_branch::cached::{FileId, Version};
use canopy_branch::fs::stat;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;

/// How far a file is that is to have a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddState {
    Cached { size: u64 },
    Waits { size: u64 },
    Copying { done: u64, size: u64 },
    Refused(Refusal),
}

/// Why a file gets no copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No cache is for its path.
    NoCache,
    /// It is none, or is empty.
    NoFile,
    Failed(Errno),
}

/// Returns all copies. Asks no disk.
pub fn list(pool: &Pool) -> Vec<CachedFile> {
    pool.read_cache.list()
}

/// Removes the copies of these paths, or all. Returns how many, and the bytes that they took.
pub fn drop_copies(pool: &Pool, goes: impl Fn(&[u8]) -> bool) -> (u64, u64) {
    let (mut files, mut all) = (0, 0);
    for (id, store, version, bytes) in pool.read_cache.take_paths(goes) {
        match store.remove(&id, &version) {
            Ok(()) => (files, all) = (files + 1, all + bytes),
            Err(errno) => {
                tracing::warn!("a cached copy cannot be removed: {errno}");
                pool.read_cache.give_back(id, store, version, bytes);
            }
        }
    }
    (files, all)
}

/// Has the file with this path copied, unless it has a copy. To be asked again until it has one, or is refused.
pub fn add(pool: &Pool, path: &[u8]) -> AddState {
    match ask(pool, path) {
        Ok(state) => state,
        Err(error) => AddState::Refused(Refusal::Failed(error.errno())),
    }
}

fn ask(pool: &Pool, path: &[u8]) -> Result<AddState> {
    let op = &Op::begin(pool);
    let Some(rule) = op.config.read_cache.rule(path) else {
        return Ok(AddState::Refused(Refusal::NoCache));
    };
    let (dir, last) = split(path);
    let dirs = MergedDir::open(Symlinks::NEVER, &op.branches, dir);
    let copies = resolve::generations::copies(op, &dirs, last);
    if !copies.any() {
        return Err(copies.missing());
    }
    let index = resolve::choose::shown(op, Func::Open, &copies)?;
    let branch = &op.branches.as_slice()[index];
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if !copies.get(index).is_some_and(stat::Attr::is_regular) {
        return Ok(AddState::Refused(Refusal::NoFile));
    }
    let parent = dirs.get(index).ok_or(Error::Absent)?;
    let fd = branch.reads(|| rustix::fs::openat(parent, last, flags, Mode::empty()))?;
    let attr = branch.reads(|| stat::of(rustix::fd::AsFd::as_fd(&fd)))?;
    if !attr.is_regular() || attr.size == 0 || attr.dev != branch.dev {
        return Ok(AddState::Refused(Refusal::NoFile));
    }
    let (id, version, size) = (FileId::of(branch.seed.number(), &attr), Version::of(&attr), attr.size);
    let waiting = || {
        // It is asked for again.
        op.read_cache.is_at_rest(&version).then(|| Waiting {
            id,
            version,
            branch: Arc::clone(branch),
            fd,
            dirs: rule.dirs.clone(),
            path: path.into(),
            asked: true,
            spool: Arc::new(Spool::default()),
        })
    };
    Ok(match op.read_cache.ask(&id, &version, waiting) {
        Asked::Whole => AddState::Cached { size },
        // It has changed since it was asked for.
        Asked::Waits | Asked::Failed(Errno::AGAIN) => AddState::Waits { size },
        Asked::Copying(done) => AddState::Copying { done: done.min(size), size },
        Asked::Failed(errno) => AddState::Refused(Refusal::Failed(errno)),
    })
}
