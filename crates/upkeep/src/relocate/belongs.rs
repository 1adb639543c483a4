//! Where the rules and tiers of a pool let a file go. The mover of tiers asks here, and so do the commands that move files for
//! other reasons: what one of them moves, the next look of the mover must not bring back.

use super::job::{Disks, Found};
use crate::error::{Error, Result};
use crate::plan::{Class, Item};
use crate::pool_link::PoolLink;
use canopy_policy::placement::{Placement, Rule, Set, Target, Tier};
use clap::Args;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The option of the commands that heed rules and tiers.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct RulesArgs {
    /// Also where rules and tiers do not want files
    #[arg(long)]
    pub against_rules: bool,
}

/// What bounds a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ground<'p> {
    Rule(&'p Rule),
    Tier(&'p Tier),
    /// Its branch is in no tier, or the pool has none.
    Nothing,
}

/// Where a file may go.
#[derive(Clone, Debug)]
pub(crate) struct Bounds<'p> {
    pub(crate) ground: Ground<'p>,
    /// The first one is where it belongs; the others are for when that has no room. Without any, all branches are alike.
    pub(crate) sets: Vec<Set<'p>>,
}

/// Returns the first rule that matches a name of the file.
pub(crate) fn rule_of<'r, 'n>(
    placement: &'r Placement,
    names: impl Iterator<Item = &'n Path> + Clone,
) -> Option<&'r Rule> {
    let matches = |rule: &&Rule| names.clone().any(|name| rule.path.matches(name.as_os_str().as_bytes()));
    placement.rules.iter().find(matches)
}

/// Returns where a file of a rule, or of none, may go from this branch.
pub(crate) fn bounds<'p>(placement: &'p Placement, rule: Option<&'p Rule>, from: &Path) -> Bounds<'p> {
    let tiers = &placement.tiers;
    match rule.map(|rule| (rule, &rule.target)) {
        Some((rule, Target::Branches(named))) => {
            return Bounds { ground: Ground::Rule(rule), sets: vec![Set::Rule(named)] };
        }
        Some((rule, Target::Tier(name))) => {
            if let Some(at) = tiers.iter().position(|tier| tier.name == *name) {
                let mut sets = vec![Set::Tier(&tiers[at])];
                // It is only preferred there: what is elsewhere goes where a new file would.
                if !tiers[at].holds(from) {
                    sets.extend(below(placement, at).chain(tiers[..at].iter().map(Set::Tier)));
                }
                return Bounds { ground: Ground::Rule(rule), sets };
            }
        }
        Some((_, Target::Anywhere)) | None => {}
    }
    match tiers.iter().position(|tier| tier.holds(from)) {
        _ if tiers.is_empty() => Bounds { ground: Ground::Nothing, sets: Vec::new() },
        Some(at) => {
            let sets = std::iter::once(Set::Tier(&tiers[at])).chain(below(placement, at)).collect();
            Bounds { ground: Ground::Tier(&tiers[at]), sets }
        }
        None => {
            let sets = std::iter::once(Set::Rest(tiers)).chain(tiers.iter().rev().map(Set::Tier)).collect();
            Bounds { ground: Ground::Nothing, sets }
        }
    }
}

/// Returns the sets that take what a tier gives, the first one first.
pub(crate) fn below(placement: &Placement, at: usize) -> impl Iterator<Item = Set<'_>> {
    let later = placement.tiers[at + 1..].iter().map(Set::Tier);
    later.chain(std::iter::once(Set::Rest(&placement.tiers)))
}

/// A file that stays because of a rule or tier.
#[derive(Clone, Debug)]
pub(crate) struct KeptByRule {
    pub(crate) path: PathBuf,
    /// Such as `rule films/**`.
    pub(crate) by: String,
    pub(crate) bytes: u64,
}

/// What rules and tiers keep a command from.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    pub(crate) kept: Vec<KeptByRule>,
    /// What belongs to its disk, where users expect it to go.
    pub(crate) belongs: Vec<PathBuf>,
    /// What else there is to say.
    pub(crate) note: Option<String>,
}

/// Where the files of a pool may go, by branches and disks.
pub(crate) struct Borders<'p> {
    pool: &'p PoolLink,
    /// `None` if they do not count.
    placement: Option<&'p Placement>,
}

/// The rules and tiers of a pool; none of a daemon that knows none.
pub(crate) fn placement(pool: &PoolLink) -> Result<Placement> {
    match pool.placement() {
        Err(Error::NoTiers(_)) => Ok(Placement::default()),
        other => other,
    }
}

impl<'p> Borders<'p> {
    pub(crate) fn new(pool: &'p PoolLink, placement: &'p Placement, args: RulesArgs) -> Borders<'p> {
        let counts = !args.against_rules && !placement.is_empty();
        Borders { pool, placement: counts.then_some(placement) }
    }

    /// Of a pool whose rules and tiers do not count.
    pub(crate) fn open(pool: &'p PoolLink) -> Borders<'p> {
        Borders { pool, placement: None }
    }

    /// Nothing bounds a file.
    pub(crate) fn are_open(&self) -> bool {
        self.placement.is_none()
    }

    fn bounds(&self, found: &Found) -> Bounds<'p> {
        let from = &self.pool.branches[found.copy.branch].path;
        match self.placement {
            None => Bounds { ground: Ground::Nothing, sets: Vec::new() },
            Some(placement) => {
                bounds(placement, rule_of(placement, found.names.iter().map(PathBuf::as_path)), from)
            }
        }
    }

    /// Returns the rule that wants a file elsewhere than on this branch, where somebody has asked for it.
    pub(crate) fn forbid(&self, found: &Found, to: usize) -> Option<KeptByRule> {
        let bounds = self.bounds(found);
        match bounds.ground {
            Ground::Rule(_) if !bounds.sets[0].holds(&self.pool.branches[to].path) => {
                Some(self.kept(found, &bounds))
            }
            _ => None,
        }
    }

    /// Returns what keeps a file for which no branch within its bounds has room; `None` if nothing bounds it.
    pub(crate) fn keeps(&self, found: &Found) -> Option<KeptByRule> {
        let bounds = self.bounds(found);
        let may = |path: &Path| bounds.sets.iter().any(|set| set.holds(path));
        let excludes = self.pool.branches.iter().any(|branch| branch.takes() && !may(&branch.path));
        let is_bound = !matches!(bounds.ground, Ground::Nothing);
        (is_bound && excludes).then(|| self.kept(found, &bounds))
    }

    fn kept(&self, found: &Found, bounds: &Bounds<'_>) -> KeptByRule {
        let by = match bounds.ground {
            Ground::Rule(rule) => format!("rule {}", rule.path.as_str()),
            Ground::Tier(tier) => format!("tier {}", tier.name),
            Ground::Nothing => String::new(),
        };
        KeptByRule { path: self.pool.mountpoint.join(&found.names[0]), by, bytes: found.copy.used() }
    }

    /// Returns the items of a plan, and their classes. Items that only balance the disks stay where they belong.
    pub(crate) fn items(&self, found: &[&Found], disks: &Disks, at_home: bool) -> (Vec<Item>, Vec<Class>) {
        let (mut classes, mut known) = (Vec::new(), HashMap::new());
        let mut items = Vec::new();
        for file in found {
            let bounds = self.bounds(file);
            let rule = match bounds.ground {
                Ground::Rule(rule) => Some(std::ptr::from_ref(rule)),
                _ => None,
            };
            let others = file.others.as_ref().map_or(&[][..], |others| others.branches.as_slice());
            let losing = self.pool.losing(&file.copy.stat);
            let key = (rule, file.copy.branch, others, losing);
            let class = *known.entry(key).or_insert_with_key(|(.., losing)| {
                let sets = if at_home { bounds.sets.get(..1) } else { Some(&bounds.sets[..]) };
                classes.push(self.class(sets.unwrap_or_default(), disks, others, losing));
                classes.len() - 1
            });
            items.push(disks.item(file, class));
        }
        (items, classes)
    }

    /// Returns the branch of each disk that takes files of these sets. A disk on which other copies of them are takes none,
    /// nor does a branch on which they would lose something.
    fn class(&self, sets: &[Set<'_>], disks: &Disks, others: &[usize], losing: &[usize]) -> Class {
        let held: Vec<usize> = others.iter().filter_map(|branch| disks.of_branch(*branch)).collect();
        let takers = |may: &dyn Fn(&Path) -> bool| {
            let admits = |branch: &usize| !losing.contains(branch) && may(&self.pool.branches[*branch].path);
            let taker = |disk| disks.takers(disk).find(admits);
            (0..disks.list.len()).map(|disk| taker(disk).filter(|_| !held.contains(&disk))).collect()
        };
        match sets {
            [] => Class { sets: vec![takers(&|_| true)] },
            sets => Class { sets: sets.iter().map(|set| takers(&|path| set.holds(path))).collect() },
        }
    }

    /// Returns the disks that are to be equally full: those of each tier, and the others.
    pub(crate) fn groups(&self, disks: &Disks) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let tiers = self.placement.map_or(&[][..], |placement| &placement.tiers);
        let mut tier_of: Vec<Option<Option<usize>>> = vec![None; disks.list.len()];
        for (index, branch) in self.pool.branches.iter().enumerate() {
            // Of branches of several tiers on one disk, the first counts.
            if let Some(disk) = disks.of_branch(index) {
                let tier = tiers.iter().position(|tier| tier.holds(&branch.path));
                tier_of[disk].get_or_insert(tier);
            }
        }
        let mut kinds: Vec<Option<Option<usize>>> = Vec::new();
        for (disk, tier) in tier_of.into_iter().enumerate() {
            match kinds.iter().position(|kind| *kind == tier) {
                Some(at) => groups[at].push(disk),
                None => {
                    kinds.push(tier);
                    groups.push(vec![disk]);
                }
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_config::placement::{parse_rules, parse_tiers};

    #[test]
    fn a_file_goes_where_the_mover_would_let_it_be() {
        let placement = Placement {
            tiers: parse_tiers("ssd=/ssd|fuller than 70%;disks=/d1:/d2;old=/old").unwrap(),
            rules: parse_rules("films/**=/d1:/usb;*.part=ssd;late/**=disks").unwrap(),
        };
        let rest = "the branches in no tier";
        let table: [(&[&str], &str, &[&str]); 9] = [
            (&["a"], "/ssd", &["tier ssd", "tier disks", "tier old", rest]),
            (&["a"], "/d2", &["tier disks", "tier old", rest]),
            (&["a"], "/old", &["tier old", rest]),
            (&["a"], "/usb", &[rest, "tier old", "tier disks", "tier ssd"]),
            (&["films/a"], "/d1", &["the branches of the rule"]),
            // Also from a branch where it does not belong.
            (&["films/a.part"], "/ssd", &["the branches of the rule"]),
            (&["x/a.part"], "/ssd", &["tier ssd"]),
            (&["late/a"], "/ssd", &["tier disks", "tier old", rest, "tier ssd"]),
            // A rule for one of its names is enough.
            (&["a", "late/b"], "/d1", &["tier disks"]),
        ];
        for (names, from, expected) in table {
            let rule = rule_of(&placement, names.iter().map(Path::new));
            let bounds = bounds(&placement, rule, Path::new(from));
            let sets: Vec<String> = bounds.sets.iter().map(ToString::to_string).collect();
            assert_eq!(sets, expected, "{names:?} {from}");
        }
        let none = Placement::default();
        assert!(bounds(&none, None, Path::new("/d1")).sets.is_empty());
    }
}
