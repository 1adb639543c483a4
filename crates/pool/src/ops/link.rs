//! Hard links.

use crate::beneath::ProcPath;
use crate::branch::BranchId;
use crate::config::Func;
use crate::ops::lookup::Entry;
use crate::relocate::may_be_made;
use crate::resolve::Dirs;
use crate::{Error, NodeId, Pool, Result, aggregate};
use rustix::fd::AsFd;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use smallvec::SmallVec;

impl Pool {
    /// Gives a file one more name, on the branch that holds it. A file without any name (`O_TMPFILE`, or
    /// unlinked while open) gets its name through its descriptor.
    ///
    /// Errors: `EXDEV` when the create policy preserves paths and the branch lacks the directory.
    pub fn link(&self, id: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Entry> {
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let node = self.nodes.get(id)?;
        let (path, mut dirs) = self.dirs(&branches, new_parent)?;
        may_be_made(new_name)?;
        dirs.first()?;
        dirs.copies(new_name).must_be_absent()?;
        if node.is_dir() {
            return Err(Error::NotPermitted);
        }
        let primary = self.primary(&branches, &node)?;
        let preserve = self.preserves_paths();
        // Copies on other branches under the name that is known get the new name too.
        let mut sources: SmallVec<[(BranchId, Option<(Dirs<'_>, Box<[u8]>)>); 2]> = SmallVec::new();
        for (dir, name) in self.nodes.names(id) {
            let old_dirs = Dirs::open(&branches, &dir);
            let copies = old_dirs.copies(&name);
            if !copies.list.iter().flatten().any(|attr| attr.key() == primary.attr.key()) {
                continue;
            }
            let chosen = self.acted(Func::Link, &branches, &copies)?;
            for index in chosen {
                let branch = branches.as_slice()[index].id;
                let is_primary = copies.list[index].is_some_and(|attr| attr.key() == primary.attr.key());
                let copy = (!is_primary).then(|| (Dirs::open(&branches, &dir), name.clone()));
                sources.push((branch, copy));
            }
            break;
        }
        if sources.is_empty() {
            sources.push((primary.branch.id, None));
        }
        let mut results: SmallVec<[aggregate::Outcome; 2]> = SmallVec::new();
        for (branch, copy) in &sources {
            let index = branches.index_of(*branch).ok_or(Error::Stale)?;
            if dirs.list[index].is_none() && preserve {
                results.push(Err(Errno::XDEV));
                continue;
            }
            results.push(self.bring_dir(&branches, &mut dirs, index, &path).and_then(|()| {
                let target = dirs.get(index).ok_or(Errno::NOENT)?;
                match copy {
                    Some((old, name)) => {
                        let source = old.get(index).ok_or(Errno::NOENT)?;
                        rustix::fs::linkat(source, &**name, target, new_name, AtFlags::empty())
                    }
                    // Following the last step of such a link is a jump to the file itself.
                    None => rustix::fs::linkat(
                        rustix::fs::CWD,
                        ProcPath::of(primary.fd.as_fd()).as_bytes(),
                        target,
                        new_name,
                        AtFlags::SYMLINK_FOLLOW,
                    ),
                }
            }));
        }
        aggregate::link(&results)?;
        self.enter(&branches, new_parent, &path, &dirs, new_name)
    }

    /// Rename and link must not make directories where the create policy would not.
    pub(crate) fn preserves_paths(&self) -> bool {
        self.config.policies.get(Func::Create).is_path_preserving() && !self.config.ignore_path_preservation
    }
}
