//! What is known, packed for the next process, which learns it as if it had looked at it itself: once it was proved that nothing
//! has changed since, at a moment after which all changes are told.
//!
//! Branches are identified by their place in a list, because ids and device numbers are those of a process and of a mount.
//! What may not be relied on is left out.

use super::dirs::{Known, MAX_DIRS, State};
use super::log::Log;
use super::room::{DirRows, Hot};
use super::rows::{Facts, Row, Rows};
use super::{Catalogue, Handles, above, seconds};
use canopy_base::ids::BranchId;
use canopy_branch::fs::packed::{Packer, Unpacker};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A branch as it is identified here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    pub id: BranchId,
    pub dev: u64,
}

impl Catalogue {
    /// Returns how often something was learnt.
    pub fn learnt(&self) -> u64 {
        self.learnt.load(Ordering::Relaxed)
    }

    /// Returns the paths of the directories that are known, each after those above it.
    pub fn known_directories(&self) -> Vec<Arc<[u8]>> {
        self.with(|state| state.dirs.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns whether a directory is known with all its names, and what all of them lead to.
    pub(crate) fn is_whole(&self, path: &[u8]) -> bool {
        self.with(|state| state.is_whole(path)).unwrap_or(false)
    }

    /// Returns whether there is room for many more directories.
    pub fn has_room(&self) -> bool {
        self.with(|state| state.has_room()).unwrap_or(false)
    }

    /// Packs what is known of a directory; `None` if nothing is any more.
    pub fn pack(&self, path: &[u8], homes: &[Home]) -> Option<Vec<u8>> {
        self.with(|state| state.packed(path, homes)).flatten()
    }

    /// Learns what [`Catalogue::pack`] has packed, as it was when the latest change had the number `since`; not what has changed
    /// since. Those above it must have been learnt. Returns false if it is damaged.
    pub fn unpack(&self, bytes: &[u8], homes: &[Home], since: u64) -> bool {
        let Some((path, handles, rows)) = unpacked(bytes, homes, since) else { return false };
        self.with(|state| state.restore(path, handles, rows, since));
        true
    }
}

/// Whether the rows of a directory follow.
const ROWS: u64 = 1;

/// Packs a directory that is not known, but was: nothing is learnt of it but that.
pub fn pack_unknown(path: &[u8]) -> Vec<u8> {
    let mut out = Packer::default();
    out.bytes(path);
    out.number(0);
    out.number(0);
    out.0
}

/// What was packed of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packed {
    /// Its names.
    Names,
    /// That it is there.
    Place,
    /// That it was known.
    Unknown,
}

/// Returns the path of a directory, and what was packed of it. `None` if that is damaged.
pub fn packed(bytes: &[u8]) -> Option<(&[u8], Packed)> {
    let mut from = Unpacker(bytes);
    let path = from.bytes()?;
    let handles = from.number()?;
    for _ in 0..handles {
        from.take::<8>()?;
    }
    let what = match from.number()? {
        ROWS => Packed::Names,
        _ if handles == 0 => Packed::Unknown,
        _ => Packed::Place,
    };
    Some((path, what))
}

fn unpacked(bytes: &[u8], homes: &[Home], since: u64) -> Option<(Arc<[u8]>, Handles, Option<Rows>)> {
    let mut from = Unpacker(bytes);
    let path = from.bytes()?.into();
    let count = from.number()?;
    let handles = (0..count).map(|_| from.take().map(u64::from_le_bytes)).collect::<Option<_>>()?;
    let rows = if from.number()? == ROWS {
        let mut rows = Rows::decode(from.0)?;
        let now = seconds();
        rows.each_facts(|facts| facts.arrive(homes, since, now));
        Some(rows)
    } else {
        from.0.is_empty().then_some(None)?
    };
    Some((path, handles, rows))
}

impl State {
    fn is_whole(&mut self, path: &[u8]) -> bool {
        let Some((_, rows, log)) = self.rows_of(path).filter(|(known, ..)| known.is_listed) else {
            return false;
        };
        let is_known = |row: &Row| row.facts.as_ref().is_some_and(|facts| log.may_rely_on(facts));
        rows.list().iter().all(|row| matches!(&*row.name, b"." | b"..") || is_known(row))
    }

    fn has_room(&self) -> bool {
        self.dirs.len() < MAX_DIRS / 8 * 7 && self.store.has_room()
    }

    fn packed(&mut self, path: &[u8], homes: &[Home]) -> Option<Vec<u8>> {
        let known = self.dirs.get(path)?;
        let read;
        let rows = match &known.rows {
            _ if !known.is_listed => None,
            DirRows::No => None,
            DirRows::Hot(hot) => Some(&hot.rows),
            DirRows::Stored(extent) => {
                read = self.store.read(*extent).and_then(|bytes| Rows::decode(&bytes));
                read.as_ref()
            }
        };
        let mut out = Packer::default();
        out.bytes(path);
        out.number(known.handles.len() as u64);
        known.handles.iter().for_each(|handle| out.0.extend(handle.to_le_bytes()));
        out.number(if rows.is_some() { ROWS } else { 0 });
        if let Some(rows) = rows {
            let now = seconds();
            let leaves = |row: &Row| leave(row, &self.log, homes, now);
            out.0.extend(Rows::new(rows.list().iter().map(leaves).collect())?.encode());
        }
        Some(out.0)
    }

    fn restore(&mut self, path: Arc<[u8]>, handles: Handles, rows: Option<Rows>, since: u64) {
        // What this process has seen itself is newer.
        let is_known = |known: &Known| !matches!(known.rows, DirRows::No) || known.handles != handles;
        if handles.is_empty() || self.dirs.len() >= MAX_DIRS || self.dirs.get(&path).is_some_and(is_known) {
            return;
        }
        // Whatever has come to one of these paths, or gone, was told of a directory above it.
        let unchanged = |path: &[u8]| {
            self.dirs.get(path).is_some_and(|known| self.log.all_unchanged(&known.handles, since))
        };
        if !self.log.all_unchanged(&handles, since) || !above(&path).all(unchanged) {
            return;
        }
        self.know(&path, handles);
        let Some(rows) = rows else { return };
        if let Some(known) = self.dirs.get_mut(&path) {
            known.is_listed = true;
            known.doubts.clear();
        }
        self.keep(&path, Hot { rows, stored: None, used: false });
    }
}

/// Returns a row for the next process.
fn leave(row: &Row, log: &Log, homes: &[Home], now: i64) -> Row {
    let facts = row.facts.as_ref().filter(|facts| log.may_rely_on(facts));
    let facts = facts.and_then(|facts| {
        let mut facts = facts.clone();
        for copy in &mut facts.copies {
            let place = homes.iter().position(|home| home.id == copy.branch && home.dev == copy.key.dev)?;
            copy.branch = BranchId(u32::try_from(place).ok()?);
            copy.key.dev = 0;
        }
        facts.since = 0;
        // How much longer: the clock of another boot begins anew.
        facts.until = facts.until.saturating_sub(now);
        Some(facts)
    });
    Row { name: row.name.clone(), facts, ..*row }
}

impl Facts {
    /// Makes what a process before has left its own; returns whether that is possible.
    fn arrive(&mut self, homes: &[Home], since: u64, now: i64) -> bool {
        for copy in &mut self.copies {
            let Some(home) = homes.get(copy.branch.0 as usize) else { return false };
            copy.branch = home.id;
            copy.key.dev = home.dev;
        }
        if let Some(shown) = self.copies.first() {
            self.attr.dev = shown.key.dev;
        }
        self.since = since;
        self.until = now.saturating_add(self.until);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::row;
    use super::super::{Found, Listed, Reported, Rules, handle_hash};
    use super::*;

    const HOMES: [Home; 2] = [Home { id: BranchId(3), dev: 66 }, Home { id: BranchId(9), dev: 5 }];

    fn open() -> Catalogue {
        let catalogue = Catalogue::default();
        catalogue.open(tempfile::tempfile().unwrap(), 1 << 20, Rules::default());
        catalogue.allow(true);
        catalogue
    }

    fn hash(number: u64) -> u64 {
        handle_hash(&number.to_le_bytes())
    }

    /// Knows `a`, whose handle is 10, and `a/b` with 20, in the root, which has 11; each with two files.
    fn filled() -> Catalogue {
        let catalogue = open();
        for (path, dir) in [("a", 10), ("a/b", 20)] {
            let above = catalogue.unknown_above(path.as_bytes());
            let rows = [1, 2].map(|at| row(&format!("f{at}"), at, catalogue.now(), &[hash(dir + 100 * at)]));
            catalogue.learn_names(Listed {
                path: path.as_bytes().into(),
                handles: Handles::from_slice(&[hash(dir)]),
                rows: rows.into(),
                above: above.into_iter().map(|path| (path, Handles::from_slice(&[hash(11)]))).collect(),
                since: catalogue.now(),
            });
        }
        catalogue
    }

    fn packed(from: &Catalogue) -> Vec<Vec<u8>> {
        from.known_directories().iter().map(|path| from.pack(path, &HOMES).unwrap()).collect()
    }

    fn told(to: &Catalogue, dir: u64, name: &str, target: Option<u64>) {
        let (dir, target) = (dir.to_le_bytes(), target.map(u64::to_le_bytes));
        let target = target.as_ref().map(|target| &target[..]);
        to.changed(Reported { entry: Some((&dir, name.as_bytes())), target, names: true, on_dir: true });
    }

    fn shows(catalogue: &Catalogue, path: &str, name: &str) -> Option<Option<Facts>> {
        match catalogue.find(path.as_bytes(), name.as_bytes()) {
            Found::Unknown => None,
            Found::Absent => Some(None),
            Found::There(facts) => Some(Some(*facts)),
        }
    }

    #[test]
    fn the_next_process_knows_the_same_on_its_branches() {
        let before = filled();
        before.unreported(&(110_u64).to_le_bytes(), true);
        let after = open();
        let now = [Home { id: BranchId(70), dev: 1000 }, HOMES[1]];
        for bytes in packed(&before) {
            assert!((0..bytes.len()).all(|end| !after.unpack(&bytes[..end], &now, after.now())));
            assert!(after.unpack(&bytes, &now, after.now()));
        }
        assert_eq!(shows(&after, "a", "none"), Some(None));
        assert_eq!(shows(&after, "a", "f1"), None, "it was being written");
        let facts = shows(&after, "a/b", "f2").unwrap().unwrap();
        let copy = facts.copies[0];
        assert_eq!((copy.branch, copy.key.dev, copy.handle), (BranchId(70), 1000, hash(220)));
        assert!(after.page(b"a/b", 0, |_| true).is_some_and(|page| page.rows.len() == 2));
        // From now on it is told.
        after.changed(Reported {
            entry: None,
            target: Some(&220_u64.to_le_bytes()),
            names: false,
            on_dir: false,
        });
        assert_eq!(shows(&after, "a/b", "f2"), None);
        told(&after, 10, "b", None);
        assert_eq!(shows(&after, "a/b", "none"), None);
        let other = open();
        packed(&before).iter().for_each(|bytes| assert!(other.unpack(bytes, &[], other.now())));
        assert_eq!(shows(&other, "a/b", "f2"), None, "the branch is not there");
    }

    #[test]
    fn what_changes_before_it_is_learnt_is_not() {
        let parts = packed(&filled());
        for (at, (dir, name), left) in [
            (0, (11, "a"), [false, false]),
            (1, (11, "x"), [false, false]),
            (2, (10, "b"), [false, false]),
            (3, (20, "f1"), [true, false]),
        ] {
            let after = open();
            let since = after.now();
            for (number, bytes) in parts.iter().enumerate() {
                if number == at {
                    told(&after, dir, name, None);
                }
                assert!(after.unpack(bytes, &HOMES, since));
            }
            if at == 3 {
                told(&after, dir, name, None);
            }
            let known = ["a", "a/b"].map(|path| {
                shows(&after, path, "none").is_some() && after.page(path.as_bytes(), 0, |_| true).is_some()
            });
            assert_eq!(known, left, "{at}");
        }
        let after = open();
        let since = after.now();
        after.clear();
        parts.iter().for_each(|bytes| assert!(after.unpack(bytes, &HOMES, since)));
        assert_eq!(shows(&after, "a", "none"), None);
    }
}
