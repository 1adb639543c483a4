//! Branches, disks and files as a plan sees them.

use super::bounds::{Bounds, Ground, bounds, rule_of};
use crate::placement::{Placement, Rule, Set};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// One filesystem with branches on it.
#[derive(Clone, PartialEq, Debug)]
pub struct Disk {
    /// Bytes in all, as far as users may use them.
    pub size: u64,
    /// Bytes that users may still use.
    pub free: u64,
    /// Bytes that must stay free: of several branches that take files, the one that wants most counts.
    pub(super) reserve: u64,
}

impl Disk {
    pub fn new(size: u64, free: u64) -> Disk {
        Disk { size, free: free.min(size), reserve: 0 }
    }

    /// Returns the used share.
    pub fn fullness(&self) -> f64 {
        if self.size == 0 { 0.0 } else { self.used() as f64 / self.size as f64 }
    }

    pub(super) fn used(&self) -> u64 {
        self.size.saturating_sub(self.free)
    }

    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.free.checked_sub(bytes).is_some_and(|left| left >= self.reserve)
    }
}

/// Which files a branch takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Takes {
    Nothing,
    /// Those that lose nothing there: it cannot store all of every file.
    Sparingly,
    All,
}

/// A branch.
#[derive(Clone, Debug)]
pub struct LayoutBranch {
    pub path: PathBuf,
    /// Several branches may share one; `None` for a branch that cannot be looked at.
    pub disk: Option<usize>,
    /// Files may move away from it.
    pub gives: bool,
    pub takes: Takes,
    /// What must stay free.
    pub reserve: u64,
}

/// What a branch holds of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyAt {
    pub branch: usize,
    /// Bytes that it takes there.
    pub bytes: u64,
}

/// When a file was used, and what became of it before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// The later of its last access and its last change.
    pub touched: SystemTime,
    /// It could not move when it was tried.
    pub stuck: bool,
}

impl Default for Use {
    fn default() -> Use {
        Use { touched: UNIX_EPOCH, stuck: false }
    }
}

/// A file.
#[derive(Clone, PartialEq, Debug)]
pub struct File<'p> {
    /// At least one.
    pub names: &'p [PathBuf],
    /// At least one; each is up to date.
    pub copies: Vec<CopyAt>,
    /// On how many disks a rule wants it.
    pub wanted: usize,
    pub size: u64,
    pub used: Use,
    /// Branches on which it would lose something.
    pub losing: Vec<usize>,
}

impl File<'_> {
    pub(super) fn is_on(&self, branch: usize) -> bool {
        self.copies.iter().any(|copy| copy.branch == branch)
    }
}

/// One change of what branches hold of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The only copy goes to another branch.
    Move { from: usize, to: usize },
    /// Another branch gets a copy.
    Copy { from: usize, to: usize },
    /// A copy goes; enough others stay.
    Drop { from: usize },
}

/// What is done with a file: all of it, or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Going {
    pub file: usize,
    pub steps: Vec<Step>,
}

/// Why a file stays that should go.
#[derive(Clone, Copy, Debug)]
pub enum Why<'p> {
    /// No branch that may take it has room.
    NoRoom,
    /// A rule or tier wants it elsewhere than where there is room, or than where it was to go.
    Bound(Ground<'p>),
}

/// How to reach a goal.
#[derive(Clone, Debug, Default)]
pub struct Plan<'p> {
    /// In an order in which each finds room.
    pub going: Vec<Going>,
    /// Files that stay, by their index.
    pub staying: Vec<(usize, Why<'p>)>,
}

impl Plan<'_> {
    /// Returns whether nothing stays for want of room.
    pub fn finds_room(&self) -> bool {
        !self.staying.iter().any(|(_, why)| matches!(why, Why::NoRoom))
    }
}

/// What is where, and what is wanted.
#[derive(Clone, Debug)]
pub struct Layout<'p> {
    pub(super) branches: Vec<LayoutBranch>,
    pub(super) disks: Vec<Disk>,
    pub(super) files: Vec<File<'p>>,
    /// `None` if rules and tiers do not count.
    pub(super) placement: Option<&'p Placement>,
    /// The rule of each file.
    pub(super) rules: Vec<Option<&'p Rule>>,
    /// What was found out for files that are alike: there are few kinds, and many files.
    kinds: RefCell<HashMap<Kind, Rc<Vec<Takers>>>>,
}

/// How far files may go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Reach {
    /// Where they belong.
    Home,
    /// Also where they go if there is no room.
    Anywhere,
}

/// Files for which the same branches count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Kind {
    rule: Option<*const Rule>,
    from: usize,
    others: Vec<usize>,
    losing: Vec<usize>,
    reach: Reach,
    least: Takes,
}

/// For each disk the branch that takes a file, if one does.
pub(super) type Takers = Vec<Option<usize>>;

impl<'p> Layout<'p> {
    pub fn new(
        branches: Vec<LayoutBranch>,
        mut disks: Vec<Disk>,
        placement: Option<&'p Placement>,
    ) -> Layout<'p> {
        for branch in branches.iter().filter(|branch| branch.takes > Takes::Nothing) {
            if let Some(disk) = branch.disk {
                disks[disk].reserve = disks[disk].reserve.max(branch.reserve);
            }
        }
        let placement = placement.filter(|placement| !placement.is_empty());
        let (files, rules) = (Vec::new(), Vec::new());
        Layout { branches, disks, files, placement, rules, kinds: RefCell::default() }
    }

    /// Has the next goal be about these files.
    pub fn hold(&mut self, files: Vec<File<'p>>) {
        let rule = |file: &File<'p>| rule_of(self.placement?, file.names.iter().map(PathBuf::as_path));
        self.rules = files.iter().map(rule).collect();
        self.files = files;
    }

    pub fn files(&self) -> &[File<'p>] {
        &self.files
    }

    /// Returns the same, where rules and tiers do not count.
    #[must_use]
    pub fn unbound(&self) -> Layout<'p> {
        let rules = vec![None; self.files.len()];
        Layout { placement: None, rules, kinds: RefCell::default(), ..self.clone() }
    }

    /// Rules and tiers count.
    pub fn is_bound(&self) -> bool {
        self.placement.is_some()
    }

    /// The disks, as the plans so far leave them.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    pub fn takes(&self, branch: usize) -> Takes {
        self.branches[branch].takes
    }

    /// Returns the branch with the most free space among those that take all files.
    pub fn emptiest(&self) -> Option<usize> {
        let takes = |(index, branch): (usize, &LayoutBranch)| {
            branch.disk.filter(|_| branch.takes == Takes::All).map(|disk| (self.disks[disk].free, index))
        };
        self.branches.iter().enumerate().filter_map(takes).max().map(|(_, index)| index)
    }

    pub fn disk_of(&self, branch: usize) -> Option<usize> {
        self.branches[branch].disk
    }

    pub(super) fn path(&self, branch: usize) -> &Path {
        &self.branches[branch].path
    }

    /// Returns where a file may go from one of the branches that hold it.
    pub(super) fn bounds(&self, file: usize, from: usize) -> Bounds<'p> {
        match self.placement {
            None => Bounds { ground: Ground::Nothing, sets: Vec::new() },
            Some(placement) => bounds(placement, self.rules[file], self.path(from)),
        }
    }

    /// Returns why a file stays for which no branch has room.
    pub(super) fn why_it_stays(&self, file: usize, from: usize) -> Why<'p> {
        let bounds = self.bounds(file, from);
        let may = |path: &Path| bounds.sets.iter().any(|set| set.holds(path));
        let takes = |branch: &&LayoutBranch| branch.takes > Takes::Nothing;
        let excludes = self.branches.iter().filter(takes).any(|branch| !may(&branch.path));
        match bounds.ground {
            Ground::Nothing => Why::NoRoom,
            ground if excludes => Why::Bound(ground),
            _ => Why::NoRoom,
        }
    }

    /// Returns the branches that take a copy of a file which is to leave a branch, set by set. Without sets, all branches are
    /// alike.
    pub(super) fn takers(&self, (file, from): (usize, usize), reach: Reach, least: Takes) -> Rc<Vec<Takers>> {
        let others = self.files[file].copies.iter().map(|copy| copy.branch).filter(|branch| *branch != from);
        let rule = self.rules[file].map(std::ptr::from_ref);
        let losing = self.files[file].losing.clone();
        let kind = Kind { rule, from, others: others.collect(), losing, reach, least };
        if let Some(known) = self.kinds.borrow().get(&kind) {
            return Rc::clone(known);
        }
        let mut sets = self.bounds(file, from).sets;
        if reach == Reach::Home {
            sets.truncate(1);
        }
        let takers = match sets.as_slice() {
            [] => vec![self.takers_among((file, from), least, &|_| true)],
            sets => {
                let of = |set: &Set<'_>| {
                    self.takers_among((file, from), least, &|branch| set.holds(self.path(branch)))
                };
                sets.iter().map(of).collect()
            }
        };
        Rc::clone(self.kinds.borrow_mut().entry(kind).or_insert(Rc::new(takers)))
    }

    /// Has a branch take no files any more.
    pub fn close(&mut self, branch: usize) {
        self.branches[branch].takes = Takes::Nothing;
        self.kinds.get_mut().clear();
    }

    /// The same among branches that `may` admits. A disk that holds another copy takes none.
    pub(super) fn takers_among(
        &self,
        (file, from): (usize, usize),
        least: Takes,
        may: &dyn Fn(usize) -> bool,
    ) -> Takers {
        let others = self.files[file].copies.iter().map(|copy| copy.branch).filter(|branch| *branch != from);
        let held: Vec<usize> = others.filter_map(|branch| self.disk_of(branch)).collect();
        let mut takers = vec![None; self.disks.len()];
        for (index, branch) in self.branches.iter().enumerate() {
            let Some(disk) = branch.disk.filter(|disk| !held.contains(disk)) else { continue };
            let takes = branch.takes >= least && !self.files[file].losing.contains(&index);
            if takers[disk].is_none() && takes && may(index) {
                takers[disk] = Some(index);
            }
        }
        takers
    }

    /// Returns the branch of these that is on the disk with the most free space, of those that have room. Branches that can store
    /// everything come first.
    pub(super) fn roomiest(&self, takers: &[Option<usize>], bytes: u64) -> Option<usize> {
        let fits = |(disk, _): &(usize, usize)| self.disks[*disk].has_room(bytes);
        let takers = takers.iter().enumerate().filter_map(|(disk, taker)| Some((disk, (*taker)?)));
        let rank = |(disk, branch): &(usize, usize)| (self.branches[*branch].takes, self.disks[*disk].free);
        takers.filter(fits).max_by_key(rank).map(|(_, branch)| branch)
    }

    /// Returns the branch that takes what is on a disk: another branch of that disk, where nothing needs room, or the roomiest.
    pub(super) fn next(&self, takers: &[Option<usize>], on: Option<usize>, bytes: u64) -> Option<usize> {
        on.and_then(|disk| takers[disk]).or_else(|| self.roomiest(takers, bytes))
    }
}
