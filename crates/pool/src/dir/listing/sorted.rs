//! Listings for programs of 32 bits, whose positions have 31 bits: the names in the order of a hash.
//!
//! 31 bits cannot hold a branch and a place on it, so a position says how far the names have been given in the order of
//! their hashes, as on ext4. It stays valid when the directory is opened anew, when names come and go, when files move
//! between branches, and when the daemon is restarted.
//!
//! 28 bits are the hash, and names with the same hash have places of their own behind it. These are counted from the last
//! name with that hash, which has the last place: if a name that was given is removed, the places of those to come stay.
//! More than eight names with one hash take the places of the hashes before it, so no two names ever share a place.

use super::position::hash;
use super::source::RawEntry;

/// The bits behind the hash: places for names with the same hash.
const PLACE_BITS: u32 = 3;
/// The hashes below are places for more names with the lowest one. Those near the end are not used: `NARROW_END` is there.
const LOWEST: u64 = 1 << 16;
const HASHES: u64 = (1 << 28) - 2 - LOWEST;

/// The most names that are kept; the directory is read again for more.
const MOST: usize = 1 << 17;
/// Names with so many hashes before those that were dropped are not given either: their places depend on those.
const DOUBTFUL: u32 = 1 << 11;

/// A name that is to be given.
#[derive(Debug)]
pub(crate) struct SortedName {
    hash: u32,
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: u8,
    /// The source that holds it; the first of several.
    pub(crate) source: u16,
    pub(crate) ino: u64,
    /// The position behind it.
    pub(crate) next: u32,
}

impl SortedName {
    pub(crate) fn raw(&self) -> RawEntry<'_> {
        RawEntry { name: &self.name, kind: self.kind, ino: self.ino, offset: 0 }
    }
}

/// Collects the names of all branches from a position on.
pub(crate) struct Sorter {
    from: u32,
    names: Vec<SortedName>,
    /// Names from this hash on have been dropped.
    upto: u32,
    most: usize,
    hash: fn(&[u8]) -> u32,
}

impl Sorter {
    pub(crate) fn new(from: u32) -> Sorter {
        Sorter { from, names: Vec::new(), upto: u32::MAX, most: MOST, hash: narrow_hash }
    }

    pub(crate) fn add(&mut self, raw: RawEntry<'_>, source: usize) {
        let hash = (self.hash)(raw.name);
        // A name may have a place before its hash, but never behind.
        if hash < self.from >> PLACE_BITS || hash >= self.upto {
            return;
        }
        let (name, source) = (Box::from(raw.name), source as u16);
        self.names.push(SortedName { hash, name, kind: raw.kind, source, ino: raw.ino, next: 0 });
        if self.names.len() >= 2 * self.most {
            self.cut();
        }
    }

    /// Drops the names with the highest hashes, unless too few would be left to give one.
    fn cut(&mut self) {
        let (before, at, _) = self.names.select_nth_unstable_by_key(self.most, |name| name.hash);
        let upto = at.hash;
        let lowest = before.iter().map(|name| name.hash).min().unwrap_or(upto);
        if lowest + DOUBTFUL < upto {
            self.names.retain(|name| name.hash < upto);
            self.upto = upto;
        } else {
            self.most *= 2
        }
    }

    /// Returns the names, the next one last, and the position behind them if there may be more.
    pub(crate) fn finish(self) -> (Vec<SortedName>, Option<u32>) {
        let Sorter { from, mut names, upto, .. } = self;
        names.sort_unstable_by(|a, b| (a.hash, &a.name, a.source).cmp(&(b.hash, &b.name, b.source)));
        names.dedup_by(|later, first| later.hash == first.hash && later.name == first.name);
        names.reverse();
        let mut behind = u32::MAX;
        for name in &mut names {
            let place = (name.hash << PLACE_BITS | ((1 << PLACE_BITS) - 1)).min(behind - 1);
            (name.next, behind) = (place + 1, place);
        }
        let given = names.iter().rev().take_while(|name| name.next <= from).count();
        names.truncate(names.len() - given);
        if upto == u32::MAX {
            return (names, None);
        }
        let doubtful = names.iter().take_while(|name| name.hash + DOUBTFUL >= upto).count();
        names.drain(..doubtful);
        // All names that are given may have gone since the cut was made: then the rest begins there.
        let more = names.first().map_or((upto - DOUBTFUL) << PLACE_BITS, |last| last.next);
        (names, Some(more))
    }
}

fn narrow_hash(name: &[u8]) -> u32 {
    (LOWEST + hash(name) % HASHES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::listing::position::{NARROW_END, Position};
    use std::collections::BTreeSet;

    /// Lists as a client does that resumes at the position of each name, `change`s the directory in between, and has no
    /// memory of what it was given.
    fn list(
        names: &mut BTreeSet<String>,
        most: usize,
        hash: fn(&[u8]) -> u32,
        mut change: impl FnMut(&mut BTreeSet<String>, &str),
    ) -> Vec<String> {
        let (mut from, mut given) = (4, Vec::new());
        loop {
            let mut sorter = Sorter { most, hash, ..Sorter::new(from) };
            for (at, name) in names.iter().enumerate() {
                let raw = RawEntry { name: name.as_bytes(), kind: 0, ino: 0, offset: 0 };
                sorter.add(raw, 1);
                // On two branches.
                if at % 3 == 0 {
                    sorter.add(raw, 0);
                }
            }
            let (mut rest, more) = sorter.finish();
            from = match (rest.pop(), more) {
                (Some(next), _) => {
                    let name = String::from_utf8(next.name.into()).unwrap();
                    change(names, &name);
                    given.push(name);
                    next.next
                }
                (None, Some(more)) => more,
                (None, None) => return given,
            };
            assert!(from < NARROW_END && Position::from_u64(from.into()) == Position::Narrow(from));
        }
    }

    fn names(count: usize) -> BTreeSet<String> {
        (0..count).map(|n| format!("name{n}")).collect()
    }

    const HASHERS: [fn(&[u8]) -> u32; 5] = [
        narrow_hash,
        // One hash in all, a few, and one that leaves room for the next.
        |_| 1 << 20,
        |name| (1 << 20) + u32::from(name[name.len() - 1] % 3),
        |name| (1 << 20) + 9 * u32::from(name[name.len() - 1]),
        |name| (1 << 20) + 9999 * u32::from(name[name.len() - 1]),
    ];

    #[test]
    fn every_name_is_given_once_however_many_share_a_hash() {
        for hash in HASHERS {
            for most in [1, 7, 50, 1000] {
                let mut all = names(100);
                let mut given = list(&mut all, most, hash, |_, _| {});
                given.sort_unstable();
                assert_eq!(given, Vec::from_iter(all), "{most}");
            }
        }
    }

    #[test]
    fn a_client_that_removes_what_it_is_given_gets_all_names() {
        for hash in HASHERS {
            let mut all = names(100);
            let expected = Vec::from_iter(all.clone());
            let remove = |names: &mut BTreeSet<String>, name: &str| assert!(names.remove(name));
            let mut given = list(&mut all, 1000, hash, remove);
            given.sort_unstable();
            assert_eq!(given, expected);
        }
    }

    /// Two hundred thousand names have some pairs with equal hashes.
    #[test]
    fn a_large_directory_has_a_position_for_each_name() {
        let mut sorter = Sorter { most: usize::MAX / 2, ..Sorter::new(4) };
        for name in names(200_000) {
            sorter.add(RawEntry { name: name.as_bytes(), kind: 0, ino: 0, offset: 0 }, 0);
        }
        let (sorted, more) = sorter.finish();
        assert_eq!((sorted.len(), more), (200_000, None));
        assert!(sorted.windows(2).all(|pair| pair[0].next > pair[1].next), "each has its own");
        assert!(sorted.windows(2).any(|pair| pair[0].hash == pair[1].hash), "there are collisions");
        assert!(sorted[0].next < NARROW_END);
        // Each position leads to the next name, whether that shares the hash or not.
        for (at, name) in sorted
            .iter()
            .enumerate()
            .filter(|(at, _)| at % 20_000 == 1 || *at > 0 && sorted[at - 1].hash == sorted[*at].hash)
        {
            let mut sorter = Sorter { most: usize::MAX / 2, ..Sorter::new(name.next) };
            for name in &sorted {
                sorter.add(name.raw(), 0);
            }
            assert_eq!(sorter.finish().0.len(), at, "those behind it");
        }
    }
}
