//! Files come to be on as many disks as a rule or somebody wants.

use super::model::{Layout, Takes};
use crate::placement::{Placement, Rule, Set, Target};
use std::collections::BTreeSet;

/// What branches hold under the name of a file.
#[derive(Clone, Copy, Debug)]
pub struct Twins<'t> {
    /// On how many disks it is to be.
    pub wanted: usize,
    /// What a copy takes.
    pub bytes: u64,
    /// Branches with a copy that is up to date and stays.
    pub current: &'t [usize],
    /// Branches with one that is out of date, which a new one replaces.
    pub old: &'t [usize],
    /// Branches with something that no copy may replace, and those on which it would lose something.
    pub other: &'t [usize],
    /// What branches must take.
    pub least: Takes,
}

/// Where more copies go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spread {
    pub to: Vec<usize>,
    /// There will still be too few: no other disk that may hold one has room.
    pub is_short: bool,
}

impl Layout<'_> {
    /// Chooses branches for the copies that a file lacks: an old copy makes room for the new one, else the disk with the most
    /// free space counts. Two branches of one disk are lost together.
    pub fn spread(&mut self, twins: &Twins<'_>, wanted: Option<(&Rule, &Placement)>) -> Spread {
        let mut held: BTreeSet<Option<usize>> = twins.current.iter().map(|it| self.disk_of(*it)).collect();
        let sets = choices(wanted);
        let mut spread = Spread::default();
        while held.len() < twins.wanted {
            let fits = |branch: &usize| {
                let taken = twins.current.contains(branch) || twins.other.contains(branch);
                let disk = self.disk_of(*branch);
                !taken
                    && self.branches[*branch].takes >= twins.least
                    && !held.contains(&disk)
                    && disk.is_some_and(|disk| self.disks[disk].has_room(twins.bytes))
            };
            let rank = |branch: &usize| {
                let disk = self.disk_of(*branch);
                (
                    twins.old.contains(branch),
                    self.branches[*branch].takes,
                    disk.map(|disk| self.disks[disk].free),
                    disk,
                )
            };
            let best = sets.iter().find_map(|set| {
                let admits = |branch: &usize| set.is_none_or(|set| set.holds(self.path(*branch)));
                // Of several branches on a disk, the first.
                (0..self.branches.len()).rev().filter(admits).filter(fits).max_by_key(rank)
            });
            let Some(to) = best else {
                spread.is_short = true;
                break;
            };
            let disk = self.disk_of(to);
            if let Some(disk) = disk {
                self.disks[disk].free = self.disks[disk].free.saturating_sub(twins.bytes);
            }
            held.insert(disk);
            spread.to.push(to);
        }
        spread
    }
}

/// Returns the sets of branches that are asked for copies, one after the other; `None` stands for all.
fn choices<'r>(wanted: Option<(&'r Rule, &'r Placement)>) -> Vec<Option<Set<'r>>> {
    let Some((rule, placement)) = wanted else { return vec![None] };
    match &rule.target {
        Target::Anywhere => vec![None],
        Target::Branches(patterns) => vec![Some(Set::Rule(patterns))],
        Target::Tier(name) => {
            let tier = placement.tiers.iter().find(|tier| tier.name == *name);
            tier.map(|tier| Some(Set::Tier(tier))).into_iter().chain([None]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::{Small, rule, tier};
    use super::*;

    /// Four branches on three disks: the first two share one.
    fn small(free: [u64; 3]) -> Small {
        let mut small = Small::of(&[0, 0, 1, 2].map(|disk| (100, 100 - free[disk])));
        small.disks.remove(1);
        for (branch, disk) in small.branches.iter_mut().zip([0, 0, 1, 2]) {
            (branch.disk, branch.reserve) = (Some(disk), 10);
        }
        small
    }

    fn spread(wanted: usize, current: &[usize], old: &[usize], free: [u64; 3]) -> (Vec<usize>, bool) {
        let twins = Twins { wanted, bytes: 20, current, old, other: &[], least: Takes::All };
        let spread = small(free).layout(None).spread(&twins, None);
        (spread.to, spread.is_short)
    }

    #[test]
    fn a_copy_goes_to_the_disk_with_most_room_or_takes_the_place_of_an_old_one() {
        assert_eq!(spread(2, &[0], &[], [90, 40, 50]), (vec![3], false));
        assert_eq!(spread(3, &[0], &[], [90, 40, 50]), (vec![3, 2], false));
        assert_eq!(spread(2, &[2], &[0], [90, 90, 50]), (vec![0], false));
        assert_eq!(spread(2, &[3], &[2], [90, 40, 50]), (vec![2], false));
        assert_eq!(spread(3, &[0], &[], [90, 29, 30]), (vec![3], true));
        assert_eq!(
            spread(2, &[0, 1], &[], [90, 20, 20]),
            (vec![], true),
            "branches of one disk are one copy"
        );
        let other = Twins { wanted: 2, bytes: 20, current: &[0], old: &[], other: &[2], least: Takes::All };
        assert!(small([90, 90, 20]).layout(None).spread(&other, None).is_short, "it holds something else");
        // A branch that cannot store everything comes last, if it is asked at all.
        let mut lossy = small([90, 90, 50]);
        lossy.branches[2].takes = Takes::Sparingly;
        let to = |wanted: usize, least: Takes| {
            let twins = Twins { wanted, bytes: 20, current: &[0], old: &[], other: &[], least };
            lossy.layout(None).spread(&twins, None).to
        };
        assert_eq!((to(2, Takes::Sparingly), to(3, Takes::Sparingly)), (vec![3], vec![3, 2]));
        assert_eq!(to(3, Takes::All), [3]);
    }

    #[test]
    fn the_places_of_the_rule_come_first() {
        let wanted = |rule: &Rule| {
            let placement = Placement { tiers: vec![tier("a", &["/d2"])], rules: Vec::new() };
            let small = small([90, 40, 90]);
            let twins =
                Twins { wanted: 3, bytes: 20, current: &[0], old: &[], other: &[], least: Takes::All };
            let spread = small.layout(None).spread(&twins, Some((rule, &placement)));
            (spread.to, spread.is_short)
        };
        assert_eq!(wanted(&rule("**", &[], "a")), (vec![2, 3], false), "a tier is only preferred");
        assert_eq!(wanted(&rule("**", &["/d2"], "")), (vec![2], true), "a rule is strict");
    }
}
