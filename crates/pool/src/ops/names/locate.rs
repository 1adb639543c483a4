//! Reports, for scripts and tools, which branch holds a file.

use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::paths::Uses;
use crate::pool::Pool;
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::split;
use canopy_branch::branch::Branch;
use std::os::unix::ffi::OsStrExt;

/// The location of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// The path from the root of the pool, without a leading slash. Empty for the root.
    pub path: Vec<u8>,
    /// The path of the branch whose copy is read: that of the open copy, if one is open.
    pub branch: Vec<u8>,
    /// The device and inode number of that copy, unless it is a directory.
    pub file: Option<(u64, u64)>,
}

impl Located {
    /// Returns the absolute path on a branch.
    pub fn on(&self, branch: &[u8]) -> Vec<u8> {
        [branch, b"/", &self.path].concat()
    }
}

impl Pool {
    /// Returns the location of a node.
    ///
    /// Errors: `ENOENT` for a file that has lost its name.
    pub fn locate(&self, id: NodeId) -> Result<Located> {
        let _held = self.using(Uses::node(id));
        let branches = self.branches.load();
        let (node, path) = self.nodes.locate(id)?;
        let path = path.ok_or(Error::Absent)?;
        let (branch, file) = if node.is_dir() {
            let copies = MergedDir::open(self.follow(), &branches, &path).own();
            (name(&branches.as_slice()[self.shown(Func::Getxattr, &branches, &copies)?]), None)
        } else {
            let primary = self.primary(&branches, &node)?;
            (name(&primary.branch), Some((primary.attr.dev, primary.attr.ino)))
        };
        Ok(Located { path: path.to_vec(), branch, file })
    }

    /// Returns every branch that holds something under the path of a node, in branch order. Asks each branch, which may spin up its
    /// disk.
    pub fn holders(&self, id: NodeId, path: &[u8]) -> Vec<Vec<u8>> {
        let _held = self.using(Uses::node(id));
        let (branches, follow) = (self.branches.load(), self.follow());
        let holds = |branch: &&Branch| match path.is_empty() {
            true => true,
            false => {
                let (dir, last) = split(path);
                let found = follow
                    .dir(branch.root(), dir)
                    .and_then(|(dir, _)| canopy_branch::fs::stat::at(&dir, last));
                found.is_ok()
            }
        };
        branches.iter().map(|branch| &**branch).filter(holds).map(name).collect()
    }

    /// Returns the names in the root of the pool that have a node.
    pub fn top_level_names(&self) -> Vec<Vec<u8>> {
        self.nodes.children(NodeId::ROOT)
    }
}

fn name(branch: &Branch) -> Vec<u8> {
    branch.path.as_os_str().as_bytes().to_vec()
}
