//! Reports from the watcher of the branches: changes made outside the pool.

use crate::ids::NodeId;
use crate::lock::paths::Uses;
use crate::node::known_tree::KnownTree;
use crate::pool::Pool;
use std::sync::atomic::Ordering;

impl Pool {
    /// Reports that the set of branches that hold this name of a directory may have changed.
    pub fn name_changed(&self, dir: NodeId, name: &[u8]) {
        if let Ok(dir) = self.nodes.get(dir) {
            dir.with_cached(|cached| cached.names.any_may_hold(name));
        }
    }

    /// Reports that the names of a directory have changed, by an operation or on a branch. What a listing has read before is
    /// [`Doubtful`](crate::NamesRead::Doubtful) from now on.
    pub fn listing_changed(&self, dir: NodeId) {
        if let Ok(dir) = self.nodes.get(dir) {
            dir.dir().names_changed.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Reports that the names of any directory may have changed.
    pub fn listings_changed(&self) {
        self.cursors.all_overtaken();
    }

    /// Reports a change of a node's attributes.
    pub fn attributes_changed(&self, node: NodeId) {
        if let Ok(node) = self.nodes.get(node) {
            node.changed();
            node.copies_changed();
        }
    }

    /// Reports that a directory was created, moved or removed on a branch.
    pub fn places_changed(&self) {
        self.dir_cache.places_changed();
    }

    /// Reports that changes were missed or are no longer watched, or that mounts have changed.
    pub fn changes_missed(&self) {
        self.nodes.rely_on_nothing();
        self.dir_cache.clear();
        self.nested.clear();
    }

    /// Returns the names and nodes that the pool knows.
    pub fn known(&self) -> KnownTree<'_> {
        KnownTree(&self.nodes)
    }

    /// Returns a few files that the kernel knows, open ones first. Reads only tables in memory, and never
    /// becomes the last user of a file, who would close it.
    pub fn some_files(&self) -> Vec<NodeId> {
        const SOME: usize = 16;
        let mut files: Vec<NodeId> = self.files.some(SOME, |handle| handle.node.id);
        files.extend(self.nodes.some_files(SOME));
        files
    }

    /// Runs `look` while no directory can be renamed through the pool, so that paths on the branches and in the node
    /// table agree. `look` receives the number of such renames so far. It must not call an operation of the pool.
    pub fn with_tree_locked<R>(&self, look: impl FnOnce(u64) -> R) -> R {
        let _held = self.using(Uses::EVERYTHING);
        look(self.paths.moves())
    }
}
