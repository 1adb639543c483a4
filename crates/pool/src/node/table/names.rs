//! The known names of a node: one for nearly all.

use super::slab::Slot;
use canopy_base::hash;
use hashbrown::HashTable;

/// The longest text that is stored in place. With it a [`Text`] is as large as two pointers and a length.
const SHORT: usize = 22;

/// A name in a known directory.
pub(crate) struct Name {
    pub(crate) parent: Slot,
    text: Text,
}

enum Text {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

/// The names of a node, newest last.
#[derive(Default)]
pub(crate) enum Names {
    #[default]
    None,
    One(Name),
    /// Only files have several.
    Many(Box<ManyNames>),
}

/// A file may have tens of thousands of names, so one is not searched for.
pub(crate) struct ManyNames {
    list: Vec<Name>,
    /// Indices of `list`.
    index: HashTable<u32>,
}

impl Name {
    pub(crate) fn new(parent: Slot, text: &[u8]) -> Name {
        let text = match u8::try_from(text.len()) {
            Ok(len) if text.len() <= SHORT => {
                let mut bytes = [0; SHORT];
                bytes[..text.len()].copy_from_slice(text);
                Text::Short { len, bytes }
            }
            _ => Text::Long(text.into()),
        };
        Name { parent, text }
    }

    pub(crate) fn text(&self) -> &[u8] {
        match &self.text {
            Text::Short { len, bytes } => &bytes[..usize::from(*len)],
            Text::Long(text) => text,
        }
    }

    fn is(&self, parent: Slot, text: &[u8]) -> bool {
        self.parent == parent && self.text() == text
    }

    fn hash(&self) -> u64 {
        hash::of(&(self.parent, self.text()))
    }
}

impl Names {
    pub(crate) fn as_slice(&self) -> &[Name] {
        match self {
            Names::None => &[],
            Names::One(name) => std::slice::from_ref(name),
            Names::Many(many) => &many.list,
        }
    }

    pub(crate) fn newest(&self) -> Option<&Name> {
        self.as_slice().last()
    }

    pub(crate) fn contains(&self, parent: Slot, text: &[u8]) -> bool {
        match self {
            Names::None => false,
            Names::One(name) => name.is(parent, text),
            Names::Many(many) => many.find(parent, text).is_some(),
        }
    }

    pub(crate) fn push(&mut self, name: Name) {
        *self = match std::mem::take(self) {
            Names::None => Names::One(name),
            Names::One(first) => {
                let mut many = Box::new(ManyNames { list: Vec::new(), index: HashTable::new() });
                many.push(first);
                many.push(name);
                Names::Many(many)
            }
            Names::Many(mut many) => {
                many.push(name);
                Names::Many(many)
            }
        };
    }

    /// Removes a name; the newest one takes its place.
    pub(crate) fn remove(&mut self, parent: Slot, text: &[u8]) {
        match self {
            Names::One(name) if name.is(parent, text) => *self = Names::None,
            Names::Many(many) => {
                many.remove(parent, text);
                if many.list.len() == 1 {
                    *self = many.list.pop().map_or(Names::None, Names::One);
                }
            }
            Names::None | Names::One(_) => {}
        }
    }
}

impl ManyNames {
    fn find(&self, parent: Slot, text: &[u8]) -> Option<usize> {
        let is = |&at: &u32| self.list[at as usize].is(parent, text);
        self.index.find(hash::of(&(parent, text)), is).map(|&at| at as usize)
    }

    fn push(&mut self, name: Name) {
        let (hash, at) = (name.hash(), self.list.len() as u32);
        self.list.push(name);
        self.index.insert_unique(hash, at, |&at| self.list[at as usize].hash());
    }

    fn remove(&mut self, parent: Slot, text: &[u8]) {
        let Some(at) = self.find(parent, text) else { return };
        let newest = self.list.len() - 1;
        if let Ok(entry) = self.index.find_entry(hash::of(&(parent, text)), |&place| place as usize == at) {
            entry.remove();
        }
        if newest != at
            && let Some(place) =
                self.index.find_mut(self.list[newest].hash(), |&place| place as usize == newest)
        {
            *place = at as u32;
        }
        self.list.swap_remove(at);
        if self.list.capacity() > 4 * self.list.len() {
            self.list.shrink_to(2 * self.list.len());
        }
        super::index::shrink(&mut self.index, |&at| self.list[at as usize].hash());
    }
}
