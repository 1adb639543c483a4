//! Where the rules and tiers of a pool let a file go. The mover of tiers asks here, and so do the goals that move files for other
//! reasons: what one of them moves, the next look of the mover must not bring back.

use crate::placement::{Placement, Rule, Set, Target, Tier};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What bounds a file.
#[derive(Clone, Copy, Debug)]
pub enum Ground<'p> {
    Rule(&'p Rule),
    Tier(&'p Tier),
    /// Its branch is in no tier, or the pool has none.
    Nothing,
}

/// Such as `rule films/**`.
impl fmt::Display for Ground<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ground::Rule(rule) => write!(f, "rule {}", rule.path.as_str()),
            Ground::Tier(tier) => write!(f, "tier {}", tier.name),
            Ground::Nothing => Ok(()),
        }
    }
}

/// Where a file may go.
#[derive(Clone, Debug)]
pub struct Bounds<'p> {
    pub ground: Ground<'p>,
    /// The first one is where it belongs; the others are for when that has no room. Without any, all branches are alike.
    pub sets: Vec<Set<'p>>,
}

/// Returns the first rule that matches a name of the file.
pub fn rule_of<'r, 'n>(
    placement: &'r Placement,
    names: impl Iterator<Item = &'n Path> + Clone,
) -> Option<&'r Rule> {
    let matches = |rule: &&Rule| names.clone().any(|name| rule.path.matches(name.as_os_str().as_bytes()));
    placement.rules.iter().find(matches)
}

/// Returns where a file of a rule, or of none, may go from this branch.
pub fn bounds<'p>(placement: &'p Placement, rule: Option<&'p Rule>, from: &Path) -> Bounds<'p> {
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
pub(super) fn below(placement: &Placement, at: usize) -> impl Iterator<Item = Set<'_>> {
    let later = placement.tiers[at + 1..].iter().map(Set::Tier);
    later.chain(std::iter::once(Set::Rest(&placement.tiers)))
}

#[cfg(test)]
mod tests {
    use super::super::properties::{rule, tier};
    use super::*;

    #[test]
    fn a_file_goes_where_the_mover_would_let_it_be() {
        let placement = Placement {
            tiers: vec![tier("ssd", &["/ssd"]), tier("disks", &["/d1", "/d2"]), tier("old", &["/old"])],
            rules: vec![
                rule("films/**", &["/d1", "/usb"], ""),
                rule("*.part", &[], "ssd"),
                rule("late/**", &[], "disks"),
            ],
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
