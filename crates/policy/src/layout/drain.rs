//! A branch becomes empty.

use super::draft::Draft;
use super::model::{Layout, Plan, Reach, Takes};
use std::cmp::Reverse;

impl<'p> Layout<'p> {
    /// Moves what a branch holds away from it, and has it take nothing from then on. Each file goes to the disk with the most
    /// free space, of the first set of branches in which one has room.
    pub fn drain(&mut self, branch: usize) -> Plan<'p> {
        let here = |(index, file): (usize, &super::File<'p>)| {
            file.copies.iter().find(|copy| copy.branch == branch).map(|copy| (index, copy.bytes))
        };
        let mut left: Vec<(usize, u64)> = self.files.iter().enumerate().filter_map(here).collect();
        // The largest first: the small ones fill what is left.
        left.sort_by_key(|(_, bytes)| Reverse(*bytes));
        let on = self.disk_of(branch);
        self.close(branch);
        let mut draft = Draft::of(self);
        for least in [Takes::All, Takes::Sparingly] {
            left.retain(|(file, bytes)| {
                let layout = &*draft.layout;
                let takers = layout.takers((*file, branch), Reach::Anywhere, least);
                let to = takers.iter().find_map(|takers| layout.next(takers, on, *bytes));
                if let Some(to) = to {
                    draft.shift(*file, branch, to);
                }
                to.is_none()
            });
        }
        for (file, _) in left {
            let why = draft.layout.why_it_stays(file, branch);
            draft.stays(file, why);
        }
        draft.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Why;
    use super::super::properties::{Small, rule, tier};
    use super::*;
    use crate::placement::Placement;

    /// Returns where the files are after the first disk was drained, the largest first, and how many stay.
    fn drained(small: &Small, placement: &Placement) -> (Vec<usize>, usize) {
        let mut layout = small.layout(Some(placement));
        let plan = layout.drain(0);
        let to = plan.going.iter().map(|it| layout.files[it.file].copies[0].branch).collect();
        (to, plan.staying.len())
    }

    #[test]
    fn a_drained_disk_fills_the_emptiest_first() {
        let mut small = Small::of(&[(100, 60), (100, 80), (100, 70)]).files(0, 3, 10).files(0, 1, 50);
        // 20 and 30 free, then 20 and 20 (the last of equals), then 20 and 10.
        assert_eq!(drained(&small, &Placement::default()), (vec![2, 2, 1], 1));
        // The disk of a rule or tier is asked first, and the others when it has no more room.
        let tiers = Placement { tiers: vec![tier("a", &["/d0", "/d1"])], rules: Vec::new() };
        assert_eq!(drained(&small, &tiers), (vec![1, 1, 2], 1));
        let strict = Placement { tiers: Vec::new(), rules: vec![rule("**", &["/d1"], "")] };
        assert_eq!(drained(&small, &strict), (vec![1, 1], 2));
        let mut layout = small.layout(Some(&strict));
        assert!(layout.drain(0).staying.iter().all(|(_, why)| matches!(why, Why::Bound(_))));
        // Another branch on the same disk takes everything.
        small.branches[2].disk = Some(0);
        assert_eq!(drained(&small, &Placement::default()), (vec![2, 2, 2, 2], 0));
    }

    #[test]
    fn what_cannot_store_everything_is_asked_last_and_no_room_counts_twice() {
        let mut small = Small::of(&[(100, 90), (100, 70), (100, 0)]).files(0, 3, 30);
        small.branches[2].takes = Takes::Sparingly;
        assert_eq!(drained(&small, &Placement::default()), (vec![1, 2, 2], 0));
        small.files[1].losing = vec![2];
        assert_eq!(drained(&small, &Placement::default()), (vec![1, 2], 1));
    }
}
