//! Disks become equally full.

use super::draft::Draft;
use super::model::{Disk, Layout, Plan, Reach, Takers, Takes};
use std::collections::{BTreeSet, HashMap};

/// How often the share is worked out anew that disks come to: large files leave it a little beside.
const LEVELS: usize = 64;

impl<'p> Layout<'p> {
    /// Evens out how full disks are, those of each tier among themselves: afterwards their shares differ by at most `width`, as
    /// far as the sizes of the files allow, and where they may go.
    pub fn balance(&mut self, width: f64) -> Plan<'p> {
        let groups = self.groups();
        let mut draft = Draft::of(self);
        for group in groups {
            even_out(&mut draft, &group, width);
        }
        draft.finish()
    }

    /// Returns how far the used shares of all disks differ at most.
    pub fn spread_of_shares(&self) -> f64 {
        let shares = || self.disks.iter().map(Disk::fullness);
        let (least, most) = (shares().fold(1.0, f64::min), shares().fold(0.0, f64::max));
        (most - least).max(0.0)
    }

    /// Returns the disks that are to be equally full: those of each tier, and the others.
    fn groups(&self) -> Vec<Vec<usize>> {
        let tiers = self.placement.map_or(&[][..], |placement| &placement.tiers);
        let mut tier_of: Vec<Option<Option<usize>>> = vec![None; self.disks.len()];
        for branch in &self.branches {
            // Of branches of several tiers on one disk, the first counts.
            if let Some(disk) = branch.disk {
                let tier = tiers.iter().position(|tier| tier.holds(&branch.path));
                tier_of[disk].get_or_insert(tier);
            }
        }
        let mut groups: Vec<(Option<Option<usize>>, Vec<usize>)> = Vec::new();
        for (disk, tier) in tier_of.into_iter().enumerate() {
            match groups.iter_mut().find(|(kind, _)| *kind == tier) {
                Some((_, group)) => group.push(disk),
                None => groups.push((tier, vec![disk])),
            }
        }
        groups.into_iter().map(|(_, disks)| disks).collect()
    }
}

/// Returns the interval of fullness that some disks fit into with the least to move, for an interval of this width: what
/// the fuller disks give is what the emptier ones take.
fn level(disks: &[Disk], group: &[usize], takes: &[bool], width: f64) -> (f64, f64) {
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    let over = |disk: &usize, share: f64| disks[*disk].fullness() - share;
    // Bisection to less than a byte of any disk.
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        let given: f64 =
            group.iter().map(|disk| over(disk, middle + width).max(0.0) * disks[*disk].size as f64).sum();
        let takers = group.iter().filter(|disk| takes[**disk]);
        let taken: f64 = takers.map(|disk| (-over(disk, middle)).max(0.0) * disks[*disk].size as f64).sum();
        if given > taken {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low, low + width)
}

/// Copies on the disks of a group, by disk and class: the largest that fits is found without a search through others.
struct Movable {
    /// Which branch of each disk takes a copy, the same for all of a class.
    classes: Vec<Takers>,
    known: HashMap<Takers, usize>,
    /// Of each class and disk: bytes, file, branch.
    copies: Vec<Vec<BTreeSet<(u64, usize, usize)>>>,
}

impl Movable {
    /// Takes up all copies of a file, or lets them go.
    fn set(&mut self, layout: &Layout<'_>, file: usize, present: bool) {
        for copy in &layout.files[file].copies {
            let Some(disk) = layout.disk_of(copy.branch) else { continue };
            if copy.bytes == 0 || !layout.branches[copy.branch].gives {
                continue;
            }
            // What only balances the disks stays where it belongs.
            let takers = layout.takers((file, copy.branch), Reach::Home, Takes::Sparingly);
            let next = self.classes.len();
            let class = self.known.get(&takers[0]).copied().unwrap_or(next);
            if class == next {
                self.known.insert(takers[0].clone(), class);
                self.classes.push(takers[0].clone());
                self.copies.push(vec![BTreeSet::new(); layout.disks.len()]);
            }
            let entry = (copy.bytes, file, copy.branch);
            let copies = &mut self.copies[class][disk];
            let _ = if present { copies.insert(entry) } else { copies.remove(&entry) };
        }
    }
}

fn even_out(draft: &mut Draft<'_, '_>, group: &[usize], width: f64) {
    let mut movable = Movable { classes: Vec::new(), known: HashMap::new(), copies: Vec::new() };
    for file in 0..draft.layout.files.len() {
        movable.set(draft.layout, file, true);
    }
    let mut takes = vec![false; draft.layout.disks.len()];
    for branch in draft.layout.branches.iter().filter(|branch| branch.takes > Takes::Nothing) {
        if let Some(disk) = branch.disk {
            takes[disk] = true;
        }
    }
    for _ in 0..LEVELS {
        let level = level(&draft.layout.disks, group, &takes, width);
        let mut moved = false;
        while let Some((file, from, to)) = best(draft.layout, &movable, group, level) {
            movable.set(draft.layout, file, false);
            draft.shift(file, from, to);
            movable.set(draft.layout, file, true);
            moved = true;
        }
        if !moved {
            return;
        }
    }
}

/// Returns the next move: a file, its branch, and the one that it goes to.
fn best(
    layout: &Layout<'_>,
    movable: &Movable,
    group: &[usize],
    (low, high): (f64, f64),
) -> Option<(usize, usize, usize)> {
    let disks = &layout.disks;
    let mut by_fullness = group.to_vec();
    by_fullness.sort_by(|one, other| disks[*one].fullness().total_cmp(&disks[*other].fullness()));
    let pairs = by_fullness.iter().rev().flat_map(|from| by_fullness.iter().map(move |to| (*from, *to)));
    let apart = |from: usize, to: usize| disks[from].fullness() - disks[to].fullness() > high - low;
    pairs.filter(|(from, to)| apart(*from, *to) && disks[*to].has_room(1)).find_map(|(from, to)| {
        // Neither may leave the interval on the other side; more would have to move back.
        let above = (disks[from].fullness() - low) * disks[from].size as f64;
        let below = (high - disks[to].fullness()) * disks[to].size as f64;
        let room = disks[to].free.saturating_sub(disks[to].reserve);
        let limit = (above.min(below).max(0.0) as u64).min(room);
        let classes = movable.classes.iter().zip(&movable.copies);
        let fits = classes.filter_map(|(takers, copies)| {
            let (bytes, file, branch) =
                copies[from].range(..=(limit, usize::MAX, usize::MAX)).next_back().copied()?;
            Some(((bytes, file), branch, takers[to]?))
        });
        fits.max().map(|((_, file), branch, to)| (file, branch, to))
    })
}

#[cfg(test)]
mod tests {
    use super::super::properties::{Small, rule, tier};
    use super::*;
    use crate::placement::Placement;

    /// Returns the fullness in per cent after the moves, and the bytes that have moved.
    fn after(small: &Small, width: f64) -> (Vec<u64>, u64) {
        let mut layout = small.layout(None);
        let plan = layout.balance(width);
        let moved = plan.going.iter().map(|it| layout.files[it.file].copies[0].bytes).sum();
        (shares(&layout), moved)
    }

    fn shares(layout: &Layout<'_>) -> Vec<u64> {
        layout.disks.iter().map(|disk| (disk.fullness() * 100.0).round() as u64).collect()
    }

    #[test]
    fn as_little_as_possible_moves() {
        // Disks of different sizes: shares count, not bytes.
        let small = Small::of(&[(1000, 900), (2000, 200), (1000, 400)]);
        let small = small.files(0, 90, 10).files(1, 20, 10).files(2, 40, 10);
        let (shares, moved) = after(&small, 0.0);
        assert!(shares.iter().all(|share| (36..=39).contains(share)), "{shares:?}");
        assert!(moved <= 560, "{moved}");
        // Within 30 points, the last one is not touched, and each of the others goes as far as the edge.
        let (shares, moved) = after(&small, 0.30);
        assert!(shares[0] - shares[1] <= 30 && shares[2] == 40, "{shares:?}");
        assert!(moved <= 350, "{moved}");
        assert_eq!(after(&small, 0.81).1, 0, "they are within it already");
    }

    #[test]
    fn files_that_are_too_large_stay() {
        let empty = || Small::of(&[(1000, 800), (1000, 0)]);
        assert_eq!(after(&empty().files(0, 1, 801), 0.02).1, 0, "it would only change places");
        // The larger one would leave the second disk fuller than the first.
        assert_eq!(after(&empty().files(0, 1, 700).files(0, 1, 100), 0.02).0, [70, 10]);
        let mut reserved = empty().files(0, 80, 10);
        reserved.branches[1].reserve = 950;
        assert_eq!(after(&reserved, 0.02).0, [75, 5], "minfreespace is kept");
        let mut refusing = empty().files(0, 80, 10);
        refusing.branches[1].takes = Takes::Nothing;
        assert_eq!(after(&refusing, 0.02).1, 0);
    }

    #[test]
    fn an_empty_pool_has_nothing_to_move() {
        assert_eq!(after(&Small::of(&[]), 0.05).1, 0);
        assert_eq!(after(&Small::of(&[(0, 0), (0, 0)]), 0.05).1, 0);
        assert_eq!(after(&Small::of(&[(10, 10)]).files(0, 1, 10), 0.0).1, 0);
    }

    #[test]
    fn files_stay_within_their_bounds_and_each_tier_comes_to_a_share_of_its_own() {
        let small = Small::of(&[(1000, 800), (1000, 0), (1000, 400)]).files(0, 80, 10);
        let bound = Placement { tiers: Vec::new(), rules: vec![rule("**", &["/d0", "/d2"], "")] };
        let mut layout = small.layout(Some(&bound));
        assert!(layout.balance(0.02).going.iter().all(|it| layout.files[it.file].is_on(2)));
        assert_eq!(shares(&layout)[1], 0);
        let tiers = Placement { tiers: vec![tier("a", &["/d0", "/d2"])], rules: Vec::new() };
        let mut layout = small.layout(Some(&tiers));
        assert_eq!((layout.balance(0.0).going.len(), shares(&layout)), (20, vec![60, 0, 60]));
        let mut open = small.layout(Some(&tiers)).unbound();
        open.balance(0.0);
        assert!(open.spread_of_shares() < 0.02);
    }

    #[test]
    fn a_copy_moves_to_a_disk_that_has_none() {
        let mut small = Small::of(&[(1000, 800), (1000, 790), (1000, 0)]).files(0, 40, 10);
        small.files.iter_mut().for_each(|file| file.copies.push(1));
        let mut layout = small.layout(None);
        let plan = layout.balance(0.05);
        assert!(!plan.going.is_empty());
        for file in layout.files() {
            assert!(file.copies[0].branch != file.copies[1].branch, "{file:?}");
        }
    }
}
