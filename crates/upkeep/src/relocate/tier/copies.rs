//! Copies that rules want: which files have too few, and where more go.

use crate::pool_link::{BranchLink, PoolLink};
use crate::relocate::job::Stays;
use crate::relocate::mover::Task;
use crate::survey::{Entry, FileCopy, Judged, judge};
use canopy_base::text::os_error;
use canopy_policy::layout::{Layout, Takes, Twins};
use canopy_policy::placement::{Placement, Rule, Target};
use rustix::fs::FileType;
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

/// A file that a branch holds under a name.
#[derive(Clone, Copy, Debug)]
struct Holder {
    branch: usize,
    current: bool,
    /// It is known to be a copy of the others.
    known: bool,
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

/// Chooses branches for the copies that a file lacks. What a branch holds that is being emptied only is copied from.
fn choose(
    (wanted, bytes): (usize, u64),
    holders: &[Holder],
    leaving: Option<usize>,
    layout: &mut Layout<'_>,
    rule: Option<(&Rule, &Placement)>,
) -> Chosen {
    let mut current: Vec<usize> =
        holders.iter().filter(|holder| holder.current).map(|holder| holder.branch).collect();
    let from = current.first().copied().unwrap_or_default();
    current.retain(|branch| Some(*branch) != leaving);
    let is_old = |holder: &&Holder| holder.is_file && holder.known && !holder.current;
    let (old, other): (Vec<&Holder>, Vec<&Holder>) = holders.iter().partition(is_old);
    let [old, other] = [old, other].map(|holders| holders.iter().map(|it| it.branch).collect::<Vec<_>>());
    let twins = Twins { wanted, bytes, current: &current, old: &old, other: &other, least: Takes::All };
    let spread = layout.spread(&twins, rule);
    let lack = spread.is_short.then_some("no other disk that may hold a copy has room");
    Chosen { from, to: spread.to, lack }
}

/// What a look at files has found.
#[derive(Debug, Default)]
pub(in crate::relocate) struct CopyPlan {
    pub(in crate::relocate) tasks: Vec<Task>,
    /// What has too few copies and gets none, and why.
    pub(in crate::relocate) stays: Vec<Stays>,
    /// The files that have too few copies now, relative to the root of the pool.
    pub(super) short: BTreeSet<PathBuf>,
}

/// Looks for files with too few copies.
pub(in crate::relocate) struct CopyPlanner<'p, 'l> {
    pool: &'p PoolLink,
    placement: &'p Placement,
    layout: &'p mut Layout<'l>,
    /// A branch that is being emptied.
    leaving: Option<usize>,
    devices: Vec<Option<u64>>,
    /// The tasks of files with hard links.
    linked: HashMap<(u64, u64), Range<usize>>,
    pub(in crate::relocate) plan: CopyPlan,
}

impl<'p, 'l> CopyPlanner<'p, 'l> {
    pub(in crate::relocate) fn new(
        pool: &'p PoolLink,
        placement: &'p Placement,
        layout: &'p mut Layout<'l>,
    ) -> CopyPlanner<'p, 'l> {
        let device = |branch: &BranchLink| branch.stat(Path::new("")).ok().map(|it| it.st_dev);
        let devices = pool.branches.iter().map(device).collect();
        let plan = CopyPlan::default();
        CopyPlanner { pool, placement, layout, leaving: None, devices, linked: HashMap::new(), plan }
    }

    /// Plans for the time when a branch has been emptied: it gets no copies, and what it holds is only copied from.
    pub(in crate::relocate) fn without(mut self, branch: usize) -> Self {
        self.layout.close(branch);
        self.leaving = Some(branch);
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
            if let Some(tasks) = linked {
                // Its other names bring this one along.
                self.plan.short.insert(entry.path.clone());
                for task in &mut self.plan.tasks[tasks] {
                    task.names.push(entry.path.clone());
                }
                return false;
            }
            match self.lacking(entry, rule, wanted) {
                Ok(None) => {}
                Ok(Some(chosen)) => {
                    self.plan.short.insert(entry.path.clone());
                    let from = entry.copies.iter().find(|copy| copy.branch == chosen.from);
                    let bytes = from.map_or(0, FileCopy::used);
                    let task = |to| Task::copying(vec![entry.path.clone()], chosen.from, to, bytes);
                    let before = self.plan.tasks.len();
                    self.plan.tasks.extend(chosen.to.iter().copied().map(task));
                    if let Some(from) = from.filter(|from| from.stat.st_nlink > 1) {
                        self.linked.insert(from.key(), before..self.plan.tasks.len());
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
        let judged = judge(self.pool, &entry.path, &entry.copies).map_err(|(_, errno)| os_error(errno))?;
        // What a branch holds that fails does not count as a copy.
        let well = |(copy, _): &(&FileCopy, Judged)| self.pool.branches[copy.branch].is_well;
        let holder = |(copy, judged): (&FileCopy, Judged)| Holder {
            branch: copy.branch,
            current: judged.current,
            known: judged.known,
            is_file: copy.kind() == FileType::RegularFile,
        };
        let mut holders: Vec<Holder> = entry.copies.iter().zip(judged).filter(well).map(holder).collect();
        if !holders.iter().any(|holder| holder.current) {
            // The daemon copies what it shows, whichever is named: also the newest one, from a branch that fails.
            holders.iter_mut().for_each(|holder| holder.current = true);
        }
        let current: Vec<&FileCopy> = holders
            .iter()
            .filter(|holder| holder.current)
            .filter_map(|holder| entry.copies.iter().find(|copy| copy.branch == holder.branch))
            .collect();
        let Some(first) = current.first() else { return Ok(None) };
        let alike = |copy: &&&FileCopy| copy.size() == first.size() && copy.modified() == first.modified();
        let stays = |copy: &&&FileCopy| Some(copy.branch) != self.leaving;
        let disks: BTreeSet<_> =
            current.iter().filter(alike).filter(stays).map(|copy| self.layout.disk_of(copy.branch)).collect();
        // Those that were there before the rule are no copies before they are compared.
        let unknown = |copy: &&FileCopy| {
            let holder = holders.iter().find(|holder| holder.branch == copy.branch);
            holder.is_some_and(|holder| holder.is_file && !holder.known)
        };
        let twins = entry.copies.iter().filter(|copy| copy.branch != first.branch && alike(&copy));
        let to: Vec<usize> = twins
            .filter(unknown)
            .map(|copy| copy.branch)
            .filter(|&branch| self.layout.takes(branch) == Takes::All)
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
        let rule = Some((rule, self.placement));
        Ok(Some(choose((wanted, first.used()), &holders, self.leaving, self.layout, rule)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_config::placement::parse_rules;
    use canopy_policy::layout::{Disk, LayoutBranch};

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

    /// `+` for a copy that is up to date, `-` for an old one; a file that is no copy with `?`.
    fn holder(branch: usize, what: &str) -> Holder {
        Holder { branch, current: !what.starts_with('-'), known: !what.ends_with('?'), is_file: true }
    }

    /// Four branches on three disks: the first two share one.
    fn chosen(wanted: usize, holders: &[Holder], free: [u64; 3]) -> Chosen {
        let branch = |disk: usize| LayoutBranch {
            path: PathBuf::new(),
            disk: Some(disk),
            gives: true,
            takes: Takes::All,
            reserve: 10,
        };
        let disks = free.map(|free| Disk::new(100, free)).to_vec();
        let mut layout = Layout::new([0, 0, 1, 2].map(branch).to_vec(), disks, None);
        choose((wanted, 20), holders, None, &mut layout, None)
    }

    #[test]
    fn a_copy_goes_to_the_disk_with_most_room_or_takes_the_place_of_an_old_one() {
        let to = |from, to: &[usize]| Chosen { from, to: to.to_vec(), lack: None };
        assert_eq!(chosen(2, &[holder(0, "+?")], [90, 40, 50]), to(0, &[3]));
        assert_eq!(chosen(3, &[holder(0, "+?")], [90, 40, 50]), to(0, &[3, 2]));
        assert_eq!(chosen(2, &[holder(0, "-"), holder(2, "+")], [90, 90, 50]), to(2, &[0]));
        assert_eq!(chosen(2, &[holder(2, "-"), holder(3, "+")], [90, 40, 50]), to(3, &[2]));
        let lack = Some("no other disk that may hold a copy has room");
        let short = |from, to: &[usize]| Chosen { lack, ..only(from, to) };
        assert_eq!(chosen(3, &[holder(0, "+?")], [90, 29, 30]), short(0, &[3]));
        // Two branches of one disk are one copy, and what is not known as a copy is no old one.
        assert_eq!(chosen(2, &[holder(0, "+"), holder(1, "+")], [90, 20, 20]), short(0, &[]));
        assert_eq!(chosen(2, &[holder(0, "+"), holder(2, "-?")], [90, 90, 20]), short(0, &[]));
        let symlink = Holder { is_file: false, ..holder(2, "-?") };
        assert_eq!(chosen(2, &[holder(0, "+"), symlink], [90, 90, 20]), short(0, &[]));
    }

    fn only(from: usize, to: &[usize]) -> Chosen {
        Chosen { from, to: to.to_vec(), lack: None }
    }
}
