//! Copies that rules want: which files have too few, and where more go.

use crate::plan::Disk;
use crate::pool_link::PoolLink;
use crate::relocate::job::{Disks, Stays};
use crate::relocate::mover::Step;
use crate::survey::{Entry, FileCopy};
use canopy_base::text::os_error;
use canopy_branch::fs::generation::{self, Generation};
use canopy_policy::placement::{Placement, Rule, Target};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns whether a rule wants copies.
pub(super) fn are_wanted(placement: &Placement) -> bool {
    placement.rules.iter().any(|rule| rule.copies.is_some_and(|copies| copies > 1))
}

/// Returns whether there is anything but copies to take care of.
pub(super) fn are_all(placement: &Placement) -> bool {
    placement.tiers.is_empty() && placement.rules.iter().all(|rule| rule.target == Target::Anywhere)
}

/// Returns the directories that hold all files of which a rule wants copies, none within another.
pub(super) fn starts(placement: &Placement) -> Vec<PathBuf> {
    let wants = placement.rules.iter().filter(|rule| rule.copies.is_some_and(|copies| copies > 1));
    let mut all: Vec<PathBuf> = wants.map(|rule| fixed_part(rule.path.as_str())).collect();
    all.sort();
    // What begins with another one follows it.
    let mut apart: Vec<PathBuf> = Vec::new();
    for dir in all {
        if !apart.last().is_some_and(|last| dir.starts_with(last)) {
            apart.push(dir);
        }
    }
    apart
}

/// Returns the directories at the beginning of a glob that it takes as they are written.
fn fixed_part(glob: &str) -> PathBuf {
    let parts: Vec<&str> = glob.trim_start_matches('/').split('/').collect();
    let above = &parts[..parts.len() - 1];
    above.iter().take_while(|part| !part.contains(['*', '?', '[', ']', '{', '}', '\\'])).collect()
}

/// A branch of the pool.
#[derive(Clone, Copy, Debug)]
struct Spot {
    /// `None` for a branch that cannot be looked at.
    disk: Option<usize>,
    takes: bool,
    /// What it holds is a copy that stays.
    counts: bool,
}

/// A file that a branch holds under a name.
#[derive(Clone, Copy, Debug)]
struct Holder {
    branch: usize,
    generation: Option<Generation>,
    /// It may be replaced if it is an old copy.
    is_file: bool,
}

/// Where copies of one file are to be made.
#[derive(PartialEq, Eq, Debug, Default)]
struct Chosen {
    from: usize,
    to: Vec<usize>,
    /// Why there will still be too few.
    lack: Option<&'static str>,
}

/// Chooses branches for the copies that a file of so many bytes lacks. `prefers` names the branches that the rule wants.
fn choose(
    wanted: usize,
    holders: &[Holder],
    spots: &[Spot],
    disks: &mut [Disk],
    bytes: u64,
    tiers_of_choice: &[&dyn Fn(usize) -> bool],
) -> Chosen {
    let generations: Vec<_> = holders.iter().map(|holder| holder.generation).collect();
    let current: Vec<usize> = generation::current(&generations).map(|at| holders[at].branch).collect();
    let mut chosen = Chosen { from: current.first().copied().unwrap_or_default(), ..Chosen::default() };
    // Two branches of one disk are lost together.
    let counts = |branch: &&usize| spots[**branch].counts;
    let mut held: BTreeSet<Option<usize>> =
        current.iter().filter(counts).map(|branch| spots[*branch].disk).collect();
    let number = |generation: Option<Generation>| generation.map(|generation| generation.number);
    let newest = generations.iter().copied().map(number).max().flatten();
    while held.len() < wanted {
        let fits = |branch: &usize| {
            let spot = spots[*branch];
            let free = match holders.iter().find(|holder| holder.branch == *branch) {
                None => true,
                Some(old) => old.is_file && old.generation.is_some() && number(old.generation) < newest,
            };
            let disk = spot.disk.map(|disk| &disks[disk]);
            free && spot.takes
                && !held.contains(&spot.disk)
                && disk
                    .is_some_and(|disk| disk.free.checked_sub(bytes).is_some_and(|left| left >= disk.reserve))
        };
        // An old copy makes room for the new one.
        let rank = |branch: &usize| {
            let is_old = holders.iter().any(|holder| holder.branch == *branch);
            (is_old, spots[*branch].disk.map(|disk| disks[disk].free))
        };
        let best = tiers_of_choice
            .iter()
            .find_map(|admits| (0..spots.len()).filter(|it| admits(*it)).filter(fits).max_by_key(rank));
        let Some(to) = best else {
            chosen.lack = Some("no other disk that may hold a copy has room");
            break;
        };
        if let Some(disk) = spots[to].disk {
            disks[disk].free = disks[disk].free.saturating_sub(bytes);
        }
        held.insert(spots[to].disk);
        chosen.to.push(to);
    }
    chosen
}

/// What a look at files has found.
#[derive(Debug, Default)]
pub(in crate::relocate) struct CopyPlan {
    pub(in crate::relocate) steps: Vec<Step>,
    /// What has too few copies and gets none, and why.
    pub(in crate::relocate) stays: Vec<Stays>,
    /// The files that have too few copies now, relative to the root of the pool.
    pub(super) short: BTreeSet<PathBuf>,
}

/// Looks for files with too few copies.
pub(in crate::relocate) struct CopyPlanner<'p> {
    pool: &'p PoolLink,
    placement: &'p Placement,
    disks: Disks,
    spots: Vec<Spot>,
    devices: Vec<Option<u64>>,
    /// The steps of files with hard links.
    linked: HashMap<(u64, u64), Range<usize>>,
    pub(in crate::relocate) plan: CopyPlan,
}

impl<'p> CopyPlanner<'p> {
    pub(in crate::relocate) fn new(
        pool: &'p PoolLink,
        placement: &'p Placement,
    ) -> crate::error::Result<CopyPlanner<'p>> {
        let mut disks = Disks::of(pool, &|_| true)?;
        for (index, branch) in pool.branches.iter().enumerate() {
            // Of several branches on a disk, the one that wants most room counts.
            if let Some(disk) = disks.of_branch(index) {
                disks.list[disk].reserve = disks.list[disk].reserve.max(branch.min_free);
            }
        }
        let spot = |(index, branch): (usize, &crate::pool_link::BranchLink)| Spot {
            disk: disks.of_branch(index),
            // What rules want copies of gets attributes that such filesystems lack.
            takes: branch.takes() && branch.is_whole(),
            counts: true,
        };
        let spots = pool.branches.iter().enumerate().map(spot).collect();
        let device =
            |branch: &crate::pool_link::BranchLink| branch.stat(Path::new("")).ok().map(|it| it.st_dev);
        let devices = pool.branches.iter().map(device).collect();
        Ok(CopyPlanner {
            pool,
            placement,
            disks,
            spots,
            devices,
            linked: HashMap::new(),
            plan: CopyPlan::default(),
        })
    }

    /// Plans for the time when a branch has been emptied: it gets no copies, and what it holds is only copied from.
    pub(in crate::relocate) fn without(mut self, branch: usize) -> Self {
        let spot = &mut self.spots[branch];
        (spot.takes, spot.counts) = (false, false);
        self
    }

    /// Takes up a file if it has too few copies. Returns whether to look at what is below it.
    pub(in crate::relocate) fn consider(
        &mut self,
        entry: &Entry,
        admits: &dyn Fn(&FileCopy) -> bool,
    ) -> bool {
        if entry.is_dir() || self.pool.keep.stays(&entry.path) {
            return !self.pool.keep.stays(&entry.path);
        }
        let path = entry.path.as_os_str().as_bytes();
        let Some(rule) = self.placement.rule(path) else { return false };
        let wanted = self.placement.copies(path);
        if wanted > 1 && entry.first().kind() == FileType::RegularFile && admits(entry.first()) {
            let linked = entry.copies.iter().find_map(|copy| self.linked.get(&copy.key()).cloned());
            if let Some(steps) = linked {
                // Its other names bring this one along.
                self.plan.short.insert(entry.path.clone());
                for step in &mut self.plan.steps[steps] {
                    step.names.push(entry.path.clone());
                }
                return false;
            }
            match self.lacking(entry, rule, wanted) {
                Ok(None) => {}
                Ok(Some(chosen)) => {
                    self.plan.short.insert(entry.path.clone());
                    let from = entry.copies.iter().find(|copy| copy.branch == chosen.from);
                    let bytes = from.map_or(0, FileCopy::used);
                    let step = |to| Step::whole(vec![entry.path.clone()], chosen.from, to, bytes);
                    let before = self.plan.steps.len();
                    self.plan.steps.extend(chosen.to.iter().copied().map(step));
                    if let Some(from) = from.filter(|from| from.stat.st_nlink > 1) {
                        self.linked.insert(from.key(), before..self.plan.steps.len());
                    }
                    chosen.lack.into_iter().for_each(|why| self.stays(entry, why));
                }
                Err(why) => {
                    self.plan.short.insert(entry.path.clone());
                    self.stays(entry, &why);
                }
            }
        }
        false
    }

    fn stays(&mut self, entry: &Entry, why: &str) {
        let path = self.pool.mountpoint.join(&entry.path);
        self.plan.stays.push(Stays { path, why: why.to_owned() });
    }

    /// Returns which copies a file lacks, if any.
    fn lacking(&mut self, entry: &Entry, rule: &Rule, wanted: usize) -> Result<Option<Chosen>, String> {
        let mut holders = Vec::new();
        // What a branch holds that fails does not count as a copy.
        let well = |copy: &&FileCopy| self.pool.branches[copy.branch].is_well;
        for copy in entry.copies.iter().filter(well) {
            let is_file = copy.kind() == FileType::RegularFile;
            let read = if is_file && entry.copies.len() > 1 {
                self.pool.branches[copy.branch].generation(&entry.path)
            } else {
                Ok(None)
            };
            match read {
                Ok(generation) => holders.push(Holder { branch: copy.branch, generation, is_file }),
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(errno) => return Err(os_error(errno)),
            }
        }
        let generations: Vec<_> = holders.iter().map(|holder| holder.generation).collect();
        let current: Vec<&FileCopy> = generation::current(&generations)
            .filter_map(|at| entry.copies.iter().find(|copy| copy.branch == holders[at].branch))
            .collect();
        let Some(first) = current.first() else { return Ok(None) };
        let alike = |copy: &&&FileCopy| copy.size() == first.size() && copy.modified() == first.modified();
        let stays = |copy: &&&FileCopy| self.spots[copy.branch].counts;
        let disks: BTreeSet<_> =
            current.iter().filter(alike).filter(stays).map(|copy| self.spots[copy.branch].disk).collect();
        // Those that were there before the rule are no copies before they are compared.
        let unknown = |copy: &&FileCopy| {
            let holder = holders.iter().find(|holder| holder.branch == copy.branch);
            holder.is_some_and(|holder| holder.is_file && holder.generation.is_none())
        };
        let twins = entry.copies.iter().filter(|copy| copy.branch != first.branch && alike(&copy));
        let to: Vec<usize> = twins
            .filter(unknown)
            .map(|copy| copy.branch)
            .filter(|&branch| self.spots[branch].takes)
            .collect();
        if !to.is_empty() {
            return Ok(Some(Chosen { from: first.branch, to, lack: None }));
        }
        if disks.len() >= wanted {
            return Ok(None);
        }
        if !current.iter().all(|copy| alike(&copy)) {
            return Err("its copies differ, and it is not clear which is newer (canopy which)".into());
        }
        if self.devices[first.branch] != Some(first.stat.st_dev) {
            return Err(crate::relocate::BELOW_ANOTHER.into());
        }
        let branches = &self.pool.branches;
        let everywhere = |_: usize| true;
        let (named, tier);
        let choices: &[&dyn Fn(usize) -> bool] = match &rule.target {
            Target::Anywhere => &[&everywhere],
            Target::Branches(patterns) => {
                named = |branch: usize| {
                    let path = branches[branch].path.as_os_str().as_bytes();
                    patterns.iter().any(|pattern| pattern.matches(path))
                };
                &[&named]
            }
            Target::Tier(name) => {
                let of_name = self.placement.tiers.iter().find(|tier| tier.name == *name);
                tier = move |branch: usize| of_name.is_some_and(|it| it.holds(&branches[branch].path));
                &[&tier, &everywhere]
            }
        };
        let used = first.used();
        Ok(Some(choose(wanted, &holders, &self.spots, &mut self.disks.list, used, choices)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_config::placement::parse_rules;

    fn of(rules: &str) -> Placement {
        Placement { tiers: Vec::new(), rules: parse_rules(rules).unwrap() }
    }

    #[test]
    fn only_trees_that_a_rule_names_are_looked_through() {
        let table: [(&str, &[&str]); 6] = [
            ("photos/**=copies 2", &["photos"]),
            ("photos/=copies 2;photos/raw/*.nef=copies 3;/scans/a/b=copies 2", &["photos", "scans/a"]),
            ("*.kdbx=copies 2;photos/**=copies 2", &[""]),
            ("a/*/c=copies 2;ab/c/**=copies 2", &["a", "ab/c"]),
            ("a/**=copies 1;b/**=/x", &[]),
            (r"a\*b/c/**=copies 2", &[""]),
        ];
        for (rules, expected) in table {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(starts(&of(rules)), expected, "{rules}");
        }
        assert!(are_wanted(&of("a=copies 2")) && !are_wanted(&of("a=copies 1;b=/x")));
        assert!(are_all(&of("a=copies 2")) && !are_all(&of("a=copies 2;b=/x")));
    }

    fn holder(branch: usize, generation: &str) -> Holder {
        let generation = (!generation.is_empty()).then(|| Generation::parse(generation.as_bytes()).unwrap());
        Holder { branch, generation, is_file: true }
    }

    /// Four branches on three disks: the first two share one.
    fn chosen(wanted: usize, holders: &[Holder], free: [u64; 3]) -> Chosen {
        let spots = [0, 0, 1, 2].map(|disk| Spot { disk: Some(disk), takes: true, counts: true });
        let mut disks = free.map(|free| Disk { size: 100, free, reserve: 10, taker: None });
        choose(wanted, holders, &spots, &mut disks, 20, &[&|_| true])
    }

    #[test]
    fn a_copy_goes_to_the_disk_with_most_room_or_takes_the_place_of_an_old_one() {
        let to = |from, to: &[usize]| Chosen { from, to: to.to_vec(), lack: None };
        assert_eq!(chosen(2, &[holder(0, "")], [90, 40, 50]), to(0, &[3]));
        assert_eq!(chosen(3, &[holder(0, "")], [90, 40, 50]), to(0, &[3, 2]));
        assert_eq!(chosen(2, &[holder(0, "5+"), holder(2, "7")], [90, 90, 50]), to(2, &[0]));
        assert_eq!(chosen(2, &[holder(2, "0"), holder(3, "7")], [90, 40, 50]), to(3, &[2]), "marked as old");
        let lack = Some("no other disk that may hold a copy has room");
        let short = |from, to: &[usize]| Chosen { lack, ..only(from, to) };
        assert_eq!(chosen(3, &[holder(0, "")], [90, 29, 30]), short(0, &[3]));
        // Two branches of one disk are one copy, and what has no number is no old copy.
        assert_eq!(chosen(2, &[holder(0, "7+"), holder(1, "7+")], [90, 20, 20]), short(0, &[]));
        assert_eq!(chosen(2, &[holder(0, "7"), holder(2, "")], [90, 90, 20]), short(0, &[]));
        let symlink = Holder { is_file: false, ..holder(2, "6+") };
        assert_eq!(chosen(2, &[holder(0, "7"), symlink], [90, 90, 20]), short(0, &[]));
    }

    fn only(from: usize, to: &[usize]) -> Chosen {
        Chosen { from, to: to.to_vec(), lack: None }
    }
}
