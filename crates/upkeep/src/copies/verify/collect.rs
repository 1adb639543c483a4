//! What there is to verify: every file on every branch once, however many names it has, together with its copies.

use crate::error::Result;
use crate::filter::Filter;
use crate::pool_link::PoolLink;
use crate::relocate::Stays;
use crate::stop::Stop;
use crate::survey::{Entry, FileCopy, current, walk_all};
use canopy_base::text::os_error;
use rustix::fs::FileType;
use std::collections::HashMap;
use std::path::PathBuf;

/// A file on a branch.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) copy: FileCopy,
    /// All names that were met, relative to the root of the pool; at least one.
    pub(super) names: Vec<PathBuf>,
}

/// Files that share paths in the pool: mostly one, or the copies of one path. Hard links can tie more together.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) items: Vec<Item>,
    /// The paths under which several of the items are.
    pub(super) shared: Vec<(PathBuf, Vec<usize>)>,
}

#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) units: Vec<Unit>,
    /// What could not be looked at.
    pub(super) failed: Vec<Stays>,
}

/// Looks through some files and trees of a pool, none within another.
pub(super) fn collect(
    pool: &PoolLink,
    starts: &[PathBuf],
    filter: &Filter,
    stop: &Stop,
) -> Result<Collected> {
    let mut survey = Survey::default();
    let failed = walk_all(pool, starts, &mut |entry| {
        // A copy that is known to be out of date differs from the others, and nobody sees it.
        let known = current(pool, &entry.path, &entry.copies);
        !stop.is_set()
            && !pool.keep.stays(&entry.path)
            && if known.len() == entry.copies.len() {
                survey.add(entry)
            } else {
                survey.add(&Entry {
                    path: entry.path.clone(),
                    copies: entry
                        .copies
                        .iter()
                        .filter(|copy| known.contains(&copy.branch))
                        .copied()
                        .collect(),
                })
            }
    })?;
    stop.check()?;
    let mut units = survey.units();
    units.retain(|unit| {
        let names = unit.items.iter().flat_map(|item| item.names.iter().map(PathBuf::as_path));
        filter.admits(&pool.mountpoint, names, &unit.items[0].copy)
    });
    let failed = failed.into_iter().map(|(path, errno)| Stays { path, why: os_error(errno) }).collect();
    Ok(Collected { units, failed })
}

#[derive(Debug, Default)]
struct Survey {
    items: Vec<Item>,
    /// For each item, one that it shares a path with, or itself: a forest, of which each tree becomes a unit.
    above: Vec<usize>,
    shared: Vec<(PathBuf, Vec<usize>)>,
    /// The items that have, or may have, several names.
    known: HashMap<(u64, u64), usize>,
}

impl Survey {
    /// Records an entry. Returns whether to look at what is below it.
    fn add(&mut self, entry: &Entry) -> bool {
        if entry.is_dir() {
            return true;
        }
        let mut together: Vec<usize> = Vec::new();
        for copy in entry.copies.iter().filter(|copy| copy.kind() == FileType::RegularFile) {
            let index = self.index(copy, entry);
            // Two branches may show one file, through a bind mount.
            if !together.contains(&index) {
                together.push(index);
            }
        }
        if together.len() > 1 {
            let root = self.root(together[0]);
            for index in &together[1..] {
                let other = self.root(*index);
                self.above[other.max(root)] = other.min(root);
            }
            self.shared.push((entry.path.clone(), together));
        }
        false
    }

    fn index(&mut self, copy: &FileCopy, entry: &Entry) -> usize {
        let may_recur = copy.stat.st_nlink > 1 || entry.copies.len() > 1;
        if may_recur && let Some(index) = self.known.get(&copy.key()) {
            let names = &mut self.items[*index].names;
            if names.last() != Some(&entry.path) {
                names.push(entry.path.clone());
            }
            return *index;
        }
        let index = self.items.len();
        if may_recur {
            self.known.insert(copy.key(), index);
        }
        self.items.push(Item { copy: *copy, names: vec![entry.path.clone()] });
        self.above.push(index);
        index
    }

    fn root(&self, mut index: usize) -> usize {
        while self.above[index] != index {
            index = self.above[index];
        }
        index
    }

    fn units(mut self) -> Vec<Unit> {
        let roots: Vec<usize> = (0..self.items.len()).map(|index| self.root(index)).collect();
        // An item's place in its unit.
        let (mut units, mut places): (Vec<Unit>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut unit_of: Vec<usize> = Vec::new();
        for (index, item) in self.items.drain(..).enumerate() {
            if roots[index] == index {
                units.push(Unit::default());
                unit_of.push(units.len() - 1);
            } else {
                // A root comes before all below it.
                unit_of.push(unit_of[roots[index]]);
            }
            let unit = &mut units[unit_of[index]];
            places.push(unit.items.len());
            unit.items.push(item);
        }
        for (path, together) in self.shared {
            let unit = &mut units[unit_of[together[0]]];
            unit.shared.push((path, together.into_iter().map(|index| places[index]).collect()));
        }
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(branch: usize, ino: u64, links: u64) -> FileCopy {
        let mut stat = rustix::fs::stat("/proc/self/exe").expect("stat");
        (stat.st_dev, stat.st_ino, stat.st_nlink) = (branch as u64, ino, links as _);
        FileCopy { branch, stat }
    }

    /// Units as the numbers of the files in them, in order.
    fn units(entries: &[(&str, &[FileCopy])]) -> Vec<Vec<u64>> {
        let mut survey = Survey::default();
        for (path, copies) in entries {
            survey.add(&Entry { path: path.into(), copies: copies.to_vec() });
        }
        let of = |unit: &Unit| unit.items.iter().map(|item| item.copy.stat.st_ino).collect();
        survey.units().iter().map(of).collect()
    }

    #[test]
    fn files_that_share_a_path_are_one_unit() {
        let alone: [(&str, &[FileCopy]); 2] = [("a", &[copy(0, 1, 1)]), ("b", &[copy(0, 2, 1)])];
        assert_eq!(units(&alone), [[1], [2]]);
        assert_eq!(units(&[("a", &[copy(0, 1, 1), copy(1, 2, 1)])]), [[1, 2]]);
        // One file with three names, of which two have copies of their own.
        let tied: [(&str, &[FileCopy]); 4] = [
            ("a", &[copy(0, 1, 3)]),
            ("b", &[copy(0, 1, 3), copy(1, 2, 1)]),
            ("c", &[copy(2, 9, 1)]),
            ("d", &[copy(0, 1, 3), copy(1, 3, 1)]),
        ];
        assert_eq!(units(&tied), [vec![1, 2, 3], vec![9]]);
        // The tie comes last.
        let late: [(&str, &[FileCopy]); 3] = [
            ("a", &[copy(0, 1, 2), copy(1, 2, 2)]),
            ("b", &[copy(2, 3, 2), copy(3, 4, 1)]),
            ("c", &[copy(2, 3, 2), copy(1, 2, 2), copy(0, 1, 2)]),
        ];
        assert_eq!(units(&late), [[1, 2, 3, 4]]);
    }

    #[test]
    fn a_file_that_two_branches_show_is_read_once() {
        let mut other = copy(0, 1, 1);
        other.branch = 1;
        assert_eq!(units(&[("a", &[copy(0, 1, 1), other])]), [[1]]);
    }
}
