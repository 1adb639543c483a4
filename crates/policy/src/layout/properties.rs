//! What holds of every plan, tried with random layouts. Small layouts for other tests.

use super::model::Reach;
use super::*;
use crate::placement::{MoveWhen, Pattern, Placement, Rule, Target, Tier};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// A layout that is easily written down.
#[derive(Clone, Debug)]
pub(super) struct Small {
    pub(super) branches: Vec<LayoutBranch>,
    pub(super) disks: Vec<Disk>,
    pub(super) files: Vec<SmallFile>,
}

#[derive(Clone, Debug)]
pub(super) struct SmallFile {
    pub(super) names: Vec<PathBuf>,
    /// The branches.
    pub(super) copies: Vec<usize>,
    pub(super) bytes: u64,
    pub(super) used: Use,
    pub(super) losing: Vec<usize>,
}

impl Small {
    /// Branches `/d0`, `/d1`, ..., each on a disk of this size, of which so much is used.
    pub(super) fn of(disks: &[(u64, u64)]) -> Small {
        let branch = |at: usize| LayoutBranch {
            path: format!("/d{at}").into(),
            disk: Some(at),
            gives: true,
            takes: Takes::All,
            reserve: 0,
        };
        Small {
            branches: (0..disks.len()).map(branch).collect(),
            disks: disks.iter().map(|(size, used)| Disk::new(*size, size - used)).collect(),
            files: Vec::new(),
        }
    }

    /// With more files on a branch.
    pub(super) fn files(mut self, branch: usize, count: usize, bytes: u64) -> Small {
        for _ in 0..count {
            let names = vec![PathBuf::from(format!("f{}", self.files.len()))];
            self.files.push(SmallFile {
                names,
                copies: vec![branch],
                bytes,
                used: Use::default(),
                losing: vec![],
            });
        }
        self
    }

    /// With all files below a directory.
    pub(super) fn names(mut self, dir: &str) -> Small {
        for file in &mut self.files {
            file.names = file.names.iter().map(|name| PathBuf::from(dir).join(name)).collect();
        }
        self
    }

    pub(super) fn layout<'s>(&'s self, placement: Option<&'s Placement>) -> Layout<'s> {
        let mut layout = Layout::new(self.branches.clone(), self.disks.clone(), placement);
        let file = |file: &'s SmallFile| File {
            names: &file.names,
            copies: file.copies.iter().map(|branch| CopyAt { branch: *branch, bytes: file.bytes }).collect(),
            wanted: file.copies.len(),
            size: file.bytes,
            used: file.used,
            losing: file.losing.clone(),
        };
        layout.hold(self.files.iter().map(file).collect());
        layout
    }
}

pub(super) fn tier(name: &str, branches: &[&str]) -> Tier {
    Tier { name: name.into(), branches: patterns(branches), move_when: Vec::new() }
}

/// A rule for branches, or for a tier.
pub(super) fn rule(path: &str, branches: &[&str], tier: &str) -> Rule {
    let target =
        if tier.is_empty() { Target::Branches(patterns(branches)) } else { Target::Tier(tier.into()) };
    Rule { path: Pattern::new(path).unwrap(), target, copies: None, written: false }
}

fn patterns(list: &[&str]) -> Vec<Pattern> {
    list.iter().map(|text| Pattern::new(text).unwrap()).collect()
}

/// Numbers from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }

    fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Up to six branches on up to six disks, with up to 40 files that fit. `most` copies has a file.
fn random(dice: &mut Dice, most: usize) -> Small {
    let count = 1 + dice.index(6);
    let mut small = Small::of(&vec![(1000, 0); count]);
    for at in 0..count {
        let branch = &mut small.branches[at];
        branch.disk = if at > 0 && dice.one_in(5) { Some(dice.index(at)) } else { Some(at) };
        branch.gives = !dice.one_in(8);
        branch.takes = match dice.below(8) {
            _ if !branch.gives => Takes::Nothing,
            0 => Takes::Nothing,
            1 => Takes::Sparingly,
            _ => Takes::All,
        };
        branch.reserve = if dice.one_in(2) { dice.below(200) } else { 0 };
        small.disks[at] = Disk::new(200 + dice.below(2000), u64::MAX);
        if dice.one_in(3) {
            let other = dice.below(small.disks[at].size);
            small.disks[at].free -= other;
        }
    }
    for _ in 0..dice.index(40) {
        let (bytes, mut copies) = (dice.below(120), Vec::new());
        let mut on = Vec::new();
        for _ in 0..=dice.index(most) {
            let branch = dice.index(count);
            let disk = small.branches[branch].disk.unwrap();
            if !on.contains(&disk) && small.disks[disk].free >= bytes {
                small.disks[disk].free -= bytes;
                copies.push(branch);
                on.push(disk);
            }
        }
        if !copies.is_empty() {
            small = small.files(copies[0], 1, bytes);
            let (dir, touched) = (["a", "b", "c"][dice.index(3)], dice.below(100));
            let file = small.files.last_mut().unwrap();
            file.names = vec![PathBuf::from(dir).join(&file.names[0])];
            file.copies = copies;
            file.used.touched = SystemTime::UNIX_EPOCH + Duration::from_secs(touched);
            file.used.stuck = dice.one_in(10);
            file.losing = (0..count).filter(|_| dice.one_in(8)).collect();
        }
    }
    small
}

fn random_placement(dice: &mut Dice) -> Placement {
    let mut placement = Placement::default();
    for (name, branches) in [("t0", ["/d0", "/d1"]), ("t1", ["/d2", "/d3"])] {
        let mut when = Vec::new();
        if dice.one_in(2) {
            let until = dice.below(70) as u8;
            when.push(MoveWhen::Fuller { than: until + dice.below(30) as u8, until });
        }
        if dice.one_in(3) {
            when.push(MoveWhen::Older(Duration::from_secs(dice.below(100))));
        }
        if dice.one_in(3) {
            when.push(MoveWhen::Larger(dice.below(120)));
        }
        if dice.one_in(2) {
            placement.tiers.push(Tier { move_when: when, ..tier(name, &branches) });
        }
    }
    if dice.one_in(2) {
        placement.rules.push(rule("a/**", &["/d1", "/d2"], ""));
    }
    if let Some(name) = placement.tiers.last().map(|tier| tier.name.clone()).filter(|_| dice.one_in(2)) {
        placement.rules.push(rule("b/**", &[], &name));
    }
    placement
}

/// Carries out a plan step by step, as the daemon does. Checks what holds of each step, and that the layout of the plan is
/// what comes of it.
fn carry_out<'s>(before: &Layout<'s>, plan: &Plan<'s>, after: &Layout<'s>, heeds_reserve: bool) {
    let mut now = before.clone();
    for going in &plan.going {
        let copies = now.files[going.file].copies.len();
        for step in &going.steps {
            let (held, losing) = (now.files[going.file].copies.clone(), now.files[going.file].losing.clone());
            let at = |branch: usize| held.iter().position(|copy| copy.branch == branch).expect("it is there");
            let room = |layout: &mut Layout<'_>, to: usize, from: Option<usize>, bytes: u64| {
                assert!(held.iter().all(|copy| copy.branch != to), "the branch has none yet: {plan:?}");
                let branch = &layout.branches[to];
                assert!(
                    branch.takes > Takes::Nothing && !losing.contains(&to),
                    "it takes the file: {plan:?}"
                );
                let disk = branch.disk.unwrap();
                if from.is_none_or(|from| layout.disk_of(from) != Some(disk)) {
                    let disk = &mut layout.disks[disk];
                    let reserve = if heeds_reserve { disk.reserve } else { 0 };
                    assert!(disk.free >= bytes + reserve, "no step exceeds the room: {plan:?}");
                    disk.free -= bytes;
                    if let Some(from) = from.and_then(|from| layout.disk_of(from)) {
                        layout.disks[from].free += bytes;
                    }
                }
            };
            match *step {
                Step::Move { from, to } => {
                    assert_eq!(held.len(), 1, "only what has one copy moves");
                    let bytes = held[at(from)].bytes;
                    room(&mut now, to, Some(from), bytes);
                    now.files[going.file].copies[0].branch = to;
                }
                Step::Copy { from, to } => {
                    let bytes = held[at(from)].bytes;
                    room(&mut now, to, None, bytes);
                    now.files[going.file].copies.push(CopyAt { branch: to, bytes });
                }
                Step::Drop { from } => {
                    let gone = now.files[going.file].copies.remove(at(from));
                    let disk = now.disk_of(from).unwrap();
                    now.disks[disk].free += gone.bytes;
                }
            }
            assert!(now.files[going.file].copies.len() >= copies, "no copy goes before the new one is there");
        }
    }
    let sorted = |layout: &Layout<'_>| -> Vec<Vec<usize>> {
        let branches = |file: &File<'_>| {
            let mut branches: Vec<usize> = file.copies.iter().map(|copy| copy.branch).collect();
            branches.sort_unstable();
            branches
        };
        layout.files.iter().map(branches).collect()
    };
    assert_eq!((sorted(&now), &now.disks), (sorted(after), &after.disks), "{plan:?}");
}

/// Tries a goal on random layouts: what its plan leads to is checked, and that a second plan has nothing left to do.
fn try_goal(
    (most, pick): (usize, Option<Pick>),
    goal: impl for<'s> Fn(&mut Layout<'s>) -> Plan<'s>,
    reached: impl Fn(&Layout<'_>, &Plan<'_>),
) {
    let mut moved = 0;
    for seed in 0..1000 {
        let mut dice = Dice(seed);
        let small = random(&mut dice, most);
        let placement = random_placement(&mut dice);
        let before = small.layout(Some(&placement).filter(|_| seed % 3 > 0));
        let mut after = before.clone();
        let plan = goal(&mut after);
        carry_out(&before, &plan, &after, true);
        reached(&after, &plan);
        moved += plan.going.len();
        let again = goal(&mut after);
        // A tier lets files go elsewhere that have come to it: then another disk may take more of them.
        if pick.is_some() && !placement.tiers.is_empty() {
            continue;
        }
        assert!(again.going.is_empty(), "seed {seed}: {again:?} after {plan:?}\n{small:?}\n{placement:?}");
    }
    assert!(moved > 1000, "{moved}");
}

#[test]
fn balanced_disks_stay_as_they_are() {
    let width = 0.05;
    let worse = |layout: &Layout<'_>, _: &Plan<'_>| {
        // A file without bounds that would make two disks more alike has stayed.
        let single = layout.files.iter().enumerate().filter(|(_, file)| file.copies.len() == 1);
        for (index, file) in single.filter(|_| !layout.is_bound()) {
            let CopyAt { branch, bytes } = file.copies[0];
            let from = layout.disk_of(branch).unwrap();
            if bytes == 0 || !layout.branches[branch].gives {
                continue;
            }
            let takers = layout.takers((index, branch), Reach::Home, Takes::Sparingly)[0].clone();
            for to in (0..layout.disks.len()).filter(|to| takers[*to].is_some() && *to != from) {
                let share = |disk: usize, more: f64| {
                    layout.disks[disk].fullness() + more / layout.disks[disk].size as f64
                };
                let (most, least) = (share(from, 0.0), share(to, 0.0));
                let is_extreme = layout.disks.iter().all(|disk| (least..=most).contains(&disk.fullness()));
                let better = share(from, -(bytes as f64)) - width >= share(to, bytes as f64);
                assert!(!(is_extreme && better && layout.disks[to].has_room(bytes)), "{layout:?}");
            }
        }
    };
    try_goal((3, None), |layout| layout.balance(width), worse);
}

#[test]
fn a_drained_branch_keeps_only_what_is_told() {
    let empty = |layout: &Layout<'_>, plan: &Plan<'_>| {
        let told: Vec<usize> = plan.staying.iter().map(|(file, _)| *file).collect();
        let here = (0..layout.files.len()).filter(|file| layout.files[*file].is_on(0));
        assert_eq!(here.collect::<Vec<_>>(), {
            let mut told = told;
            told.sort_unstable();
            told
        });
    };
    try_goal((2, None), |layout| layout.drain(0), empty);
}

#[test]
fn gathered_files_are_on_one_disk() {
    let together = |layout: &Layout<'_>, plan: &Plan<'_>| {
        let to = plan.going.iter().flat_map(|going| &going.steps).filter_map(|step| match *step {
            Step::Move { to, .. } | Step::Copy { to, .. } => Some(layout.disk_of(to)),
            Step::Drop { .. } => None,
        });
        let mut disks: Vec<_> = to.collect();
        disks.dedup();
        let [disk] = disks[..] else { return assert!(disks.is_empty(), "{disks:?}") };
        let told = |index: &usize| plan.staying.iter().any(|(file, _)| file == index);
        for (index, file) in layout.files.iter().enumerate() {
            let gives = file.copies.iter().any(|copy| layout.branches[copy.branch].gives);
            let is_there = file.copies.iter().any(|copy| layout.disk_of(copy.branch) == disk);
            // What it would lose is told apart.
            assert!(is_there || told(&index) || !gives || !file.losing.is_empty(), "{file:?}");
        }
    };
    let pick = Pick::LeastMoves;
    try_goal((2, Some(pick)), |layout| layout.gather(pick).unwrap_or_default(), together);
}

#[test]
fn files_come_to_the_branch_that_was_named() {
    let there = |layout: &Layout<'_>, plan: &Plan<'_>| {
        let told = |index: &usize| plan.staying.iter().any(|(file, _)| file == index);
        for (index, file) in layout.files.iter().enumerate() {
            let gives = file.copies.iter().any(|copy| layout.branches[copy.branch].gives);
            let takes = layout.branches[0].takes > Takes::Nothing && !file.losing.contains(&0);
            assert!(file.is_on(0) || told(&index) || !gives || !takes, "{file:?}");
        }
    };
    let taken = |layout: &Layout<'_>| layout.branches[0].takes > Takes::Nothing;
    try_goal((2, None), |layout| if taken(layout) { layout.bring(0, true) } else { Plan::default() }, there);
    let mut dice = Dice(1);
    let small = random(&mut dice, 1);
    let before = small.layout(None);
    let mut after = before.clone();
    let plan = after.bring(0, false);
    carry_out(&before, &plan, &after, false);
}

#[test]
fn tiers_give_as_much_as_they_should() {
    let now = Now { time: SystemTime::UNIX_EPOCH + Duration::from_secs(100), minute: 0, any_time: false };
    let relieved = |layout: &Layout<'_>, _: &Plan<'_>| {
        // No file is left that a rule wants on branches where there is room.
        for (index, file) in layout.files.iter().enumerate() {
            let CopyAt { branch, bytes } = file.copies[0];
            if let Some(Rule { target: Target::Branches(_), .. }) = layout.rules[index] {
                let bounds = layout.bounds(index, branch);
                let takers = layout.takers((index, branch), Reach::Home, Takes::Sparingly)[0].clone();
                let home = bounds.sets[0].holds(layout.path(branch));
                assert!(home || layout.roomiest(&takers, bytes).is_none(), "{file:?}");
            }
        }
    };
    try_goal((1, None), |layout| layout.apply_tiers(now), relieved);
}

#[test]
fn copies_are_on_different_disks() {
    let mut made = 0;
    for seed in 0..1000 {
        let mut dice = Dice(seed);
        let small = random(&mut dice, 2);
        let mut layout = small.layout(None);
        for file in 0..layout.files.len() {
            let (wanted, copies) = (1 + dice.index(3), layout.files[file].copies.clone());
            let current: Vec<usize> = copies.iter().map(|copy| copy.branch).collect();
            let other = layout.files[file].losing.clone();
            let twins = Twins {
                wanted,
                bytes: copies[0].bytes,
                current: &current,
                old: &[],
                other: &other,
                least: Takes::Sparingly,
            };
            let before = layout.disks.clone();
            let spread = layout.spread(&twins, None);
            made += spread.to.len();
            let all: Vec<usize> = current.iter().chain(&spread.to).copied().collect();
            let mut disks: Vec<_> = all.iter().map(|branch| layout.disk_of(*branch).unwrap()).collect();
            disks.sort_unstable();
            disks.dedup();
            assert_eq!(disks.len(), all.len(), "no disk has two");
            assert_eq!(disks.len() < wanted, spread.is_short, "as many as wanted");
            for to in &spread.to {
                let disk = layout.disk_of(*to).unwrap();
                assert!(before[disk].has_room(twins.bytes) && layout.branches[*to].takes > Takes::Nothing);
                assert!(layout.disks[disk].free + twins.bytes == before[disk].free);
            }
            let again = layout.spread(&Twins { current: &all, ..twins }, None);
            assert!(again.to.is_empty(), "a second plan is empty");
        }
    }
    assert!(made > 1000, "{made}");
}
