//! Recovery after a crash: finishing or removing what was under construction.

use super::clone_dirs::open_dir;
use super::file::is_same;
use super::journal::{self, Original, Plan, names_with_prefix};
use super::lease::{LeasedFile, readable};
use crate::branch::list::Mode;
use crate::branch::{Branch, Branches};
use crate::fs::reserved::is_reserved;
use crate::fs::stat::{self, Attr};
use crate::fs::{beneath, generation};
use crate::path::{PoolPath, split};
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

/// Finishes or undoes interrupted moves between branches, according to the journal entries in the branches' roots.
/// Costs a listing of each root where there is nothing to do. Leaves entries of living writers alone.
///
/// For branches that no pool of this process uses yet. To be called before the pool is mounted: a root may keep it waiting.
pub fn recover(branches: &Branches) {
    for branch in branches.iter() {
        match journal::leftovers(branch.root()) {
            Ok(entries) => {
                for (entry, plan) in entries {
                    // An entry that was cut off was not on disk yet, so its work had not begun.
                    if plan.is_none_or(|plan| finish(branches, branch, &plan, &entry.writer())) {
                        entry.erase();
                    }
                }
            }
            Err(Errno::TIMEDOUT) => tracing::warn!(
                "branch {}: its root does not answer, or lists without end: interrupted moves on it are not completed",
                branch.path.display()
            ),
            Err(errno) => {
                tracing::warn!("{}: cannot look for leftovers of a crash: {errno}", branch.path.shown());
            }
        }
    }
}

/// Returns true if nothing is left to do. The names of what the entry's writer had under construction begin with
/// `writer`.
fn finish(branches: &Branches, target: &Branch, plan: &Plan, writer: &[u8]) -> bool {
    for name in &plan.names {
        remove_under_construction(target, split(name).0, writer);
    }
    if plan.names.is_empty() {
        // A file without a name was copied to the root.
        remove_under_construction(target, b"", writer);
    }
    if plan.source.is_empty() || plan.names.is_empty() {
        return true;
    }
    let attr = |branch: &Branch, path: &PoolPath| -> Option<Attr> {
        let (dir, name) = split(path);
        beneath::dir(branch.root(), dir).and_then(|dir| stat::at(dir, name)).ok().filter(Attr::is_regular)
    };
    let copies: Vec<Option<Attr>> = plan.names.iter().map(|name| attr(target, name)).collect();
    let first = copies[0];
    // The copy gets all of its names before the source loses the first.
    let complete =
        copies.iter().all(|copy| copy.zip(first).is_some_and(|(copy, first)| copy.key() == first.key()));
    if complete && plan.original == Original::Stays {
        return true;
    }
    let is_source = |branch: &&std::sync::Arc<Branch>| branch.path.as_os_str().as_bytes() == plan.source;
    let Some(source) = branches.iter().find(is_source) else {
        // While the other branch is missing, clients see only one of the two files.
        tracing::info!(
            "{}: a move from {} was interrupted; the next mount with that branch will finish it",
            target.path.shown(),
            plan.source.shown()
        );
        return false;
    };
    let surplus = if complete { source.as_ref() } else { target };
    let mut finished = true;
    for (name, copy) in plan.names.iter().zip(copies) {
        let (Some(original), Some(copy)) = (attr(source, name), copy) else { continue };
        let removed = || {
            if surplus.mode == Mode::Ro {
                return Err(Errno::ROFS);
            }
            // A process that writes the file would go on writing one that no longer has a name.
            let pinned = beneath::open(surplus.root(), name, OFlags::PATH | OFlags::NOFOLLOW)?;
            if plan.original == Original::Stays && is_older(pinned.as_fd(), source, name)? {
                // The old copy whose place it was to take.
                return Ok(());
            }
            let leased = LeasedFile::hold(readable(pinned)?)?;
            let (own, other) = if complete { (original, copy) } else { (copy, original) };
            let now = stat::of(leased.as_fd())?;
            if now.key() == own.key() && is_same(&now, &other) {
                return leased.check().and_then(|()| remove(surplus, name));
            }
            tracing::warn!(
                "{}: the copies on {} and {} differ: one was changed while the pool was not \
                                 mounted",
                name.shown(),
                source.path.shown(),
                target.path.shown()
            );
            Ok(())
        };
        if let Err(errno) = removed() {
            let (name, branch) = (name.shown(), surplus.path.shown());
            tracing::warn!("{name}: its second copy on {branch} cannot be removed: {errno}");
            finished = false;
        }
    }
    finished
}

/// Returns whether a copy is known to be older than what the source has under this name.
fn is_older(copy: BorrowedFd<'_>, source: &Branch, name: &[u8]) -> Result<bool, Errno> {
    let original = beneath::open(source.root(), name, OFlags::PATH | OFlags::NOFOLLOW)?;
    let numbers = generation::read(copy)?.zip(generation::read(original.as_fd())?);
    Ok(numbers.is_some_and(|(copy, original)| copy.number < original.number))
}

/// Removes what a writer had under construction in a directory and in its parents, as far as it can: copies of files,
/// and chains of directories.
fn remove_under_construction(branch: &Branch, path: &[u8], writer: &[u8]) {
    let levels = (0..=path.len()).filter(|&end| end == 0 || path.get(end).is_none_or(|&byte| byte == b'/'));
    for level in levels {
        let Ok(dir) = beneath::dir(branch.root(), &path[..level]) else { return };
        let Ok(names) = names_with_prefix(dir.as_fd(), writer) else { return };
        for name in names {
            let _ = remove_leftover(dir.as_fd(), &name);
        }
    }
}

/// Removes a file. The removal is on disk when this returns.
fn remove(branch: &Branch, path: &[u8]) -> Result<(), Errno> {
    let (dir, name) = split(path);
    let dir = beneath::open(branch.root(), dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
    rustix::fs::fsync(&dir)
}

/// Removes one thing under construction: a file, a symlink, or a chain of directories.
fn remove_leftover(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    if !stat::at(dir, name)?.is_dir() {
        return rustix::fs::unlinkat(dir, name, AtFlags::empty());
    }
    let mut chain = vec![open_dir(dir, name)?];
    let mut names = vec![name.to_vec()];
    while let Some(below) = first_name(chain[chain.len() - 1].as_fd())? {
        chain.push(open_dir(chain[chain.len() - 1].as_fd(), &below)?);
        names.push(below);
    }
    for depth in (0..names.len()).rev() {
        let parent = depth.checked_sub(1).map_or(dir, |above| chain[above].as_fd());
        rustix::fs::unlinkat(parent, names[depth].as_slice(), AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes leftovers of a crash from `dir`, as far as it can; stops at anything else.
pub(crate) fn remove_leftovers(dir: BorrowedFd<'_>) {
    while let Ok(Some(name)) = first_name(dir) {
        if !is_reserved(&name) || remove_leftover(dir, &name).is_err() {
            return;
        }
    }
}

/// Returns some entry of a directory.
fn first_name(dir: BorrowedFd<'_>) -> Result<Option<Vec<u8>>, Errno> {
    let dir = beneath::open(dir, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry?.file_name().to_bytes() {
            b"." | b".." => {}
            name => return Ok(Some(name.to_vec())),
        }
    }
    Ok(None)
}
