//! Where a node lies: the answer that scripts and tools ask a pool for.

use crate::branch::Branch;
use crate::config::Func;
use crate::resolve::Dirs;
use crate::{Error, NodeId, Pool, Result};
use std::os::unix::ffi::OsStrExt;

/// Paths of one node. The pool's own path has no leading slash and is empty for the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    pub path: Vec<u8>,
    /// The branch whose copy is read: the one that is open, if any is.
    pub branch: Vec<u8>,
    /// Every branch that holds something under the path, in branch order.
    pub branches: Vec<Vec<u8>>,
}

impl Located {
    /// The path on a branch.
    pub fn on(&self, branch: &[u8]) -> Vec<u8> {
        [branch, b"/", &self.path].concat()
    }
}

impl Pool {
    /// Errors: `ENOENT` for a file that has lost its name.
    pub fn locate(&self, id: NodeId) -> Result<Located> {
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let (node, path) = self.nodes.locate(id)?;
        let path = path.ok_or(Error::Absent)?;
        let follow = self.follow();
        let holds = |branch: &Branch| match path.is_empty() {
            true => true,
            false => {
                let (dir, name) = split(&path);
                let found = follow.dir(branch.root(), dir).and_then(|(dir, _)| crate::stat::at(&dir, name));
                found.is_ok()
            }
        };
        let name = |branch: &Branch| branch.path.as_os_str().as_bytes().to_vec();
        let holders = branches.iter().filter(|branch| holds(branch)).map(|branch| name(branch)).collect();
        let branch = if node.is_dir() {
            let copies = Dirs::open(follow, &branches, &path).own();
            name(&branches.as_slice()[self.shown(Func::Getxattr, &branches, &copies)?])
        } else {
            name(&self.primary(&branches, &node)?.branch)
        };
        Ok(Located { path: path.to_vec(), branch, branches: holders })
    }

    /// The known names in the root of the pool.
    pub fn top_level_names(&self) -> Vec<Vec<u8>> {
        self.nodes.children(NodeId::ROOT)
    }
}

/// Directory and last name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
