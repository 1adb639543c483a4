//! Nodes that the kernel asks for by an id that nobody knows any more: it has a handle of them.

use super::lookup::Entry;
use crate::branch::Branches;
use crate::dir::merged::CacheTrust;
use crate::error::{Error, Result};
use crate::export::{self, Found, StableId, StableTarget};
use crate::fs::reserved::is_reserved;
use crate::ids::NodeId;
use crate::pool::Pool;

impl Pool {
    /// The node that once had this id, with one more reference.
    ///
    /// Errors: `ESTALE` when it is gone, when it has become known as another node, and when its id does not last; what
    /// its branch answered, if that could not look.
    pub(crate) fn find(&self, id: NodeId) -> Result<Entry> {
        let wanted = StableTarget::of(id).ok_or(Error::Stale)?;
        let trust = self.cache_trust();
        let branches = self.branches.load();
        let wants_path = self.config().inode.uses_path(false) || self.config().names_only;
        let mut failed = branches.timeout_error();
        for branch in branches.iter().filter(|branch| wanted.may_be_on(branch)) {
            // Without a lock, for it may take its time. By a path nothing but this node is taken.
            match export::find(branch, wanted, wants_path, &self.inode_search) {
                Ok(None) => {}
                Ok(Some(Found { lasting, path: Some(path), .. })) => {
                    return self.enter_path(&branches, &path, lasting, trust);
                }
                Ok(Some(Found { lasting, attr, path: None })) => {
                    let node = self.nodes.hand_out_found(lasting, attr.key())?;
                    let shown = self.file_attr(&branches, &node).inspect_err(|_| self.forget(id, 1));
                    return Ok(Entry::new(&node, shown?));
                }
                Err(errno) => failed = Some(errno),
            }
        }
        Err(failed.map_or(Error::Stale, Error::Branch))
    }

    /// The node under a path, if it is this one.
    fn enter_path(
        &self,
        branches: &Branches,
        path: &[u8],
        wanted: StableId,
        trust: CacheTrust,
    ) -> Result<Entry> {
        let _held = self.tree.shared();
        let mut above = Vec::new();
        let mut found = Err(Error::Stale);
        let mut parent = NodeId::ROOT;
        let mut parts = path.split(|&byte| byte == b'/').peekable();
        while let Some(name) = parts.next() {
            let last = parts.peek().is_none();
            found = self.step(branches, parent, name, last.then_some(wanted), trust);
            match &found {
                Ok(entry) if !last => {
                    parent = entry.node;
                    above.push(parent);
                }
                _ => break,
            }
        }
        if let Ok(entry) = &found
            && entry.node != wanted.id
        {
            above.push(entry.node);
            found = Err(Error::Stale);
        }
        // What lies below them holds them.
        above.into_iter().for_each(|node| self.forget(node, 1));
        // Somebody has moved it meanwhile, or put something else before it.
        found.map_err(|error| if error.errno() == rustix::io::Errno::NOENT { Error::Stale } else { error })
    }

    fn step(
        &self,
        branches: &Branches,
        parent: NodeId,
        name: &[u8],
        dir: Option<StableId>,
        trust: CacheTrust,
    ) -> Result<Entry> {
        if is_reserved(name) {
            return Err(Error::Stale);
        }
        let (path, dirs) = self.dirs(branches, parent, trust)?;
        self.enter_as(branches, parent, &path, &dirs, name, dir)
    }
}
