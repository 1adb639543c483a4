//! What whoever watches the branches tells the pool.

use crate::ids::NodeId;
use crate::node::known_tree::KnownTree;
use crate::pool::Pool;

impl Pool {
    /// Somebody has changed which branches hold this name of a directory.
    pub fn name_changed(&self, dir: NodeId, name: &[u8]) {
        if let Some(names) = self.nodes.get(dir).ok().and_then(|node| node.names()) {
            names.any_may_hold(name);
        }
    }

    /// Somebody has changed attributes of a node.
    pub fn attributes_changed(&self, node: NodeId) {
        if let Ok(node) = self.nodes.get(node) {
            node.changed();
        }
    }

    /// Somebody has made, moved or removed a directory on a branch.
    pub fn places_changed(&self) {
        self.dir_cache.places_changed();
    }

    /// Changes were missed, or are not watched for any more; what a filesystem covers by now counts as changed.
    pub fn changes_missed(&self) {
        self.nodes.rely_on_nothing();
        self.dir_cache.clear();
        self.nested.clear();
    }

    /// The names and nodes that are known.
    pub fn known(&self) -> KnownTree<'_> {
        KnownTree(&self.nodes)
    }

    /// A few files that the kernel knows, regular ones among them if there are any open. Looks at nothing but tables.
    pub fn some_files(&self) -> Vec<NodeId> {
        const SOME: usize = 16;
        let mut files: Vec<NodeId> = self.files.some(SOME).iter().map(|handle| handle.node.id).collect();
        files.extend(self.nodes.some_files(SOME));
        files
    }

    /// Runs `look` while no directory is renamed through the pool: paths on the branches and in the node table agree
    /// meanwhile. It is told how many such renames there were. It must not call an operation of the pool.
    pub fn with_tree_locked<R>(&self, look: impl FnOnce(u64) -> R) -> R {
        let _held = self.tree.shared();
        look(self.tree.moves())
    }
}
