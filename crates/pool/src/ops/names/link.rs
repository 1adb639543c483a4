//! Hard links.

use super::lookup::Entry;
use crate::config::Func;
use crate::door::Caller;
use crate::ops::aggregate;
use crate::ops::reserve::DIRECTORY_GROWS;
use crate::ops::resolve::places::Purpose;
use crate::paths::Uses;
use crate::pool::Pool;
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_branch::branch::health::OpKind;
use canopy_branch::fs::pinned;
use canopy_branch::fs::reserved::check_not_reserved;
use rustix::fd::AsFd;
use rustix::io::Errno;
use smallvec::SmallVec;

impl Pool {
    /// Links a file under a new name, on each branch whose copy the policy chooses. A file without a name (`O_TMPFILE`)
    /// gets its first one.
    ///
    /// Errors: `EXDEV` if the create policy preserves paths and the branch lacks the directory, unless `link-exdev`
    /// names a substitute.
    pub fn link(&self, caller: &Caller, id: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Entry> {
        check_not_reserved(new_name)?;
        let _changes = self.figures.changes();
        let trust = self.cache_trust();
        let _held = self.using(Uses::node(id).and(Uses::name(new_parent, new_name)));
        let branches = self.branches.load();
        let node = self.nodes.get(id)?;
        if node.is_dir() {
            return Err(Error::NotPermitted);
        }
        let (path, mut dirs) = self.dirs(&branches, new_parent, trust)?;
        dirs.first()?;
        dirs.copies(new_name).must_be_absent()?;
        let places = self.places(&branches, &node, trust, Purpose::Attributes)?;
        let targets = self.chosen_places(Func::Link, &branches, &places, false)?;
        let mut results: SmallVec<[aggregate::Outcome; 2]> = SmallVec::new();
        for target in &targets {
            let index = match target.index {
                Some(index) => index,
                None => branches.index_of(target.branch.id).ok_or(Error::Stale)?,
            };
            if dirs.lacks(index) && self.preserves_paths() {
                results.push(Err(Errno::XDEV));
                continue;
            }
            results.push(self.bring_dir(&branches, &mut dirs, index, &path).and_then(|()| {
                let dir = dirs.get(index).ok_or(Errno::NOENT)?;
                let nears = branches[index].nears_reserve(DIRECTORY_GROWS);
                let link = || Ok(pinned::link(target.fd.as_fd(), dir, new_name)?);
                self.begin_generation(target.fd.as_fd(), &path, new_name)
                    .and_then(|()| self.take_space(nears, || None, link).map_err(Error::errno))
                    .map_err(|errno| branches[index].record_error(errno, OpKind::Change))
            }));
            dirs.name_created(new_name, index);
        }
        match aggregate::link(&results) {
            Err(Errno::XDEV) => {
                return self.link_by_symlink(caller, &branches, &node, &path, &mut dirs, new_name);
            }
            other => other?,
        }
        self.note_closed(&path, new_name);
        dirs.follow = dirs.follow.as_node(&node);
        self.enter(&branches, new_parent, &path, &dirs, new_name)
    }

    /// Returns true if rename and link must not create directories on branches that lack them.
    pub(crate) fn preserves_paths(&self) -> bool {
        self.config().policies.get(Func::Create).is_path_preserving()
            && !self.config().ignore_path_preservation
    }
}
