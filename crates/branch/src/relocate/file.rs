//! Moving or copying a file, with all its names, from one branch to another.
//!
//! The order of the steps makes a crash harmless. Until the copy is complete and on disk, it has no name that clients
//! see. Then it gets every name on the new branch, and these are on disk before the first name on the old branch is
//! removed. In between both branches hold the file, byte for byte the same. The journal entry in the new branch's
//! root makes the next mount finish the move (`recover`). A copy whose original stays ends with the names on the new
//! branch: it has all of them, or after a crash none.

use super::aside;
use super::journal::{JournalEntry, Original, Plan};
use super::kept_times::with_times_kept;
use super::lease::LeasedFile;
use super::links::holds;
use super::metadata::Losses;
use super::replica::Replica;
use crate::branch::Branch;
use crate::fs::beneath::{self, ProcPath};
use crate::fs::generation;
use crate::fs::magic;
use crate::fs::stat::{self, Attr, FileKey};
use canopy_base::path::{PoolPath, split};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A file that is being moved. Dropping it before its names have changed leaves everything as it was.
pub struct FileMove<'s> {
    source: Arc<Branch>,
    target: Arc<Branch>,
    original: Original,
    file: &'s LeasedFile,
    /// The attributes of the file when it was copied.
    copied: Attr,
    names: Vec<PoolPath>,
    replica: Replica,
    target_names: TargetNames<'s>,
    /// How many names on the target were changed apart, and have given way.
    set_aside: usize,
}

/// What has the file's names on the target.
enum TargetNames<'s> {
    Nothing,
    /// An old copy may have some of them, or all.
    OldCopy,
    /// The copy itself: it was made before, and is held since it was compared.
    Copy(&'s LeasedFile),
}

/// Syncs all directories on the way to each name, since the file depends on directories that were made for it.
fn sync_parents(branch: &Branch, names: &[PoolPath]) -> Result<(), Errno> {
    let mut synced = BTreeSet::new();
    for name in names {
        let mut dir = split(name).0;
        while synced.insert(dir) {
            rustix::fs::fsync(beneath::open(branch.root(), dir, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
            dir = split(dir).0;
        }
    }
    Ok(())
}

/// The parent directory of some names, on both branches.
struct DirPair {
    source: OwnedFd,
    target: OwnedFd,
}

/// The parent directories of all names, each opened once: a file may have tens of thousands of names.
struct Places<'n> {
    dirs: Vec<DirPair>,
    /// Index of the parent directory, and the last component; in the order of the file's names.
    names: Vec<(usize, &'n [u8])>,
}

impl<'n> Places<'n> {
    fn open(source: &Branch, target: &Branch, names: &'n [PoolPath]) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let open = |branch: &Branch, dir| match beneath::open(branch.root(), dir, flags) {
            // The directory has moved, and with it whatever is under construction in it.
            Err(errno) if beneath::is_absent(errno) => Err(Errno::AGAIN),
            other => other,
        };
        let mut known: HashMap<&[u8], usize> = HashMap::new();
        let mut places = Places { dirs: Vec::new(), names: Vec::with_capacity(names.len()) };
        for (dir, name) in names.iter().map(|path| split(path)) {
            let index = match known.get(dir) {
                Some(index) => *index,
                None => {
                    places.dirs.push(DirPair { source: open(source, dir)?, target: open(target, dir)? });
                    known.insert(dir, places.dirs.len() - 1);
                    places.dirs.len() - 1
                }
            };
            places.names.push((index, name));
        }
        Ok(places)
    }

    /// Returns each name with its parent directory.
    fn iter(&self) -> impl Iterator<Item = (&DirPair, &'n [u8])> {
        self.names.iter().map(|(dir, name)| (&self.dirs[*dir], *name))
    }
}

/// Returns true if the file's names can be removed: it is a regular file that chattr(1) has made neither immutable
/// nor append-only.
pub fn can_leave(attr: &Attr) -> bool {
    attr.is_regular() && !attr.is_immutable() && !attr.is_append_only()
}

/// Returns whether two copies look the same: in all but what each filesystem has of its own.
pub fn is_same(one: &Attr, other: &Attr) -> bool {
    let of = |attr: &Attr| (attr.size, attr.mtime, attr.uid, attr.gid, attr.mode);
    of(one) == of(other)
}

impl<'s> FileMove<'s> {
    /// Writes a journal entry to the target. Comes before anything is made there, directories included.
    ///
    /// Errors: `EREMOTE` if the target is itself a pool.
    pub fn announce(
        source: &Branch,
        target: &Branch,
        original: Original,
        names: &[PoolPath],
    ) -> Result<JournalEntry, Errno> {
        let source = source.path.as_os_str().as_bytes().to_vec();
        let plan = Plan { source, original, names: names.to_vec() };
        JournalEntry::write(target.root(), &plan).map_err(|errno| match errno {
            // A pool keeps the names of what is being copied from its users.
            Errno::INVAL if target.kind == magic::FUSE => Errno::REMOTE,
            errno => errno,
        })
    }

    /// Copies a file to another branch under a temporary name. The copy is on disk when this returns.
    ///
    /// `names` are all names of the file. The target holds their directories.
    ///
    /// Errors: `EINTR` if the copy is not `wanted` any more; `EBUSY`, here and in later steps, if another process
    /// wants to write the file.
    pub fn copy(
        source: &Arc<Branch>,
        target: &Arc<Branch>,
        (original, losses): (Original, Losses),
        file: &'s LeasedFile,
        names: Vec<PoolPath>,
        entry: JournalEntry,
        wanted: &dyn Fn() -> bool,
    ) -> Result<FileMove<'s>, Errno> {
        let first = names.first().map_or(&b""[..], |name| split(name).0);
        let replica = Replica::begin(target.root(), first, !names.is_empty(), entry)?.with_losses(losses);
        let copied = stat::of(file.as_fd())?;
        if !can_leave(&copied) {
            return Err(Errno::PERM);
        }
        replica.fill(file, &copied, wanted)?;
        sync_parents(target, &names)?;
        let (source, target) = (source.clone(), target.clone());
        let target_names = TargetNames::Nothing;
        Ok(FileMove { source, target, original, file, copied, names, replica, target_names, set_aside: 0 })
    }

    /// The end of a move to a branch that holds a copy under all names already: what is left to do is to remove the original.
    /// The copy is on disk when this returns.
    pub fn onto(
        source: &Arc<Branch>,
        target: &Arc<Branch>,
        file: &'s LeasedFile,
        names: Vec<PoolPath>,
        copy: &'s LeasedFile,
        entry: JournalEntry,
    ) -> Result<FileMove<'s>, Errno> {
        let first = names.first().map_or(&b""[..], |name| split(name).0);
        let dir = beneath::open(target.root(), first, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW);
        let replica = Replica::existing(dir?, rustix::io::dup(copy)?, entry);
        let copied = stat::of(file.as_fd())?;
        rustix::fs::fsync(copy)?;
        sync_parents(target, &names)?;
        let (source, target) = (source.clone(), target.clone());
        let (original, target_names) = (Original::Goes, TargetNames::Copy(copy));
        Ok(FileMove { source, target, original, file, copied, names, replica, target_names, set_aside: 0 })
    }

    /// Lets the copy take the place of an old one on the target.
    pub fn replace(&mut self) {
        self.target_names = TargetNames::OldCopy;
    }

    /// Returns how many names on the target have given way that were changed apart from this file.
    pub fn set_aside(&self) -> usize {
        self.set_aside
    }

    pub fn key(&self) -> Result<FileKey, Errno> {
        self.replica.key()
    }

    /// Opens the copy with flags of open(2).
    pub fn reopen(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.replica.reopen(flags)
    }

    /// Gives the copy the file's names on the target, and removes them from the source unless the original stays. If this fails, everything is
    /// as before. The caller makes sure that no operation of the pool uses a path meanwhile.
    ///
    /// Errors: `EAGAIN` if the file or its names have changed since the copy.
    pub fn switch(&mut self) -> Result<(), Errno> {
        self.verify()?;
        let names = std::mem::take(&mut self.names);
        let switched = Places::open(&self.source, &self.target, &names).and_then(|places| {
            let switched = self.link_target(&places, &names).and_then(|()| match self.original {
                Original::Goes => self.unlink_source(&places),
                Original::Stays => Ok(()),
            });
            let was_there = matches!(self.target_names, TargetNames::Copy(_));
            if switched.is_err() && !was_there && self.unlink_target(&places).is_err() {
                self.replica.keep_entry();
            }
            switched
        });
        self.names = names;
        switched
    }

    /// Syncs the removal of the old names; then the journal entry goes. If that fails it stays: a power cut might bring
    /// the old names back.
    pub fn finish(mut self) {
        if self.original == Original::Stays {
            return;
        }
        let dirs: BTreeSet<&[u8]> = self.names.iter().map(|name| split(name).0).collect();
        for dir in dirs {
            let dir = beneath::open(self.source.root(), dir, OFlags::RDONLY | OFlags::DIRECTORY);
            match dir.and_then(rustix::fs::fsync) {
                // A directory that is gone has taken the names with it.
                Err(errno) if !beneath::is_absent(errno) => {
                    tracing::debug!("cannot sync a directory that a file has moved out of: {errno}");
                    self.replica.keep_entry();
                }
                _ => {}
            }
        }
    }

    /// Fails unless the copy still equals the file.
    fn verify(&mut self) -> Result<(), Errno> {
        self.file.check()?;
        let now = stat::of(self.file.as_fd())?;
        let same = now.key() == self.copied.key()
            && (now.size, now.mtime) == (self.copied.size, self.copied.mtime)
            && now.nlink as usize == self.names.len()
            && self.names.iter().all(|name| holds(self.source.root(), name, &now));
        if !same || !can_leave(&now) {
            return Err(Errno::AGAIN);
        }
        if let TargetNames::Copy(copy) = self.target_names {
            copy.check()?;
            let there = stat::of(copy.as_fd())?;
            let has_all = self.names.iter().all(|name| holds(self.target.root(), name, &there));
            return if has_all && is_same(&now, &there) { Ok(()) } else { Err(Errno::AGAIN) };
        }
        let rest = |attr: &Attr| (attr.ctime, attr.atime, attr.mode, attr.uid, attr.gid);
        if rest(&now) != rest(&self.copied) {
            // Something other than the data has changed, perhaps the generation as well.
            if self.original == Original::Stays
                && let Some(generation) = generation::read(self.file.as_fd())?
            {
                generation::share(self.file.as_fd(), Some(generation))?;
            }
            let now = stat::of(self.file.as_fd())?;
            self.replica.copy_metadata(self.file.as_fd(), &now)?;
            self.copied = now;
        }
        Ok(())
    }

    /// Gives the copy all names on the target, on disk.
    fn link_target(&mut self, places: &Places<'_>, paths: &[PoolPath]) -> Result<(), Errno> {
        if let TargetNames::Copy(_) = self.target_names {
            return Ok(());
        }
        let mut names = places.iter();
        let Some((first, name)) = names.next() else { return Ok(()) };
        if stat::of(first.target.as_fd())?.key() != stat::of(self.replica.dir())?.key() {
            return Err(Errno::AGAIN);
        }
        if matches!(self.target_names, TargetNames::OldCopy) {
            self.spare(places, paths)?;
        }
        let link = |dir: BorrowedFd<'_>, name: &[u8]| match self.replica.link(dir, name) {
            Err(Errno::EXIST) if matches!(self.target_names, TargetNames::OldCopy) => {
                self.replica.link_over(dir, name)
            }
            other => other,
        };
        // The pool shows no change in these directories.
        names.try_for_each(|(dir, name)| {
            let dir = dir.target.as_fd();
            with_times_kept(dir, || link(dir, name))
        })?;
        with_times_kept(first.target.as_fd(), || match self.target_names {
            TargetNames::OldCopy => self.replica.replace(name),
            TargetNames::Nothing | TargetNames::Copy(_) => self.replica.place(name),
        })?;
        places.dirs.iter().try_for_each(|dir| rustix::fs::fsync(&dir.target))
    }

    /// Sets aside what is in the way on the target and was changed apart from the file.
    fn spare(&mut self, places: &Places<'_>, paths: &[PoolPath]) -> Result<(), Errno> {
        let Some(newest) = generation::read(self.file.as_fd())? else { return Ok(()) };
        for ((dir, name), path) in places.iter().zip(paths) {
            let dir = dir.target.as_fd();
            let attr = match stat::at(dir, name) {
                Err(errno) if beneath::is_absent(errno) => continue,
                found => found?,
            };
            if attr.is_regular() && generation::was_apart(generation::read_at(dir, name)?, newest.number) {
                aside::give_way(self.target.root(), (dir, path), &attr, newest.number)?;
                self.set_aside += 1;
            }
        }
        Ok(())
    }

    /// Removes all names from the source, or none.
    fn unlink_source(&mut self, places: &Places<'_>) -> Result<(), Errno> {
        for (removed, (dir, name)) in places.iter().enumerate() {
            let dir = dir.source.as_fd();
            let unlink = |()| with_times_kept(dir, || rustix::fs::unlinkat(dir, name, AtFlags::empty()));
            let errno = match self.file.check().and_then(unlink) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(errno) => errno,
            };
            let (file, follow) = (ProcPath::of(self.file), AtFlags::SYMLINK_FOLLOW);
            let restored = places.iter().take(removed).try_for_each(|(dir, name)| {
                let dir = dir.source.as_fd();
                with_times_kept(dir, || {
                    rustix::fs::linkat(rustix::fs::CWD, file.as_bytes(), dir, name, follow)
                })
            });
            if restored.is_ok() {
                return Err(errno);
            }
            // The target has all names, so the file is there now. The next mount tries again.
            tracing::error!("a file that has moved to another branch keeps names on the old branch: {errno}");
            self.replica.keep_entry();
            return Ok(());
        }
        Ok(())
    }

    /// Removes the copy's names from the target, as far as they still lead to the copy.
    fn unlink_target(&self, places: &Places<'_>) -> Result<(), Errno> {
        let key = self.replica.key()?;
        places.iter().try_for_each(|(dir, name)| match stat::at(&dir.target, name) {
            Ok(found) if found.key() == key => {
                let dir = dir.target.as_fd();
                with_times_kept(dir, || rustix::fs::unlinkat(dir, name, AtFlags::empty()))
            }
            _ => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::Branches;
    use crate::branch::list::{BranchList, BranchSpec, Mode};
    use std::fs::{self, FileTimes};
    use std::time::{Duration, UNIX_EPOCH};

    struct TwoBranches {
        home: tempfile::TempDir,
        branches: Branches,
    }

    impl TwoBranches {
        /// `d/f` is on the first branch, and `d` on both; all their times are in the past.
        fn new() -> TwoBranches {
            let home = tempfile::tempdir().unwrap();
            let path = |name: &str| home.path().join(name);
            for dir in ["a/d", "b/d"] {
                fs::create_dir_all(path(dir)).unwrap();
            }
            fs::write(path("a/d/f"), "content").unwrap();
            for (index, name) in ["a/d/f", "a/d", "b/d"].into_iter().enumerate() {
                let time = |nanos| UNIX_EPOCH + Duration::new(1_000_000_000 + index as u64, nanos);
                let times = FileTimes::new().set_accessed(time(11)).set_modified(time(22));
                fs::File::open(path(name)).unwrap().set_times(times).unwrap();
            }
            let spec = |name| BranchSpec { path: path(name), mode: Mode::Rw, min_free: None };
            let list: BranchList = ["a", "b"].map(spec).into_iter().collect();
            let branches = Branches::open(&list).unwrap();
            TwoBranches { home, branches }
        }

        fn attr(&self, path: &str) -> Attr {
            stat::at(rustix::fs::CWD, self.home.path().join(path).as_os_str().as_bytes()).unwrap()
        }

        fn source(&self) -> LeasedFile {
            let root = self.branches.as_slice()[0].root();
            LeasedFile::hold(beneath::open(root, b"d/f", OFlags::RDONLY | OFlags::NOATIME).unwrap()).unwrap()
        }

        fn copied<'s>(&self, file: &'s LeasedFile, original: Original) -> FileMove<'s> {
            let [a, b] = self.branches.as_slice() else { panic!("two branches") };
            let names = vec![PoolPath::from_slice(b"d/f")];
            let entry = FileMove::announce(a, b, original, &names).unwrap();
            FileMove::copy(a, b, (original, Losses::Refused), file, names, entry, &|| true).unwrap()
        }

        /// The names in the directory on both branches, and in the roots.
        fn names(&self) -> [usize; 4] {
            ["a/d", "b/d", "a", "b"].map(|dir| fs::read_dir(self.home.path().join(dir)).unwrap().count())
        }
    }

    #[test]
    fn a_move_keeps_the_times_of_files_and_directories() {
        let branches = TwoBranches::new();
        let before = [branches.attr("a/d/f"), branches.attr("a/d"), branches.attr("b/d")];
        let source = branches.source();
        let mut file_move = branches.copied(&source, Original::Goes);
        assert_eq!(branches.names(), [1, 1, 1, 2], "a copy under a temporary name, and a journal entry");
        file_move.switch().unwrap();
        assert_eq!(branches.names(), [0, 1, 1, 2], "the journal entry stays until the removal is on disk");
        file_move.finish();
        assert_eq!(branches.names(), [0, 1, 1, 1]);
        let after = [branches.attr("b/d/f"), branches.attr("a/d"), branches.attr("b/d")];
        assert_eq!(before.map(|attr| attr.mtime), after.map(|attr| attr.mtime));
        assert_eq!(before[0].atime, after[0].atime);
    }

    #[test]
    fn a_copy_leaves_the_original() {
        let branches = TwoBranches::new();
        let before = [branches.attr("a/d/f"), branches.attr("a/d"), branches.attr("b/d")];
        let source = branches.source();
        let mut copy = branches.copied(&source, Original::Stays);
        copy.switch().unwrap();
        copy.finish();
        assert_eq!(branches.names(), [1, 1, 1, 1]);
        let after = [branches.attr("b/d/f"), branches.attr("a/d"), branches.attr("b/d")];
        assert_eq!(before.map(|attr| attr.mtime), after.map(|attr| attr.mtime));
        assert_eq!(branches.attr("a/d/f").key(), before[0].key());
    }

    /// If anything about the file changes after the copy, the change is kept.
    #[test]
    fn a_change_during_the_move_is_not_lost() {
        type Change = fn(&std::path::Path);
        const MOVES: Result<(), Errno> = Ok(());
        const STAYS: Result<(), Errno> = Err(Errno::BUSY);
        const CHANGED: Result<(), Errno> = Err(Errno::AGAIN);
        let table: [(&str, Result<(), Errno>, Change); 8] = [
            ("opened for writing", STAYS, |home| {
                let nonblocking = OFlags::WRONLY | OFlags::NONBLOCK;
                let opened = rustix::fs::open(home.join("a/d/f"), nonblocking, rustix::fs::Mode::empty());
                assert_eq!(opened.unwrap_err(), Errno::AGAIN, "it has to wait for the lease");
            }),
            ("read", MOVES, |home| assert_eq!(fs::read(home.join("a/d/f")).unwrap(), b"content")),
            ("times", CHANGED, |home| {
                let file = fs::File::open(home.join("a/d/f")).unwrap();
                file.set_modified(UNIX_EPOCH).unwrap();
            }),
            ("linked", CHANGED, |home| fs::hard_link(home.join("a/d/f"), home.join("a/g")).unwrap()),
            ("renamed", CHANGED, |home| fs::rename(home.join("a/d/f"), home.join("a/d/g")).unwrap()),
            ("removed", CHANGED, |home| fs::remove_file(home.join("a/d/f")).unwrap()),
            ("directory renamed", CHANGED, |home| fs::rename(home.join("b/d"), home.join("b/e")).unwrap()),
            ("mode", MOVES, |home| {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o421);
                fs::set_permissions(home.join("a/d/f"), mode).unwrap();
            }),
        ];
        for (what, expected, change) in table {
            let branches = TwoBranches::new();
            let source = branches.source();
            let mut file_move = branches.copied(&source, Original::Goes);
            change(branches.home.path());
            assert_eq!(file_move.switch(), expected, "{what}");
            drop(file_move);
            let moves = expected.is_ok();
            assert_eq!(branches.home.path().join("b/d/f").exists(), moves, "{what}");
            if what == "mode" {
                assert_eq!(branches.attr("b/d/f").mode & 0o777, 0o421);
            }
            let hidden = |dir: &str| {
                let entries = fs::read_dir(branches.home.path().join(dir)).into_iter().flatten();
                entries.filter(|e| e.as_ref().unwrap().file_name().as_bytes().starts_with(b".")).count()
            };
            assert_eq!(["a", "b", "a/d", "b/d", "b/e"].map(hidden), [0; 5], "{what}");
        }
    }

    /// Another file that has taken the name on the target stays.
    #[test]
    fn a_move_replaces_nothing() {
        let branches = TwoBranches::new();
        let source = branches.source();
        let mut file_move = branches.copied(&source, Original::Goes);
        fs::write(branches.home.path().join("b/d/f"), "another").unwrap();
        assert_eq!(file_move.switch(), Err(Errno::EXIST));
        drop(file_move);
        assert_eq!(fs::read_to_string(branches.home.path().join("a/d/f")).unwrap(), "content");
        assert_eq!(fs::read_to_string(branches.home.path().join("b/d/f")).unwrap(), "another");
        assert_eq!(branches.names(), [1, 1, 1, 1]);
    }
}
