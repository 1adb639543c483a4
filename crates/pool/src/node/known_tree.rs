//! The known part of the tree, for the code that tells the kernel about changes made directly on the branches.

use super::Node;
use super::nodes::Nodes;
use super::table::Table;
use canopy_base::error::Result;
use canopy_base::ids::{Known, NodeId};
use canopy_base::path::join;
use canopy_branch::fs::stat::{self, FileKey};
use rustix::fd::BorrowedFd;
use smallvec::SmallVec;
use std::sync::Arc;

/// The known part of the tree. Uses the node table only, no branches.
#[derive(Clone, Copy)]
pub struct KnownTree<'a>(pub(crate) &'a Nodes);

impl KnownTree<'_> {
    /// Returns the directory at a path of the pool (no leading slash, empty for the root), if it is known.
    pub fn dir(&self, path: &[u8]) -> Option<NodeId> {
        let table = self.0.table.read();
        let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        let found = parts.try_fold(NodeId::ROOT, |at, part| table.child(at, part).map(|node| node.id))?;
        table.get(found).filter(|record| record.node.is_dir()).map(|_| found)
    }

    /// Returns what is known under a name.
    pub fn child(&self, parent: NodeId, name: &[u8]) -> Option<Known> {
        self.0.table.read().known(parent, name)
    }

    /// Returns the known nodes of the file behind a descriptor, as itself and as a symlink (`symlinkify`), and the
    /// link count of the file.
    pub fn file(&self, file: BorrowedFd<'_>) -> Result<(SmallVec<[NodeId; 2]>, u32)> {
        let attr = stat::of(file)?;
        let table = self.0.table.read();
        let nodes =
            [false, true].into_iter().filter_map(|linked| Some(table.file((attr.key(), linked))?.node.id));
        Ok((nodes.collect(), attr.nlink))
    }

    /// Returns which file a node is.
    pub fn key(&self, id: NodeId) -> Option<FileKey> {
        self.0.get(id).ok()?.key()
    }

    /// Returns the directories that the kernel knows from a process before this one, and that are not known here yet, or were
    /// removed.
    pub fn left_dirs(&self) -> Vec<NodeId> {
        self.0.table.read().left_dirs()
    }

    /// Returns all known names below a directory, nearer ones first.
    pub fn below(&self, dir: NodeId) -> Vec<Known> {
        let table = self.0.table.read();
        let mut found: Vec<Known> = Vec::new();
        let (mut next, mut at) = (0, dir);
        loop {
            let names = table.slot(at).into_iter().flat_map(|dir| table.names_in(dir));
            found.extend(names.map(|(name, node)| known(at, name, node)));
            let Some(below) = found.get(next..).and_then(|rest| rest.iter().position(|known| known.is_dir))
            else {
                return found;
            };
            at = found[next + below].node;
            next += below + 1;
        }
    }

    /// Returns all known directories below a directory. `None` if there are more than `most` names below it.
    pub(crate) fn dirs_below(&self, dir: NodeId, most: usize) -> Option<Vec<Arc<Node>>> {
        let table = self.0.table.read();
        let (mut found, mut seen): (Vec<Arc<Node>>, usize) = (Vec::new(), 0);
        let (mut next, mut at) = (0, dir);
        loop {
            if let Some(slot) = table.slot(at) {
                seen += table.child_count(slot);
                if seen > most {
                    return None;
                }
                let below = table.children(slot).filter_map(|child| table.at(child));
                found.extend(below.filter(|node| node.is_dir()).cloned());
            }
            let Some(node) = found.get(next) else { return Some(found) };
            at = node.id;
            next += 1;
        }
    }

    /// Returns all known nodes.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.0.table.read().records.iter().map(|(_, record)| record.node.id).collect()
    }

    /// Returns all known directories.
    pub fn dirs(&self) -> Vec<NodeId> {
        let table = self.0.table.read();
        let dirs = table.records.iter().filter(|(_, record)| record.node.is_dir());
        dirs.map(|(_, record)| record.node.id).collect()
    }

    /// Returns the known names of a node, each with its directory.
    pub fn names_of(&self, id: NodeId) -> Vec<(NodeId, Box<[u8]>)> {
        self.0.known(id)
    }

    /// Returns the path of a node by its newest name; `None` if it has none.
    pub fn path(&self, id: NodeId) -> Option<Vec<u8>> {
        self.0.locate(id).ok()?.1.map(|path| path.to_vec())
    }

    /// Returns the path of a name in a known directory.
    pub fn path_of(&self, parent: NodeId, name: &[u8]) -> Option<Vec<u8>> {
        self.path(parent).map(|dir| join(&dir, name).to_vec())
    }
}

impl Table {
    fn known(&self, parent: NodeId, name: &[u8]) -> Option<Known> {
        self.child(parent, name).map(|node| known(parent, name, node))
    }
}

/// Returns what is known of a name.
pub(super) fn known(parent: NodeId, name: &[u8], node: &Node) -> Known {
    Known { parent, name: name.into(), node: node.id, is_dir: node.is_dir() }
}
