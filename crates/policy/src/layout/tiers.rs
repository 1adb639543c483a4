//! Files go where rules want them, and out of tiers that are to give them.

use super::bounds::below;
use super::draft::Draft;
use super::model::{File, Layout, Plan, Reach, Takers, Takes, Why};
use crate::placement::{MoveWhen, Set, Target, Tier};
use std::time::{Duration, SystemTime};

/// The time, for conditions that depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub time: SystemTime,
    /// Local time in minutes since midnight.
    pub minute: u32,
    /// Times of the day do not count.
    pub any_time: bool,
}

/// For how long after its time a tier with a time of the day begins to move files.
const HOUR: u32 = 60;
/// How often files are looked through: what a tier has given makes room for what a rule wants there. Of tiers that share branches,
/// each might go on to give what another one has given.
const PASSES: usize = 8;

/// Returns whether the times of a tier allow it to move files now.
pub fn is_time(tier: &Tier, now: Now) -> bool {
    let mut times = tier.move_when.iter().filter_map(|when| match when {
        MoveWhen::EveryNight { hour, minute } => Some(u32::from(*hour) * 60 + u32::from(*minute)),
        _ => None,
    });
    let begins = |at: u32| (now.minute + 24 * 60 - at) % (24 * 60) < HOUR;
    now.any_time || times.clone().next().is_none() || times.any(begins)
}

/// Returns the mark of a tier, and how far it is emptied, in per cent.
pub fn mark(tier: &Tier) -> Option<(u8, u8)> {
    tier.move_when.iter().find_map(|when| match when {
        MoveWhen::Fuller { than, until } => Some((*than, *until)),
        _ => None,
    })
}

/// Returns whether a file leaves its tier however full that is.
fn leaves(tier: &Tier, file: &File<'_>, now: Now) -> bool {
    let old = |age: &Duration| now.time.duration_since(file.used.touched).is_ok_and(|since| since >= *age);
    let has_condition = tier.move_when.iter().any(|when| !matches!(when, MoveWhen::EveryNight { .. }));
    !has_condition && !tier.move_when.is_empty()
        || tier.move_when.iter().any(|when| match when {
            MoveWhen::Older(age) => old(age),
            MoveWhen::Larger(size) => file.size > *size,
            MoveWhen::Fuller { .. } | MoveWhen::EveryNight { .. } => false,
        })
}

impl<'p> Layout<'p> {
    /// Moves files to where their rules want them, and what tiers are to give to those after them.
    pub fn apply_tiers(&mut self, now: Now) -> Plan<'p> {
        let Some(placement) = self.placement else { return Plan::default() };
        let mut draft = Draft::of(self);
        for _ in 0..PASSES {
            let before = draft.moves;
            draft.nothing_stays();
            for file in 0..draft.layout.files.len() {
                bring_home(&mut draft, file);
            }
            for (at, tier) in placement.tiers.iter().enumerate().filter(|(_, tier)| is_time(tier, now)) {
                relieve(&mut draft, at, tier, now);
            }
            if draft.moves == before {
                break;
            }
        }
        draft.finish()
    }

    /// Returns whether no tier that may move files now is above its mark.
    pub fn is_quiet(&self, now: Now) -> bool {
        self.tiers().iter().all(|tier| {
            let full = mark(tier).is_some_and(|(than, _)| self.is_fuller(tier, than, 0));
            !full || !is_time(tier, now)
        })
    }

    /// Returns whether a tier has come half the way from its mark to being full.
    pub fn is_pressing(&self) -> bool {
        self.tiers().iter().any(|tier| {
            mark(tier).is_some_and(|(than, _)| self.is_fuller(tier, than + (100 - than.min(100)) / 2, 0))
        })
    }

    fn tiers(&self) -> &'p [Tier] {
        self.placement.map_or(&[][..], |placement| &placement.tiers)
    }

    /// Returns whether a tier is fuller than a share, with so many bytes more.
    fn is_fuller(&self, tier: &Tier, percent: u8, more: u64) -> bool {
        let (size, used) = self.disks_of(tier).iter().fold((0, 0), |(size, used), disk| {
            let disk = &self.disks[*disk];
            (size + disk.size, used + disk.used())
        });
        u128::from(used.saturating_add(more)) * 100 > u128::from(size) * u128::from(percent)
    }

    fn disks_of(&self, tier: &Tier) -> Vec<usize> {
        let held = self.branches.iter().filter(|branch| tier.holds(&branch.path));
        let mut disks: Vec<usize> = held.filter_map(|branch| branch.disk).collect();
        disks.sort_unstable();
        disks.dedup();
        disks
    }
}

/// Moves a file to where its rule wants it.
fn bring_home(draft: &mut Draft<'_, '_>, file: usize) {
    let layout = &*draft.layout;
    let (Some(rule), copy) = (layout.rules[file], layout.files[file].copies[0]) else { return };
    let Some(home) = layout.bounds(file, copy.branch).sets.first().copied() else { return };
    if home.holds(layout.path(copy.branch)) {
        return;
    }
    // It would not stay there above the mark.
    if let Set::Tier(tier) = home
        && mark(tier).is_some_and(|(than, _)| layout.is_fuller(tier, than, copy.bytes))
    {
        return;
    }
    let takers = layout.takers((file, copy.branch), Reach::Home, Takes::Sparingly);
    let to = layout.next(&takers[0], layout.disk_of(copy.branch), copy.bytes);
    match (to, &rule.target) {
        (Some(to), _) => draft.shift(file, copy.branch, to),
        (None, Target::Branches(_)) => draft.stays(file, Why::NoRoom),
        // It is only preferred there.
        (None, Target::Tier(_) | Target::Anywhere) => {}
    }
}

/// Moves what a tier gives. Files of rules are where they belong.
fn relieve(draft: &mut Draft<'_, '_>, at: usize, tier: &Tier, now: Now) {
    let layout = &*draft.layout;
    let here = |file: &usize| {
        layout.rules[*file].is_none() && tier.holds(layout.path(layout.files[*file].copies[0].branch))
    };
    let mut candidates: Vec<usize> = (0..layout.files.len()).filter(here).collect();
    candidates.sort_by_key(|file| {
        let used = layout.files[*file].used;
        (used.stuck, used.touched)
    });
    let goes = |file: &usize| leaves(tier, &layout.files[*file], now);
    let (wanted, others): (Vec<usize>, Vec<usize>) = candidates.into_iter().partition(goes);
    for file in wanted {
        match further(draft.layout, at, file, false) {
            Some(to) => draft.shift(file, draft.layout.files[file].copies[0].branch, to),
            None => draft.stays(file, Why::NoRoom),
        }
    }
    let Some((than, until)) = mark(tier) else { return };
    if !draft.layout.is_fuller(tier, than, 0) {
        return;
    }
    for file in others {
        let (layout, it) = (&*draft.layout, &draft.layout.files[file]);
        // To make room, others can go.
        if it.used.stuck || !layout.is_fuller(tier, until, 0) {
            break;
        }
        // An empty file frees nothing. One that is too large for the others leaves its place to smaller ones.
        if it.copies[0].bytes > 0
            && let Some(to) = further(layout, at, file, true)
        {
            draft.shift(file, it.copies[0].branch, to);
        }
    }
}

/// Returns the branch that takes a file of a tier: of the next tier with room, or of those in no tier.
fn further(layout: &Layout<'_>, at: usize, file: usize, to_free: bool) -> Option<usize> {
    let (placement, copy) = (layout.placement?, layout.files[file].copies[0]);
    let tier = &placement.tiers[at];
    let (own, on) = (layout.disks_of(tier), layout.disk_of(copy.branch));
    // On a disk of the tier itself, a file would free nothing.
    let frees =
        |branch: usize| !to_free || layout.branches[branch].disk.is_none_or(|disk| !own.contains(&disk));
    below(placement, at).find_map(|set| {
        let may = |branch: usize| {
            set.holds(layout.path(branch)) && !tier.holds(layout.path(branch)) && frees(branch)
        };
        let takers: Takers = layout.takers_among((file, copy.branch), Takes::Sparingly, &may);
        layout.next(&takers, on, copy.bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::super::properties::{Small, rule, tier};
    use super::*;
    use crate::placement::{Placement, Rule};

    const BRANCHES: [&str; 4] = ["/ssd", "/d1", "/d2", "/usb"];
    const NOON: Now = Now { time: SystemTime::UNIX_EPOCH, minute: 12 * 60, any_time: false };

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// The SSD gives files when these say so; the disks are the next tier, and the USB disk is in none.
    fn placement(when: &[MoveWhen], rules: Vec<Rule>) -> Placement {
        let ssd = Tier { move_when: when.to_vec(), ..tier("ssd", &["/ssd"]) };
        Placement { tiers: vec![ssd, tier("disks", &["/d1", "/d2"])], rules }
    }

    fn fuller(than: u8, until: u8) -> MoveWhen {
        MoveWhen::Fuller { than, until }
    }

    const NIGHT: MoveWhen = MoveWhen::EveryNight { hour: 23, minute: 30 };

    /// A file: name, branch, size, when it was touched.
    type Named = (&'static str, usize, u64, u64);

    /// Four branches of 1000 bytes, of which so many are used.
    fn small(used: [u64; 4], files: &[Named]) -> Small {
        let mut small = Small::of(&used.map(|used| (1000, used)));
        for (branch, path) in small.branches.iter_mut().zip(BRANCHES) {
            branch.path = path.into();
        }
        for (name, branch, size, touched) in files {
            small = small.files(*branch, 1, *size);
            let file = small.files.last_mut().unwrap();
            (file.names, file.used.touched) = (vec![name.into()], at(*touched));
        }
        small
    }

    type Moves = (Vec<(String, &'static str)>, Vec<String>);

    /// Returns the names that move with their branches, and the names that no branch has room for.
    fn moves(placement: &Placement, small: &Small, now: Now) -> Moves {
        let mut layout = small.layout(Some(placement));
        let plan = layout.apply_tiers(now);
        let name = |file: usize| layout.files[file].names[0].to_str().unwrap().to_owned();
        let to = |file: usize| BRANCHES[layout.files[file].copies[0].branch];
        let going = plan.going.iter().map(|it| (name(it.file), to(it.file))).collect();
        (going, plan.staying.iter().map(|(file, _)| name(*file)).collect())
    }

    fn pairs(list: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        list.iter().map(|(name, branch)| ((*name).to_owned(), *branch)).collect()
    }

    #[test]
    fn a_tier_above_its_mark_gives_what_was_not_used_for_the_longest_time() {
        let tiers = placement(&[fuller(70, 50)], vec![]);
        let files = [("new", 0, 200, 9), ("old", 0, 200, 1), ("mid", 0, 200, 5), ("else", 1, 200, 0)];
        let with = |used| small(used, &files);
        // 800 - 200 is still above 50 %.
        let expected = (pairs(&[("old", "/d2"), ("mid", "/d1")]), vec![]);
        assert_eq!(moves(&tiers, &with([800, 100, 50, 0]), NOON), expected);
        assert!(moves(&tiers, &with([700, 0, 0, 0]), NOON).0.is_empty(), "the mark itself is not above it");
        let to_usb = pairs(&[("old", "/usb"), ("mid", "/usb")]);
        let (going, _) = moves(&tiers, &with([800, 950, 950, 0]), NOON);
        assert_eq!(going, to_usb, "the branch in no tier is better than none");
        assert_eq!(moves(&tiers, &with([800, 950, 950, 950]), NOON), (vec![], vec![]));
        let mut stuck = with([800, 100, 50, 0]);
        stuck.files[1].used.stuck = true;
        assert_eq!(moves(&tiers, &stuck, NOON).0, pairs(&[("mid", "/d2"), ("new", "/d1")]));
        let until = placement(&[fuller(70, 65)], vec![]);
        assert_eq!(moves(&until, &with([800, 100, 50, 0]), NOON).0, pairs(&[("old", "/d2")]));
    }

    #[test]
    fn age_and_size_move_files_whatever_is_free() {
        let day = 86_400;
        let two_days = MoveWhen::Older(Duration::from_secs(2 * day));
        let tiers = placement(&[two_days.clone(), MoveWhen::Larger(500)], vec![]);
        let files = [("big", 0, 501, 9 * day), ("old", 0, 10, 8 * day), ("new", 0, 500, 9 * day)];
        let now = Now { time: at(10 * day), ..NOON };
        let expected = (pairs(&[("old", "/d2"), ("big", "/d1")]), vec![]);
        assert_eq!(moves(&tiers, &small([1000, 0, 0, 0], &files), now), expected);
        let full = small([1000, 995, 995, 995], &files);
        assert_eq!(moves(&tiers, &full, now), (vec![], vec!["old".to_owned(), "big".to_owned()]));
        // A file goes where it loses nothing, and first where no file does.
        let losing = [("all", 0, 501, 1), ("some", 0, 501, 2), ("most", 0, 501, 3), ("none", 0, 501, 4)];
        let mut lossy = small([1000, 0, 490, 0], &losing);
        for (file, losing) in lossy.files.iter_mut().zip([vec![], vec![1], vec![1, 2], vec![1, 2, 3]]) {
            file.losing = losing;
        }
        let expected = (pairs(&[("all", "/d1"), ("some", "/d2"), ("most", "/usb")]), vec!["none".to_owned()]);
        assert_eq!(moves(&tiers, &lossy, NOON), expected);
        lossy.branches[1].takes = Takes::Sparingly;
        assert_eq!(moves(&tiers, &lossy, NOON).0[0], ("all".to_owned(), "/d2"));
        // What the next tier would give in turn goes past it.
        let mut both = tiers;
        both.tiers[1].move_when = vec![two_days];
        let (going, _) = moves(&both, &small([1000, 0, 0, 0], &files), now);
        assert_eq!(going, pairs(&[("old", "/usb"), ("big", "/d1")]));
    }

    #[test]
    fn a_time_of_the_day_opens_an_hour() {
        let tiers = placement(&[NIGHT], vec![]);
        let one = |used| small([used, 0, 0, 0], &[("a", 0, 10, 1)]);
        for (hour, minute, due) in
            [(23, 29, false), (23, 30, true), (0, 29, true), (0, 30, false), (12, 0, false)]
        {
            let now = Now { minute: hour * 60 + minute, ..NOON };
            assert_eq!(moves(&tiers, &one(100), now).0.len(), usize::from(due), "{hour}:{minute}");
        }
        assert_eq!(moves(&tiers, &one(100), Now { any_time: true, ..NOON }).0.len(), 1);
        let both = placement(&[NIGHT, fuller(70, 50)], vec![]);
        let night = Now { minute: 0, ..NOON };
        assert!(moves(&both, &one(600), night).0.is_empty(), "not above the mark");
        let full = one(800);
        let layout = full.layout(Some(&both));
        assert!(layout.is_quiet(NOON) && !layout.is_quiet(night) && !layout.is_pressing());
        assert!(one(851).layout(Some(&both)).is_pressing());
        assert!(moves(&placement(&[], vec![]), &one(900), NOON).0.is_empty());
    }

    #[test]
    fn files_go_where_their_rule_wants_them_and_stay_there() {
        let rules = vec![rule("films/**", &["/d1", "/d2"], ""), rule("*.part", &[], "ssd")];
        let placement = placement(&[fuller(70, 50)], rules);
        let files =
            [("films/a", 0, 10, 1), ("films/b", 2, 10, 1), ("x.part", 1, 10, 1), ("y.part", 0, 10, 1)];
        let expected = (pairs(&[("films/a", "/d2"), ("x.part", "/ssd")]), vec![]);
        assert_eq!(moves(&placement, &small([100, 100, 50, 0], &files), NOON), expected);
        // Above the mark, nothing comes to the tier, and what a rule wants there stays.
        let (going, _) = moves(&placement, &small([800, 100, 50, 0], &files), NOON);
        assert_eq!(going, pairs(&[("films/a", "/d2")]));
        let full = small([100, 995, 995, 0], &files[..1]);
        assert_eq!(moves(&placement, &full, NOON), (vec![], vec!["films/a".to_owned()]));
        // A rule for one of its names is enough.
        let mut linked = small([0; 4], &[("a", 3, 10, 1)]);
        linked.files[0].names.push("films/a".into());
        assert_eq!(moves(&placement, &linked, NOON).0, pairs(&[("a", "/d2")]));
        // What a tier gives makes room for what a rule wants there.
        let crowded = [("x.part", 1, 10, 1), ("b", 0, 300, 1)];
        let (going, _) = moves(&placement, &small([800, 100, 50, 0], &crowded), NOON);
        assert_eq!(going, pairs(&[("b", "/d2"), ("x.part", "/ssd")]));
    }

    #[test]
    fn branches_on_one_disk_share_its_room() {
        let tiers = placement(&[fuller(70, 50)], vec![]);
        let mut shared = small([800, 0, 0, 0], &[("a", 0, 100, 1)]);
        shared.branches[1].disk = Some(0);
        shared.branches[2].takes = Takes::Nothing;
        shared.branches[3].reserve = 990;
        assert!(moves(&tiers, &shared, NOON).0.is_empty(), "it would free nothing");
        shared.branches[3].reserve = 900;
        assert_eq!(moves(&tiers, &shared, NOON).0.len(), 1);
    }
}
