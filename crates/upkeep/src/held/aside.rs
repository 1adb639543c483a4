//! The hidden name that a surplus copy has between the two steps of its removal. Where a command was killed between them, the
//! next one finds the copy by it.
//!
//! The name has a digest of the copy's own name, for which there may be no room in it, and the copy's size and time. By
//! these a copy shows whether a client has written it meanwhile, which had found it before it was set aside.

use crate::pool_link::{BranchLink, PoolLink, UNDER_CONSTRUCTION};
use crate::survey::{Entry, FileCopy, list};
use canopy_sys::lease;
use rustix::fs::{AtFlags, Dir, FileType, OFlags, RenameFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Follows [`UNDER_CONSTRUCTION`].
const DEDUP: &str = "dedup.";
/// Hexadecimal digits of the digest.
const DIGITS: usize = 32;

/// Returns the name that a copy gets when it is set aside.
pub(crate) fn name(own: &OsStr, stat: &Stat) -> OsString {
    let (digest, state, process) = (digest(own), state(stat), std::process::id());
    let name = format!("{DEDUP}{digest}.{state}.{process}");
    OsStr::from_bytes(&[UNDER_CONSTRUCTION, name.as_bytes()].concat()).to_owned()
}

fn digest(name: &OsStr) -> String {
    blake3::hash(name.as_bytes()).to_hex().as_str()[..DIGITS].to_owned()
}

/// Size and time, as they are in the name.
fn state(stat: &Stat) -> String {
    format!("{:x}.{:x}.{:x}", stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// A copy that a command has set aside and not removed.
#[derive(Debug)]
pub(crate) struct Aside {
    /// Relative to the root of the pool.
    dir: PathBuf,
    name: OsString,
    pub(crate) copy: FileCopy,
    /// What the pool shows under its own name; `None` if nothing has a name with this digest.
    pub(crate) entry: Option<Entry>,
}

/// What becomes of a copy that was set aside.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Another branch has its file, so it is surplus.
    Surplus,
    /// A client has written it.
    Written,
}

/// Finds the copies that were set aside in a directory of the pool.
pub(crate) fn in_dir(pool: &PoolLink, dir: &Path) -> Vec<Aside> {
    let mut found = Vec::new();
    for (index, branch) in pool.branches.iter().enumerate() {
        // What cannot be read is reported by those who look for files.
        let _ = in_branch(branch, index, dir, &mut found);
    }
    if found.is_empty() {
        return found;
    }
    let entries = list(pool, dir, &mut |_, _| {});
    for aside in &mut found {
        let digest = aside.digest().to_owned();
        let is_own = |entry: &&Entry| entry.path.file_name().is_some_and(|name| self::digest(name) == digest);
        aside.entry = entries.iter().find(is_own).cloned();
    }
    found
}

fn in_branch(branch: &BranchLink, index: usize, dir: &Path, found: &mut Vec<Aside>) -> Result<(), Errno> {
    let prefix = [UNDER_CONSTRUCTION, DEDUP.as_bytes()].concat();
    let fd = branch.dir(dir)?;
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(&prefix)
            && let Ok(stat) = rustix::fs::statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        {
            let (copy, name) = (FileCopy { branch: index, stat }, OsStr::from_bytes(name).to_owned());
            found.push(Aside { dir: dir.to_owned(), name, copy, entry: None });
        }
    }
    Ok(())
}

impl Aside {
    /// The parts of the name after what all have.
    fn rest(&self) -> &str {
        let at = UNDER_CONSTRUCTION.len() + DEDUP.len();
        std::str::from_utf8(self.name.as_bytes()).ok().and_then(|name| name.get(at..)).unwrap_or_default()
    }

    fn digest(&self) -> &str {
        self.rest().split('.').next().unwrap_or_default()
    }

    /// Where the copy is now.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Returns what the copy is, or why nothing can be done about it.
    pub(crate) fn judge(&self) -> Result<(Verdict, &FileCopy), &'static str> {
        let Some(entry) = &self.entry else {
            return Err(
                "a dedup that was killed has left it, and nothing in the directory has its name any more",
            );
        };
        let is_there = entry.copies.iter().any(|copy| copy.branch == self.copy.branch);
        let is_other =
            |copy: &&FileCopy| copy.key() != self.copy.key() && copy.kind() == FileType::RegularFile;
        let other = entry.copies.iter().find(is_other);
        let was = self.rest().split_once('.').map_or("", |(_, rest)| rest);
        let is_unchanged = was.rsplit_once('.').is_some_and(|(was, _)| was == state(&self.copy.stat));
        match (is_unchanged, other) {
            (true, Some(other)) => Ok((Verdict::Surplus, other)),
            (false, Some(other)) if !is_there => Ok((Verdict::Written, other)),
            _ => Err("a dedup that was killed has left it, and its branch has another file of its name"),
        }
    }

    /// Removes the copy, or gives it its own name back, if nobody has it open. The directory keeps its times.
    pub(crate) fn settle(&self, branch: &BranchLink, found: &Verdict) -> Result<(), Errno> {
        if matches!(found, Verdict::Surplus) && self.copy.stat.st_nlink > 1 {
            // A link that was to replace the file, of another one that has its own name.
            return self.unlink_one_of_several(branch);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        // Also the command that has set it aside has it open, as long as that runs.
        let file = branch.open(&self.path(), flags)?;
        lease::take_alone(file.as_fd())?;
        let now = rustix::fs::fstat(&file)?;
        if (now.st_ino, state(&now)) != (self.copy.stat.st_ino, state(&self.copy.stat)) || now.st_nlink != 1 {
            return Err(Errno::STALE);
        }
        let fd = branch.dir(&self.dir)?;
        let before = rustix::fs::fstat(&fd)?;
        match (found, self.entry.as_ref().and_then(|entry| entry.path.file_name())) {
            (Verdict::Surplus, _) => rustix::fs::unlinkat(&fd, &self.name, AtFlags::empty())?,
            (Verdict::Written, Some(own)) => {
                rustix::fs::renameat_with(&fd, &self.name, &fd, own, RenameFlags::NOREPLACE)?;
            }
            (Verdict::Written, None) => return Err(Errno::NOENT),
        }
        set_times(fd.as_fd(), &before);
        Ok(())
    }

    fn unlink_one_of_several(&self, branch: &BranchLink) -> Result<(), Errno> {
        let fd = branch.dir(&self.dir)?;
        let before = rustix::fs::fstat(&fd)?;
        let now = rustix::fs::statat(&fd, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if now.st_ino != self.copy.stat.st_ino || now.st_nlink < 2 {
            return Err(Errno::STALE);
        }
        rustix::fs::unlinkat(&fd, &self.name, AtFlags::empty())?;
        set_times(fd.as_fd(), &before);
        Ok(())
    }
}

/// Gives a directory the times that it had.
pub(crate) fn set_times(dir: BorrowedFd<'_>, before: &Stat) {
    let times = Timestamps {
        last_access: Timespec { tv_sec: before.st_atime, tv_nsec: before.st_atime_nsec as _ },
        last_modification: Timespec { tv_sec: before.st_mtime, tv_nsec: before.st_mtime_nsec as _ },
    };
    // Users who do not own the directory cannot.
    let _ = rustix::fs::futimens(dir, &times);
}
