//! What clients remove is in the trash, and comes back from it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use canopy_testkit::model::{Access, Change, On, Op, Outcome, RenameHow, Subject};
use canopy_testkit::tree::{Entry, Kind};
use canopy_testkit::{PATIENCE, cmd::wait_until};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, XattrFlags, lsetxattr, utimensat};
use rustix::io::Errno;

use super::Driver;
use crate::compare::{self, is_current, is_within};
use crate::plan::TOP;
use crate::script::Trashing;
use crate::trash::{self, Came, Found, Going};

/// The bytes of a file that fills the trash.
const LITTER: usize = 16 << 20;
/// How much the free space of the pool may change when the trash is emptied: directories and the like.
const SLACK: u64 = 16 << 20;

impl Driver {
    /// What an operation removes, replaces or empties, if the trash must keep that.
    pub(super) fn going(&mut self, op: &Op) -> Option<Going> {
        let (path, overwritten) = match *op {
            Op::Unlink { path } | Op::Rmdir { path } => (path, false),
            Op::Rename { to, how: RenameHow::Replace, from } if from != to => (to, true),
            Op::Open { path, truncate: true, access: Access::Write | Access::Both, .. } => (path, true),
            Op::Change { on: On::Path(path), change: Change::Size(0) } => (path, true),
            _ => return None,
        };
        let going = self.going_at(path, overwritten)?;
        let is_emptied = matches!(op, Op::Open { .. } | Op::Change { .. });
        let is_possible = match going.entry.kind {
            Kind::File => !is_emptied || going.entry.size > 0,
            Kind::Symlink => !is_emptied,
            Kind::Dir => matches!(op, Op::Rmdir { .. }),
            _ => false,
        };
        is_possible.then_some(going)
    }

    pub(super) fn going_at(&mut self, path: &'static str, overwritten: bool) -> Option<Going> {
        if !self.world.plan.trash_keeps(path.as_bytes(), overwritten) {
            return None;
        }
        let entry = compare::expected(&mut self.world).ok()?.get(path)?.clone();
        if entry.nlink > 1 {
            return None;
        }
        let is_slot = |slot| {
            let same = Op::Same { on: On::File(slot), path };
            self.world.reference.apply(&same) == Outcome::Yes(true)
        };
        let is_open = (0..canopy_testkit::model::FILE_SLOTS).any(is_slot);
        Some(Going { path: path.into(), entry, is_open, is_crowded: self.now.small || self.littered })
    }

    /// Checks that what has been removed is in the trash.
    pub(super) fn gone(&mut self, going: &Going) -> Result<(), String> {
        let all = trash::walk(&self.world);
        let name = String::from_utf8_lossy(&going.path).into_owned();
        let others = match self.kept.came(going, &all) {
            Ok(()) => return Ok(()),
            Err(Came::Twice) if self.now.dying || self.now.is_sick() || self.gone.is_some() => return Ok(()),
            Err(Came::Twice) => return Err(format!("{name} is in the trash twice")),
            Err(Came::Nothing(others)) => others,
        };
        let log = self.world.pool().log();
        let said = format!("{TOP}/{name}: removed without being kept");
        let said = log.lines().rev().find(|line| line.contains(&said)).unwrap_or_default();
        let full = ["No space left", "File too large", "Disk quota", "(os error 28)", "(os error 27)"];
        // What is emptied is copied there, into a file without a name; a disk may refuse to move what goes (docs/trash.md).
        if (self.now.failing || self.now.refusing) && said.contains("(os error 5)") {
            return Ok(());
        }
        if self.now.mirror && said.contains("(os error 95)") {
            return Ok(());
        }
        if going.is_crowded && (said.is_empty() || full.iter().any(|why| said.contains(why))) {
            return Ok(());
        }
        Err(format!("{name} is gone, and not in the trash: {:?}\n{said}\nof its path:{others}", going.entry))
    }

    pub(super) fn trashing(&mut self, what: Trashing, choice: usize) -> Result<(), String> {
        if self.world.plan.trash.is_empty() {
            return Ok(());
        }
        match what {
            Trashing::List => self.list_trash(),
            Trashing::Restore => self.restore(choice),
            Trashing::Empty => self.empty_trash(Some(choice)),
            Trashing::EmptyAll => self.empty_trash(None),
            Trashing::Litter => self.litter(choice),
        }
    }

    /// Checks that everything is still there that was kept.
    pub(super) fn check_trash(&mut self) -> Result<Vec<Found>, String> {
        let all = trash::walk(&self.world);
        for kept in self.kept.missing(&self.world, &all) {
            let found = &kept.found;
            // The oldest makes room for others.
            let is_crowded = self.littered || Some(found.disk) == self.world.plan.small;
            if !is_crowded {
                return Err(format!("{found:?} is no longer in the trash"));
            }
            self.kept.forget(|known| known.is(found));
        }
        Ok(all)
    }

    fn list_trash(&mut self) -> Result<(), String> {
        self.calm()?;
        self.check_trash()?;
        let shares = |found: &Found| found.entry.kind != Kind::Dir && found.entry.nlink > 1;
        wait_until(PATIENCE, || !trash::walk(&self.world).iter().any(shares));
        let all = trash::walk(&self.world);
        if let Some(found) = all.iter().find(|found| shares(found)) {
            return Err(format!("the trash shares a file with the pool: {found:?}"));
        }
        let done = self.world.run(&format!("trash list POOL {TOP} --json"))?;
        let listed = json(&done.stdout)?;
        let at = |item: &serde_json::Value| item["at"].as_str().map(PathBuf::from);
        let listed: Option<BTreeSet<PathBuf>> =
            listed["kept"].as_array().and_then(|kept| kept.iter().map(at).collect());
        let listed = listed.ok_or_else(|| done.describe())?;
        let leaves = |all: &[Found]| -> BTreeSet<PathBuf> {
            all.iter().filter(|found| found.is_leaf).map(|found| found.at(&self.world)).collect()
        };
        let (before, after) = (leaves(&all), leaves(&trash::walk(&self.world)));
        // What a rule keeps for a second goes meanwhile.
        let unlisted = before.intersection(&after).filter(|at| !listed.contains(*at));
        // A kill leaves what was made for a file that had not come yet. The top is in no tree.
        let is_top = |at: &&PathBuf| at.ancestors().nth(2).is_some_and(|above| above.ends_with(trash::DIR));
        let unseen = listed.iter().filter(|at| !before.contains(*at) && !after.contains(*at) && !is_top(at));
        let differ: Vec<_> = unlisted.chain(unseen).collect();
        if !differ.is_empty() {
            return Err(format!("what is listed is not what is there: {differ:?}\n{}", done.describe()));
        }
        Ok(())
    }

    /// Has something come back, in the plain directory as well.
    fn restore(&mut self, choice: usize) -> Result<(), String> {
        if self.gone.is_some() || self.now.cannot_change() {
            return Ok(());
        }
        self.calm()?;
        self.close();
        let before = self.check_trash()?;
        let files: Vec<&Found> = before.iter().filter(|found| found.is_leaf).collect();
        if files.is_empty() {
            return Ok(());
        }
        let chosen = files[choice % files.len()];
        let expected = compare::expected(&mut self.world)?;
        let name = String::from_utf8_lossy(&chosen.path).into_owned();
        let is_free = expected.get(&chosen.path).is_none()
            && Path::new(&name)
                .ancestors()
                .skip(1)
                .filter_map(|dir| expected.get(dir.as_os_str().as_encoded_bytes()))
                .all(|entry| entry.kind == Kind::Dir);
        let done = self.world.run(&format!("trash restore POOL {TOP}/{name} --yes --json"))?;
        let after = trash::walk(&self.world);
        // What is kept for a second only may go meanwhile.
        let stays = |found: &&Found| {
            after.iter().any(|other| other.is(found))
                || self.world.plan.trash_goes_soon(&found.path) && !is_told(&done.stdout, &found.path)
        };
        let back: Vec<Found> = before.iter().filter(|found| !stays(found)).cloned().collect();
        let came = |found: &&Found| found.path == chosen.path;
        let is_free = is_free && !self.world.plan.trash_goes_soon(&chosen.path);
        if is_free && !back.iter().any(|found| came(&found)) && !(self.now.small || self.littered) {
            return Err(format!("{name} is not restored from {chosen:?}: {}", done.describe()));
        }
        for found in back.iter().filter(|found| found.is_leaf) {
            let path = String::from_utf8_lossy(&found.path).into_owned();
            if !is_within(&found.path, &chosen.path) {
                return Err(format!("{path} was to stay in the trash: {}", done.describe()));
            }
            if self.kept.came_before_another(found, &before) {
                return Err(format!("an older {path} is restored: {found:?}"));
            }
            if found.entry.kind != Kind::Dir && expected.get(&found.path).is_some() {
                return Err(format!("{path} is restored over what is there: {}", done.describe()));
            }
            self.bring(&path).map_err(|why| format!("{path} was restored: {why}"))?;
            let now = compare::expected(&mut self.world)?;
            let is_alike = now.get(&found.path).is_some_and(|entry| is_restored(&found.entry, entry));
            if !is_alike {
                return Err(format!(
                    "{path} is restored as {:?}, and was {:?}",
                    now.get(&found.path),
                    found.entry
                ));
            }
        }
        self.kept.forget(|known| back.iter().any(|found| found.is(known)));
        self.compare().map_err(|what| format!("{name} is restored: {what}\n{}", done.describe()))
    }

    /// Makes in the plain directory what the pool has under a path, and what is above that.
    fn bring(&self, path: &str) -> std::io::Result<()> {
        let all: Vec<&Path> =
            Path::new(path).ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        for path in all.into_iter().rev() {
            let (from, to) = (self.world.at(path), self.world.beside(path));
            if to.symlink_metadata().is_ok() {
                continue;
            }
            copy(&from, &to)?;
        }
        Ok(())
    }

    fn empty_trash(&mut self, choice: Option<usize>) -> Result<(), String> {
        self.calm()?;
        let before = self.check_trash()?;
        let leaves: Vec<&Found> = before.iter().filter(|found| found.is_leaf).collect();
        let path = match choice {
            None => Vec::new(),
            Some(_) if leaves.is_empty() => return Ok(()),
            Some(choice) => leaves[choice % leaves.len()].path.clone(),
        };
        let free = || {
            rustix::fs::statvfs(self.world.pool().path()).map_or(0, |space| space.f_bavail * space.f_frsize)
        };
        let had = free();
        let word = if path.is_empty() {
            String::new()
        } else {
            format!(" {TOP}/{}", String::from_utf8_lossy(&path))
        };
        let done = self.world.run(&format!("trash empty POOL{word} --yes"))?;
        let after = trash::walk(&self.world);
        let left = after.iter().find(|found| found.is_leaf && is_within(&found.path, &path));
        let can_all = !self.now.cannot_change();
        if let Some(found) = left.filter(|_| can_all) {
            return Err(format!("{found:?} is still in the trash: {}", done.describe()));
        }
        self.kept.forget(|known| is_within(&known.path, &path) && !after.iter().any(|found| found.is(known)));
        let is_counted = path.is_empty() && can_all && !self.now.mirror && self.gone.is_none();
        if is_counted && !wait_until(PATIENCE, || free().abs_diff(had) <= SLACK) {
            return Err(format!("{had} bytes were free, and with an empty trash {}", free()));
        }
        self.check_trash().map(drop)
    }

    /// Fills disks with what is removed.
    fn litter(&mut self, choice: usize) -> Result<(), String> {
        self.littered = true;
        let bytes = vec![b'x'; LITTER];
        let now = self.now;
        let is_allowed = |error: &std::io::Error| match error.kind() {
            ErrorKind::StorageFull => now.small,
            ErrorKind::ReadOnlyFilesystem => now.read_only || now.refusing,
            _ if now.refusing => true,
            // One of two copies cannot tell whether it is the newest.
            _ => now.unreadable && error.raw_os_error() == Some(Errno::BADMSG.raw_os_error()),
        };
        for number in 0..=choice % 12 {
            let path = self.world.pool().path().join(format!("litter{}", number % 3));
            let made = fs::write(&path, &bytes);
            match made.and_then(|()| fs::remove_file(&path)) {
                Err(error) if !is_allowed(&error) => {
                    return Err(format!("{}: {error}", path.display()));
                }
                Err(_) => drop(fs::remove_file(&path)),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

/// Whether something that was restored is what was in the trash.
fn is_restored(found: &Entry, entry: &Entry) -> bool {
    match found.kind {
        Kind::Dir => entry.kind == Kind::Dir,
        _ => is_current(found, entry),
    }
}

/// Whether a command has said that it restored a path below [`TOP`], or something above or below it.
fn is_told(text: &str, path: &[u8]) -> bool {
    let path = format!("{TOP}/{}", String::from_utf8_lossy(path));
    let told = json(text).unwrap_or_default();
    let restored = told["restored"].as_array().into_iter().flatten().filter_map(|path| path.as_str());
    restored.map(Path::new).any(|told| Path::new(&path).starts_with(told) || told.starts_with(&path))
}

fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{error}: {text}"))
}

/// Makes a copy of one name with all its attributes.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let meta = from.symlink_metadata()?;
    if meta.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else if meta.is_dir() {
        fs::create_dir(to)?;
    } else {
        fs::write(to, fs::read(from)?)?;
    }
    lchown(to, Some(meta.uid()), Some(meta.gid()))?;
    if meta.is_symlink() {
        return times(to, &meta);
    }
    fs::set_permissions(to, Permissions::from_mode(meta.mode() & 0o7777))?;
    for name in names(from)?.iter().filter(|name| !name.starts_with("user.canopy.")) {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(from, name.as_str(), value.as_mut_slice())?;
        lsetxattr(to, name.as_str(), &value[..len], XattrFlags::empty())?;
    }
    times(to, &meta)
}

fn names(path: &Path) -> std::io::Result<Vec<String>> {
    let mut list = vec![0_u8; 65_536];
    let len = rustix::fs::llistxattr(path, list.as_mut_slice())?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

fn times(path: &Path, meta: &fs::Metadata) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() },
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
