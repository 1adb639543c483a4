//! Recovery after a crash: finishing or removing what was under construction.

use super::chattr::copy_project;
use super::clone_dirs::open_dir;
use super::file::is_same;
use super::journal::{self, JournalEntry, Leftover, Original, Plan, names_with_prefix};
use super::lease::{LeasedFile, readable};
use crate::branch::list::Mode;
use crate::branch::{Branch, Branches};
use crate::fs::reserved::is_reserved;
use crate::fs::stat::{self, Attr};
use crate::fs::{beneath, generation};
use canopy_base::ids::BranchId;
use canopy_base::path::{PoolPath, split};
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A move, or a copy, that a crash has cut off and that could not be finished, nor undone: its journal entry stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// The branch that has the entry.
    pub branch: BranchId,
    /// For users: what is the matter.
    pub why: String,
}

/// Which branches recovery may use, and how.
pub struct Reach<'r> {
    pub branches: &'r Branches,
    /// Those that were in force before, whose files clients may have open: nothing is removed there.
    pub in_force: &'r dyn Fn(&Branch) -> bool,
}

/// Finishes or undoes interrupted moves between branches, according to the journal entries in the roots of those that are
/// `examined`. Costs a listing of each such root where there is nothing to do. Leaves entries of living writers alone.
/// Returns what is left to do.
pub fn recover(reach: &Reach<'_>, examined: impl Fn(&Branch) -> bool) -> Vec<Unfinished> {
    let mut unfinished = Vec::new();
    for branch in reach.branches.iter().filter(|branch| examined(branch)) {
        let found = journal::leftovers(branch.root()).unwrap_or_else(|errno| {
            vec![Leftover::Unreadable(match errno {
                Errno::TIMEDOUT => "the root does not answer, or lists without end".into(),
                errno => format!("the root cannot be listed: {errno}"),
            })]
        });
        for leftover in found {
            let left = match leftover {
                Leftover::Unreadable(why) => Err(why),
                // An entry that was cut off was not on disk yet, so its work had not begun.
                Leftover::Entry(entry, None) => {
                    entry.erase();
                    Ok(())
                }
                Leftover::Entry(entry, Some(plan)) => {
                    Interrupted { reach, target: branch, plan: &plan, entry: &entry }
                        .finish()
                        .map(|()| entry.erase())
                }
            };
            if let Err(why) = left {
                tracing::warn!("{}: a move was cut off and is not finished: {why}", branch.path.shown());
                unfinished.push(Unfinished { branch: branch.id, why });
            }
        }
    }
    unfinished
}

/// Finishes or undoes interrupted moves on branches that no pool of this process uses yet. To be called before the pool is
/// mounted: a root may keep it waiting. Returns what is left to do (`Pool::set_unfinished`).
#[must_use]
pub fn recover_all(branches: &Branches) -> Vec<Unfinished> {
    recover(&Reach { branches, in_force: &|_| false }, |_| true)
}

/// A move that a crash has cut off.
struct Interrupted<'i> {
    reach: &'i Reach<'i>,
    target: &'i Branch,
    plan: &'i Plan,
    entry: &'i JournalEntry,
}

impl Interrupted<'_> {
    /// Each step may be repeated after another crash.
    ///
    /// Errors: why something is left to do.
    fn finish(&self) -> Result<(), String> {
        let Interrupted { reach, target, plan, entry } = self;
        for name in &plan.names {
            remove_under_construction(target, split(name).0, &entry.writer());
        }
        if plan.names.is_empty() {
            // A file without a name was copied to the root.
            remove_under_construction(target, b"", &entry.writer());
        }
        if plan.source.is_empty() || plan.names.is_empty() {
            return Ok(());
        }
        let copies = self.files(target)?;
        let first = copies[0];
        // The copy gets all of its names before the source loses the first.
        let complete =
            copies.iter().all(|copy| copy.zip(first).is_some_and(|(copy, first)| copy.key() == first.key()));
        if complete && plan.original == Original::Stays {
            return Ok(());
        }
        let is_source = |branch: &&Arc<Branch>| branch.path.as_os_str().as_bytes() == plan.source;
        let Some(source) = reach.branches.iter().find(is_source).filter(|source| !source.is_silent()) else {
            // While the other branch is missing, clients see only one of the two files.
            let (from, name) =
                (String::from_utf8_lossy(&plan.source), String::from_utf8_lossy(&plan.names[0]));
            return Err(format!("{name} came from {from}, which is not there"));
        };
        let originals = self.files(source)?;
        let whole_source = originals.iter().all(Option::is_some);
        let mut left = Ok(());
        for ((name, copy), original) in plan.names.iter().zip(copies).zip(originals) {
            let (Some(original), Some(copy)) = (original, copy) else { continue };
            let surplus = self.surplus(source, (&original, &copy), complete, whole_source);
            let done = match surplus {
                Err(why) => Err(why),
                Ok(Side::Source) => self.remove(source, name, (original, copy), source),
                Ok(Side::Target) => self.remove(target, name, (copy, original), source),
            };
            if let Err(why) = done {
                left = Err(format!("{}: {why}", String::from_utf8_lossy(name)));
            }
        }
        left
    }

    /// The files that a branch has under the names of the plan. Names that are missing there are told from those that cannot
    /// be looked up.
    fn files(&self, branch: &Branch) -> Result<Vec<Option<Attr>>, String> {
        let of = |path: &PoolPath| {
            let (dir, name) = split(path);
            match beneath::dir(branch.root(), dir).and_then(|dir| stat::at(dir, name)) {
                Ok(attr) => Ok(Some(attr).filter(Attr::is_regular)),
                Err(errno) if beneath::is_absent(errno) => Ok(None),
                Err(errno) => Err(format!("{}: {errno}", branch.path.shown())),
            }
        };
        self.plan.names.iter().map(of).collect()
    }

    /// Returns which of two files of a name goes.
    ///
    /// If they differ, one of the branches was away while clients changed the file on the other. The one that was changed
    /// after the move was cut off, and after the other was last touched in any way, is the newer.
    fn surplus(
        &self,
        source: &Branch,
        (original, copy): (&Attr, &Attr),
        complete: bool,
        whole_source: bool,
    ) -> Result<Side, String> {
        let written = self.entry.written_at().map_err(|errno| errno.to_string())?;
        let is_newer = |one: &Attr, other: &Attr| one.mtime > other.ctime && one.mtime > written;
        let used = |branch: &Branch| (self.reach.in_force)(branch);
        if is_same(original, copy) {
            // Of a file in use, the one that is in use stays, if it has all names.
            let source_stays = used(source) && !used(self.target) && whole_source;
            return Ok(if complete && !source_stays { Side::Source } else { Side::Target });
        }
        match () {
            () if self.plan.original == Original::Stays => Ok(Side::Target),
            () if is_newer(original, copy) && (whole_source || !complete) => Ok(Side::Target),
            () if is_newer(copy, original) && complete => Ok(Side::Source),
            () => Err(format!(
                "the files on {} and {} differ, and which is the newer cannot be told: remove one of them there",
                source.path.shown(),
                self.target.path.shown()
            )),
        }
    }

    /// Removes a name's surplus file, unless it or what stays has changed since both were looked at.
    fn remove(
        &self,
        from: &Branch,
        name: &PoolPath,
        (own, other): (Attr, Attr),
        source: &Branch,
    ) -> Result<(), String> {
        if (self.reach.in_force)(from) {
            return Err(format!(
                "it is on {} too, where clients may use it: the next mount removes it",
                from.path.shown()
            ));
        }
        let removed = || {
            if from.mode == Mode::Ro {
                return Err(Errno::ROFS);
            }
            // A process that writes the file would go on writing one that no longer has a name.
            let pinned = beneath::open(from.root(), name, OFlags::PATH | OFlags::NOFOLLOW)?;
            if self.plan.original == Original::Stays {
                if is_older(pinned.as_fd(), source, name)? {
                    // The old copy whose place it was to take.
                    return Ok(());
                }
                if !is_same(&own, &other) {
                    tracing::warn!(
                        "{}: the copies on {} and {} differ",
                        String::from_utf8_lossy(name),
                        source.path.shown(),
                        self.target.path.shown()
                    );
                    return Ok(());
                }
            }
            let leased = LeasedFile::hold(readable(pinned)?)?;
            let now = stat::of(leased.as_fd())?;
            if (now.key(), now.size, now.mtime) != (own.key(), own.size, own.mtime) {
                return Err(Errno::AGAIN);
            }
            if from.id == source.id {
                // The crash may have come while the copy was in another project to get a name.
                let stays = beneath::open(self.target.root(), name, OFlags::PATH | OFlags::NOFOLLOW)?;
                copy_project(leased.as_fd(), stays.as_fd());
            }
            leased.check().and_then(|()| remove(from, name))
        };
        removed()
            .map_err(|errno| format!("its second copy on {} cannot be removed: {errno}", from.path.shown()))
    }
}

/// One of the two branches of a move.
enum Side {
    Source,
    Target,
}

/// Returns whether a copy is known to be older than what the source has under this name.
fn is_older(copy: BorrowedFd<'_>, source: &Branch, name: &[u8]) -> Result<bool, Errno> {
    let original = beneath::open(source.root(), name, OFlags::PATH | OFlags::NOFOLLOW)?;
    let numbers = generation::read(copy)?.zip(generation::read(original.as_fd())?);
    Ok(numbers.is_some_and(|(copy, original)| copy.number < original.number))
}

/// Removes what a writer had under construction in a directory and in its parents, as far as it can: copies of files,
/// and chains of directories.
fn remove_under_construction(branch: &Branch, path: &[u8], writer: &[u8]) {
    let levels = (0..=path.len()).filter(|&end| end == 0 || path.get(end).is_none_or(|&byte| byte == b'/'));
    for level in levels {
        let Ok(dir) = beneath::dir(branch.root(), &path[..level]) else { return };
        let Ok(names) = names_with_prefix(dir.as_fd(), writer) else { return };
        for name in names {
            let _ = remove_leftover(dir.as_fd(), &name);
        }
    }
}

/// Removes a file. The removal is on disk when this returns.
fn remove(branch: &Branch, path: &[u8]) -> Result<(), Errno> {
    let (dir, name) = split(path);
    let dir = beneath::open(branch.root(), dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
    rustix::fs::fsync(&dir)
}

/// Removes one thing under construction: a file, a symlink, or a chain of directories.
fn remove_leftover(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    if !stat::at(dir, name)?.is_dir() {
        return rustix::fs::unlinkat(dir, name, AtFlags::empty());
    }
    let mut chain = vec![open_dir(dir, name)?];
    let mut names = vec![name.to_vec()];
    while let Some(below) = first_name(chain[chain.len() - 1].as_fd())? {
        chain.push(open_dir(chain[chain.len() - 1].as_fd(), &below)?);
        names.push(below);
    }
    for depth in (0..names.len()).rev() {
        let parent = depth.checked_sub(1).map_or(dir, |above| chain[above].as_fd());
        rustix::fs::unlinkat(parent, names[depth].as_slice(), AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes leftovers of a crash from `dir`, as far as it can; stops at anything else.
pub fn remove_leftovers(dir: BorrowedFd<'_>) {
    while let Ok(Some(name)) = first_name(dir) {
        if !is_reserved(&name) || remove_leftover(dir, &name).is_err() {
            return;
        }
    }
}

/// Returns some entry of a directory.
fn first_name(dir: BorrowedFd<'_>) -> Result<Option<Vec<u8>>, Errno> {
    let dir = beneath::open(dir, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry?.file_name().to_bytes() {
            b"." | b".." => {}
            name => return Ok(Some(name.to_vec())),
        }
    }
    Ok(None)
}
