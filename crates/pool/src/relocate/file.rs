//! Taking a file, with all its names, from one branch to another.
//!
//! The order of steps is what makes a crash harmless. Until the copy is complete and on disk, it has no name that
//! anybody is shown. Then it takes every name on the new branch, and these are on disk before the first name of
//! the old one goes. In between both branches hold the file, equal byte for byte; the note in the new branch's
//! root tells the next mount to finish it (`sweep`).

use super::journal::{JournalEntry, Plan};
use super::lease::LeasedFile;
use super::links::holds;
use super::metadata::set_times;
use super::replica::Replica;
use crate::branch::Branch;
use crate::fs::beneath::{self, ProcPath};
use crate::fs::stat::{self, Attr, FileKey};
use crate::path::{PoolPath, split};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A file on its way. Dropping it before its names have changed leaves everything as it was.
pub(crate) struct FileMove<'s> {
    source: Arc<Branch>,
    target: Arc<Branch>,
    file: &'s LeasedFile,
    /// The file as it was copied.
    copied: Attr,
    names: Vec<PoolPath>,
    replica: Replica,
}

/// Directories that were made for the file last as long as it does: all on the way to each name are synced.
fn sync_way(branch: &Branch, names: &[PoolPath]) -> Result<(), Errno> {
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

/// The directory of some names on both branches.
struct Sides {
    source: OwnedFd,
    target: OwnedFd,
}

/// Where the names are. A file may have tens of thousands, so that each directory is opened once.
struct Places<'n> {
    dirs: Vec<Sides>,
    /// Index of the directory, and the last part of the path; in the order of the file's names.
    names: Vec<(usize, &'n [u8])>,
}

impl<'n> Places<'n> {
    fn open(source: &Branch, target: &Branch, names: &'n [PoolPath]) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let open = |branch: &Branch, dir| match beneath::open(branch.root(), dir, flags) {
            // Moved, and what is under construction in it with it.
            Err(errno) if beneath::is_absent(errno) => Err(Errno::AGAIN),
            other => other,
        };
        let mut known: HashMap<&[u8], usize> = HashMap::new();
        let mut places = Places { dirs: Vec::new(), names: Vec::with_capacity(names.len()) };
        for (dir, name) in names.iter().map(|path| split(path)) {
            let index = match known.get(dir) {
                Some(index) => *index,
                None => {
                    places.dirs.push(Sides { source: open(source, dir)?, target: open(target, dir)? });
                    known.insert(dir, places.dirs.len() - 1);
                    places.dirs.len() - 1
                }
            };
            places.names.push((index, name));
        }
        Ok(places)
    }

    /// Each name with its directory.
    fn iter(&self) -> impl Iterator<Item = (&Sides, &'n [u8])> {
        self.names.iter().map(|(dir, name)| (&self.dirs[*dir], *name))
    }
}

/// A file that chattr(1) has made unchangeable cannot lose its names, and one with set-once rules must not.
pub(crate) fn can_leave(attr: &Attr) -> bool {
    attr.is_regular() && !attr.is_immutable() && !attr.is_append_only()
}

impl<'s> FileMove<'s> {
    /// Notes, on the target, that a file is about to come. Before anything is made there, directories too.
    pub(crate) fn announce(
        source: &Branch,
        target: &Branch,
        names: &[PoolPath],
    ) -> Result<JournalEntry, Errno> {
        let plan = Plan { source: source.path.as_os_str().as_bytes().to_vec(), names: names.to_vec() };
        JournalEntry::write(target.root(), &plan)
    }

    /// Copies a file onto another branch, under a name that nobody is shown; on disk when this returns.
    ///
    /// `names` are all that the file has. The target holds their directories.
    ///
    /// Errors: `EINTR` when it is not `wanted` any more; `EBUSY`, as later steps, when somebody wants to write the file.
    pub(crate) fn copy(
        source: &Arc<Branch>,
        target: &Arc<Branch>,
        file: &'s LeasedFile,
        names: Vec<PoolPath>,
        note: JournalEntry,
        wanted: &dyn Fn() -> bool,
    ) -> Result<FileMove<'s>, Errno> {
        let first = names.first().map_or(&b""[..], |name| split(name).0);
        let replica = Replica::begin(target.root(), first, !names.is_empty(), note)?;
        let copied = stat::of(file.as_fd())?;
        if !can_leave(&copied) {
            return Err(Errno::PERM);
        }
        replica.fill(file, &copied, wanted)?;
        sync_way(target, &names)?;
        Ok(FileMove { source: source.clone(), target: target.clone(), file, copied, names, replica })
    }

    pub(crate) fn key(&self) -> Result<FileKey, Errno> {
        self.replica.key()
    }

    /// The copy, with flags of open(2).
    pub(crate) fn reopen(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.replica.reopen(flags)
    }

    /// Gives the copy the file's names on the target, and takes them from the source. When it fails everything
    /// is as it was. The caller sees to it that nobody uses a path meanwhile through the pool.
    ///
    /// Errors: `EAGAIN` when the file or its names have changed since they were looked at.
    pub(crate) fn switch(&mut self) -> Result<(), Errno> {
        self.verify()?;
        let names = std::mem::take(&mut self.names);
        let switched = Places::open(&self.source, &self.target, &names).and_then(|places| {
            let mut times = Vec::with_capacity(places.dirs.len());
            for dir in &places.dirs {
                times.push((stat::of(dir.source.as_fd())?, stat::of(dir.target.as_fd())?));
            }
            let switched = self.place(&places).and_then(|()| self.leave(&places));
            if switched.is_err() && self.withdraw(&places).is_err() {
                self.replica.keep_note();
            }
            // To the pool nothing has happened in these directories.
            for (dir, (source, target)) in places.dirs.iter().zip(&times) {
                let _ = set_times(dir.source.as_fd(), source);
                let _ = set_times(dir.target.as_fd(), target);
            }
            switched
        });
        self.names = names;
        switched
    }

    /// The names have changed: makes that last, and then forgets about it.
    pub(crate) fn finish(self) {
        let dirs: BTreeSet<&[u8]> = self.names.iter().map(|name| split(name).0).collect();
        for dir in dirs {
            let dir = beneath::open(self.source.root(), dir, OFlags::RDONLY | OFlags::DIRECTORY);
            if let Err(errno) = dir.and_then(rustix::fs::fsync) {
                tracing::debug!("a directory that a file has left could not be synced: {errno}");
            }
        }
    }

    /// Errors unless the copy is one of the file as it is now.
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
        let rest = |attr: &Attr| (attr.ctime, attr.atime, attr.mode, attr.uid, attr.gid);
        if rest(&now) != rest(&self.copied) {
            // Somebody has changed what a change of the data would not show.
            self.replica.copy_metadata(self.file.as_fd(), &now)?;
            self.copied = now;
        }
        Ok(())
    }

    /// All names on the target, on disk.
    fn place(&mut self, places: &Places<'_>) -> Result<(), Errno> {
        let mut names = places.iter();
        let Some((first, name)) = names.next() else { return Ok(()) };
        if stat::of(first.target.as_fd())?.key() != stat::of(self.replica.dir())?.key() {
            return Err(Errno::AGAIN);
        }
        names.try_for_each(|(dir, name)| self.replica.link(dir.target.as_fd(), name))?;
        self.replica.place(name)?;
        places.dirs.iter().try_for_each(|dir| rustix::fs::fsync(&dir.target))
    }

    /// Takes all names from the source, or none.
    fn leave(&mut self, places: &Places<'_>) -> Result<(), Errno> {
        for (gone, (dir, name)) in places.iter().enumerate() {
            let unlink = |()| rustix::fs::unlinkat(&dir.source, name, AtFlags::empty());
            let errno = match self.file.check().and_then(unlink) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(errno) => errno,
            };
            let (file, follow) = (ProcPath::of(self.file), AtFlags::SYMLINK_FOLLOW);
            let back = places.iter().take(gone).try_for_each(|(dir, name)| {
                rustix::fs::linkat(rustix::fs::CWD, file.as_bytes(), &dir.source, name, follow)
            });
            if back.is_ok() {
                return Err(errno);
            }
            // The target has all, so that is where the file is. The next mount tries again.
            tracing::error!("a file that has moved to another branch keeps names on the old one: {errno}");
            self.replica.keep_note();
            return Ok(());
        }
        Ok(())
    }

    /// Takes the copy's names away again, as far as they are its own.
    fn withdraw(&self, places: &Places<'_>) -> Result<(), Errno> {
        let key = self.replica.key()?;
        places.iter().try_for_each(|(dir, name)| match stat::at(&dir.target, name) {
            Ok(found) if found.key() == key => rustix::fs::unlinkat(&dir.target, name, AtFlags::empty()),
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

    struct Two {
        home: tempfile::TempDir,
        branches: Branches,
    }

    impl Two {
        /// `d/f` on the first, and `d` on the second branch; times of all are long past.
        fn new() -> Two {
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
            Two { home, branches }
        }

        fn attr(&self, path: &str) -> Attr {
            stat::at(rustix::fs::CWD, self.home.path().join(path).as_os_str().as_bytes()).unwrap()
        }

        fn still(&self) -> LeasedFile {
            let root = self.branches.as_slice()[0].root();
            LeasedFile::hold(beneath::open(root, b"d/f", OFlags::RDONLY | OFlags::NOATIME).unwrap()).unwrap()
        }

        fn copied<'s>(&self, file: &'s LeasedFile) -> FileMove<'s> {
            let [a, b] = self.branches.as_slice() else { panic!("two branches") };
            let names = vec![PoolPath::from_slice(b"d/f")];
            let note = FileMove::announce(a, b, &names).unwrap();
            FileMove::copy(a, b, file, names, note, &|| true).unwrap()
        }

        /// The names in the directory on both branches, and in the roots.
        fn names(&self) -> [usize; 4] {
            ["a/d", "b/d", "a", "b"].map(|dir| fs::read_dir(self.home.path().join(dir)).unwrap().count())
        }
    }

    #[test]
    fn a_move_preserves_times_of_files_and_directories() {
        let two = Two::new();
        let before = [two.attr("a/d/f"), two.attr("a/d"), two.attr("b/d")];
        let still = two.still();
        let mut carry = two.copied(&still);
        assert_eq!(two.names(), [1, 1, 1, 2], "a copy aside, and a note");
        carry.switch().unwrap();
        assert_eq!(two.names(), [0, 1, 1, 2], "the note stays until the old name is gone from the disk");
        carry.finish();
        assert_eq!(two.names(), [0, 1, 1, 1]);
        let after = [two.attr("b/d/f"), two.attr("a/d"), two.attr("b/d")];
        assert_eq!(before.map(|attr| attr.mtime), after.map(|attr| attr.mtime));
        assert_eq!(before[0].atime, after[0].atime);
    }

    /// What has changed is not the file that was copied, whatever it is that has.
    #[test]
    fn changes_during_the_copy_are_not_lost() {
        type Change = fn(&std::path::Path);
        const MOVES: Result<(), Errno> = Ok(());
        const STAYS: Result<(), Errno> = Err(Errno::BUSY);
        const CHANGED: Result<(), Errno> = Err(Errno::AGAIN);
        let table: [(&str, Result<(), Errno>, Change); 8] = [
            ("opened for writing", STAYS, |home| {
                let nonblocking = OFlags::WRONLY | OFlags::NONBLOCK;
                let opened = rustix::fs::open(home.join("a/d/f"), nonblocking, rustix::fs::Mode::empty());
                assert_eq!(opened.unwrap_err(), Errno::AGAIN, "it has to wait");
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
            let two = Two::new();
            let still = two.still();
            let mut carry = two.copied(&still);
            change(two.home.path());
            assert_eq!(carry.switch(), expected, "{what}");
            drop(carry);
            let moves = expected.is_ok();
            assert_eq!(two.home.path().join("b/d/f").exists(), moves, "{what}");
            if what == "mode" {
                assert_eq!(two.attr("b/d/f").mode & 0o777, 0o421);
            }
            let hidden = |dir: &str| {
                let entries = fs::read_dir(two.home.path().join(dir)).into_iter().flatten();
                entries.filter(|e| e.as_ref().unwrap().file_name().as_bytes().starts_with(b".")).count()
            };
            assert_eq!(["a", "b", "a/d", "b/d", "b/e"].map(hidden), [0; 5], "{what}");
        }
    }

    /// A name that somebody has taken on the other branch is not replaced.
    #[test]
    fn a_move_replaces_no_existing_name() {
        let two = Two::new();
        let still = two.still();
        let mut carry = two.copied(&still);
        fs::write(two.home.path().join("b/d/f"), "another").unwrap();
        assert_eq!(carry.switch(), Err(Errno::EXIST));
        drop(carry);
        assert_eq!(fs::read_to_string(two.home.path().join("a/d/f")).unwrap(), "content");
        assert_eq!(fs::read_to_string(two.home.path().join("b/d/f")).unwrap(), "another");
        assert_eq!(two.names(), [1, 1, 1, 1]);
    }
}
