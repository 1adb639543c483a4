//! Rename and link where the branch of the file cannot hold the new name (`EXDEV`): what stands in for it.
//!
//! A link becomes a symlink to the file's other name. A renamed file is set aside, on its branch, in a holding
//! directory in the root of the pool that everybody sees, and a symlink to it takes the new name.

use super::lookup::Entry;
use super::rename::{RenameKind, Side, Step, shift, take_back};
use crate::branch::{Branch, Branches};
use crate::config::{Func, LinkExdev, RenameExdev};
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::error::{Error, Result};
use crate::fs::reserved::temporary_name;
use crate::fs::{beneath, stat};
use crate::ids::{Caller, NodeId};
use crate::node::Node;
use crate::ops::aggregate;
use crate::ops::resolve::find_file;
use crate::path::{PoolPath, join};
use crate::policy::Choice;
use crate::pool::Pool;
use crate::relocate::clone_dirs;
use canopy_sys::creds;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Where renamed files are set aside. The name is that of mergerfs: symlinks that it has made lead here.
const HOLDING: &[u8] = b".mergerfs_rename_exdev";
/// Names tried for a file that is set aside, before the rename is refused after all.
const ATTEMPTS: u32 = 1000;

impl Pool {
    /// Makes a symlink where a hard link cannot be. The kernel wants to hear of the file itself, so that is
    /// what the answer tells; the name is to be looked up again at once.
    pub(crate) fn link_by_symlink<'b>(
        &self,
        caller: &Caller,
        branches: &'b Branches,
        node: &Arc<Node>,
        path: &[u8],
        dirs: &mut MergedDir<'b>,
        new_name: &[u8],
    ) -> Result<Entry> {
        let how = self.config().link_exdev;
        if how == LinkExdev::Passthrough {
            return Err(Error::CrossBranch);
        }
        let key = node.key().ok_or(Error::NotPermitted)?;
        let leads_to_it = |(dir, name): &(PoolPath, Box<[u8]>)| {
            find_file(self.follow(), branches, dir, name, key).is_ok_and(|found| found.is_some())
        };
        // A file without a name has nothing that a symlink could say.
        let (dir, name) = self.nodes.names(node.id).find(leads_to_it).ok_or(Error::CrossBranch)?;
        let old = join(&dir, &name);
        let target = match how {
            LinkExdev::Passthrough => return Err(Error::CrossBranch),
            LinkExdev::RelSymlink => relative(path, &old),
            LinkExdev::AbsPoolSymlink => self.absolute(&old)?,
            LinkExdev::AbsBaseSymlink => {
                let copies = MergedDir::open(self.follow(), branches, &dir).copies(&name);
                let branch = &branches.as_slice()[self.shown(Func::Open, branches, &copies)?];
                [branch.path.as_os_str().as_bytes(), b"/", &old].concat()
            }
        };
        let caller = caller.with_ids().ok_or(Error::CrossBranch)?;
        let act = |dir: BorrowedFd<'_>| rustix::fs::symlinkat(target.as_slice(), dir, new_name);
        self.make_on_branches(&caller, Func::Symlink, branches, path, dirs, new_name, act)?;
        let attr = self.file_attr(branches, node)?;
        self.nodes.hand_out_again(node.id)?;
        Ok(Entry { brief: true, ..Entry::new(node, attr) })
    }

    /// Sets the source aside and puts a symlink to it under the new name. When that fails everything is where
    /// it was.
    ///
    /// Errors: `EXDEV` when the source cannot be set aside, or what making the symlink failed with.
    pub(crate) fn rename_by_symlink<'b>(
        &self,
        caller: &Caller,
        branches: &'b Branches,
        old: &Side<'b, '_>,
        new: &mut Side<'b, '_>,
        kind: RenameKind,
    ) -> Result<()> {
        let how = self.config().rename_exdev;
        let source = join(&old.path, old.name);
        // A symlink cannot take the place of a directory, and what has been set aside once is not set aside
        // again: mv(1) then copies, which is what its user wants of it.
        if how == RenameExdev::Passthrough
            || new.copies.iter().any(|(_, attr)| attr.is_dir())
            || is_at_or_below(&source, HOLDING)
            || is_at_or_below(&new.path, &source)
        {
            return Err(Error::CrossBranch);
        }
        let caller = caller.with_ids().ok_or(Error::CrossBranch)?;
        let chosen = self.choose_for_action(Func::Rename, branches, &old.copies)?;
        for &index in &chosen {
            let branch = &branches.as_slice()[index];
            let made = self.make_room_for_link(branch, &old.path);
            self.path_created(branch, &aside_of(&old.path));
            made.map_err(|errno| {
                tracing::warn!("a rename to another branch was refused: cannot set files aside: {errno}");
                Error::CrossBranch
            })?;
        }
        let mut known: SmallVec<[NodeId; 4]> = SmallVec::new();
        let result = self.move_aside(&caller, branches, old, new, kind, &chosen, &mut known);
        // Held by what lies in them now.
        known.iter().rev().for_each(|&id| self.forget(id, 1));
        result
    }

    #[allow(clippy::too_many_arguments)]
    fn move_aside<'b>(
        &self,
        caller: &Caller,
        branches: &'b Branches,
        old: &Side<'b, '_>,
        new: &mut Side<'b, '_>,
        kind: RenameKind,
        chosen: &Choice,
        known: &mut SmallVec<[NodeId; 4]>,
    ) -> Result<()> {
        let path = aside_of(&old.path);
        let parent = self.known_dir(branches, &path, known).map_err(|_| Error::CrossBranch)?;
        let dirs = MergedDir::open(Symlinks::NEVER, branches, &path);
        // An earlier file of that name must not be lost: symlinks lead to it.
        let name = (0..ATTEMPTS)
            .map(|attempt| name_held(old.name, attempt))
            .find(|name| dirs.copies(name).must_be_absent().is_ok())
            .ok_or(Error::CrossBranch)?;
        let copies = dirs.copies(&name);
        let held = Side { parent, name: &name, path, dirs, copies };
        let full = join(&held.path, &name);
        let target = match self.config().rename_exdev {
            RenameExdev::Passthrough => return Err(Error::CrossBranch),
            RenameExdev::RelSymlink => relative(&new.path, &full),
            RenameExdev::AbsSymlink => self.absolute(&full)?,
        };
        let mut done: SmallVec<[(usize, Step); 4]> = SmallVec::new();
        for &index in chosen {
            match shift(old, &held, index, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.name_created(&held.path, &name, branches.as_slice()[index].id);
                    done.push((index, Step::Moved));
                }
                Err(errno) => {
                    tracing::debug!("a file could not be set aside: {errno}");
                    take_back(old, &held, &done);
                    return Err(Error::CrossBranch);
                }
            }
        }
        // At once, for whoever asks about the file meanwhile.
        self.nodes.renamed((old.parent, old.name), (parent, &name));
        let put = self.place_symlink(caller, branches, new, kind, &target);
        match put {
            // The kernel thinks that the file itself is there now.
            Ok(()) => {
                self.kernel.load().forget_name(new.parent, new.name);
                self.kernel.load().forget_name(parent, &name);
            }
            Err(_) => {
                take_back(old, &held, &done);
                self.nodes.renamed((parent, &name), (old.parent, old.name));
            }
        }
        put
    }

    /// Puts a symlink under a name, over whatever is there: made aside, and renamed.
    fn place_symlink<'b>(
        &self,
        caller: &Caller,
        branches: &'b Branches,
        new: &mut Side<'b, '_>,
        kind: RenameKind,
        target: &[u8],
    ) -> Result<()> {
        let chosen = self.choose_for_create(Func::Symlink, &new.dirs, &new.path, &[])?;
        let aside = temporary_name();
        let mut results: SmallVec<[aggregate::Outcome; 2]> = SmallVec::new();
        for &index in &chosen {
            results.push(self.bring_dir(branches, &mut new.dirs, index, &new.path).and_then(|()| {
                let _as_caller = creds::assume(caller.uid, caller.gid, caller.umask)?;
                rustix::fs::symlinkat(target, new.dirs.get(index).ok_or(Errno::NOENT)?, aside.as_slice())
            }));
        }
        aggregate::any_success(&results)?;
        let mut dirs = MergedDir::open(self.follow(), branches, &new.path);
        dirs.follow = Symlinks::NEVER;
        let copies = dirs.copies(&aside);
        let mut from = Side { parent: new.parent, name: &aside, path: new.path.clone(), dirs, copies };
        let result = self.replace(branches, &mut from, new, kind);
        for &index in &chosen {
            // Still there if it failed, or if func.rename does not choose every copy.
            if let Some(dir) = new.dirs.get(index) {
                let _ = rustix::fs::unlinkat(dir, aside.as_slice(), AtFlags::empty());
            }
        }
        result
    }

    /// The holding directory of a branch, and the directory `path` in it.
    fn make_room_for_link(&self, branch: &Branch, path: &[u8]) -> Result<(), Errno> {
        let _cloning = self.lock_for_clone(path, branch.id)?;
        let holding = holding(branch)?;
        if path.is_empty() {
            return Ok(());
        }
        clone_dirs(branch.root(), holding.as_fd(), path, &|_, _| true)?;
        // Everybody may make directories in the holding directory. In one that is not as the original is, its
        // owner could do to a file what he could not where it was.
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

    /// The node of a directory, with all above it. `given` takes those to be forgotten afterwards.
    fn known_dir(
        &self,
        branches: &Branches,
        path: &[u8],
        given: &mut SmallVec<[NodeId; 4]>,
    ) -> Result<NodeId> {
        let (mut at, mut parent) = (PoolPath::new(), NodeId::ROOT);
        for part in path.split(|&byte| byte == b'/') {
            let entry =
                self.enter(branches, parent, &at, &MergedDir::open(Symlinks::NEVER, branches, &at), part)?;
            given.push(entry.node);
            // It may have been made just now, and the kernel remember that there was none.
            self.kernel.load().forget_name(parent, part);
            if !entry.attr.is_dir() {
                return Err(Error::NotDirectory);
            }
            (at, parent) = (join(&at, part), entry.node);
        }
        Ok(parent)
    }

    /// A path of the pool as others see it.
    fn absolute(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self.config().mountpoint.as_os_str().as_bytes() {
            b"" => Err(Error::CrossBranch),
            mountpoint => Ok([mountpoint, b"/", path].concat()),
        }
    }
}

/// Opens the holding directory of a branch, making it if need be.
///
/// Errors: `EACCES` when somebody else has made it; then it is his to empty.
fn holding(branch: &Branch) -> Result<OwnedFd, Errno> {
    let root = branch.root();
    let open = || beneath::open(root, HOLDING, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW);
    let dir = match open() {
        Err(Errno::NOENT) => {
            creds::as_daemon()?;
            // Nobody gets in before it is sticky.
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
    match owner == rustix::process::geteuid().as_raw() || owner == stat::of(root)?.uid {
        true => Ok(dir),
        false => Err(Errno::ACCESS),
    }
}

/// Where what is set aside of a directory lies.
fn aside_of(path: &[u8]) -> PoolPath {
    match path.is_empty() {
        true => PoolPath::from_slice(HOLDING),
        false => join(HOLDING, path),
    }
}

/// The name under which a file is set aside, by how many were taken.
fn name_held(name: &[u8], attempt: u32) -> Vec<u8> {
    match attempt {
        0 => name.to_vec(),
        n => [name, b"~", n.to_string().as_bytes()].concat(),
    }
}

fn is_at_or_below(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// `to` as a symlink in the directory `from` says it; both are paths of the pool.
fn relative(from: &[u8], to: &[u8]) -> Vec<u8> {
    let parts = |path| <[u8]>::split(path, |&byte| byte == b'/').filter(|part| !part.is_empty());
    let common = parts(from).zip(parts(to)).take_while(|(a, b)| a == b).count();
    // The last part of `to` is the file itself, whatever directory is called so.
    let common = common.min(parts(to).count().saturating_sub(1));
    let up = std::iter::repeat_n(&b".."[..], parts(from).count() - common);
    up.chain(parts(to).skip(common)).collect::<Vec<_>>().join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// COMPATIBILITY 4.6 and 4.8; from the directory of the new name.
    #[test]
    fn relative_symlink_targets_are_computed() {
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
    fn is_below_compares_whole_names() {
        for (path, top, below) in
            [("a/b", "a", true), ("a", "a", true), ("ab", "a", false), ("a", "a/b", false), ("", "a", false)]
        {
            assert_eq!(is_at_or_below(path.as_bytes(), top.as_bytes()), below, "{path} {top}");
        }
    }
}
