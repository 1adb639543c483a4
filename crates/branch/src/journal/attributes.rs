//! The directories whose attributes a branch has missed, by the paths that they have after each change.

use super::log::Change;
use canopy_base::path::join;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct OwedAttributes(BTreeSet<Vec<u8>>);

impl OwedAttributes {
    pub(super) fn paths(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    pub(super) fn add(&mut self, path: &[u8]) {
        self.0.insert(path.to_vec());
    }

    /// Follows what has happened to the paths. What was made or renamed may have been made here without attributes.
    pub(super) fn follow(&mut self, change: &Change) {
        match change {
            Change::Attributes(path) => self.add(path),
            Change::MakeDir(path) => {
                drop(self.take(path));
                self.add(path);
            }
            Change::Clear(path) | Change::Link(_, path) => drop(self.take(path)),
            Change::Rename(old, new) => {
                drop(self.take(new));
                let moved = self.take(old);
                self.put(new, moved);
                self.add(new);
            }
            Change::Exchange(one, other) => {
                let (first, second) = (self.take(one), self.take(other));
                self.put(other, first);
                self.put(one, second);
                self.add(one);
                self.add(other);
            }
        }
    }

    /// Removes a path and all below it. Returns what follows it in each.
    fn take(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        let rest = |known: &Vec<u8>| {
            let rest = known.strip_prefix(path)?;
            (rest.is_empty() || rest.starts_with(b"/")).then(|| rest.to_vec())
        };
        let taken = self.0.iter().filter_map(rest).collect();
        self.0.retain(|known| rest(known).is_none());
        taken
    }

    fn put(&mut self, path: &[u8], below: Vec<Vec<u8>>) {
        for rest in below {
            match rest.strip_prefix(b"/") {
                Some(rest) => self.add(&join(path, rest)),
                None => self.add(path),
            }
        }
    }
}
