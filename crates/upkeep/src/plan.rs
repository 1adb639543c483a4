//! Deciding what moves where. Pure: without system calls.

use std::collections::BTreeSet;

/// One filesystem with branches on it. Several branches may share one.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// Bytes in all, as far as users may use them.
    pub(crate) size: u64,
    /// Bytes that users may still use.
    pub(crate) free: u64,
    /// Bytes that must stay free.
    pub(crate) reserve: u64,
    /// The branch on it that takes files; `None` if none does.
    pub(crate) taker: Option<usize>,
}

impl Disk {
    fn used(&self) -> u64 {
        self.size.saturating_sub(self.free)
    }

    /// Returns the used share.
    pub(crate) fn fullness(&self) -> f64 {
        if self.size == 0 { 0.0 } else { self.used() as f64 / self.size as f64 }
    }

    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.taker.is_some() && self.free.checked_sub(bytes).is_some_and(|left| left >= self.reserve)
    }
}

/// Something that can move: its disk, and the bytes that it takes there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) disk: usize,
    pub(crate) bytes: u64,
    /// The index of its class.
    pub(crate) class: usize,
}

/// Where items of one kind may go.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Sets of disks, the first one first: for each disk the branch that takes the item, if one does.
    pub(crate) sets: Vec<Vec<Option<usize>>>,
}

impl Class {
    /// Returns the branch that takes an item on a disk.
    pub(crate) fn taker(&self, disk: usize) -> Option<usize> {
        self.sets.iter().find_map(|set| set[disk])
    }
}

/// One move: the index of the item, and of the disk that it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub(crate) item: usize,
    pub(crate) to: usize,
    /// The branch on that disk.
    pub(crate) branch: usize,
}

/// Returns the interval of fullness that some disks fit into with the least to move, for an interval of this width: what
/// the fuller disks give is what the emptier ones take.
fn level(disks: &[Disk], group: &[usize], width: f64) -> (f64, f64) {
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    let disks = || group.iter().map(|disk| &disks[*disk]);
    // Bisection to less than a byte of any disk.
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        let given: f64 =
            disks().map(|disk| (disk.fullness() - middle - width).max(0.0) * disk.size as f64).sum();
        let taken: f64 = disks()
            .filter(|disk| disk.taker.is_some())
            .map(|disk| (middle - disk.fullness()).max(0.0) * disk.size as f64)
            .sum();
        if given > taken {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low, low + width)
}

/// Returns how far the used shares of some disks differ at most.
pub(crate) fn spread(disks: &[Disk], group: &[usize]) -> f64 {
    let shares = || group.iter().map(|disk| disks[*disk].fullness());
    let (least, most) = (shares().fold(1.0, f64::min), shares().fold(0.0, f64::max));
    (most - least).max(0.0)
}

/// Evens out how full the disks of a group are: afterwards the shares differ by at most `width`, as far as the sizes of the
/// items and their classes allow. `disks` is then as the moves leave it.
pub(crate) fn balance(
    disks: &mut [Disk],
    group: &[usize],
    items: &[Item],
    classes: &[Class],
    width: f64,
) -> Vec<Move> {
    let (low, high) = level(disks, group, width);
    // Of each disk and class. There are few classes, so that nothing searches through items that may not move.
    let mut items_of: Vec<Vec<BTreeSet<(u64, usize)>>> =
        vec![vec![BTreeSet::new(); classes.len()]; disks.len()];
    for (index, item) in items.iter().enumerate().filter(|(_, item)| item.bytes > 0) {
        items_of[item.disk][item.class].insert((item.bytes, index));
    }
    let mut moves = Vec::new();
    let mut by_fullness = group.to_vec();
    loop {
        by_fullness.sort_by(|one, other| disks[*one].fullness().total_cmp(&disks[*other].fullness()));
        let pairs = by_fullness.iter().rev().flat_map(|from| by_fullness.iter().map(move |to| (*from, *to)));
        let apart = |from: usize, to: usize| disks[from].fullness() - disks[to].fullness() > width;
        let found =
            pairs.filter(|(from, to)| apart(*from, *to) && disks[*to].has_room(1)).find_map(|(from, to)| {
                // Neither may leave the interval on the other side; more would have to move back.
                let above = (disks[from].fullness() - low) * disks[from].size as f64;
                let below = (high - disks[to].fullness()) * disks[to].size as f64;
                let room = disks[to].free.saturating_sub(disks[to].reserve);
                let limit = (above.min(below).max(0.0) as u64).min(room);
                let may = items_of[from]
                    .iter()
                    .enumerate()
                    .filter(|(class, _)| classes[*class].taker(to).is_some());
                let fits = may.filter_map(|(_, items)| items.range(..=(limit, usize::MAX)).next_back());
                fits.max().map(|(_, item)| (*item, to))
            });
        let Some((index, to)) = found else { return moves };
        let item = items[index];
        let Some(branch) = classes[item.class].taker(to) else { return moves };
        items_of[item.disk][item.class].remove(&(item.bytes, index));
        disks[item.disk].free += item.bytes;
        disks[to].free -= item.bytes;
        moves.push(Move { item: index, to, branch });
    }
}

/// Distributes items over the other disks, each to the one with the most free space of the first set in which one has room.
/// Returns the moves, and the items for which none has.
pub(crate) fn distribute(disks: &[Disk], items: &[Item], classes: &[Class]) -> (Vec<Move>, Vec<usize>) {
    let mut disks = disks.to_vec();
    let (mut moves, mut homeless) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let place = classes[item.class].sets.iter().find_map(|set| {
            // Another branch on the same disk can take everything.
            if let Some(branch) = set[item.disk] {
                return Some((item.disk, branch));
            }
            let fits = |(to, _): &(usize, usize)| disks[*to].has_room(item.bytes);
            let takers = set.iter().enumerate().filter_map(|(to, branch)| Some((to, (*branch)?)));
            takers.filter(fits).max_by_key(|(to, _)| disks[*to].free)
        });
        match place {
            Some((to, branch)) => {
                if to != item.disk {
                    disks[to].free -= item.bytes;
                }
                moves.push(Move { item: index, to, branch });
            }
            None => homeless.push(index),
        }
    }
    (moves, homeless)
}

/// Returns the disk on which items come together with the least to move, of those that may take most of them; `None` if none
/// has room.
pub(crate) fn gather(disks: &[Disk], items: &[Item], classes: &[Class]) -> Option<usize> {
    let sum = |disk: usize, counts: &dyn Fn(&Item) -> bool| -> u64 {
        items.iter().filter(|item| item.disk == disk || counts(item)).map(|item| item.bytes).sum()
    };
    let held = |disk: usize| sum(disk, &|_| false);
    let comes = |disk: usize| sum(disk, &|item| classes[item.class].taker(disk).is_some());
    let fits = |disk: &usize| disks[*disk].has_room(comes(*disk) - held(*disk));
    (0..disks.len()).filter(fits).max_by_key(|disk| (comes(*disk), held(*disk), disks[*disk].free))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(size: u64, used: u64) -> Disk {
        Disk { size, free: size - used, reserve: 0, taker: Some(0) }
    }

    /// Returns the fullness in per cent after the moves, and the bytes that move.
    fn after(disks: &[Disk], items: &[Item], moves: &[Move]) -> (Vec<u64>, u64) {
        let mut disks = disks.to_vec();
        for Move { item, to, .. } in moves {
            disks[items[*item].disk].free += items[*item].bytes;
            disks[*to].free -= items[*item].bytes;
        }
        let shares = disks.iter().map(|disk| (disk.fullness() * 100.0).round() as u64).collect();
        (shares, moves.iter().map(|it| items[it.item].bytes).sum())
    }

    fn many(disk: usize, count: usize, bytes: u64) -> Vec<Item> {
        vec![Item { disk, bytes, class: 0 }; count]
    }

    /// Branch `10 + N` takes files on disk N.
    fn takers(disks: &[Disk]) -> Vec<Option<usize>> {
        (0..disks.len()).map(|disk| disks[disk].taker.map(|_| 10 + disk)).collect()
    }

    fn balance(disks: &[Disk], items: &[Item], width: f64) -> Vec<Move> {
        let group: Vec<usize> = (0..disks.len()).collect();
        super::balance(&mut disks.to_vec(), &group, items, &[Class { sets: vec![takers(disks)] }], width)
    }

    #[test]
    fn as_little_as_possible_moves() {
        // Disks of different sizes: shares count, not bytes.
        let disks = [disk(1000, 900), disk(2000, 200), disk(1000, 400)];
        let items = [many(0, 90, 10), many(1, 20, 10), many(2, 40, 10)].concat();
        let moves = balance(&disks, &items, 0.0);
        let (shares, moved) = after(&disks, &items, &moves);
        assert!(shares.iter().all(|share| (36..=39).contains(share)), "{shares:?}");
        assert!(moved <= 560, "{moved}");
        // Within 30 points, the middle one is not touched, and each of the others goes as far as the edge.
        let moves = balance(&disks, &items, 0.30);
        let (shares, moved) = after(&disks, &items, &moves);
        assert!(shares[0] - shares[1] <= 30 && shares[2] == 40, "{shares:?}");
        assert!(moved <= 350, "{moved}");
        assert!(balance(&disks, &items, 0.81).is_empty(), "they are within it already");
    }

    #[test]
    fn items_that_are_too_large_stay() {
        let disks = [disk(1000, 800), disk(1000, 0)];
        assert!(balance(&disks, &many(0, 1, 801), 0.02).is_empty(), "it would only change places");
        let items = [many(0, 1, 700), many(0, 1, 100)].concat();
        // The larger one would leave the second disk fuller than the first.
        let (shares, _) = after(&disks, &items, &balance(&disks, &items, 0.02));
        assert_eq!(shares, [70, 10]);
        let reserved = [disk(1000, 800), Disk { reserve: 950, ..disk(1000, 0) }];
        let (shares, _) = after(&reserved, &many(0, 80, 10), &balance(&reserved, &many(0, 80, 10), 0.02));
        assert_eq!(shares, [75, 5], "minfreespace is kept");
        let refusing = [disk(1000, 800), Disk { taker: None, ..disk(1000, 0) }];
        assert!(balance(&refusing, &many(0, 80, 10), 0.02).is_empty());
    }

    #[test]
    fn an_empty_pool_has_nothing_to_move() {
        assert!(balance(&[], &[], 0.05).is_empty());
        assert!(balance(&[disk(0, 0), disk(0, 0)], &[], 0.05).is_empty());
        assert!(balance(&[disk(10, 10)], &many(0, 1, 10), 0.0).is_empty());
        assert_eq!(gather(&[], &[], &[]), None);
    }

    #[test]
    fn a_drained_disk_fills_the_emptiest_first() {
        let disks = [disk(100, 60), disk(100, 80), disk(100, 70)];
        let items = [many(0, 3, 10), many(0, 1, 50)].concat();
        let away = |sets: &[&[usize]]| {
            let set = |set: &&[usize]| (0..3).map(|disk| set.contains(&disk).then_some(10 + disk)).collect();
            [Class { sets: sets.iter().map(set).collect() }]
        };
        let (moves, homeless) = distribute(&disks, &items, &away(&[&[1, 2]]));
        let to: Vec<usize> = moves.iter().map(|it| it.to).collect();
        // 30 and 20 free, then 20 and 20 (the last of equals), then 20 and 10.
        assert_eq!((to, homeless), (vec![2, 2, 1], vec![3]));
        // The second disk belongs to a rule or tier, and the others count when it has no more room.
        let (moves, homeless) = distribute(&disks, &items, &away(&[&[1], &[2]]));
        let to: Vec<(usize, usize)> = moves.iter().map(|it| (it.to, it.branch)).collect();
        assert_eq!((to, homeless), (vec![(1, 11), (1, 11), (2, 12)], vec![3]));
        let (moves, homeless) = distribute(&disks, &items, &away(&[&[1]]));
        assert_eq!((moves.len(), homeless), (2, vec![2, 3]));
        // Another branch on the same disk takes everything.
        let (moves, homeless) = distribute(&disks, &items, &away(&[&[1], &[0, 2]]));
        assert_eq!((moves[3].branch, homeless), (10, vec![]));
        assert!(distribute(&disks, &items, &away(&[])).0.is_empty());
    }

    #[test]
    fn items_stay_within_their_class() {
        let disks = [disk(1000, 800), disk(1000, 0), disk(1000, 400)];
        // Those of the second class may only go to the last disk.
        let classes =
            [Class { sets: vec![takers(&disks)] }, Class { sets: vec![vec![None, None, Some(20)]] }];
        let mut items = many(0, 80, 10);
        items.iter_mut().skip(10).for_each(|item| item.class = 1);
        let mut filled = disks.to_vec();
        let moves = super::balance(&mut filled, &[0, 1, 2], &items, &classes, 0.02);
        let open = |it: &&Move| items[it.item].class == 0;
        assert_eq!(moves.iter().filter(open).map(|it| it.to).max(), Some(1));
        assert!(moves.iter().filter(|it| !open(it)).all(|it| it.branch == 20));
        // What no class lets go stays, and the others are as even as they can be.
        let shares: Vec<u64> = filled.iter().map(|disk| (disk.fullness() * 100.0).round() as u64).collect();
        assert_eq!(shares.iter().sum::<u64>(), 120, "{shares:?}");
        assert!(shares[1] == 10 && spread(&filled, &[0, 2]) <= 0.31, "{shares:?}");
        // Each group comes to a share of its own.
        let moves = super::balance(&mut disks.to_vec(), &[0, 2], &many(0, 80, 10), &classes[..1], 0.0);
        assert!(moves.len() == 20 && moves.iter().all(|it| it.to == 2), "{moves:?}");
    }

    #[test]
    fn files_gather_where_most_of_them_are_if_there_is_room() {
        let items = [many(0, 1, 30), many(1, 1, 20), many(2, 1, 5)].concat();
        let gather = |disks: &[Disk], items: &[Item]| {
            super::gather(disks, items, &[Class { sets: vec![takers(disks)] }])
        };
        assert_eq!(gather(&[disk(100, 60), disk(100, 20), disk(100, 5)], &items), Some(0));
        assert_eq!(gather(&[disk(100, 90), disk(100, 20), disk(100, 5)], &items), Some(1));
        assert_eq!(gather(&[disk(100, 90), disk(100, 90), disk(100, 90)], &items), None);
        // The first disk holds most, but may not take the others.
        let classes = [Class { sets: vec![vec![None, Some(11), Some(12)]] }];
        let disks = [disk(100, 60), disk(100, 20), disk(100, 5)];
        assert_eq!(super::gather(&disks, &items, &classes), Some(1));
    }
}
