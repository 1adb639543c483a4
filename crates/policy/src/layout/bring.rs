//! Files come to the branch that somebody has named.

use super::bounds::Ground;
use super::draft::Draft;
use super::model::{Layout, Plan, Why};

impl<'p> Layout<'p> {
    /// Brings files to a branch. Only rules are in the way: the tiers are not those that were named. `heeds_reserve` keeps free
    /// what should stay free there.
    pub fn bring(&mut self, to: usize, heeds_reserve: bool) -> Plan<'p> {
        let mut draft = Draft::of(self);
        if !heeds_reserve {
            draft = draft.without_reserve();
        }
        for file in 0..draft.layout.files.len() {
            let layout = &*draft.layout;
            if layout.files[file].is_on(to) {
                continue;
            }
            let gives = |copy: &&super::CopyAt| layout.branches[copy.branch].gives;
            let Some(copy) = layout.files[file].copies.iter().find(gives).copied() else { continue };
            let bounds = layout.bounds(file, copy.branch);
            if let Ground::Rule(_) = bounds.ground
                && !bounds.sets[0].holds(layout.path(to))
            {
                draft.stays(file, Why::Bound(bounds.ground));
                continue;
            }
            let loses = layout.files[file].losing.contains(&to);
            let (from, disk) = (layout.disk_of(copy.branch), layout.disk_of(to));
            match disk {
                Some(disk) if !loses && (from == Some(disk) || draft.fits(disk, copy.bytes)) => {
                    draft.shift(file, copy.branch, to);
                }
                _ => draft.stays(file, Why::NoRoom),
            }
        }
        draft.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::{Small, rule};
    use super::*;
    use crate::placement::Placement;

    #[test]
    fn files_come_as_far_as_there_is_room_and_rules_let_them() {
        let mut small = Small::of(&[(100, 60), (100, 50)]).files(0, 6, 10).names("a");
        small.branches[1].reserve = 30;
        let brought = |placement: &Placement, heeds: bool| {
            let plan = small.layout(Some(placement)).bring(1, heeds);
            let bound = plan.staying.iter().filter(|(_, why)| matches!(why, Why::Bound(_))).count();
            (plan.going.len(), plan.staying.len() - bound, bound)
        };
        assert_eq!(brought(&Placement::default(), true), (2, 4, 0));
        assert_eq!(brought(&Placement::default(), false), (5, 1, 0));
        let kept = Placement { tiers: Vec::new(), rules: vec![rule("a/**", &["/d0"], "")] };
        assert_eq!(brought(&kept, false), (0, 0, 6));
    }
}
