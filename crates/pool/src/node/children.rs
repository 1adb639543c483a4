//! The known names in a directory. Most nodes are files and have none.

use crate::hash::{HashMap, shrink};
use crate::ids::NodeId;

/// A known name in its directory.
#[derive(Clone, Copy)]
pub(crate) struct Child {
    pub(crate) id: NodeId,
    /// Index of the name among the node's `names`: a file may have tens of thousands.
    pub(crate) slot: usize,
}

#[derive(Default)]
pub(crate) struct Children(Option<Box<HashMap<Box<[u8]>, Child>>>);

impl Children {
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Child> {
        self.0.as_ref()?.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &[u8]) -> Option<&mut Child> {
        self.0.as_mut()?.get_mut(name)
    }

    pub(crate) fn insert(&mut self, name: Box<[u8]>, child: Child) {
        self.0.get_or_insert_default().insert(name, child);
    }

    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<Child> {
        let names = self.0.as_mut()?;
        let removed = names.remove(name);
        if names.is_empty() {
            self.0 = None;
        } else {
            shrink(names);
        }
        removed
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().flat_map(|names| names.keys().map(|name| &**name))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}
