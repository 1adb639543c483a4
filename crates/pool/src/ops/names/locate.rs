//! Reports, for scripts and tools, which branch holds a file.

use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::ops::resolve;
use crate::ops::resolve::generations::CopyOn;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
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

/// Returns the location of a node.
///
/// Errors: `ENOENT` for a file that has lost its name.
pub fn locate(pool: &Pool, id: NodeId) -> Result<Located> {
    let op = &mut Op::begin(pool);
    let _held = op.using(Uses::node(id));
    let (node, path) = op.nodes.locate(id)?;
    let path = path.ok_or(Error::Absent)?;
    let (branch, file) = if node.is_dir() {
        let copies = MergedDir::open(resolve::dirs::follow(op), &op.branches, &path).own();
        (name(&op.branches.as_slice()[resolve::choose::shown(op, Func::Getxattr, &copies)?]), None)
    } else {
        let primary = resolve::places::primary(op, &node)?;
        (name(&primary.branch), Some((primary.attr.dev, primary.attr.ino)))
    };
    Ok(Located { path: path.to_vec(), branch, file })
}

/// Returns every branch that holds something under the path of a node, in branch order. Asks each branch, which may spin up its
/// disk.
pub fn holders(pool: &Pool, id: NodeId, path: &[u8]) -> Vec<Vec<u8>> {
    let op = &mut Op::begin(pool);
    let _held = op.using(Uses::node(id));
    let follow = resolve::dirs::follow(op);
    let holds = |branch: &&Branch| {
        if path.is_empty() {
            true
        } else {
            let (dir, last) = split(path);
            let found =
                follow.dir(branch.root(), dir).and_then(|(dir, _)| canopy_branch::fs::stat::at(&dir, last));
            found.is_ok()
        }
    };
    op.branches.iter().map(|branch| &**branch).filter(holds).map(name).collect()
}

/// Returns what the branches hold under a path, in branch order, and which copies are up to date. Asks each branch, which may spin
/// up its disk.
///
/// Errors: why that cannot be told, and the branch that gave the error, if one did.
pub fn copies(pool: &Pool, path: &[u8]) -> Result<Vec<CopyOn>, (Option<Vec<u8>>, Error)> {
    let op = &Op::begin(pool);
    let (dir, last) = split(path);
    let dirs = MergedDir::open(Symlinks::NEVER, &op.branches, dir);
    resolve::generations::judge(op, &dirs, last).map_err(|(index, error)| {
        (index.and_then(|index| op.branches.get(index)).map(|branch| name(branch)), error)
    })
}

/// Returns the names in the root of the pool that have a node.
pub fn top_level_names(pool: &Pool) -> Vec<Vec<u8>> {
    pool.nodes.children(NodeId::ROOT)
}

fn name(branch: &Branch) -> Vec<u8> {
    branch.path.as_os_str().as_bytes().to_vec()
}
