//! Bringing a branch up to date: the changes of names that it has missed, one after the other.
//!
//! It may end at any step, and begins again after the last change that it has noted here to be under way. To clear a name twice
//! does no harm as long as nothing gets that name in between, so only other changes are noted, before they are made.

use super::attributes::OwedAttributes;
use super::log::{Change, Log, Step};
use crate::fs::beneath;
use crate::fs::reserved::ASIDE;
use crate::fs::stat::{self, Attr};
use crate::relocate::{aside, clone_dirs, copy_metadata, remove_leftovers, set_times};
use canopy_base::path::split;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;

pub(super) struct Replay<'r> {
    /// The root of the branch.
    pub(super) root: BorrowedFd<'r>,
    /// Those of branches that are up to date. Missing directories get the attributes that they have there.
    pub(super) others: &'r [BorrowedFd<'r>],
    /// Those of branches on which the changes were made.
    pub(super) owing: &'r [BorrowedFd<'r>],
    pub(super) owed: OwedAttributes,
    pub(super) log: &'r Log,
    /// Called before everything that changes the branch; an error ends the work there.
    pub(super) step: &'r mut dyn FnMut() -> Result<(), Errno>,
}

/// A name that the branch has.
struct PresentName {
    dir: OwnedFd,
    attr: Attr,
}

impl Replay<'_> {
    /// Makes the changes, by their numbers. On disk when it returns. Returns how many names have given way.
    pub(super) fn run(mut self, changes: &BTreeMap<u64, Change>) -> Result<usize, Errno> {
        let mut set_aside = 0;
        let begun = self.log.step();
        let first = begun.map_or(0, |step| step.at);
        for (_, change) in changes.range(..first) {
            self.owed.follow(change);
        }
        for (at, change) in changes.range(first..) {
            set_aside += match change {
                Change::Attributes(_) => 0,
                Change::Clear(path) => self.clear(path, *at, true)?,
                Change::MakeDir(path) => self.clear(path, *at, false)?,
                Change::Rename(old, new) | Change::Link(old, new) | Change::Exchange(old, new) => self
                    .change(change, (old, new), *at, begun.filter(|step| step.at == *at && step.ino != 0))?,
            };
            self.owed.follow(change);
        }
        self.take_attributes()?;
        self.sync()?;
        Ok(set_aside)
    }

    /// Gives directories the attributes that they have where these were changed. What has happened to them since was done here,
    /// too, so they have the same paths. Times last, and from the bottom.
    fn take_attributes(&mut self) -> Result<(), Errno> {
        let owed = std::mem::take(&mut self.owed);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        for path in owed.paths().rev() {
            let found = self.owing.iter().find_map(|other| beneath::open(*other, path, flags).ok());
            let (Some(right), Ok(own)) = (found, beneath::open(self.root, path, flags)) else { continue };
            let attr = stat::of(right.as_fd())?;
            (self.step)()?;
            canopy_sys::creds::as_daemon()?;
            copy_metadata(right.as_fd(), own.as_fd(), &attr)?;
            set_times(own.as_fd(), &attr)?;
        }
        Ok(())
    }

    fn find(&self, path: &[u8]) -> Result<Option<PresentName>, Errno> {
        let (dir, name) = split(path);
        let found = beneath::open(self.root, dir, OFlags::RDONLY | OFlags::DIRECTORY)
            .and_then(|dir| Ok(PresentName { attr: stat::at(&dir, name)?, dir }));
        match found {
            Err(errno) if beneath::is_absent(errno) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Makes a change that leads from one name to another, which may have been begun before.
    fn change(
        &mut self,
        change: &Change,
        (old, new): (&[u8], &[u8]),
        at: u64,
        begun: Option<Step>,
    ) -> Result<usize, Errno> {
        let (source, target) = (self.find(old)?, self.find(new)?);
        let ino = |found: &Option<PresentName>| found.as_ref().map_or(0, |found| found.attr.ino);
        // Before it was made, the inode had its name. Only clearing names can have followed, which is done again.
        let has_been_made = |step: Step| match change {
            Change::Link(..) => ino(&source) != step.ino || ino(&target) == step.ino,
            _ if step.backwards => ino(&target) != step.ino,
            _ => ino(&source) != step.ino,
        };
        if begun.is_some_and(has_been_made) {
            return Ok(0);
        }
        match (change, source, target) {
            // Here, the other name is the one that leads to something.
            (Change::Exchange(..), None, Some(target)) => self.rename((new, target), old, (at, true)),
            (Change::Exchange(..), Some(source), Some(target)) => {
                self.begin(Step { at, ino: source.attr.ino, backwards: false })?;
                let names = (split(old).1, split(new).1);
                rustix::fs::renameat_with(&source.dir, names.0, &target.dir, names.1, RenameFlags::EXCHANGE)?;
                Ok(0)
            }
            (Change::Link(..), Some(source), _) if !source.attr.is_dir() => {
                let cleared = self.clear(new, at, true)?;
                let dir = self.parents(split(new).0)?;
                self.begin(Step { at, ino: source.attr.ino, backwards: false })?;
                rustix::fs::linkat(&source.dir, split(old).1, &dir, split(new).1, AtFlags::empty())?;
                Ok(cleared)
            }
            (Change::Rename(..) | Change::Exchange(..), Some(source), _) => {
                self.rename((old, source), new, (at, false))
            }
            // What has the name now was never here.
            (Change::Rename(..) | Change::Link(..), ..) => self.clear(new, at, true),
            _ => Ok(0),
        }
    }

    fn rename(
        &mut self,
        (old, source): (&[u8], PresentName),
        new: &[u8],
        (at, backwards): (u64, bool),
    ) -> Result<usize, Errno> {
        let cleared = self.clear(new, at, true)?;
        let dir = self.parents(split(new).0)?;
        self.begin(Step { at, ino: source.attr.ino, backwards })?;
        rustix::fs::renameat(&source.dir, split(old).1, &dir, split(new).1)?;
        Ok(cleared)
    }

    /// Notes what is about to be made, after all that was made before.
    fn begin(&mut self, step: Step) -> Result<(), Errno> {
        self.log.begin_step(step)?;
        self.sync()?;
        (self.step)()
    }

    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(beneath::open(self.root, b"", OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// Frees a name. Returns how many were set aside for that. Without `dirs`, a directory keeps it.
    fn clear(&mut self, path: &[u8], at: u64, dirs: bool) -> Result<usize, Errno> {
        let Some(PresentName { dir, attr }) = self.find(path)? else { return Ok(0) };
        let name = split(path).1;
        if attr.is_dir() {
            if !dirs {
                return Ok(0);
            }
            (self.step)()?;
            remove_leftovers(beneath::subdir(&dir, name)?.as_fd());
            match rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR) {
                Ok(()) => return Ok(0),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        } else if attr.nlink > 1 {
            // What it holds has another name here.
            (self.step)()?;
            rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
            return Ok(1);
        }
        let aside = self.directory(&aside::place(path, at))?;
        (self.step)()?;
        aside::keep(dir.as_fd(), name, aside.as_fd())?;
        Ok(1)
    }

    /// Opens a directory. What is missing of it is made as it is on another branch.
    fn parents(&mut self, path: &[u8]) -> Result<OwnedFd, Errno> {
        for other in self.others {
            match clone_dirs(*other, self.root, path, &|_, _| true) {
                Err(Errno::NOENT) => {}
                cloned => {
                    cloned?;
                    break;
                }
            }
        }
        // None has it any more: it was renamed later, and so will this one.
        self.directory(path)
    }

    fn directory(&mut self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let Self { root, owed, step, .. } = self;
        aside::directory(*root, path, &mut |made| {
            step()?;
            if !made.starts_with(ASIDE) {
                owed.add(made);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_base::path::PoolPath;
    use rustix::fs::Mode;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    struct Disk {
        home: tempfile::TempDir,
        root: OwnedFd,
    }

    impl Disk {
        /// Files hold their paths; those with two, parted by "=", are hard links.
        fn with(paths: &[&str]) -> Disk {
            let home = tempfile::tempdir_in("/dev/shm").unwrap();
            for path in paths {
                let (path, link) = path.split_once('=').unwrap_or((path, ""));
                let at = home.path().join(path);
                fs::create_dir_all(at.parent().unwrap()).unwrap();
                match path.strip_suffix('/') {
                    Some(_) => fs::create_dir_all(&at).unwrap(),
                    None => fs::write(&at, path).unwrap(),
                }
                if !link.is_empty() {
                    fs::hard_link(at, home.path().join(link)).unwrap();
                }
            }
            let root = rustix::fs::open(home.path(), OFlags::PATH, Mode::empty()).unwrap();
            Disk { home, root }
        }

        /// Replays, and is killed before the change of this number that it makes.
        fn replay(&self, changes: &BTreeMap<u64, Change>, steps: usize) -> Result<usize, Errno> {
            let log = Log::open(self.root.as_fd()).unwrap();
            let mut left = steps;
            let mut step = || {
                left = left.checked_sub(1).ok_or(Errno::INTR)?;
                Ok(())
            };
            let owed = OwedAttributes::default();
            let root = self.root.as_fd();
            Replay { root, others: &[], owing: &[], owed, log: &log, step: &mut step }.run(changes)
        }

        fn mode(&self, path: &str) -> u32 {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(self.home.path().join(path)).unwrap().mode() & 0o7777
        }

        /// All files with what they hold, and directories that hold nothing; those set aside without their numbers.
        fn tree(&self) -> Vec<String> {
            fn walk(dir: &Path, path: &str, into: &mut Vec<String>) {
                let mut empty = true;
                for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                    let name = entry.file_name().into_string().unwrap();
                    if name == ".canopy-journal" {
                        continue;
                    }
                    empty = false;
                    let below = format!("{path}/{name}");
                    let below = below.trim_start_matches('/');
                    if entry.file_type().unwrap().is_dir() {
                        walk(&entry.path(), below, into);
                    } else {
                        into.push(format!("{below}: {}", fs::read_to_string(entry.path()).unwrap()));
                    }
                }
                if empty && !path.starts_with(".canopy-aside") {
                    into.push(format!("{path}/"));
                }
            }
            let mut tree = Vec::new();
            walk(self.home.path(), "", &mut tree);
            for path in &mut tree {
                if let Some((number, rest)) =
                    path.strip_prefix(".canopy-aside/").and_then(|it| it.split_once('/'))
                {
                    assert!(number.parse::<u64>().is_ok(), "{path}");
                    *path = format!(".canopy-aside/{rest}");
                }
            }
            tree.sort();
            tree
        }
    }

    fn changes(text: &str) -> BTreeMap<u64, Change> {
        let path = |text: &str| PoolPath::from_slice(text.as_bytes());
        let parse = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["clear", one] => Change::Clear(path(one)),
                ["dir", one] => Change::MakeDir(path(one)),
                ["mode", one] => Change::Attributes(path(one)),
                ["rename", one, other] => Change::Rename(path(one), path(other)),
                ["link", one, other] => Change::Link(path(one), path(other)),
                ["exchange", one, other] => Change::Exchange(path(one), path(other)),
                _ => panic!("{line}"),
            }
        };
        (10..).zip(text.split(';').map(parse)).collect()
    }

    /// What the branch holds, what has changed without it, and what it holds then.
    const TABLE: [(&[&str], &str, &[&str]); 17] = [
        (&["d/f", "g"], "clear d/f", &[".canopy-aside/d/f: d/f", "d/", "g: g"]),
        (&["d/f=d/g"], "clear d/g", &["d/f: d/f"]),
        (&["d/f=d/g"], "clear d/g; clear d/f; clear d", &[".canopy-aside/d/f: d/f"]),
        (&["f"], "rename f d/g; clear f", &["d/g: f"]),
        (&["x/f", "y"], "clear y; dir y; rename x y/z", &[".canopy-aside/y: y", "y/z/f: x/f"]),
        (&["new", "old"], "rename old new", &[".canopy-aside/new: new", "new: old"]),
        // What is renamed has never been here.
        (&["g", "f"], "rename t g", &[".canopy-aside/g: g", "f: f"]),
        (
            &["p/x/f"],
            "clear p/x/f; clear p/x; dir n; dir n/x; clear n/x/f; rename n/x p/x",
            &[".canopy-aside/p/x/f: p/x/f", "p/"],
        ),
        // Names that wander.
        (&["a", "b", "c"], "rename a t; rename b a; rename c b; rename t c", &["a: b", "b: c", "c: a"]),
        (&["a"], "clear x; rename a x; clear a; rename x y; clear x", &["y: a"]),
        (&["a", "b"], "exchange a b; exchange a b; exchange b a", &["a: b", "b: a"]),
        (&["a", "d/b"], "exchange a c; exchange d e; clear a", &["c: a", "e/b: d/b"]),
        (&["b"], "exchange a b", &["a: b"]),
        (&["b", "d/x"], "exchange a b; exchange a b; exchange d e", &["b: b", "e/x: d/x"]),
        (&["f"], "link f g; clear f; link g h; clear g", &["h: f"]),
        (&["f"], "link f g; clear g; link f h; clear f; clear h", &[".canopy-aside/h: f"]),
        (&["f", "g"], "link f g; clear f", &[".canopy-aside/g: g", "g: f"]),
    ];

    #[test]
    fn what_a_branch_has_missed_is_made_up_for_whenever_it_is_interrupted() {
        for (before, text, after) in TABLE {
            let changes = changes(text);
            let disk = Disk::with(before);
            disk.replay(&changes, usize::MAX).unwrap_or_else(|errno| panic!("{text}: {errno}"));
            assert_eq!(disk.tree(), after, "{text}");
            for first in 0.. {
                let disk = Disk::with(before);
                if disk.replay(&changes, first).is_ok() {
                    assert!(first > 0, "{text}: nothing was changed");
                    break;
                }
                for second in [0, 1, 2, usize::MAX] {
                    let _ = disk.replay(&changes, second);
                }
                assert_eq!(disk.tree(), after, "{text}: killed at {first}");
                // Once more, as if its end had not been noted on the others.
                disk.replay(&changes, usize::MAX).unwrap();
                assert_eq!(disk.tree(), after, "{text}: once more");
            }
        }
    }

    /// Whatever it was called when its attributes were changed, a directory gets them where it is now.
    #[test]
    fn directories_get_the_attributes_that_were_set_without_the_branch() {
        let (here, there) =
            (Disk::with(&["a/", "b/", "x/y/f", "z/"]), Disk::with(&["c/", "b/", "n/y/f", "z/"]));
        for (path, mode) in [("c", 0o711), ("b", 0o722), ("n", 0o733), ("n/y", 0o744), ("z", 0o701)] {
            fs::set_permissions(there.home.path().join(path), PermissionsExt::from_mode(mode)).unwrap();
        }
        let before = here.mode("z");
        let changes = changes("mode a; rename a c; mode b; mode x/y; rename x m; rename m n");
        let log = Log::open(here.root.as_fd()).unwrap();
        let (root, owing, owed) = (here.root.as_fd(), [there.root.as_fd()], OwedAttributes::default());
        Replay { root, others: &owing, owing: &owing, owed, log: &log, step: &mut || Ok(()) }
            .run(&changes)
            .unwrap();
        let found = ["c", "b", "n", "n/y", "z"].map(|path| here.mode(path));
        assert_eq!(found, [0o711, 0o722, 0o733, 0o744, before]);
    }

    #[test]
    fn nothing_is_set_aside_where_others_could_take_it() {
        let disk = Disk::with(&["f", ".canopy-aside/"]);
        let aside = disk.home.path().join(".canopy-aside");
        fs::set_permissions(&aside, PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(disk.replay(&changes("clear f"), usize::MAX), Err(Errno::PERM));
        assert_eq!(fs::read_to_string(disk.home.path().join("f")).unwrap(), "f");
        fs::set_permissions(&aside, PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(disk.replay(&changes("clear f"), usize::MAX), Ok(1));
    }
}
