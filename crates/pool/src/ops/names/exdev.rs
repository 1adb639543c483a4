//! The substitutes for rename and link (`rename-exdev`, `link-exdev`) when they would fail with `EXDEV`, because the
//! file's branch cannot hold the new name.
//!
//! A link becomes a symlink to the file's other name. A renamed file moves, on its branch, to a holding directory in
//! the root of the pool, which is visible to all clients. A symlink to it takes the new name.

use super::lookup::Entry;
use super::rename::{RenameKind, Side, Step, rename_copy, undo};
use super::replay_rename::RenameLog;
use crate::config::{Func, LinkExdev, RenameExdev};
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::door::Caller;
use crate::node::Node;
use crate::ops::aggregate;
use crate::ops::names;
use crate::ops::owed;
use crate::ops::resolve;
use crate::ops::resolve::find_file;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::{PoolPath, join};
use canopy_branch::branch::Branch;
use canopy_branch::fs::reserved::temporary_name;
use canopy_branch::fs::{beneath, stat};
use canopy_branch::journal::Change;
use canopy_branch::relocate::clone_dirs;
use canopy_policy::Choice;
use canopy_sys::creds;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The holding directory. It has the same name as in mergerfs, so that symlinks that mergerfs made still lead to it.
const HOLDING: &[u8] = b".mergerfs_rename_exdev";
/// How many names are tried in the holding directory before the rename fails.
const ATTEMPTS: u32 = 1000;

/// Makes a symlink in place of a hard link. The kernel expects the linked file in the reply to `LINK`, so the entry
/// describes that file, and expires at once so that the next lookup finds the symlink.
pub(crate) fn link_by_symlink<'b>(
    op: &'b Op<'_>,
    caller: &Caller,
    node: &Arc<Node>,
    path: &[u8],
    dirs: &mut MergedDir<'b>,
    new_name: &[u8],
) -> Result<Entry> {
    let how = op.config.link_exdev;
    if how == LinkExdev::Passthrough {
        return Err(Error::CrossBranch);
    }
    let key = node.key().ok_or(Error::NotPermitted)?;
    let leads_to_it = |(dir, name): &(PoolPath, Box<[u8]>)| {
        find_file(resolve::dirs::follow(op), &op.branches, dir, name, key).is_ok_and(|found| found.is_some())
    };
    // A symlink needs a path as its target, so a file without a name fails.
    let (dir, name) = op.nodes.names(node.id).find(leads_to_it).ok_or(Error::CrossBranch)?;
    let old = join(&dir, &name);
    let target = match how {
        LinkExdev::Passthrough => return Err(Error::CrossBranch),
        LinkExdev::RelSymlink => relative(path, &old),
        LinkExdev::AbsPoolSymlink => absolute(op, &old)?,
        LinkExdev::AbsBaseSymlink => {
            let copies = resolve::generations::copies(
                op,
                &MergedDir::open(resolve::dirs::follow(op), &op.branches, &dir),
                &name,
            );
            let branch = &op.branches.as_slice()[resolve::choose::shown(op, Func::Open, &copies)?];
            [branch.path.as_os_str().as_bytes(), b"/", &old].concat()
        }
    };
    let caller = caller.with_ids().ok_or(Error::CrossBranch)?;
    let act = |dir: BorrowedFd<'_>| rustix::fs::symlinkat(target.as_slice(), dir, new_name);
    names::create::make_on_branches(op, &caller, Func::Symlink, path, dirs, new_name, act)?;
    let attr = names::lookup::file_attr(op, node)?;
    op.nodes.hand_out_again(node.id)?;
    Ok(Entry { brief: true, ..Entry::new(node, attr) })
}

/// Moves the source to the holding directory and puts a symlink to it under the new name. Undoes the move if the
/// symlink cannot be made.
///
/// Errors: `EXDEV` if the source cannot be moved, or the error of making the symlink.
pub(crate) fn rename_by_symlink<'b>(
    op: &'b Op<'_>,
    caller: &Caller,
    old: &Side<'b, '_>,
    new: &mut Side<'b, '_>,
    kind: RenameKind,
) -> Result<()> {
    let how = op.config.rename_exdev;
    let source = join(&old.path, old.name);
    // A symlink cannot replace a directory. A file that is renamed out of the holding directory is not moved there
    // again: on EXDEV, mv(1) copies it to its target, as the user wants.
    if how == RenameExdev::Passthrough
        || old.copies.current.is_some()
        || new.copies.iter().any(|(_, attr)| attr.is_dir())
        || is_at_or_below(&source, HOLDING)
        || is_at_or_below(&new.path, &source)
    {
        return Err(Error::CrossBranch);
    }
    let caller = caller.with_ids().ok_or(Error::CrossBranch)?;
    let chosen = resolve::choose::choose_for_action(op, Func::Rename, &old.copies)?;
    for &index in &chosen {
        let branch = &op.branches.as_slice()[index];
        let made = branch.changes(|| make_holding_dir(op, branch, &old.path));
        names::create::path_created(op, branch, &holding_path(&old.path));
        made.map_err(|errno| {
            tracing::warn!("a rename to another branch was refused: cannot set files aside: {errno}");
            Error::CrossBranch
        })?;
    }
    let mut known: SmallVec<[NodeId; 4]> = SmallVec::new();
    let result = move_aside(op, &caller, old, new, kind, &chosen, &mut known);
    // The moved file now keeps the directories' nodes in the table.
    known.iter().rev().for_each(|&id| names::lookup::take_back(op, id));
    result
}

fn move_aside<'b>(
    op: &'b Op<'_>,
    caller: &Caller,
    old: &Side<'b, '_>,
    new: &mut Side<'b, '_>,
    kind: RenameKind,
    chosen: &Choice,
    known: &mut SmallVec<[NodeId; 4]>,
) -> Result<()> {
    let path = holding_path(&old.path);
    let parent = known_dir(op, &path, known).map_err(|_| Error::CrossBranch)?;
    let dirs = MergedDir::open(Symlinks::NEVER, &op.branches, &path);
    // An earlier file of that name must not be replaced, because symlinks lead to it.
    let name = (0..ATTEMPTS)
        .map(|attempt| holding_name(old.name, attempt))
        .find(|name| dirs.copies(name).must_be_absent().is_ok())
        .ok_or(Error::CrossBranch)?;
    let copies = dirs.copies(&name);
    let held = Side { parent, name: &name, path, dirs, copies };
    let full = join(&held.path, &name);
    let target = match op.config.rename_exdev {
        RenameExdev::Passthrough => return Err(Error::CrossBranch),
        RenameExdev::RelSymlink => relative(&new.path, &full),
        RenameExdev::AbsSymlink => absolute(op, &full)?,
    };
    let mut done: SmallVec<[(usize, Step); 4]> = SmallVec::new();
    for &index in chosen {
        match rename_copy(old, &held, index, RenameFlags::NOREPLACE) {
            Ok(()) => {
                resolve::dirs::name_created(op, &held.path, &name, op.branches.as_slice()[index].id);
                done.push((index, Step::Moved));
            }
            Err(errno) => {
                tracing::debug!("a file could not be set aside: {errno}");
                undo(old, &held, &done);
                return Err(Error::CrossBranch);
            }
        }
    }
    owed::note(op, chosen.iter().copied(), || {
        Change::Rename(join(&old.path, old.name), join(&held.path, &name))
    });
    // Updates the table before making the symlink, for requests for the file in between.
    op.nodes.renamed((old.parent, old.name), (parent, &name));
    // The symlink replaces what has the new name, so it must not be on disk before the file that it leads to.
    let synced = match chosen.first() {
        Some(&first) if new.copies.any() => held.sync(first).map_err(Error::from),
        _ => Ok(()),
    };
    let placed = synced.and_then(|()| place_symlink(op, caller, new, kind, &target));
    match placed {
        // After a rename, the kernel assumes that the new name leads to the file.
        Ok(()) => {
            op.kernel.load().forget_name(new.parent, new.name);
            op.kernel.load().forget_name(parent, &name);
        }
        Err(_) => {
            undo(old, &held, &done);
            op.nodes.renamed((parent, &name), (old.parent, old.name));
        }
    }
    placed
}

/// Puts a symlink under a name, replacing what is there: makes it under a temporary name and renames it.
fn place_symlink<'b>(
    op: &'b Op<'_>,
    caller: &Caller,
    new: &mut Side<'b, '_>,
    kind: RenameKind,
    target: &[u8],
) -> Result<()> {
    let chosen =
        resolve::choose::choose_for_create(op, Func::Symlink, &new.dirs, (&new.path, new.name), &[])?;
    let aside = temporary_name();
    let mut results: SmallVec<[aggregate::Outcome; 2]> = SmallVec::new();
    for &index in &chosen {
        results.push(op.branches[index].changes(|| {
            names::create::bring_dir(op, &mut new.dirs, index, &new.path)?;
            let _as_caller = creds::assume(caller.uid, caller.gid, caller.umask)?;
            rustix::fs::symlinkat(target, new.dirs.get(index).ok_or(Errno::NOENT)?, aside.as_slice())
        }));
    }
    aggregate::any_success(&results)?;
    let mut dirs = MergedDir::open(resolve::dirs::follow(op), &op.branches, &new.path);
    dirs.follow = Symlinks::NEVER;
    let copies = dirs.copies(&aside);
    let mut from = Side { parent: new.parent, name: &aside, path: new.path.clone(), dirs, copies };
    let result = names::rename::replace(op, &mut from, new, kind, RenameLog(None), false);
    for &index in &chosen {
        // The temporary name is left if the rename failed, or if func.rename does not choose every copy.
        if let Some(dir) = new.dirs.get(index) {
            let _ = rustix::fs::unlinkat(dir, aside.as_slice(), AtFlags::empty());
            new.dirs.copy_changed(index);
        }
    }
    result
}

/// Makes the holding directory of a branch, and in it a clone of the directory `path`.
///
/// Errors: `EACCES` if a directory there differs from its original in owner, group or mode.
fn make_holding_dir(op: &Op<'_>, branch: &Branch, path: &[u8]) -> Result<(), Errno> {
    let _cloning = resolve::locks::lock_for_clone(op, path, branch.id)?;
    let holding = holding(branch)?;
    if path.is_empty() {
        return Ok(());
    }
    clone_dirs(branch.root(), holding.as_fd(), path, &|_, _| true)?;
    // Any user may create directories in the holding directory. The owner of one with other rights than the
    // original could gain access to the file.
    for end in (0..=path.len()).filter(|&end| path.get(end).is_none_or(|&byte| byte == b'/')) {
        let rights = |root| {
            let attr = stat::of(beneath::dir(root, &path[..end])?.as_fd())?;
            Ok::<_, Errno>((attr.uid, attr.gid, attr.mode))
        };
        if rights(branch.root())? != rights(holding.as_fd())? {
            return Err(Errno::ACCESS);
        }
    }
    Ok(())
}

/// Returns the node of a directory after looking up each part of its path. Adds the nodes to `looked_up`; the
/// caller must forget each once.
fn known_dir(op: &Op<'_>, path: &[u8], looked_up: &mut SmallVec<[NodeId; 4]>) -> Result<NodeId> {
    let (mut at, mut parent) = (PoolPath::new(), NodeId::ROOT);
    for part in path.split(|&byte| byte == b'/') {
        let entry = names::lookup::enter(
            op,
            parent,
            &at,
            &MergedDir::open(Symlinks::NEVER, &op.branches, &at),
            part,
        )?;
        looked_up.push(entry.node);
        // The directory may be new while the kernel caches that the name does not exist.
        op.kernel.load().forget_name(parent, part);
        if !entry.attr.is_dir() {
            return Err(Error::NotDirectory);
        }
        (at, parent) = (join(&at, part), entry.node);
    }
    Ok(parent)
}

/// Returns the absolute path of a path of the pool, below the mountpoint.
fn absolute(op: &Op<'_>, path: &[u8]) -> Result<Vec<u8>> {
    match op.config.mountpoint.as_os_str().as_bytes() {
        b"" => Err(Error::CrossBranch),
        mountpoint => Ok([mountpoint, b"/", path].concat()),
    }
}

/// Opens the holding directory of a branch, making it if need be.
///
/// Errors: `EACCES` if it belongs to another user, who could then remove the files in it.
fn holding(branch: &Branch) -> Result<OwnedFd, Errno> {
    let root = branch.root();
    let open = || beneath::open(root, HOLDING, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW);
    let dir = match open() {
        Err(Errno::NOENT) => {
            creds::as_daemon()?;
            // No other user has access until the sticky bit is set.
            match rustix::fs::mkdirat(root, HOLDING, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            let dir = open()?;
            rustix::fs::chmod(beneath::ProcPath::of(&dir).as_bytes(), Mode::from_raw_mode(0o1777))?;
            dir
        }
        other => other?,
    };
    let owner = stat::of(dir.as_fd())?.uid;
    if owner == rustix::process::geteuid().as_raw() || owner == stat::of(root)?.uid {
        Ok(dir)
    } else {
        Err(Errno::ACCESS)
    }
}

/// Returns the path in the holding directory for files from a directory.
fn holding_path(path: &[u8]) -> PoolPath {
    if path.is_empty() { PoolPath::from_slice(HOLDING) } else { join(HOLDING, path) }
}

/// Returns the name that a file gets in the holding directory, after `attempt` names were found taken.
fn holding_name(name: &[u8], attempt: u32) -> Vec<u8> {
    match attempt {
        0 => name.to_vec(),
        n => [name, b"~", n.to_string().as_bytes()].concat(),
    }
}

fn is_at_or_below(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Returns the target of a relative symlink in the directory `from` to `to`; both are paths of the pool.
fn relative(from: &[u8], to: &[u8]) -> Vec<u8> {
    let parts = |path| <[u8]>::split(path, |&byte| byte == b'/').filter(|part| !part.is_empty());
    let common = parts(from).zip(parts(to)).take_while(|(a, b)| a == b).count();
    // The last part of `to` is the file itself, even if `from` has a directory of that name in its place.
    let common = common.min(parts(to).count().saturating_sub(1));
    let up = std::iter::repeat_n(&b".."[..], parts(from).count() - common);
    up.chain(parts(to).skip(common)).collect::<Vec<_>>().join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_target_leads_from_the_directory_of_the_symlink_to_the_file() {
        for (from, to, target) in [
            ("x", "a/b", "../a/b"),
            ("", "a/b", "a/b"),
            ("x", ".mergerfs_rename_exdev/a/b", "../.mergerfs_rename_exdev/a/b"),
            ("", ".mergerfs_rename_exdev/b", ".mergerfs_rename_exdev/b"),
            ("x/y/z", "a", "../../../a"),
            ("a", "a/b", "b"),
            ("a/c", "a/b/f", "../b/f"),
            ("a/b", "a/b", "../b"),
            ("ab", "a/b", "../a/b"),
        ] {
            let found = relative(from.as_bytes(), to.as_bytes());
            assert_eq!(String::from_utf8_lossy(&found), target, "{from} -> {to}");
        }
    }

    #[test]
    fn is_at_or_below_compares_whole_path_components() {
        for (path, top, below) in
            [("a/b", "a", true), ("a", "a", true), ("ab", "a", false), ("a", "a/b", false), ("", "a", false)]
        {
            assert_eq!(is_at_or_below(path.as_bytes(), top.as_bytes()), below, "{path} {top}");
        }
    }
}
