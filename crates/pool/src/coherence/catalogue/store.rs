//! Where rows are kept that were not used for a while: a file without a name, which ends with the process. So a crash leaves
//! nothing of it, and nothing of it can be outdated. What is kept beyond that is a file of its own ([`super::kept`]).
//!
//! It is a ring: what is stored goes behind what was stored last, in the place of what is oldest. What is read often is stored
//! anew before its turn comes.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A place in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    start: u64,
    length: u64,
}

pub(crate) struct Store {
    file: File,
    /// The most bytes that the file has.
    bound: u64,
    /// Where to store next.
    end: u64,
    /// What is stored, by its start, with its length and its owner.
    used: BTreeMap<u64, (u64, Arc<[u8]>)>,
    failed: bool,
}

impl Store {
    pub(crate) fn new(file: File, bound: u64) -> Store {
        Store { file, bound, end: 0, used: BTreeMap::new(), failed: false }
    }

    /// Stores bytes for an owner. Returns where they are, and whose bytes have made room for them.
    pub(crate) fn write(&mut self, owner: &Arc<[u8]>, bytes: &[u8]) -> (Option<Extent>, Vec<Arc<[u8]>>) {
        let length = bytes.len() as u64;
        if length > self.bound / 4 {
            return (None, Vec::new());
        }
        let start = if self.end + length > self.bound { 0 } else { self.end };
        let mut gone = Vec::new();
        let before = self.used.range(..start).next_back().map(|(&at, &(length, _))| (at, at + length));
        let overlaps = before.filter(|&(_, end)| end > start).map(|(at, _)| at);
        let within: Vec<u64> =
            overlaps.into_iter().chain(self.used.range(start..start + length).map(|(&at, _)| at)).collect();
        for at in within {
            gone.extend(self.used.remove(&at).map(|(_, owner)| owner));
        }
        if let Err(why) = self.file.write_all_at(bytes, start) {
            self.report(&why);
            return (None, gone);
        }
        self.failed = false;
        self.end = start + length;
        self.used.insert(start, (length, Arc::clone(owner)));
        (Some(Extent { start, length }), gone)
    }

    /// Returns what was stored; `None` if it cannot be read.
    pub(crate) fn read(&mut self, extent: Extent) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(extent.length).ok()?];
        match self.file.read_exact_at(&mut bytes, extent.start) {
            Ok(()) => Some(bytes),
            Err(why) => {
                self.report(&why);
                None
            }
        }
    }

    fn report(&mut self, why: &io::Error) {
        if !std::mem::replace(&mut self.failed, true) {
            let full = Errno::from_io_error(why) == Some(Errno::NOSPC);
            let what = if full { "there is no room for it" } else { "its file fails" };
            tracing::warn!("the catalogue forgets what it knows, because {what}: {why}");
        }
    }

    /// Forgets what was stored.
    pub(crate) fn remove(&mut self, extent: Extent) {
        self.used.remove(&extent.start);
    }

    /// Returns whether what was stored is among the next to make room.
    pub(crate) fn is_old(&self, extent: Extent) -> bool {
        let ahead = if extent.start >= self.end {
            extent.start - self.end
        } else {
            self.bound - self.end + extent.start
        };
        ahead < self.bound / 4
    }

    /// Returns whether an eighth is free.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes() < self.bound / 8 * 7
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.used.values().map(|(length, _)| length).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.used.clear();
        self.end = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Against a map: what was not told to be gone is read as it was written, and no more is kept than the bound.
    #[test]
    fn what_is_not_gone_is_there() {
        const BOUND: u64 = 10_000;
        let mut store = Store::new(tempfile::tempfile().unwrap(), BOUND);
        let mut kept: HashMap<Arc<[u8]>, (Extent, Vec<u8>)> = HashMap::new();
        let mut random = 7_u64;
        for at in 0..3000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let owner: Arc<[u8]> = at.to_le_bytes().into();
            let bytes = vec![at as u8; (random >> 40) as usize % 900 + 1];
            let (extent, gone) = store.write(&owner, &bytes);
            for owner in gone {
                assert!(kept.remove(&owner).is_some());
            }
            kept.insert(owner, (extent.unwrap(), bytes));
            if random >> 61 == 0
                && let Some(owner) = kept.keys().next().cloned()
            {
                store.remove(kept.remove(&owner).unwrap().0);
            }
            for (extent, bytes) in kept.values() {
                assert_eq!(store.read(*extent).as_ref(), Some(bytes));
            }
            assert_eq!(store.bytes(), kept.values().map(|(extent, _)| extent.length).sum::<u64>());
        }
        assert!(store.file.metadata().unwrap().len() <= BOUND);
        assert!(store.bytes() > BOUND / 2);
        assert_eq!(store.write(&Arc::from(&b"x"[..]), &vec![0; BOUND as usize / 2]), (None, Vec::new()));
    }
}
