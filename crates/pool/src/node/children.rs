//! The known names below a node: most nodes are files and have none.

use super::{Child, HashMap};
use crate::shrink::shrink;

#[derive(Default)]
pub(super) struct Children(Option<Box<HashMap<Box<[u8]>, Child>>>);

impl Children {
    pub(super) fn get(&self, name: &[u8]) -> Option<&Child> {
        self.0.as_ref()?.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut Child> {
        self.0.as_mut()?.get_mut(name)
    }

    pub(super) fn insert(&mut self, name: Box<[u8]>, child: Child) {
        self.0.get_or_insert_default().insert(name, child);
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Child> {
        let names = self.0.as_mut()?;
        let removed = names.remove(name);
        if names.is_empty() {
            self.0 = None;
        } else {
            shrink(names);
        }
        removed
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().flat_map(|names| names.keys().map(|name| &**name))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}
