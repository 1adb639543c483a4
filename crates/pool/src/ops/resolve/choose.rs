//! Which branches a policy chooses for an operation.

use crate::branch::health::OpKind;
use crate::branch::list::Mode;
use crate::branch::{Branch, Branches};
use crate::config::Func;
use crate::dir::merged::{Copies, MergedDir};
use crate::error::{Error, Result};
use crate::fs::stat::{self, Attr};
use crate::policy::{self, BranchView, Category, Choice, Needs, Space, ThreadRandom};
use crate::pool::Pool;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// What a policy wants to know of the space on a branch.
#[derive(Clone, Copy)]
pub(crate) enum SpaceNeed {
    Nothing,
    /// Whether it has its minfreespace: there is no other to compare it with.
    Enough,
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
}

/// Takes note of a branch that cannot be written to, or cannot say.
pub(crate) fn usable_space(branch: &Branch, space: Result<Space, Errno>) -> Option<Space> {
    match space {
        Ok(space) if space.readonly && branch.mode != Mode::Ro => {
            branch.record_error(Errno::ROFS, OpKind::Read);
        }
        Ok(_) => {}
        Err(errno) => {
            branch.record_error(errno, OpKind::Read);
        }
    }
    space.ok()
}

impl Pool {
    fn view(&self, branch: &Branch, present: Option<&Attr>, space: SpaceNeed) -> BranchView {
        let min_free = branch.min_free.unwrap_or(self.config().min_free);
        let space = match space {
            SpaceNeed::Nothing => None,
            SpaceNeed::Enough => {
                usable_space(branch, self.space.at_least(branch.id, branch.root(), min_free))
            }
            SpaceNeed::Exactly => usable_space(branch, self.space.get(branch.id, branch.root())),
        };
        BranchView {
            mode: branch.mode,
            unwell: !branch.health.is_well(),
            min_free,
            present: present.is_some(),
            mtime: present.map_or(0, |attr| attr.mtime.sec),
            space,
        }
    }

    pub(crate) fn views(
        &self,
        branches: &Branches,
        copies: &Copies,
        space: bool,
    ) -> SmallVec<[BranchView; 4]> {
        let asked = SpaceNeed::of(space, branches);
        branches.iter().zip(copies.each()).map(|(b, copy)| self.view(b, copy, asked)).collect()
    }

    /// The copy that a search policy shows.
    pub(crate) fn shown(&self, func: Func, branches: &Branches, copies: &Copies) -> Result<usize> {
        let policy = self.config().policies.get(func);
        if !copies.any() {
            return Err(copies.missing());
        }
        if policy::first_only(policy, Category::Search) {
            return copies.first().ok_or(Error::Absent);
        }
        let needs = policy::needs(policy, Category::Search);
        let choice = policy::search(policy, &self.views(branches, copies, needs.space), &mut ThreadRandom)?;
        choice.first().copied().ok_or(Error::Absent)
    }

    /// All copies of a name that could matter to a search function, as cheaply as its policy allows.
    pub(crate) fn look(&self, func: Func, dirs: &MergedDir<'_>, name: &[u8]) -> Copies {
        match policy::first_only(self.config().policies.get(func), Category::Search) {
            true => dirs.first_copy(name),
            false => dirs.copies(name),
        }
    }

    /// The copies that an action policy changes.
    pub(crate) fn choose_for_action(
        &self,
        func: Func,
        branches: &Branches,
        copies: &Copies,
    ) -> Result<Choice> {
        // Of a single copy there is nothing to choose: that its filesystem is read-only it says itself.
        if let [(index, attr)] = copies.found.as_slice() {
            let view = self.view(&branches.as_slice()[*index], Some(attr), SpaceNeed::Nothing);
            let sole = BranchView { space: Some(Space::default()), ..view };
            let policy = self.config().policies.get(func);
            return Ok(
                policy::action(policy, &[sole], &mut ThreadRandom).map(|_| Choice::from_slice(&[*index]))?
            );
        }
        self.choose_by_policy(func, branches, copies)
    }

    /// As `acted`, by all that the policy looks at.
    pub(crate) fn choose_by_policy(
        &self,
        func: Func,
        branches: &Branches,
        copies: &Copies,
    ) -> Result<Choice> {
        if !copies.any() && copies.error.or(copies.unheard).is_some() {
            return Err(copies.missing());
        }
        let policy = self.config().policies.get(func);
        let needs = policy::needs(policy, Category::Action);
        match policy::action(policy, &self.views(branches, copies, needs.space), &mut ThreadRandom) {
            // A branch that refuses every change ranks above one that does not hold the path
            // (COMPATIBILITY 3.2), but where nobody holds it, that is the answer.
            Err(_) if !copies.any() => Err(Error::Absent),
            other => Ok(other?),
        }
    }

    /// The branches on which a create policy puts something new into a directory; those in `full` are left out,
    /// as no room has been found on them.
    pub(crate) fn choose_for_create(
        &self,
        func: Func,
        dirs: &MergedDir<'_>,
        path: &[u8],
        full: &[usize],
    ) -> Result<Choice> {
        let needs = policy::needs(self.config().policies.get(func), Category::Create);
        self.choose_for_create_seen(func, dirs, path, full, needs, |_, _| {})
    }

    /// As `placed`, for one who wants to know what the policy sees: each directory it asks about, and its views.
    pub(crate) fn choose_for_create_seen(
        &self,
        func: Func,
        dirs: &MergedDir<'_>,
        path: &[u8],
        full: &[usize],
        needs: Needs,
        mut see: impl FnMut(&[u8], &[BranchView]),
    ) -> Result<Choice> {
        let policy = self.config().policies.get(func);
        let level = |at: &[u8]| -> Result<Vec<BranchView>> {
            let mut views = self.level(dirs, path, at, needs);
            for &index in full {
                views[index].mode = Mode::Ro;
            }
            see(at, &views);
            Ok(views)
        };
        let mut chosen = policy::create_climbing(policy, path, level, &mut ThreadRandom)??;
        if func == Func::Create {
            // A regular file lies whole on one branch, whatever the policy gives.
            chosen.truncate(1);
        }
        Ok(chosen)
    }

    /// Views of the directory `at`, which is `path` (open as `whole`) or one above it.
    fn level(&self, whole: &MergedDir<'_>, path: &[u8], at: &[u8], needs: Needs) -> Vec<BranchView> {
        let opened;
        let dirs = match at == path {
            true => whole,
            false => {
                opened = MergedDir::open(whole.follow, whole.branches, at);
                &opened
            }
        };
        let view = |(index, branch): (usize, &Arc<Branch>)| {
            let attr = dirs.get(index).filter(|_| needs.presence).and_then(|dir| stat::of(dir).ok());
            let view = self.view(branch, attr.as_ref(), SpaceNeed::of(needs.space, dirs.branches));
            // What is made below a followed symlink is made where that leads, or not at all: a directory
            // in its place on another branch would not be what it leads to.
            match whole.by_link && whole.lacks(index) {
                true => BranchView { mode: Mode::Ro, ..view },
                false => view,
            }
        };
        dirs.branches.iter().enumerate().map(view).collect()
    }

    /// Errors when a copy lies where the pool may not remove it: what is taken away would come back.
    pub(crate) fn all_removable<'a>(
        &self,
        branches: &Branches,
        copies: impl Iterator<Item = &'a Copies> + Clone,
    ) -> Result<()> {
        let mut holders = copies.flat_map(|copies| copies.found.iter().map(|(index, _)| *index));
        let first = holders.clone().next();
        // On several branches none may be touched if one cannot be. A single one says so itself.
        let asks = holders.clone().any(|index| Some(index) != first);
        let stays = |index: usize| {
            let branch = &branches.as_slice()[index];
            branch.mode == Mode::Ro || !branch.health.is_well() || asks && self.read_only(branch)
        };
        if holders.any(stays) { Err(Error::ReadOnlyCopy) } else { Ok(()) }
    }

    fn read_only(&self, branch: &Branch) -> bool {
        usable_space(branch, self.space.get(branch.id, branch.root())).is_some_and(|space| space.readonly)
    }
}
