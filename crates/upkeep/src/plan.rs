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
}

/// One move: the index of the item, and of the disk that it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub(crate) item: usize,
    pub(crate) to: usize,
}

/// Returns the interval of fullness that all disks fit into with the least to move, for an interval of this width: what
/// the fuller disks give is what the emptier ones take.
fn level(disks: &[Disk], width: f64) -> (f64, f64) {
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    // Bisection to less than a byte of any disk.
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        let given: f64 =
            disks.iter().map(|disk| (disk.fullness() - middle - width).max(0.0) * disk.size as f64).sum();
        let taken: f64 = disks
            .iter()
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

/// Evens out how full disks are: afterwards the shares differ by at most `width`, as far as the sizes of the items allow.
pub(crate) fn balance(disks: &[Disk], items: &[Item], width: f64) -> Vec<Move> {
    let mut disks = disks.to_vec();
    let (low, high) = level(&disks, width);
    let mut items_of: Vec<BTreeSet<(u64, usize)>> = vec![BTreeSet::new(); disks.len()];
    for (index, item) in items.iter().enumerate().filter(|(_, item)| item.bytes > 0) {
        items_of[item.disk].insert((item.bytes, index));
    }
    let mut moves = Vec::new();
    let mut givers: BTreeSet<usize> = (0..disks.len()).collect();
    let by_fullness =
        |disks: &[Disk], one: usize, other: usize| disks[one].fullness().total_cmp(&disks[other].fullness());
    loop {
        let fullest = givers.iter().copied().max_by(|one, other| by_fullness(&disks, *one, *other));
        let takers = (0..disks.len()).filter(|index| disks[*index].has_room(1));
        let emptiest = takers.min_by(|one, other| by_fullness(&disks, *one, *other));
        let (Some(from), Some(to)) = (fullest, emptiest) else { break };
        if from == to || disks[from].fullness() - disks[to].fullness() <= width {
            break;
        }
        // Neither may leave the interval on the other side; more would have to move back.
        let above = (disks[from].fullness() - low) * disks[from].size as f64;
        let below = (high - disks[to].fullness()) * disks[to].size as f64;
        let room = disks[to].free.saturating_sub(disks[to].reserve);
        let limit = (above.min(below).max(0.0) as u64).min(room);
        let fits = items_of[from].range(..=(limit, usize::MAX)).next_back().copied();
        match fits {
            Some((bytes, item)) => {
                items_of[from].remove(&(bytes, item));
                disks[from].free += bytes;
                disks[to].free -= bytes;
                moves.push(Move { item, to });
            }
            // All of its items are too large.
            None => {
                givers.remove(&from);
            }
        }
    }
    moves
}

/// Distributes items over the other disks, each to the one with the most free space. Returns the moves, and the items for
/// which no disk has room.
pub(crate) fn distribute(disks: &[Disk], items: &[Item]) -> (Vec<Move>, Vec<usize>) {
    let mut disks = disks.to_vec();
    let (mut moves, mut homeless) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let fits = |to: &usize| *to != item.disk && disks[*to].has_room(item.bytes);
        match (0..disks.len()).filter(fits).max_by_key(|to| disks[*to].free) {
            Some(to) => {
                disks[to].free -= item.bytes;
                moves.push(Move { item: index, to });
            }
            None => homeless.push(index),
        }
    }
    (moves, homeless)
}

/// Returns the disk on which items come together with the least to move; `None` if none has room for all of them.
pub(crate) fn gather(disks: &[Disk], items: &[Item]) -> Option<usize> {
    let all: u64 = items.iter().map(|item| item.bytes).sum();
    let held =
        |disk: usize| -> u64 { items.iter().filter(|item| item.disk == disk).map(|item| item.bytes).sum() };
    let fits = |disk: &usize| disks[*disk].has_room(all - held(*disk));
    (0..disks.len()).filter(fits).max_by_key(|disk| (held(*disk), disks[*disk].free))
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
        for Move { item, to } in moves {
            disks[items[*item].disk].free += items[*item].bytes;
            disks[*to].free -= items[*item].bytes;
        }
        let shares = disks.iter().map(|disk| (disk.fullness() * 100.0).round() as u64).collect();
        (shares, moves.iter().map(|it| items[it.item].bytes).sum())
    }

    fn many(disk: usize, count: usize, bytes: u64) -> Vec<Item> {
        vec![Item { disk, bytes }; count]
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
        assert_eq!(gather(&[], &[]), None);
    }

    #[test]
    fn a_drained_disk_fills_the_emptiest_first() {
        let disks = [disk(100, 60), disk(100, 80), disk(100, 70)];
        let items = [many(0, 3, 10), many(0, 1, 50)].concat();
        let (moves, homeless) = distribute(&disks, &items);
        let to: Vec<usize> = moves.iter().map(|it| it.to).collect();
        // 30 and 20 free, then 20 and 20 (the last of equals), then 20 and 10.
        assert_eq!((to, homeless), (vec![2, 2, 1], vec![3]));
    }

    #[test]
    fn files_gather_where_most_of_them_are_if_there_is_room() {
        let items = [many(0, 1, 30), many(1, 1, 20), many(2, 1, 5)].concat();
        assert_eq!(gather(&[disk(100, 60), disk(100, 20), disk(100, 5)], &items), Some(0));
        assert_eq!(gather(&[disk(100, 90), disk(100, 20), disk(100, 5)], &items), Some(1));
        assert_eq!(gather(&[disk(100, 90), disk(100, 90), disk(100, 90)], &items), None);
    }
}
