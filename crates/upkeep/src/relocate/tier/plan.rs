//! Which files move to which branch, by the rules and tiers of a pool. Pure: without system calls.

use super::super::belongs::{below, bounds, rule_of};
use canopy_policy::placement::{MoveWhen, Placement, Rule, Set, Target, Tier};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A branch, and the disk under it. Several branches may share a disk.
#[derive(Clone, Debug)]
pub(super) struct TierBranch<'p> {
    pub(super) path: &'p Path,
    /// `None` for a branch that cannot be looked at.
    pub(super) disk: Option<usize>,
    pub(super) takes: bool,
    /// It can store all of every file. It is preferred to those that cannot.
    pub(super) is_whole: bool,
    /// What must stay free.
    pub(super) reserve: u64,
}

/// Bytes of a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) size: u64,
    pub(super) free: u64,
}

/// A file that may move.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'p> {
    pub(super) names: Vec<&'p Path>,
    pub(super) branch: usize,
    /// Bytes that it takes on its disk.
    pub(super) used: u64,
    pub(super) size: u64,
    /// The later of its last access and its last change.
    pub(super) touched: SystemTime,
    /// It could not move when it was tried.
    pub(super) stuck: bool,
    /// The branches on which it would lose something.
    pub(super) losing: Vec<usize>,
}

/// The time, for conditions that depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) time: SystemTime,
    /// Local time in minutes since midnight.
    pub(super) minute: u32,
    /// Times of the day do not count.
    pub(super) any_time: bool,
}

/// Why a file is to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// A rule wants it elsewhere.
    Rule,
    /// Its tier is to give it.
    Tier(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Going {
    pub(super) candidate: usize,
    pub(super) to: usize,
    pub(super) cause: Cause,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) going: Vec<Going>,
    /// Candidates for which no branch that may take them has room.
    pub(super) homeless: Vec<usize>,
}

/// For how long after its time a tier with a time of the day begins to move files.
const HOUR: u32 = 60;

/// Returns whether the times of a tier allow it to move files now.
pub(super) fn is_time(tier: &Tier, now: Now) -> bool {
    let mut times = tier.move_when.iter().filter_map(|when| match when {
        MoveWhen::EveryNight { hour, minute } => Some(u32::from(*hour) * 60 + u32::from(*minute)),
        _ => None,
    });
    let begins = |at: u32| (now.minute + 24 * 60 - at) % (24 * 60) < HOUR;
    now.any_time || times.clone().next().is_none() || times.any(begins)
}

/// Returns the mark of a tier, and how far it is emptied, in per cent.
pub(super) fn mark(tier: &Tier) -> Option<(u8, u8)> {
    tier.move_when.iter().find_map(|when| match when {
        MoveWhen::Fuller { than, until } => Some((*than, *until)),
        _ => None,
    })
}

/// The disks and branches of a pool, as the plan so far leaves them.
#[derive(Clone, Debug)]
pub(super) struct Layout<'p> {
    pub(super) places: Vec<TierBranch<'p>>,
    pub(super) rooms: Vec<Room>,
}

impl Layout<'_> {
    fn has_room(&self, branch: usize, bytes: u64) -> bool {
        let place = &self.places[branch];
        let left = place.disk.and_then(|disk| self.rooms[disk].free.checked_sub(bytes));
        place.takes && left.is_some_and(|left| left >= place.reserve)
    }

    /// Returns the branch with the most free space among those that `may` admits and that have room.
    fn roomiest(&self, file: &Candidate<'_>, may: impl Fn(usize) -> bool) -> Option<usize> {
        let fits = |branch: &usize| {
            may(*branch) && !file.losing.contains(branch) && self.has_room(*branch, file.used)
        };
        let rank = |branch: &usize| {
            let place = &self.places[*branch];
            (place.is_whole, place.disk.map(|disk| self.rooms[disk].free))
        };
        (0..self.places.len()).filter(fits).max_by_key(rank)
    }

    fn moved(&mut self, bytes: u64, from: usize, to: usize) {
        let (from, to) = (self.places[from].disk, self.places[to].disk);
        if from == to {
            return;
        }
        if let Some(disk) = from {
            self.rooms[disk].free += bytes;
        }
        if let Some(disk) = to {
            self.rooms[disk].free = self.rooms[disk].free.saturating_sub(bytes);
        }
    }

    /// Returns the indices of a tier's disks.
    fn disks(&self, tier: &Tier) -> Vec<usize> {
        let held = self.places.iter().filter(|place| tier.holds(place.path));
        let mut disks: Vec<usize> = held.filter_map(|place| place.disk).collect();
        disks.sort_unstable();
        disks.dedup();
        disks
    }

    /// Returns the size of a tier, and the bytes that are used on it.
    pub(super) fn fill(&self, tier: &Tier) -> (u64, u64) {
        self.disks(tier).iter().fold((0, 0), |(size, used), disk| {
            let Room { size: all, free } = self.rooms[*disk];
            (size + all, used + all.saturating_sub(free))
        })
    }

    /// Returns whether a tier is fuller than a share, with so many bytes more.
    pub(super) fn is_fuller(&self, tier: &Tier, percent: u8, more: u64) -> bool {
        let (size, used) = self.fill(tier);
        u128::from(used.saturating_add(more)) * 100 > u128::from(size) * u128::from(percent)
    }
}

/// Returns whether no tier that may move files now is above its mark.
pub(super) fn is_quiet(placement: &Placement, layout: &Layout<'_>, now: Now) -> bool {
    placement.tiers.iter().all(|tier| {
        let full = mark(tier).is_some_and(|(than, _)| layout.is_fuller(tier, than, 0));
        !full || !is_time(tier, now)
    })
}

/// Plans the moves.
pub(super) fn plan(placement: &Placement, mut layout: Layout<'_>, files: &[Candidate<'_>], now: Now) -> Plan {
    let mut plan = Plan::default();
    let rules: Vec<Option<&Rule>> =
        files.iter().map(|file| rule_of(placement, file.names.iter().copied())).collect();
    for (index, file) in files.iter().enumerate() {
        let Some(rule) = rules[index] else { continue };
        plan_by_rule(placement, &mut layout, rule, (index, file), &mut plan);
    }
    for (at, tier) in placement.tiers.iter().enumerate().filter(|(_, tier)| is_time(tier, now)) {
        plan_tier(placement, &mut layout, at, tier, (files, &rules), now, &mut plan);
    }
    plan
}

/// Plans the move of a file that lies outside of what its rule names.
fn plan_by_rule(
    placement: &Placement,
    layout: &mut Layout<'_>,
    rule: &Rule,
    (index, file): (usize, &Candidate<'_>),
    plan: &mut Plan,
) {
    let (from, path) = (file.branch, |branch: usize| layout.places[branch].path);
    let Some(home) = bounds(placement, Some(rule), path(from)).sets.first().copied() else { return };
    if home.holds(path(from)) {
        return;
    }
    // It would not stay there above the mark.
    if let Set::Tier(tier) = home
        && mark(tier).is_some_and(|(than, _)| layout.is_fuller(tier, than, file.used))
    {
        return;
    }
    let to = layout.roomiest(file, |branch| home.holds(path(branch)));
    match (to, &rule.target) {
        (Some(to), _) => {
            layout.moved(file.used, from, to);
            plan.going.push(Going { candidate: index, to, cause: Cause::Rule });
        }
        (None, Target::Branches(_)) => plan.homeless.push(index),
        // It is only preferred there.
        (None, Target::Tier(_) | Target::Anywhere) => {}
    }
}

/// Plans what a tier gives to those after it. Files of rules are where they belong.
fn plan_tier(
    placement: &Placement,
    layout: &mut Layout<'_>,
    at: usize,
    tier: &Tier,
    (files, rules): (&[Candidate<'_>], &[Option<&Rule>]),
    now: Now,
    plan: &mut Plan,
) {
    let here =
        |index: &usize| rules[*index].is_none() && tier.holds(layout.places[files[*index].branch].path);
    let mut candidates: Vec<usize> = (0..files.len()).filter(here).collect();
    candidates.sort_by_key(|index| (files[*index].stuck, files[*index].touched));
    let has_condition = tier.move_when.iter().any(|when| !matches!(when, MoveWhen::EveryNight { .. }));
    let goes = |file: &Candidate<'_>| {
        let old = |age: &Duration| now.time.duration_since(file.touched).is_ok_and(|since| since >= *age);
        !has_condition && !tier.move_when.is_empty()
            || tier.move_when.iter().any(|when| match when {
                MoveWhen::Older(age) => old(age),
                MoveWhen::Larger(size) => file.size > *size,
                MoveWhen::Fuller { .. } | MoveWhen::EveryNight { .. } => false,
            })
    };
    let (wanted, others): (Vec<usize>, Vec<usize>) =
        candidates.into_iter().partition(|index| goes(&files[*index]));
    for index in wanted {
        match next(placement, layout, at, &files[index], false) {
            Some(to) => {
                give(layout, plan, &files[index], Going { candidate: index, to, cause: Cause::Tier(at) })
            }
            None => plan.homeless.push(index),
        }
    }
    let Some((than, until)) = mark(tier) else { return };
    if !layout.is_fuller(tier, than, 0) {
        return;
    }
    for index in others {
        // To make room, others can go.
        if files[index].stuck || !layout.is_fuller(tier, until, 0) {
            break;
        }
        // An empty file frees nothing. One that is too large for the others leaves its place to smaller ones.
        if files[index].used > 0
            && let Some(to) = next(placement, layout, at, &files[index], true)
        {
            give(layout, plan, &files[index], Going { candidate: index, to, cause: Cause::Tier(at) });
        }
    }
}

fn give(layout: &mut Layout<'_>, plan: &mut Plan, file: &Candidate<'_>, going: Going) {
    layout.moved(file.used, file.branch, going.to);
    plan.going.push(going);
}

/// Returns the branch that takes a file of a tier: of the next tier with room, or of those in no tier.
fn next(
    placement: &Placement,
    layout: &Layout<'_>,
    at: usize,
    file: &Candidate<'_>,
    to_free: bool,
) -> Option<usize> {
    let path = |branch: usize| layout.places[branch].path;
    let own = layout.disks(&placement.tiers[at]);
    // On a disk of the tier itself, a file would free nothing.
    let frees =
        |branch: usize| !to_free || layout.places[branch].disk.is_none_or(|disk| !own.contains(&disk));
    let is_other = |branch: usize| !placement.tiers[at].holds(path(branch)) && frees(branch);
    below(placement, at)
        .find_map(|set| layout.roomiest(file, |branch| set.holds(path(branch)) && is_other(branch)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_config::placement::{parse_rules, parse_tiers};

    const BRANCHES: [&str; 4] = ["/ssd", "/d1", "/d2", "/usb"];

    /// Four branches of 1000 bytes, of which so many are used.
    fn layout(used: [u64; 4]) -> Layout<'static> {
        let place = |(disk, path)| TierBranch {
            path: Path::new(path),
            disk: Some(disk),
            takes: true,
            is_whole: true,
            reserve: 0,
        };
        Layout {
            places: BRANCHES.into_iter().enumerate().map(place).collect(),
            rooms: used.map(|used| Room { size: 1000, free: 1000 - used }).to_vec(),
        }
    }

    fn placement(tiers: &str, rules: &str) -> Placement {
        Placement { tiers: parse_tiers(tiers).unwrap(), rules: parse_rules(rules).unwrap() }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// A file that was touched then.
    fn file(name: &'static str, branch: usize, size: u64, touched: u64) -> Candidate<'static> {
        Candidate {
            names: vec![Path::new(name)],
            branch,
            used: size,
            size,
            touched: at(touched),
            stuck: false,
            losing: vec![],
        }
    }

    const NOON: Now = Now { time: SystemTime::UNIX_EPOCH, minute: 12 * 60, any_time: false };

    /// Returns the names that move with their branches, and the names that no branch has room for.
    fn moves(
        placement: &Placement,
        used: [u64; 4],
        files: &[Candidate<'_>],
        now: Now,
    ) -> (Vec<(String, &'static str)>, Vec<String>) {
        let plan = plan(placement, layout(used), files, now);
        let name = |index: usize| files[index].names[0].display().to_string();
        let going = plan.going.iter().map(|it| (name(it.candidate), BRANCHES[it.to])).collect();
        (going, plan.homeless.into_iter().map(name).collect())
    }

    fn pairs(list: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        list.iter().map(|(name, branch)| ((*name).to_owned(), *branch)).collect()
    }

    #[test]
    fn a_tier_above_its_mark_gives_what_was_not_used_for_the_longest_time() {
        let tiers = placement("ssd=/ssd|fuller than 70%;disks=/d1:/d2", "");
        let files =
            [file("new", 0, 200, 9), file("old", 0, 200, 1), file("mid", 0, 200, 5), file("else", 1, 200, 0)];
        let (going, homeless) = moves(&tiers, [800, 100, 50, 0], &files, NOON);
        // 800 - 200 is still above 50 %.
        assert_eq!((going, homeless), (pairs(&[("old", "/d2"), ("mid", "/d1")]), vec![]));
        assert!(moves(&tiers, [700, 0, 0, 0], &files, NOON).0.is_empty(), "the mark itself is not above it");
        let (going, _) = moves(&tiers, [800, 950, 950, 0], &files, NOON);
        assert_eq!(
            going,
            pairs(&[("old", "/usb"), ("mid", "/usb")]),
            "the branch in no tier is better than none"
        );
        let (going, homeless) = moves(&tiers, [800, 950, 950, 950], &files, NOON);
        assert!(going.is_empty() && homeless.is_empty());
        let mut stuck = files.clone();
        stuck[1].stuck = true;
        assert_eq!(
            moves(&tiers, [800, 100, 50, 0], &stuck, NOON).0,
            pairs(&[("mid", "/d2"), ("new", "/d1")])
        );
        let until = placement("ssd=/ssd|fuller than 70% until 65%;disks=/d1:/d2", "");
        assert_eq!(moves(&until, [800, 100, 50, 0], &files, NOON).0, pairs(&[("old", "/d2")]));
    }

    #[test]
    fn age_and_size_move_files_whatever_is_free() {
        let tiers = placement("ssd=/ssd|older than 2 days|larger than 500;disks=/d1:/d2", "");
        let day = 86_400;
        let files = [file("big", 0, 501, 9 * day), file("old", 0, 10, 8 * day), file("new", 0, 500, 9 * day)];
        let now = Now { time: at(10 * day), ..NOON };
        let (going, homeless) = moves(&tiers, [100, 0, 0, 0], &files, now);
        assert_eq!((going, homeless), (pairs(&[("old", "/d2"), ("big", "/d1")]), vec![]));
        let (going, homeless) = moves(&tiers, [100, 995, 995, 995], &files, now);
        assert_eq!((going, homeless), (vec![], vec!["old".to_owned(), "big".to_owned()]));
    }

    #[test]
    fn a_file_goes_where_it_loses_nothing() {
        let tiers = placement("ssd=/ssd|larger than 5;disks=/d1:/d2", "");
        let losing = |name, losing: &[usize]| Candidate { losing: losing.to_vec(), ..file(name, 0, 10, 1) };
        let files =
            [losing("all", &[]), losing("some", &[1]), losing("most", &[1, 2]), losing("none", &[1, 2, 3])];
        let (going, homeless) = moves(&tiers, [100, 0, 500, 0], &files, NOON);
        let expected = pairs(&[("all", "/d1"), ("some", "/d2"), ("most", "/usb")]);
        assert_eq!((going, homeless), (expected, vec!["none".to_owned()]));
        // A branch that can store everything comes first, however full it is.
        let mut layout = layout([100, 0, 500, 0]);
        layout.places[1].is_whole = false;
        let plan = plan(&tiers, layout, &files[..1], NOON);
        assert_eq!(plan.going[0].to, 2);
    }

    #[test]
    fn a_time_of_the_day_opens_an_hour() {
        let tiers = placement("ssd=/ssd|every night at 23:30;disks=/d1", "");
        let files = [file("a", 0, 10, 1)];
        for (hour, minute, due) in
            [(23, 29, false), (23, 30, true), (0, 29, true), (0, 30, false), (12, 0, false)]
        {
            let now = Now { minute: hour * 60 + minute, ..NOON };
            assert_eq!(
                moves(&tiers, [100, 0, 0, 0], &files, now).0.len(),
                usize::from(due),
                "{hour}:{minute}"
            );
        }
        assert_eq!(moves(&tiers, [100, 0, 0, 0], &files, Now { any_time: true, ..NOON }).0.len(), 1);
        let both = placement("ssd=/ssd|every night at 23:30|fuller than 70%;disks=/d1", "");
        let night = Now { minute: 0, ..NOON };
        assert!(moves(&both, [600, 0, 0, 0], &files, night).0.is_empty(), "not above the mark");
        assert!(
            is_quiet(&both, &layout([800, 0, 0, 0]), NOON)
                && !is_quiet(&both, &layout([800, 0, 0, 0]), night)
        );
        let never = placement("ssd=/ssd;disks=/d1", "");
        assert!(moves(&never, [900, 0, 0, 0], &files, NOON).0.is_empty());
    }

    #[test]
    fn files_go_where_their_rule_wants_them_and_stay_there() {
        let placement = placement("ssd=/ssd|fuller than 70%;disks=/d1:/d2", "films/**=/d1:/d2;*.part=ssd");
        let files = [
            file("films/a", 0, 10, 1),
            file("films/b", 2, 10, 1),
            file("x.part", 1, 10, 1),
            file("y.part", 0, 10, 1),
        ];
        let (going, homeless) = moves(&placement, [100, 100, 50, 0], &files, NOON);
        assert_eq!((going, homeless), (pairs(&[("films/a", "/d2"), ("x.part", "/ssd")]), vec![]));
        // Above the mark, nothing comes to the tier, and what a rule wants there stays.
        let (going, _) = moves(&placement, [800, 100, 50, 0], &files, NOON);
        assert_eq!(going, pairs(&[("films/a", "/d2")]));
        let (going, homeless) = moves(&placement, [100, 995, 995, 0], &files[..1], NOON);
        assert_eq!((going, homeless), (vec![], vec!["films/a".to_owned()]));
        // A rule for one of its names is enough.
        let linked = Candidate { names: vec![Path::new("a"), Path::new("films/a")], ..file("", 3, 10, 1) };
        let planned = plan(&placement, layout([0; 4]), &[linked], NOON);
        assert_eq!(planned.going, [Going { candidate: 0, to: 2, cause: Cause::Rule }]);
    }

    #[test]
    fn branches_on_one_disk_share_its_room() {
        let tiers = placement("ssd=/ssd|fuller than 70%;disks=/d1:/d2", "");
        let mut shared = layout([800, 0, 0, 0]);
        shared.places[1].disk = Some(0);
        shared.places[2].takes = false;
        shared.places[3].reserve = 990;
        let files = [file("a", 0, 100, 1)];
        assert!(plan(&tiers, shared.clone(), &files, NOON).going.is_empty(), "it would free nothing");
        shared.places[3].reserve = 900;
        assert_eq!(plan(&tiers, shared, &files, NOON).going.len(), 1);
    }
}
