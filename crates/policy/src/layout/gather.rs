//! Files come together on one disk.

use super::draft::Draft;
use super::model::{CopyAt, Layout, Plan, Reach, Takes, Why};

/// Which disk files gather on, of those that may take most of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// The one on which they come together with the least to move.
    LeastMoves,
    /// The one with the most free space, as mergerfs.consolidate does.
    MostFree,
}

/// What a disk is to the files: those that come, and those that it holds.
struct Claim {
    comes: u64,
    files: usize,
    held: u64,
}

impl<'p> Layout<'p> {
    /// Brings files together on one disk; `None` if none has room.
    pub fn gather(&mut self, pick: Pick) -> Option<Plan<'p>> {
        let claims: Vec<Claim> = (0..self.disks.len()).map(|disk| self.claim(disk)).collect();
        let takes = |disk: &usize| {
            let takers = self.branches.iter().filter(|branch| branch.takes > Takes::Nothing);
            takers.filter_map(|branch| branch.disk).any(|it| it == *disk)
        };
        let disks = (0..self.disks.len()).filter(takes);
        let disk = match pick {
            Pick::LeastMoves => disks
                .filter(|disk| self.disks[*disk].has_room(claims[*disk].comes - claims[*disk].held))
                .max_by_key(|disk| (claims[*disk].comes, claims[*disk].held, self.disks[*disk].free)),
            Pick::MostFree => disks.max_by_key(|disk| (claims[*disk].files, self.disks[*disk].free)),
        }?;
        let mut draft = Draft::of(self);
        for file in 0..draft.layout.files.len() {
            let layout = &*draft.layout;
            if layout.on(file, disk).is_some() {
                continue;
            }
            match layout.way(file, disk) {
                Some((copy, to)) if draft.fits(disk, copy.bytes) => draft.shift(file, copy.branch, to),
                Some(_) => draft.stays(file, Why::NoRoom),
                None => {
                    let gives = |copy: &&CopyAt| layout.branches[copy.branch].gives;
                    let copies = layout.files[file].copies.iter().filter(gives);
                    let whys = copies.map(|copy| layout.why_it_stays(file, copy.branch));
                    // Nobody has asked for just this disk.
                    if let Some(why) = whys.into_iter().find(|why| matches!(why, Why::Bound(_))) {
                        draft.stays(file, why);
                    }
                }
            }
        }
        Some(draft.finish())
    }

    fn claim(&self, disk: usize) -> Claim {
        let mut claim = Claim { comes: 0, files: 0, held: 0 };
        for file in 0..self.files.len() {
            let held = self.on(file, disk);
            let comes = held.or_else(|| self.way(file, disk).map(|(copy, _)| copy));
            claim.held += held.map_or(0, |copy| copy.bytes);
            claim.comes += comes.map_or(0, |copy| copy.bytes);
            claim.files += usize::from(comes.is_some());
        }
        claim
    }

    /// Returns the copy of a file on a disk.
    fn on(&self, file: usize, disk: usize) -> Option<CopyAt> {
        self.files[file].copies.iter().find(|copy| self.disk_of(copy.branch) == Some(disk)).copied()
    }

    /// Returns the copy of a file that may move to a disk, and the branch there that takes it.
    fn way(&self, file: usize, disk: usize) -> Option<(CopyAt, usize)> {
        let copies = self.files[file].copies.iter().filter(|copy| self.branches[copy.branch].gives);
        copies.into_iter().find_map(|copy| {
            let takers = self.takers((file, copy.branch), Reach::Anywhere, Takes::Sparingly);
            takers.iter().find_map(|takers| takers[disk]).map(|to| (*copy, to))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::{Small, rule};
    use super::*;
    use crate::placement::Placement;

    fn gathered(used: [u64; 3], placement: &Placement) -> Option<(usize, usize)> {
        let small = Small::of(&used.map(|used| (100, used)));
        let small = small.files(0, 1, 30).files(1, 1, 20).files(2, 1, 5);
        let mut layout = small.layout(Some(placement));
        let plan = layout.gather(Pick::LeastMoves)?;
        Some((layout.files[1].copies[0].branch, plan.going.len()))
    }

    #[test]
    fn files_gather_where_most_of_them_are_if_there_is_room() {
        let open = Placement::default();
        assert_eq!(gathered([60, 20, 5], &open), Some((0, 2)));
        assert_eq!(gathered([90, 20, 5], &open), Some((1, 2)));
        assert_eq!(gathered([90, 90, 90], &open), None);
        // The first disk holds most, but may not take the others.
        let elsewhere = Placement { tiers: Vec::new(), rules: vec![rule("**", &["/d1", "/d2"], "")] };
        assert_eq!(gathered([60, 20, 5], &elsewhere), Some((1, 2)));
        assert!(Small::of(&[]).layout(None).gather(Pick::LeastMoves).is_none());
        let small = Small::of(&[(100, 60), (100, 0)]).files(0, 2, 10);
        let mut layout = small.layout(None);
        assert_eq!(layout.gather(Pick::MostFree).map(|plan| plan.going.len()), Some(2));
    }
}
