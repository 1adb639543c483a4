//! What a crash has left under construction: finding it, and finishing or removing it.

use super::dirs::open_dir;
use super::is_reserved;
use super::journal::{self, Plan};
use crate::beneath;
use crate::branch::{Branch, Branches, Mode};
use crate::node::PoolPath;
use crate::ops::locate::split;
use crate::stat::{self, Attr};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

/// Finishes or removes what moves between branches have left behind, by the notes in the branches' roots: a listing
/// of each root, where there is nothing to do. Notes of whoever is still at work are left alone.
pub(crate) fn recover(branches: &Branches) {
    for branch in branches.iter() {
        match journal::left_behind(branch.root()) {
            Ok(notes) => {
                for (note, plan) in notes {
                    // Cut off before it was on disk: what it was to tell of was never begun.
                    if plan.is_none_or(|plan| settle(branches, branch, &plan)) {
                        note.erase();
                    }
                }
            }
            Err(errno) => {
                tracing::warn!("{}: cannot look for what a crash left: {errno}", branch.path.display());
            }
        }
    }
}

/// True when nothing more is to be done.
fn settle(branches: &Branches, target: &Branch, plan: &Plan) -> bool {
    if is_reserved(split(&plan.aside).1) {
        let _ = remove(target, &plan.aside);
    }
    if plan.names.is_empty() {
        return true;
    }
    let is_source = |branch: &&std::sync::Arc<Branch>| branch.path.as_os_str().as_bytes() == plan.source;
    let Some(source) = branches.iter().find(is_source) else {
        // Nobody sees two of them as long as the other branch is not there.
        tracing::info!(
            "{}: a move from {} was cut short; it is finished once that is a branch again",
            target.path.display(),
            String::from_utf8_lossy(&plan.source)
        );
        return false;
    };
    let attr = |branch: &Branch, path: &PoolPath| -> Option<Attr> {
        let (dir, name) = split(path);
        beneath::dir(branch.root(), dir).and_then(|dir| stat::at(dir, name)).ok().filter(Attr::is_regular)
    };
    let found: Vec<_> =
        plan.names.iter().map(|name| (name, attr(source, name), attr(target, name))).collect();
    // The copy takes all of its names before the source loses the first.
    let first = found.first().and_then(|(_, _, copy)| *copy);
    let complete = found
        .iter()
        .all(|(_, _, copy)| copy.zip(first).is_some_and(|(copy, first)| copy.key() == first.key()));
    let mut settled = true;
    for (name, original, copy) in found {
        let (Some(original), Some(copy)) = (original, copy) else { continue };
        let surplus = if complete { source.as_ref() } else { target };
        let alike = (original.size, original.mtime, original.uid, original.gid, original.mode)
            == (copy.size, copy.mtime, copy.uid, copy.gid, copy.mode);
        if !alike {
            tracing::warn!(
                "{}: there are two of it, on {} and {}, that are not alike: one was changed while the pool was \
                 not mounted",
                String::from_utf8_lossy(name),
                source.path.display(),
                target.path.display()
            );
            continue;
        }
        let removed = match surplus.mode {
            Mode::Ro => Err(Errno::ROFS),
            Mode::Rw | Mode::Nc => remove(surplus, name),
        };
        if let Err(errno) = removed {
            let (name, branch) = (String::from_utf8_lossy(name), surplus.path.display());
            tracing::warn!("{name}: its second copy on {branch} could not be removed: {errno}");
            settled = false;
        }
    }
    settled
}

/// Removes a file; on disk when this returns.
fn remove(branch: &Branch, path: &[u8]) -> Result<(), Errno> {
    let (dir, name) = split(path);
    let dir = beneath::open(branch.root(), dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
    rustix::fs::fsync(&dir)
}

/// Removes what a crash left under construction in `dir`, as far as it can: files, symlinks,
/// and directories, one in the other.
pub(crate) fn sweep(dir: BorrowedFd<'_>) {
    let sweep_name = |name: &[u8]| {
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
        Ok::<(), Errno>(())
    };
    while let Ok(Some(name)) = first_name(dir) {
        if !is_reserved(&name) || sweep_name(&name).is_err() {
            return;
        }
    }
}

/// Some entry of a directory.
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
