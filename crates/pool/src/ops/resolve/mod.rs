//! From names to branches: who holds a path, and which of them a policy chooses.

use crate::branch::health::Deed;
use crate::branch::{Branch, Branches, Mode};
use crate::config::Func;
use crate::dir::merged::{Copies, Dirs};
use crate::dir::symlinks::Follow;
use crate::error::{Error, Result};
use crate::export;
use crate::fs::acl::At;
use crate::fs::beneath;
use crate::fs::stat::{self, Attr, FileKey};
use crate::node::Node;
use crate::policy::{self, BranchView, Category, Choice, Needs, Refusal, Space, ThreadDice};
use crate::pool::Pool;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Something to act on: one copy, on one branch.
pub(crate) struct Target {
    /// The branch; none for a file that no name leads to.
    pub(crate) index: Option<usize>,
    pub(crate) fd: TargetFd,
}

pub(crate) enum TargetFd {
    Pinned(OwnedFd),
    Shared(Arc<OwnedFd>),
}

impl TargetFd {
    pub(crate) fn into_shared(self) -> Arc<OwnedFd> {
        match self {
            TargetFd::Pinned(fd) => Arc::new(fd),
            TargetFd::Shared(fd) => fd,
        }
    }

    pub(crate) fn share(&self) -> Result<TargetFd, Errno> {
        Ok(match self {
            TargetFd::Pinned(fd) => TargetFd::Pinned(rustix::io::fcntl_dupfd_cloexec(fd, 0)?),
            TargetFd::Shared(fd) => TargetFd::Shared(fd.clone()),
        })
    }
}

impl AsFd for TargetFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            TargetFd::Pinned(fd) => fd.as_fd(),
            TargetFd::Shared(fd) => fd.as_fd(),
        }
    }
}

/// The one copy that is the node's file.
pub(crate) struct Primary {
    pub(crate) branch: Arc<Branch>,
    pub(crate) fd: TargetFd,
    pub(crate) attr: Attr,
}

/// What a policy wants to know of the space on a branch.
#[derive(Clone, Copy)]
enum Asked {
    Nothing,
    /// Whether it has its minfreespace: there is no other to compare it with.
    Enough,
    Exactly,
}

impl Asked {
    fn of(space: bool, branches: &Branches) -> Asked {
        match (space, branches.len()) {
            (false, _) => Asked::Nothing,
            (true, 1) => Asked::Enough,
            (true, _) => Asked::Exactly,
        }
    }
}

/// Takes note of a branch that cannot be written to, or cannot say.
fn noticed(branch: &Branch, space: Result<Space, Errno>) -> Option<Space> {
    match space {
        Ok(space) if space.readonly && branch.mode != Mode::Ro => {
            branch.notice(Errno::ROFS, Deed::Looking);
        }
        Ok(_) => {}
        Err(errno) => {
            branch.notice(errno, Deed::Looking);
        }
    }
    space.ok()
}

impl Pool {
    fn view(&self, branch: &Branch, present: Option<&Attr>, space: Asked) -> BranchView {
        let min_free = branch.min_free.unwrap_or(self.config().min_free);
        let space = match space {
            Asked::Nothing => None,
            Asked::Enough => noticed(branch, self.space.at_least(branch.id, branch.root(), min_free)),
            Asked::Exactly => noticed(branch, self.space.get(branch.id, branch.root())),
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
        let asked = Asked::of(space, branches);
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
        let choice = policy::search(policy, &self.views(branches, copies, needs.space), &mut ThreadDice)?;
        choice.first().copied().ok_or(Error::Absent)
    }

    /// All copies of a name that could matter to a search function, as cheaply as its policy allows.
    pub(crate) fn look(&self, func: Func, dirs: &Dirs<'_>, name: &[u8]) -> Copies {
        match policy::first_only(self.config().policies.get(func), Category::Search) {
            true => dirs.first_copy(name),
            false => dirs.copies(name),
        }
    }

    /// The copies that an action policy changes.
    pub(crate) fn acted(&self, func: Func, branches: &Branches, copies: &Copies) -> Result<Choice> {
        // Of a single copy there is nothing to choose: that its filesystem is read-only it says itself.
        if let [(index, attr)] = copies.found.as_slice() {
            let view = self.view(&branches.as_slice()[*index], Some(attr), Asked::Nothing);
            let sole = BranchView { space: Some(Space::default()), ..view };
            let policy = self.config().policies.get(func);
            return Ok(
                policy::action(policy, &[sole], &mut ThreadDice).map(|_| Choice::from_slice(&[*index]))?
            );
        }
        self.judged(func, branches, copies)
    }

    /// As `acted`, by all that the policy looks at.
    pub(crate) fn judged(&self, func: Func, branches: &Branches, copies: &Copies) -> Result<Choice> {
        if !copies.any() && copies.error.or(copies.unheard).is_some() {
            return Err(copies.missing());
        }
        let policy = self.config().policies.get(func);
        let needs = policy::needs(policy, Category::Action);
        match policy::action(policy, &self.views(branches, copies, needs.space), &mut ThreadDice) {
            // A branch that refuses every change ranks above one that does not hold the path
            // (COMPATIBILITY 3.2), but where nobody holds it, that is the answer.
            Err(_) if !copies.any() => Err(Error::Absent),
            other => Ok(other?),
        }
    }

    /// The branches on which a create policy puts something new into a directory; those in `full` are left out,
    /// as no room has been found on them.
    pub(crate) fn placed(&self, func: Func, dirs: &Dirs<'_>, path: &[u8], full: &[usize]) -> Result<Choice> {
        let needs = policy::needs(self.config().policies.get(func), Category::Create);
        self.placed_seen(func, dirs, path, full, needs, |_, _| {})
    }

    /// As `placed`, for one who wants to know what the policy sees: each directory it asks about, and its views.
    pub(crate) fn placed_seen(
        &self,
        func: Func,
        dirs: &Dirs<'_>,
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
        let mut chosen = policy::create_climbing(policy, path, level, &mut ThreadDice)??;
        if func == Func::Create {
            // A regular file lies whole on one branch, whatever the policy gives.
            chosen.truncate(1);
        }
        Ok(chosen)
    }

    /// Views of the directory `at`, which is `path` (open as `whole`) or one above it.
    fn level(&self, whole: &Dirs<'_>, path: &[u8], at: &[u8], needs: Needs) -> Vec<BranchView> {
        let opened;
        let dirs = match at == path {
            true => whole,
            false => {
                opened = Dirs::open(whole.follow, whole.branches, at);
                &opened
            }
        };
        let view = |(index, branch): (usize, &Arc<Branch>)| {
            let attr = dirs.get(index).filter(|_| needs.presence).and_then(|dir| stat::of(dir).ok());
            let view = self.view(branch, attr.as_ref(), Asked::of(needs.space, dirs.branches));
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
        noticed(branch, self.space.get(branch.id, branch.root())).is_some_and(|space| space.readonly)
    }

    /// Forgets those of a file's names that do not lead to it any more, if it has far more than links: names that went on
    /// the branch, of which nobody has told as long as the file is held by another one.
    pub(crate) fn tidy_names(&self, branches: &Branches, node: &Node, links: u32) {
        if !node.doubtful.load(Ordering::Relaxed) || !node.doubtful.swap(false, Ordering::Relaxed) {
            return;
        }
        let names = self.nodes.known(node.id);
        // A link may have two names in the pool, where a branch lies inside another.
        let (Some(key), true) = (node.key(), names.len() > 2 * links as usize) else { return };
        for (parent, name) in names {
            let dir = self.nodes.dir_path(parent);
            let found = dir.map(|dir| find_file(self.follow(), branches, &dir, &name, key));
            if matches!(found, Ok(Ok(None)) | Err(_)) {
                self.nodes.name_removed(parent, &name);
            }
        }
    }

    /// The file of a node that is not a directory, found by what is open, by a name that still leads to
    /// it, by what was pinned when the last name went, or if no name is known, by its inode number. `Stale` makes the
    /// kernel look the name up again.
    pub(crate) fn primary(&self, branches: &Branches, node: &Arc<Node>) -> Result<Primary> {
        if let Some(open) = node.opened() {
            let place = open.place();
            let attr =
                stat::of(place.fd.as_fd()).map_err(|errno| place.branch.notice(errno, Deed::Looking))?;
            return Ok(Primary {
                branch: place.branch.clone(),
                fd: TargetFd::Shared(place.fd.clone()),
                attr,
            });
        }
        let key = node.key().ok_or(Error::IsDirectory)?;
        // A rename moves the file first and tells the table afterwards: who comes in between asks again.
        let mut failed = None;
        for attempt in 0..4 {
            for (dir, name) in self.nodes.names(node.id) {
                match find_file(self.follow(), branches, &dir, &name, key) {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => {}
                    Err(errno) => failed = Some(errno),
                }
            }
            let orphan = node.orphan.lock().clone();
            if let Some(orphan) = orphan {
                let fd = rustix::io::fcntl_dupfd_cloexec(&orphan.fd, 0)?;
                let attr =
                    stat::of(fd.as_fd()).map_err(|errno| orphan.branch.notice(errno, Deed::Looking))?;
                return Ok(Primary { branch: orphan.branch.clone(), fd: TargetFd::Pinned(fd), attr });
            }
            if attempt > 0 {
                std::thread::yield_now();
            }
        }
        if self.nodes.names(node.id).next().is_none()
            && let Some((branch, fd, attr)) = export::reopen(branches, key)
        {
            return Ok(Primary { branch, fd: TargetFd::Pinned(fd), attr });
        }
        Err(failed.map_or(Error::Stale, Error::Branch))
    }

    /// What `act` makes of a node's file, given its branch, its directory there as it is remembered, and its name.
    /// `None` if nothing is remembered. What it finds may be another file by now: it is for `act` to see.
    pub(crate) fn hinted<R>(
        &self,
        branches: &Branches,
        node: &Node,
        act: impl Fn(&Arc<Branch>, BorrowedFd<'_>, &[u8], FileKey) -> Option<R>,
    ) -> Option<R> {
        let key = node.key()?;
        let (dir, name) = self.nodes.newest_name(node.id)?;
        // Where the directory is now; its path is that of now, too.
        let there = |branch: &Branch| {
            let path = self.nodes.dir_path(dir.id).ok()?;
            let (opened, _) = self.follow().dir(branch.root.as_fd(), &path).ok()?;
            let attr = stat::of(opened.as_fd()).ok()?;
            Some((attr.dev, attr.ino))
        };
        let own = branches.iter().enumerate().filter(|(_, branch)| branch.dev == key.dev);
        let mut found = own.filter_map(|(index, branch)| {
            let known = self.memory.hint(&dir, branches, index, || there(branch))?;
            act(branch, known.opened.get(branches, index)?, &name, key)
        });
        found.next()
    }

    /// Is the copy that a search function acts on the node's own file in any case?
    pub(crate) fn acts_on_own(&self, func: Func, branches: &Branches) -> bool {
        let (own, shown) = (self.config().policies.get(func), self.config().policies.get(Func::Getattr));
        branches.len() == 1 || own == shown && policy::first_only(own, Category::Search)
    }

    /// The copy of a file that a search function acts on: the node's own file, unless its policy asks for
    /// another copy of the name and that is what the function can act on.
    pub(crate) fn chosen(
        &self,
        func: Func,
        branches: &Branches,
        node: &Arc<Node>,
        fits: impl Fn(&Attr) -> bool,
    ) -> Result<Primary> {
        let primary = self.primary(branches, node)?;
        if self.acts_on_own(func, branches) {
            return Ok(primary);
        }
        let Some((dir, name)) = self.nodes.names(node.id).next() else { return Ok(primary) };
        let dirs = Dirs::open(self.follow(), branches, &dir);
        let copies = dirs.copies(&name);
        let Ok(index) = self.shown(func, branches, &copies) else { return Ok(primary) };
        let Some(attr) = copies.get(index).copied().filter(|a| fits(a) && a.key() != primary.attr.key())
        else {
            return Ok(primary);
        };
        let fd = dirs.follow.pin(dirs.get(index).ok_or(Error::Absent)?, &name)?;
        Ok(Primary { branch: branches.as_slice()[index].clone(), fd: TargetFd::Pinned(fd), attr })
    }

    /// Attributes as the pool shows them. The path is read only where [`Pool::needs_path`] says so.
    pub(crate) fn show(&self, node: &Node, branch: &Branch, path: &[u8], mut attr: Attr, at: At<'_>) -> Attr {
        self.narrow(branch, &mut attr, at);
        attr.ino = match node.identity() {
            crate::node::Identity::Directory { ino } => ino,
            crate::node::Identity::File(_) => match node.number.load(Ordering::Relaxed) {
                0 => {
                    let seed = self.seed(branch, attr.dev, || self.some_fd(node, branch));
                    self.config().inode.inode_seeded(seed, path, attr.ino, false)
                }
                known => known,
            },
        };
        if node.disguised {
            attr.disguise(on_branch(branch, path).len());
        }
        attr
    }

    /// Does what is shown of a file depend on its path?
    pub(crate) fn needs_path(&self, node: &Node) -> bool {
        node.disguised || self.config().inode.uses_path(false)
    }
}

/// Looks on every branch for the one file under a name. A branch that cannot answer matters only if no
/// other holds the file.
pub(crate) fn find_file(
    follow: Follow,
    branches: &Branches,
    dir: &[u8],
    name: &[u8],
    key: FileKey,
) -> Result<Option<Primary>, Errno> {
    let mut failed = branches.unheard();
    for branch in branches.iter() {
        let pinned = follow.dir(branch.root.as_fd(), dir).and_then(|(dir, _)| follow.pin(dir, name));
        match pinned.and_then(|fd| Ok((stat::of(fd.as_fd())?, fd))) {
            Ok((attr, fd)) if attr.key() == key => {
                return Ok(Some(Primary { branch: branch.clone(), fd: TargetFd::Pinned(fd), attr }));
            }
            Ok(_) => {}
            Err(errno) if beneath::is_absent(errno) => {}
            Err(errno) => failed = Some(branch.notice(errno, Deed::Looking)),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// A path of the pool as its branch has it.
pub(crate) fn on_branch(branch: &Branch, path: &[u8]) -> Vec<u8> {
    [branch.path.as_os_str().as_bytes(), b"/", path].concat()
}

/// True when nobody holds the name, for want of a better reason.
pub(crate) fn is_absent(error: Error) -> bool {
    matches!(error, Error::Absent | Error::Refused(Refusal::NotFound))
}
