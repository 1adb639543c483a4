//! Policies, categories and refusals, and how a policy picks among the branches that its category admits.

use super::random::Random;
use canopy_base::error::Refusal;
use canopy_branch::branch::list::Mode;
use canopy_branch::branch::space::Space;
use smallvec::SmallVec;
use std::fmt;
use std::str::FromStr;

/// The 21 policy names. Each is valid in every category.
///
/// In the create category, a policy without `Ep` or `Msp` considers every branch, and missing directories are cloned
/// to the chosen one. The `Ep` ("existing path") form considers only branches that hold the parent directory. The
/// `Msp` ("most shared path") form is `Ep`, and climbs towards the root until a level has a usable branch. In the
/// action and search categories the path exists, so every policy works as its existing-path form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Policy {
    /// Every branch.
    All,
    /// Every branch that holds the path.
    EpAll,
    /// The first branch that holds the path.
    EpFf,
    /// The branch with the least free space among those that hold the path.
    EpLfs,
    /// The branch with the least used space among those that hold the path.
    EpLus,
    /// The branch with the most free space among those that hold the path.
    EpMfs,
    /// Random, weighted by free space, among those that hold the path.
    EpPfrd,
    /// Random among those that hold the path.
    EpRand,
    /// Refuses with EROFS.
    Erofs,
    /// The first branch.
    Ff,
    /// The branch with the least free space.
    Lfs,
    /// The branch with the smallest used fraction.
    Lup,
    /// The branch with the least used space.
    Lus,
    /// The branch with the most free space.
    Mfs,
    /// `EpLfs`, climbing.
    MspLfs,
    /// `EpLus`, climbing.
    MspLus,
    /// `EpMfs`, climbing.
    MspMfs,
    /// `EpPfrd`, climbing.
    MspPfrd,
    /// The branch whose copy was modified last.
    Newest,
    /// Random, weighted by free space.
    Pfrd,
    /// Random.
    Rand,
}

/// How a policy picks among the branches that its category admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    Every,
    First,
    MostFree,
    LeastFree,
    LeastUsed,
    LeastUsedFraction,
    Newest,
    Weighted,
    Uniform,
    Refuse,
}

/// What a policy does with the free space of branches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UseOfSpace {
    None,
    /// The chance of a branch in a random choice.
    Weight,
    /// The branches are compared.
    Comparison,
}

impl Policy {
    /// All policies, sorted by name.
    pub const ALL: [Policy; 21] = [
        Policy::All,
        Policy::EpAll,
        Policy::EpFf,
        Policy::EpLfs,
        Policy::EpLus,
        Policy::EpMfs,
        Policy::EpPfrd,
        Policy::EpRand,
        Policy::Erofs,
        Policy::Ff,
        Policy::Lfs,
        Policy::Lup,
        Policy::Lus,
        Policy::Mfs,
        Policy::MspLfs,
        Policy::MspLus,
        Policy::MspMfs,
        Policy::MspPfrd,
        Policy::Newest,
        Policy::Pfrd,
        Policy::Rand,
    ];

    /// Returns the name as written in options (lower case).
    pub fn name(self) -> &'static str {
        match self {
            Policy::All => "all",
            Policy::EpAll => "epall",
            Policy::EpFf => "epff",
            Policy::EpLfs => "eplfs",
            Policy::EpLus => "eplus",
            Policy::EpMfs => "epmfs",
            Policy::EpPfrd => "eppfrd",
            Policy::EpRand => "eprand",
            Policy::Erofs => "erofs",
            Policy::Ff => "ff",
            Policy::Lfs => "lfs",
            Policy::Lup => "lup",
            Policy::Lus => "lus",
            Policy::Mfs => "mfs",
            Policy::MspLfs => "msplfs",
            Policy::MspLus => "msplus",
            Policy::MspMfs => "mspmfs",
            Policy::MspPfrd => "msppfrd",
            Policy::Newest => "newest",
            Policy::Pfrd => "pfrd",
            Policy::Rand => "rand",
        }
    }

    /// Returns true if rename and link must keep a file on the branches that hold its directory when this is the
    /// policy of `create`. True for the `ep*` and `msp*` names only.
    pub fn is_path_preserving(self) -> bool {
        match self {
            Policy::EpAll
            | Policy::EpFf
            | Policy::EpLfs
            | Policy::EpLus
            | Policy::EpMfs
            | Policy::EpPfrd
            | Policy::EpRand
            | Policy::MspLfs
            | Policy::MspLus
            | Policy::MspMfs
            | Policy::MspPfrd => true,
            Policy::All
            | Policy::Erofs
            | Policy::Ff
            | Policy::Lfs
            | Policy::Lup
            | Policy::Lus
            | Policy::Mfs
            | Policy::Newest
            | Policy::Pfrd
            | Policy::Rand => false,
        }
    }

    /// Returns true for the `msp*` names: creation tries the parent directories in turn
    /// ([`create_climbing`](super::create_climbing)).
    pub fn climbs(self) -> bool {
        matches!(self, Policy::MspLfs | Policy::MspLus | Policy::MspMfs | Policy::MspPfrd)
    }

    /// Returns true if creation considers only branches that hold the parent directory.
    pub(super) fn create_tests_path(self) -> bool {
        self.is_path_preserving() || self == Policy::Newest
    }

    /// Returns what free space decides, beyond whether a branch has its minfreespace.
    pub fn use_of_space(self) -> UseOfSpace {
        match self.pick() {
            Pick::Every | Pick::First | Pick::Newest | Pick::Uniform | Pick::Refuse => UseOfSpace::None,
            Pick::Weighted => UseOfSpace::Weight,
            Pick::MostFree | Pick::LeastFree | Pick::LeastUsed | Pick::LeastUsedFraction => {
                UseOfSpace::Comparison
            }
        }
    }

    pub(super) fn pick(self) -> Pick {
        match self {
            Policy::All | Policy::EpAll => Pick::Every,
            Policy::Ff | Policy::EpFf => Pick::First,
            Policy::Mfs | Policy::EpMfs | Policy::MspMfs => Pick::MostFree,
            Policy::Lfs | Policy::EpLfs | Policy::MspLfs => Pick::LeastFree,
            Policy::Lus | Policy::EpLus | Policy::MspLus => Pick::LeastUsed,
            Policy::Lup => Pick::LeastUsedFraction,
            Policy::Newest => Pick::Newest,
            Policy::Pfrd | Policy::EpPfrd | Policy::MspPfrd => Pick::Weighted,
            Policy::Rand | Policy::EpRand => Pick::Uniform,
            Policy::Erofs => Pick::Refuse,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not one of the 21 policy names (EINVAL).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown policy {0:?}")]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// What a function does on the branches that a policy picks. Decides which branches are admitted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Category {
    /// Change something that exists: chmod, unlink, rename, ...
    Action,
    /// Create something: create, mkdir, mknod, symlink.
    Create,
    /// Only look at something: getattr, open, readlink, ...
    Search,
}

impl Category {
    pub const ALL: [Category; 3] = [Category::Action, Category::Create, Category::Search];

    /// Returns the name as written in `category.<name>`.
    pub fn name(self) -> &'static str {
        match self {
            Category::Action => "action",
            Category::Create => "create",
            Category::Search => "search",
        }
    }
}

/// What a policy knows about one branch.
#[derive(Clone, Copy, Debug)]
pub struct BranchView {
    /// The branch's mode in the branch list.
    pub mode: Mode,
    /// The branch is unhealthy ([`canopy_branch::branch::health`]): nothing may be created or changed there.
    pub unwell: bool,
    /// The branch's own minfreespace or the pool's, in bytes. No new file is created on a branch with less space
    /// available.
    pub min_free: u64,
    /// Whether the branch holds the path in question (for creation, the parent directory). Ignored unless [`needs`]
    /// asks for presence.
    pub present: bool,
    /// Modification time of that path in whole seconds; meaningful only if `present`.
    pub mtime: i64,
    /// Space of the filesystem of the branch's root; `None` if it could not be read, or if [`needs`] does not ask for
    /// it.
    pub space: Option<Space>,
    /// It is not among the branches that a tier or rule lets the policy choose from ([`super::placement`]).
    pub outside: bool,
    /// Its disk may sleep, and another branch that the policy accepts does not ([`super::prefer_awake`]).
    pub asleep: bool,
}

/// What a caller must find out about the branches before a choice can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// `present` and `mtime`: one lstat per branch.
    pub presence: bool,
    /// `space`: one fstatvfs per branch.
    pub space: bool,
}

/// Returns what `policy` uses of the views in `category`.
///
/// Create and action always need space, for the read-only test and for minfreespace.
pub fn needs(policy: Policy, category: Category) -> Needs {
    let pick = policy.pick();
    if pick == Pick::Refuse {
        return Needs { presence: false, space: false };
    }
    match category {
        Category::Create => Needs { presence: policy.create_tests_path(), space: true },
        Category::Action => Needs { presence: true, space: true },
        Category::Search => Needs { presence: true, space: policy.use_of_space() != UseOfSpace::None },
    }
}

/// Returns true if the first branch that holds the path decides, so that the caller may report the branches after it
/// as absent without a look.
pub fn first_only(policy: Policy, category: Category) -> bool {
    category == Category::Search && policy.pick() == Pick::First
}

/// Returns true if the result of a search depends on the copies alone, not on chance or free space.
pub fn shows_by_copies(policy: Policy) -> bool {
    matches!(policy.pick(), Pick::First | Pick::Every | Pick::Newest)
}

/// Indices into the views, ascending; at least one.
pub type Choice = SmallVec<[usize; 4]>;

/// Why a category did not admit a branch: the first reason, in the order of its filter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exclusion {
    /// The policy is to choose among other branches.
    Outside,
    /// The branch's mode does not allow it.
    Mode,
    /// The branch does not hold the path.
    Absent,
    /// Its free space could not be read.
    SpaceUnknown,
    /// Its filesystem is mounted read-only.
    ReadOnly,
    /// The branch is unhealthy.
    Unwell,
    /// Less space is available than its minfreespace.
    BelowMinFree,
    /// Its filesystem has no free inode.
    NoInodes,
    /// Its disk may sleep, and another one is awake.
    Asleep,
}

impl Exclusion {
    /// Returns what this reason contributes to the refusal when no branch is admitted.
    pub fn refusal(self) -> Refusal {
        match self {
            Exclusion::Mode | Exclusion::Unwell | Exclusion::ReadOnly => Refusal::ReadOnly,
            Exclusion::Outside | Exclusion::Absent | Exclusion::SpaceUnknown => Refusal::NotFound,
            // Asleep: never alone.
            Exclusion::BelowMinFree | Exclusion::NoInodes | Exclusion::Asleep => Refusal::NoSpace,
        }
    }
}

/// Picks among the branches that `admit` accepts.
///
/// `admit` returns the first reason to exclude a branch, in the order of the category's filter. The highest-ranked
/// reason becomes the refusal, which is ENOENT without any.
pub(super) fn choose(
    pick: Pick,
    views: &[BranchView],
    admit: impl Fn(&BranchView) -> Result<(), Exclusion>,
    random: &mut impl Random,
) -> Result<Choice, Refusal> {
    if pick == Pick::Refuse {
        return Err(Refusal::ReadOnly);
    }
    let mut refusal = Refusal::NotFound;
    let mut admitted: SmallVec<[usize; 16]> = SmallVec::new();
    for (index, view) in views.iter().enumerate() {
        match admit(view) {
            Ok(()) => admitted.push(index),
            Err(exclusion) => refusal = refusal.worse(exclusion.refusal()),
        }
    }
    // Only branches whose space is known reach a pick that reads space: every filter checks that.
    let space = |index: usize| views[index].space.unwrap_or_default();
    let admitted = admitted.as_slice();
    let choice = match pick {
        Pick::Every if admitted.is_empty() => None,
        Pick::Every => return Ok(Choice::from_slice(admitted)),
        Pick::First => admitted.first().copied(),
        // Equal free space: the last branch wins. Equal used space: the first one does.
        Pick::MostFree => admitted.iter().copied().max_by_key(|&index| space(index).avail),
        Pick::LeastFree => admitted.iter().copied().rev().min_by_key(|&index| space(index).avail),
        Pick::LeastUsed => admitted.iter().copied().min_by_key(|&index| space(index).used),
        Pick::LeastUsedFraction => admitted
            .iter()
            .copied()
            .reduce(|best, index| if less_used(space(index), space(best)) { index } else { best }),
        Pick::Newest => admitted.iter().copied().max_by_key(|&index| views[index].mtime),
        Pick::Weighted => weighted(admitted, |index| weight(&views[index]), random),
        Pick::Uniform if admitted.is_empty() => None,
        Pick::Uniform => Some(admitted[random.below(admitted.len() as u64) as usize]),
        Pick::Refuse => None,
    };
    choice.map(|index| Choice::from_slice(&[index])).ok_or(refusal)
}

/// Returns a branch's weight in a weighted choice: its available bytes.
pub(super) fn weight(view: &BranchView) -> u64 {
    view.space.map_or(0, |space| space.avail)
}

/// Returns true if `a` has a smaller used fraction than `b`. A filesystem of size zero counts as empty.
fn less_used(a: Space, b: Space) -> bool {
    // ua/(ua+va) < ub/(ub+vb)  is  ua*vb < ub*va, and the products of two u64 fit a u128.
    let ratio = |space: Space| match (space.used, space.avail) {
        (0, 0) => (0, 1),
        (used, avail) => (u128::from(used), u128::from(avail)),
    };
    let ((used_a, avail_a), (used_b, avail_b)) = (ratio(a), ratio(b));
    used_a * avail_b < used_b * avail_a
}

/// Returns one of `candidates`, each with a probability proportional to its weight. If all weights are zero, all are equally
/// likely: the branch then answers for itself that it is full. `None` if there are no candidates.
fn weighted(candidates: &[usize], weight: impl Fn(usize) -> u64, random: &mut impl Random) -> Option<usize> {
    let total: u128 = candidates.iter().map(|&index| u128::from(weight(index))).sum();
    // Network filesystems report sizes near 2^63. Where the sum exceeds a u64, drop the low bits of every weight.
    // Each shifted weight is rounded down, so their sum fits a u64, too.
    let shift = (u128::BITS - total.leading_zeros()).saturating_sub(u64::BITS);
    let weight = |index: usize| weight(index).checked_shr(shift).unwrap_or(0);
    let total: u64 = candidates.iter().map(|&index| weight(index)).sum();
    if total == 0 {
        return (!candidates.is_empty()).then(|| candidates[random.below(candidates.len() as u64) as usize]);
    }
    let mut point = random.below(total);
    for &index in candidates {
        match point.checked_sub(weight(index)) {
            None => return Some(index),
            Some(rest) => point = rest,
        }
    }
    // Unreachable if `below` keeps its promise (point < total).
    candidates.last().copied()
}
