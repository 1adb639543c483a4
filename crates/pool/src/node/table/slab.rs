//! Values under numbers, which stay the same while a value is there.
//!
//! The values lie in chunks. A chunk is freed with its last value, and a new value goes to the first chunk with room, so
//! that chunks become empty after many values were removed.

use std::collections::BTreeSet;

/// The number of values in a chunk.
const CHUNK: usize = 256;

/// The place of a value in a [`Slab`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Slot(u32);

pub(crate) struct Slab<T> {
    chunks: Vec<Option<Chunk<T>>>,
    /// Chunks with values and with room for more.
    partial: BTreeSet<u32>,
    /// Places in `chunks` without a chunk.
    vacant: BTreeSet<u32>,
    len: usize,
}

struct Chunk<T> {
    values: Box<[Option<T>]>,
    used: usize,
    /// No value below this index is missing.
    first_free: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { chunks: Vec::new(), partial: BTreeSet::new(), vacant: BTreeSet::new(), len: 0 }
    }
}

impl<T> Chunk<T> {
    fn new() -> Self {
        Chunk { values: (0..CHUNK).map(|_| None).collect(), used: 0, first_free: 0 }
    }

    /// Stores a value in the first free place. The chunk must have one.
    fn insert(&mut self, value: T) -> usize {
        let free = self.values[self.first_free..].iter().position(Option::is_none);
        let at = self.first_free + free.unwrap_or_default();
        self.values[at] = Some(value);
        self.used += 1;
        self.first_free = at + 1;
        at
    }
}

impl Slot {
    pub(crate) const FIRST: Slot = Slot(0);

    pub(crate) fn from_index(index: u32) -> Slot {
        Slot(index)
    }

    pub(crate) fn index(self) -> u32 {
        self.0
    }

    fn new(chunk: u32, at: usize) -> Slot {
        Slot(chunk * CHUNK as u32 + at as u32)
    }

    fn chunk(self) -> u32 {
        self.0 / CHUNK as u32
    }

    fn at(self) -> usize {
        self.0 as usize % CHUNK
    }
}

impl<T> Slab<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.chunks.get(slot.chunk() as usize)?.as_ref()?.values[slot.at()].as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.chunks.get_mut(slot.chunk() as usize)?.as_mut()?.values[slot.at()].as_mut()
    }

    pub(crate) fn insert(&mut self, value: T) -> Slot {
        let number = match self.partial.first() {
            Some(&partial) => partial,
            None => {
                let number = self.vacant.pop_first().unwrap_or_else(|| {
                    self.chunks.push(None);
                    self.chunks.len() as u32 - 1
                });
                self.partial.insert(number);
                number
            }
        };
        let chunk = self.chunks[number as usize].get_or_insert_with(Chunk::new);
        let slot = Slot::new(number, chunk.insert(value));
        if chunk.used == CHUNK {
            self.partial.remove(&number);
        }
        self.len += 1;
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<T> {
        let number = slot.chunk();
        let place = self.chunks.get_mut(number as usize)?;
        let chunk = place.as_mut()?;
        let value = chunk.values[slot.at()].take()?;
        self.len -= 1;
        chunk.first_free = chunk.first_free.min(slot.at());
        chunk.used -= 1;
        match chunk.used {
            0 => {
                *place = None;
                self.partial.remove(&number);
                self.vacant.insert(number);
                while self.chunks.pop_if(|last| last.is_none()).is_some() {
                    self.vacant.remove(&(self.chunks.len() as u32));
                }
            }
            used if used == CHUNK - 1 => {
                self.partial.insert(number);
            }
            _ => {}
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.within(0..self.chunks.len())
    }

    /// Returns the values from a slot on, and then those before it.
    pub(crate) fn from(&self, slot: Slot) -> impl Iterator<Item = (Slot, &T)> {
        let chunk = (slot.chunk() as usize).min(self.chunks.len());
        let later = self.within(chunk..self.chunks.len()).skip_while(move |(at, _)| at.0 < slot.0);
        let earlier = self.within(0..self.chunks.len().min(chunk + 1));
        later.chain(earlier.take_while(move |(at, _)| at.0 < slot.0))
    }

    fn within(&self, chunks: std::ops::Range<usize>) -> impl Iterator<Item = (Slot, &T)> {
        let first = chunks.start;
        self.chunks[chunks].iter().enumerate().flat_map(move |(number, chunk)| {
            let values = chunk.as_ref().map(|chunk| &*chunk.values).unwrap_or_default();
            let slot = move |at| Slot::new((first + number) as u32, at);
            values.iter().enumerate().filter_map(move |(at, value)| Some((slot(at), value.as_ref()?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn values_keep_their_slots_and_empty_chunks_are_freed() {
        let mut slab = Slab::default();
        let mut model: HashMap<Slot, usize> = HashMap::new();
        for value in 0..10 * CHUNK {
            let slot = slab.insert(value);
            assert_eq!(model.insert(slot, value), None, "the slot is in use");
            if value % 3 == 0 {
                assert_eq!(slab.remove(slot), model.remove(&slot));
            }
        }
        assert!(slab.chunks.len() <= 7, "freed slots are used again");
        assert!(slab.iter().all(|(slot, value)| model.get(&slot) == Some(value)));
        let middle = slab.iter().nth(slab.len() / 2).unwrap().0;
        let around: Vec<Slot> = slab.from(middle).map(|(slot, _)| slot).collect();
        assert_eq!((around.len(), around[0]), (slab.len(), middle));
        let kept = slab.iter().next().unwrap().0;
        model.iter().filter(|(slot, _)| **slot != kept).for_each(|(&slot, &value)| {
            assert_eq!(slab.remove(slot), Some(value));
            assert_eq!((slab.remove(slot), slab.get(slot)), (None, None));
        });
        assert_eq!((slab.len(), slab.chunks.len(), slab.vacant.len()), (1, 1, 0));
        assert_eq!(slab.get(kept), Some(&model[&kept]));
    }
}
