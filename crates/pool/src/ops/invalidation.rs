//! What whoever watches the branches tells the pool.

use crate::ids::NodeId;
use crate::pool::Pool;

impl Pool {
    /// Somebody has changed which branches hold this name of a directory.
    pub fn name_changed(&self, dir: NodeId, name: &[u8]) {
        if let Some(names) = self.nodes.get(dir).ok().and_then(|node| node.names()) {
            names.doubtful(name);
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
        self.memory.places_changed();
    }

    /// Changes were missed, or are not watched for any more; what a filesystem covers by now counts as changed.
    pub fn changes_missed(&self) {
        self.nodes.rely_on_none();
        self.memory.clear();
        self.below.clear();
    }
}
