//! The known names below a node: most nodes are files and have none.

use super::{Child, HashMap};

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

/// Gives room back once less than an eighth of it is used, so that what a walk through a large tree has filled is not
/// kept for ever. True if it did.
pub(super) fn shrink<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) -> bool {
    const SMALL: usize = 1024;
    let wide = map.capacity() > SMALL && map.len() * 8 < map.capacity();
    if wide {
        map.shrink_to(map.len() * 2);
    }
    wide
}
