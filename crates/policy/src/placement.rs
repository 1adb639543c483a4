//! Tiers and rules: among which branches a create policy chooses for a new file.
//!
//! The branches form sets, in an order that the path of the file decides. The policy chooses within the first set that has
//! room. Pure: without system calls.

use super::model::{BranchView, Policy};
use canopy_base::error::Refusal;
use globset::{GlobBuilder, GlobMatcher};
use smallvec::SmallVec;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// A glob for a whole path: `*` and `?` match no slash, `**` does, and a backslash quotes.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    matcher: GlobMatcher,
}

impl Pattern {
    /// # Errors
    /// What is wrong with the glob, in words.
    pub fn new(text: &str) -> Result<Pattern, String> {
        let bare = text.trim_start_matches('/');
        // As in the filters of commands: without a slash, the name counts in any directory.
        let glob = match text.contains('/') {
            false => format!("**/{text}"),
            true if bare.ends_with('/') => format!("{bare}**"),
            true => bare.to_owned(),
        };
        let built = GlobBuilder::new(&glob).literal_separator(true).build();
        let matcher = built.map_err(|why| why.kind().to_string())?.compile_matcher();
        Ok(Pattern { text: text.to_owned(), matcher })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the glob matches a path. A slash at the beginning of either does not count.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.matcher.is_match(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
    }

    fn matches_branch(&self, branch: &Path) -> bool {
        self.matches(branch.as_os_str().as_bytes())
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

/// When files leave a tier for the next one.
#[derive(Clone, PartialEq, Debug)]
pub enum MoveWhen {
    /// The tier is fuller than so many per cent: those that were not accessed for the longest time, until it is no fuller
    /// than `until`.
    Fuller { than: u8, until: u8 },
    /// Files that were neither accessed nor changed for so long.
    Older(Duration),
    /// Files of more than so many bytes.
    Larger(u64),
    /// Only in the hour that begins then, each day; without any of the others, all files.
    EveryNight { hour: u8, minute: u8 },
}

/// Branches that get new files before those of the tiers after it.
#[derive(Clone, PartialEq, Debug)]
pub struct Tier {
    pub name: String,
    pub branches: Vec<Pattern>,
    pub move_when: Vec<MoveWhen>,
}

impl Tier {
    pub fn holds(&self, branch: &Path) -> bool {
        self.branches.iter().any(|pattern| pattern.matches_branch(branch))
    }
}

/// Where a rule wants files.
#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    /// Where they would be without the rule.
    Anywhere,
    /// On these branches and no others.
    Branches(Vec<Pattern>),
    /// On the tier of this name or, if that has no room, elsewhere.
    Tier(String),
}

/// Where files of some paths belong.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    pub path: Pattern,
    pub target: Target,
    /// On how many disks each file is to be; `None` if the rule does not say.
    pub copies: Option<u8>,
    /// What is written goes to all of them at once, not only after the file was closed.
    pub written: bool,
}

/// All tiers and rules, in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Placement {
    pub tiers: Vec<Tier>,
    pub rules: Vec<Rule>,
}

/// Branches among which a policy chooses.
#[derive(Clone, Copy, Debug)]
pub enum Set<'p> {
    Tier(&'p Tier),
    /// The branches that a rule names.
    Rule(&'p [Pattern]),
    /// The branches in none of the tiers.
    Rest(&'p [Tier]),
}

impl Set<'_> {
    pub fn holds(self, branch: &Path) -> bool {
        match self {
            Set::Tier(tier) => tier.holds(branch),
            Set::Rule(patterns) => patterns.iter().any(|pattern| pattern.matches_branch(branch)),
            Set::Rest(tiers) => !tiers.iter().any(|tier| tier.holds(branch)),
        }
    }
}

impl fmt::Display for Set<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Set::Tier(tier) => write!(f, "tier {}", tier.name),
            Set::Rule(_) => f.write_str("the branches of the rule"),
            Set::Rest(_) => f.write_str("the branches in no tier"),
        }
    }
}

/// The sets of branches for a path, the first one first.
#[derive(Clone, Debug)]
pub struct Order<'p> {
    /// The rule that decided.
    pub rule: Option<&'p Rule>,
    pub sets: SmallVec<[Set<'p>; 4]>,
}

/// Stands for the name of a file that has none yet. No glob has it as a word.
const NAMELESS: &[u8] = b"\0";

impl Placement {
    pub fn is_empty(&self) -> bool {
        self.tiers.is_empty() && self.rules.is_empty()
    }

    /// Returns the sets of branches for a file of a directory; an empty name stands for a file without one. `None` if all
    /// branches are alike.
    pub fn order(&self, dir: &[u8], name: &[u8]) -> Option<Order<'_>> {
        if self.is_empty() {
            return None;
        }
        let path = canopy_base::path::join(dir, if name.is_empty() { NAMELESS } else { name });
        let rule = self.rule(&path);
        let first = match rule.map(|rule| &rule.target) {
            Some(Target::Branches(patterns)) => {
                return Some(Order { rule, sets: smallvec::smallvec![Set::Rule(patterns)] });
            }
            Some(Target::Tier(name)) => self.tiers.iter().position(|tier| tier.name == *name)?,
            None | Some(Target::Anywhere) if self.tiers.is_empty() => return None,
            None | Some(Target::Anywhere) => 0,
        };
        let (before, from) = self.tiers.split_at(first);
        // Rather on a tier before it than nowhere.
        let rest = [Set::Rest(&self.tiers)].into_iter().chain(before.iter().map(Set::Tier));
        Some(Order { rule, sets: from.iter().map(Set::Tier).chain(rest).collect() })
    }

    /// Tries the sets of branches for a new file in their order, or all branches together (`None`) if they are alike.
    /// Returns the first success, or the refusals of all sets together.
    pub fn first<'p, T, E>(
        &'p self,
        dir: &[u8],
        name: &[u8],
        mut attempt: impl FnMut(Option<Set<'p>>) -> Result<Result<T, Refusal>, E>,
    ) -> Result<Result<T, Refusal>, E> {
        match self.order(dir, name) {
            None => attempt(None),
            Some(order) => order.first(|set| attempt(Some(set))),
        }
    }

    /// Returns whether some rule says how many copies it wants. Then it matters in the whole pool which copy of a file is the
    /// newest: files leave the paths of a rule by renames of directories, and have names elsewhere by hard links.
    pub fn knows_copies(&self) -> bool {
        self.rules.iter().any(|rule| rule.copies.is_some())
    }

    /// Returns on how many disks the file of a path is to be.
    pub fn copies(&self, path: &[u8]) -> usize {
        self.rule(path).and_then(|rule| rule.copies).map_or(1, |copies| usize::from(copies.max(1)))
    }

    /// Returns whether some rule wants writes to go to all copies at once.
    pub fn knows_written(&self) -> bool {
        self.rules.iter().any(|rule| rule.written)
    }

    /// Returns whether writes to the file of a path go to all its copies at once.
    pub fn is_written_at_once(&self, path: &[u8]) -> bool {
        self.rule(path).is_some_and(|rule| rule.written && rule.copies > Some(1))
    }

    /// Returns the first rule that matches a path in the pool.
    pub fn rule(&self, path: &[u8]) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.path.matches(path))
    }
}

impl<'p> Order<'p> {
    /// Tries the sets in their order. Returns the first success, or the refusals of all sets together.
    pub fn first<T, E>(
        &self,
        mut attempt: impl FnMut(Set<'p>) -> Result<Result<T, Refusal>, E>,
    ) -> Result<Result<T, Refusal>, E> {
        // What a rule wants where no branch is has no room there: nobody expects ENOENT where the directory exists.
        let mut worst = Refusal::NoSpace;
        for set in &self.sets {
            match attempt(*set)? {
                Ok(chosen) => return Ok(Ok(chosen)),
                Err(refusal) => worst = worst.worse(refusal),
            }
        }
        Ok(Err(worst))
    }
}

/// Leaves only the branches of a set to a policy. A policy that keeps to existing directories, and does not climb, chooses as
/// if all of them held the directory if none does: the rule or tier counts for more.
pub fn confine(policy: Policy, views: &mut [BranchView], inside: impl Fn(usize) -> bool) {
    for (index, view) in views.iter_mut().enumerate() {
        view.outside = !inside(index);
    }
    let keeps = policy.create_tests_path() && !policy.climbs();
    if keeps && !views.iter().any(|view| !view.outside && view.present) {
        views.iter_mut().for_each(|view| view.present = true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Category, Exclusion, Mode, Space, create, explain};
    use super::*;
    use crate::ThreadRandom;

    fn patterns(list: &[&str]) -> Vec<Pattern> {
        list.iter().map(|text| Pattern::new(text).unwrap()).collect()
    }

    fn tier(name: &str, branches: &[&str]) -> Tier {
        Tier { name: name.into(), branches: patterns(branches), move_when: Vec::new() }
    }

    fn placement() -> Placement {
        let rule = |path: &str, target| Rule {
            path: Pattern::new(path).unwrap(),
            target,
            copies: None,
            written: false,
        };
        Placement {
            tiers: vec![tier("ssd", &["/mnt/ssd"]), tier("disks", &["/mnt/disk*"])],
            rules: vec![
                rule("films/**", Target::Branches(patterns(&["/mnt/disk1", "/mnt/disk2"]))),
                rule("*.part", Target::Tier("ssd".into())),
                rule("/old/", Target::Tier("disks".into())),
            ],
        }
    }

    fn sets(placement: &Placement, dir: &str, name: &str) -> Vec<String> {
        let order = placement.order(dir.as_bytes(), name.as_bytes());
        order.map_or(Vec::new(), |order| order.sets.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let placement = placement();
        let (ssd, disks, rest) = ("tier ssd", "tier disks", "the branches in no tier");
        let table: [(&str, &str, &[&str]); 9] = [
            ("", "a", &[ssd, disks, rest]),
            ("films", "a", &["the branches of the rule"]),
            ("films/x", "a.part", &["the branches of the rule"]),
            ("films", "", &["the branches of the rule"]),
            ("", "films", &[ssd, disks, rest]),
            ("music/x", "a.part", &[ssd, disks, rest]),
            ("old/x", "a", &[disks, rest, ssd]),
            ("old", "", &[disks, rest, ssd]),
            ("x/old", "a", &[ssd, disks, rest]),
        ];
        for (dir, name, expected) in table {
            assert_eq!(sets(&placement, dir, name), expected, "{dir}/{name}");
        }
        assert!(Placement::default().order(b"a", b"b").is_none());
        let only_rules = Placement { tiers: Vec::new(), ..placement };
        assert!(only_rules.order(b"a", b"b").is_none(), "all branches are alike");
    }

    #[test]
    fn patterns_match_branches_and_paths() {
        let table = [
            ("/mnt/disk*", "/mnt/disk1", true),
            ("/mnt/disk*", "/mnt/disk1/x", false),
            ("/mnt/{a,b}", "/mnt/b", true),
            ("/mnt/a\\*", "/mnt/ab", false),
            ("films/**", "films/a/b", true),
            ("films/*", "films/a/b", false),
            ("films/", "films/a/b", true),
            ("**/*.part", "a.part", true),
            ("**/*.part", "x/y/a.part", true),
            ("*.part", "x/y/a.part", true),
            ("a", "x/a", true),
            ("/a", "x/a", false),
        ];
        for (pattern, path, expected) in table {
            assert_eq!(Pattern::new(pattern).unwrap().matches(path.as_bytes()), expected, "{pattern} {path}");
        }
        assert!(Pattern::new("a[").is_err());
        assert!(Pattern::new("*.mkv").unwrap().matches(b"x/\xff.mkv"), "paths are bytes");
    }

    fn view(avail: u64, present: bool) -> BranchView {
        let space = Some(Space { avail, used: 0, readonly: false, inodes: None });
        let (mode, outside) = (Mode::Rw, false);
        BranchView { mode, unwell: false, min_free: 4, present, mtime: 0, space, outside, asleep: false }
    }

    /// Creates `dir/name` on the branches /mnt/ssd, /mnt/disk1, /mnt/disk2 and /mnt/usb.
    fn chosen(policy: Policy, views: &[BranchView], dir: &str, name: &str) -> Result<usize, Refusal> {
        let branches = ["/mnt/ssd", "/mnt/disk1", "/mnt/disk2", "/mnt/usb"];
        let placement = placement();
        let order = placement.order(dir.as_bytes(), name.as_bytes()).unwrap();
        let attempt = |set: Set<'_>| -> Result<_, ()> {
            let mut views = views.to_vec();
            confine(policy, &mut views, |index| set.holds(Path::new(branches[index])));
            let explained = explain(policy, Category::Create, &views);
            for (index, exclusion) in explained.exclusions.iter().enumerate() {
                let inside = set.holds(Path::new(branches[index]));
                assert_eq!(*exclusion == Some(Exclusion::Outside), !inside, "{index}");
            }
            Ok(create(policy, &views, &mut ThreadRandom).map(|choice| choice[0]))
        };
        order.first(attempt).unwrap()
    }

    #[test]
    fn a_set_without_room_passes_to_the_next() {
        let roomy = [view(10, true), view(20, true), view(30, true), view(40, true)];
        assert_eq!(chosen(Policy::Mfs, &roomy, "", "a"), Ok(0));
        assert_eq!(chosen(Policy::Mfs, &roomy, "films", "a"), Ok(2));
        assert_eq!(chosen(Policy::Mfs, &roomy, "old", "a"), Ok(2));
        let mut full = roomy;
        full[0] = view(3, true);
        assert_eq!(chosen(Policy::Mfs, &full, "", "a"), Ok(2));
        full[1].mode = Mode::Nc;
        full[2].unwell = true;
        assert_eq!(chosen(Policy::Mfs, &full, "", "a.part"), Ok(3), "the branch in no tier");
        assert_eq!(chosen(Policy::Mfs, &full, "films", "a"), Err(Refusal::ReadOnly), "a rule is strict");
        full[3] = view(3, true);
        assert_eq!(chosen(Policy::Mfs, &full, "", "a"), Err(Refusal::ReadOnly));
        let filled = roomy.map(|_| view(3, true));
        assert_eq!(chosen(Policy::Pfrd, &filled, "", "a"), Err(Refusal::NoSpace));
        // The tier before is better than none.
        let only_ssd = [view(10, true), view(3, true), view(3, true), view(3, true)];
        assert_eq!(chosen(Policy::Mfs, &only_ssd, "old", "a"), Ok(0));
    }

    #[test]
    fn policies_that_preserve_paths_do_so_within_a_set() {
        let views = [view(10, false), view(20, true), view(30, false), view(40, false)];
        assert_eq!(chosen(Policy::EpMfs, &views, "", "a"), Ok(0), "no branch of the tier has the directory");
        assert_eq!(chosen(Policy::EpMfs, &views, "films", "a"), Ok(1), "one of them has it");
        assert_eq!(chosen(Policy::MspMfs, &views, "films", "a"), Ok(1));
        let nowhere = views.map(|view| BranchView { space: None, ..view });
        assert_eq!(chosen(Policy::Mfs, &nowhere, "films", "a"), Err(Refusal::NoSpace));
    }
}
