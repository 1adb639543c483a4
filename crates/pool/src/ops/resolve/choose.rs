//! The choice of branches for an operation, by its policy.

use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir};
use crate::ops::resolve;
use crate::ops::trash;
use crate::pool::Op;
use canopy_base::error::{Error, Result};
use canopy_branch::branch::list::Mode;
use canopy_branch::branch::{Branch, Branches, rest};
use canopy_branch::fs::magic;
use canopy_branch::fs::stat::{self, Attr};
use canopy_policy::placement::{Set, confine};
use canopy_policy::{self as policy, BranchView, Category, Choice, Policy, Space, ThreadRandom, UseOfSpace};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// What a policy must know about the space on a branch.
#[derive(Clone, Copy)]
pub(crate) enum SpaceNeed {
    Nothing,
    /// Only whether the branch has its minfreespace.
    Enough,
    /// Whether the branch has its minfreespace, and its space as the weight of a random choice.
    Roughly,
    Exactly,
}

impl SpaceNeed {
    pub(crate) fn of(space: bool, branches: &Branches) -> SpaceNeed {
        match (space, branches.len()) {
            (false, _) => SpaceNeed::Nothing,
            (true, 1) => SpaceNeed::Enough,
            (true, _) => SpaceNeed::Exactly,
        }
    }

    /// As `of`, for creating something by this policy.
    fn to_create(policy: Policy, space: bool, branches: &Branches) -> SpaceNeed {
        match (SpaceNeed::of(space, branches), policy.use_of_space()) {
            (SpaceNeed::Exactly, UseOfSpace::None) => SpaceNeed::Enough,
            (SpaceNeed::Exactly, UseOfSpace::Weight) => SpaceNeed::Roughly,
            (need, _) => need,
        }
    }
}

/// Returns the space on a branch, if it can be read. It is recorded if the branch is read-only and should not be.
pub(crate) fn usable_space(branch: &Branch, space: impl FnOnce() -> Result<Space, Errno>) -> Option<Space> {
    let space = branch.reads(space).ok()?;
    if space.readonly {
        branch.is_found_read_only();
    }
    Some(space)
}

/// Returns the current copies, without those on branches that fail or may not be changed as long as there is another.
fn preferred_copies(branches: &Branches, copies: &Copies) -> Copies {
    let is_good = |index: usize| {
        let branch = &branches.as_slice()[index];
        branch.mode != Mode::Ro && branch.health.is_well()
    };
    let current = copies.only(|index| copies.is_current(index));
    let good = current.only(is_good);
    if good.any() { good } else { current }
}

fn view(op: &Op<'_>, branch: &Branch, present: Option<&Attr>, space: SpaceNeed) -> BranchView {
    let min_free = branch.min_free.unwrap_or(op.config.min_free);
    let space = match space {
        SpaceNeed::Nothing => None,
        SpaceNeed::Enough => usable_space(branch, || op.space.at_least(branch.id, branch.root(), min_free)),
        SpaceNeed::Roughly => usable_space(branch, || op.space.roughly(branch.id, branch.root(), min_free)),
        SpaceNeed::Exactly => usable_space(branch, || op.space.get(branch.id, branch.root())),
    };
    // Some FUSE servers say 0 because they do not know.
    let counts_inodes = branch.kind != magic::FUSE;
    let space = space.map(|space| Space { inodes: space.inodes.filter(|_| counts_inodes), ..space });
    let space = space.map(|space| trash::counted(op, branch, min_free, space));
    BranchView {
        mode: branch.mode,
        unwell: !branch.health.is_well(),
        min_free,
        present: present.is_some(),
        mtime: present.map_or(0, |attr| attr.mtime.sec),
        space,
        outside: false,
        asleep: false,
    }
}

/// Returns each branch as a policy sees it.
pub(crate) fn views(op: &Op<'_>, copies: &Copies, space: bool) -> SmallVec<[BranchView; 4]> {
    let need = SpaceNeed::of(space, &op.branches);
    op.branches.iter().zip(copies.each()).map(|(b, copy)| view(op, b, copy, need)).collect()
}

/// Returns the index of the copy that a search policy chooses.
pub(crate) fn shown(op: &Op<'_>, func: Func, copies: &Copies) -> Result<usize> {
    let policy = op.config.policies.get(func);
    if !copies.any() {
        return Err(copies.missing());
    }
    let preferred;
    let copies = match copies.current {
        None => copies,
        Some(_) => {
            preferred = preferred_copies(&op.branches, copies);
            &preferred
        }
    };
    if !copies.any() {
        // One of them may be the newest, and cannot tell.
        return Err(copies.missing());
    }
    if policy::first_only(policy, Category::Search) {
        return copies.first().ok_or(Error::Absent);
    }
    let needs = policy::needs(policy, Category::Search);
    let choice = policy::search(policy, &views(op, copies, needs.space), &mut ThreadRandom)?;
    choice.first().copied().ok_or(Error::Absent)
}

/// Looks up the copies of a name that a search function needs: only the first one, if its policy follows the branch
/// order.
pub(crate) fn look(op: &Op<'_>, func: Func, dirs: &MergedDir<'_>, name: &[u8]) -> Copies {
    if policy::first_only(op.config.policies.get(func), Category::Search)
        && !resolve::generations::knows_copies(op)
    {
        dirs.first_copy(name)
    } else {
        resolve::generations::copies(op, dirs, name)
    }
}

/// Returns the copies that an action policy chooses.
pub(crate) fn choose_for_action(op: &Op<'_>, func: Func, copies: &Copies) -> Result<Choice> {
    if copies.current.is_some() {
        let current = copies.only(|index| copies.is_current(index));
        return choose_for_action(op, func, &current);
    }
    // With a single copy there is no choice, so its space is not read: a read-only filesystem fails the operation.
    if let [(index, attr)] = copies.found.as_slice() {
        let view = view(op, &op.branches.as_slice()[*index], Some(attr), SpaceNeed::Nothing);
        let sole = BranchView { space: Some(Space::default()), ..view };
        let policy = op.config.policies.get(func);
        return Ok(policy::action(policy, &[sole], &mut ThreadRandom).map(|_| Choice::from_slice(&[*index]))?);
    }
    choose_by_policy(op, func, copies)
}

/// As `choose_for_action`, with full views of all branches even for a single copy.
pub(crate) fn choose_by_policy(op: &Op<'_>, func: Func, copies: &Copies) -> Result<Choice> {
    if !copies.any() && copies.error.or(copies.unheard).is_some() {
        return Err(copies.missing());
    }
    let current;
    let copies = match copies.current {
        None => copies,
        Some(_) => {
            current = copies.only(|index| copies.is_current(index));
            &current
        }
    };
    let policy = op.config.policies.get(func);
    let needs = policy::needs(policy, Category::Action);
    match policy::action(policy, &views(op, copies, needs.space), &mut ThreadRandom) {
        // The policy's error for a read-only branch outranks that for a branch without the path. But if no branch
        // holds the path, the error is ENOENT.
        Err(_) if !copies.any() => Err(Error::Absent),
        other => Ok(other?),
    }
}

/// Returns the branches that a create policy chooses for something new, given as its directory and its name there,
/// which is empty for a file without one. Excludes those in `full`, on which creation has failed.
pub(crate) fn choose_for_create(
    op: &Op<'_>,
    func: Func,
    dirs: &MergedDir<'_>,
    new: (&[u8], &[u8]),
    full: &[usize],
) -> Result<Choice> {
    let policy = op.config.policies.get(func);
    let needs = policy::needs(policy, Category::Create);
    let space = SpaceNeed::to_create(policy, needs.space, dirs.branches);
    choose_for_create_seen(op, func, dirs, new, full, (needs.presence, space), |_, _, _| {})
}

/// As `choose_for_create`, with views that have presence and space as given. Calls `see` with each directory that the
/// policy considers, the views of it, and the set of branches that the policy chooses from, if that is not all.
pub(crate) fn choose_for_create_seen(
    op: &Op<'_>,
    func: Func,
    dirs: &MergedDir<'_>,
    (path, name): (&[u8], &[u8]),
    full: &[usize],
    needs: (bool, SpaceNeed),
    mut see: impl FnMut(&[u8], &[BranchView], Option<Set<'_>>),
) -> Result<Choice> {
    let policy = op.config.policies.get(func);
    let mut level = |at: &[u8], set: Option<Set<'_>>| -> Result<Vec<BranchView>> {
        let mut views = level(op, dirs, path, at, needs);
        for &index in full {
            views[index].mode = Mode::Ro;
        }
        if let Some(set) = set {
            confine(policy, &mut views, |index| set.holds(&dirs.branches.as_slice()[index].path));
        }
        if op.config.prefer_awake {
            let sleeps = |index: usize| rest::may_sleep(dirs.branches.as_slice()[index].id);
            policy::prefer_awake(policy, &mut views, sleeps);
        }
        see(at, &views, set);
        Ok(views)
    };
    let mut choose = |set| policy::create_climbing(policy, path, |at| level(at, set), &mut ThreadRandom);
    // Directories follow the files: they are cloned to where a file goes.
    let mut chosen = match func {
        Func::Mkdir => choose(None)?,
        _ => op.config.placement.first(path, name, choose)?,
    }?;
    if func == Func::Create {
        // A regular file is created on one branch only, even if the policy chooses several.
        chosen.truncate(1);
    }
    Ok(chosen)
}

/// Returns the views of the directory `at`, which is `path` (open as `whole`) or one of its ancestors.
fn level(
    op: &Op<'_>,
    whole: &MergedDir<'_>,
    path: &[u8],
    at: &[u8],
    (presence, space): (bool, SpaceNeed),
) -> Vec<BranchView> {
    let opened;
    let dirs = if at == path {
        whole
    } else {
        opened = MergedDir::open(whole.follow, whole.branches, at);
        &opened
    };
    let view = |(index, branch): (usize, &Arc<Branch>)| {
        let attr = dirs.get(index).filter(|_| presence).and_then(|dir| stat::of(dir).ok());
        let view = view(op, branch, attr.as_ref(), space);
        // Below a followed symlink, names are created only where the symlink leads. A directory of that path on
        // another branch would not be its target.
        if whole.by_link && whole.lacks(index) { BranchView { mode: Mode::Ro, ..view } } else { view }
    };
    dirs.branches.iter().enumerate().map(view).collect()
}

/// Checks that every copy can be removed. One that stays would become visible after the others are removed.
///
/// Errors: `EROFS` if a copy is on a read-only or unhealthy branch.
pub(crate) fn all_removable<'a>(op: &Op<'_>, copies: impl Iterator<Item = &'a Copies> + Clone) -> Result<()> {
    let mut holders = copies.flat_map(|copies| copies.found.iter().map(|(index, _)| *index));
    let first = holders.clone().next();
    // Of several copies none may be removed if one is on a read-only filesystem. A single one need not be checked:
    // its filesystem fails the operation.
    let checks_filesystem = holders.clone().any(|index| Some(index) != first);
    let stays = |index: usize| {
        let branch = &op.branches.as_slice()[index];
        branch.mode == Mode::Ro || !branch.health.is_well() || checks_filesystem && read_only(op, branch)
    };
    if holders.any(stays) { Err(Error::ReadOnlyCopy) } else { Ok(()) }
}

fn read_only(op: &Op<'_>, branch: &Branch) -> bool {
    usable_space(branch, || op.space.get(branch.id, branch.root())).is_some_and(|space| space.readonly)
}
