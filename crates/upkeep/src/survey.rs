//! Reading a pool's tree from its branches: every name, with the copies of it on each branch.

use crate::error::Error;
use crate::pool_link::{PoolLink, is_hidden};
use canopy_control::{CopyReport, OsText};
use rustix::fs::{AtFlags, Dir, FileType, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What one branch holds under a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileCopy {
    /// Index of the branch.
    pub(crate) branch: usize,
    pub(crate) stat: Stat,
}

impl FileCopy {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    pub(crate) fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// Bytes that it takes on the branch.
    pub(crate) fn used(&self) -> u64 {
        u64::try_from(self.stat.st_blocks).unwrap_or(0).saturating_mul(512)
    }

    /// Nanoseconds since 1970.
    pub(crate) fn modified(&self) -> i128 {
        i128::from(self.stat.st_mtime) * 1_000_000_000 + i128::from(self.stat.st_mtime_nsec)
    }

    /// Identifies the file among all filesystems.
    pub(crate) fn key(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }
}

/// One name of the pool's tree.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Relative to the root of the pool.
    pub(crate) path: PathBuf,
    /// In branch order; at least one.
    pub(crate) copies: Vec<FileCopy>,
}

impl Entry {
    /// Returns the first copy: what the pool shows, unless a policy says otherwise.
    pub(crate) fn first(&self) -> &FileCopy {
        &self.copies[0]
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.first().is_dir()
    }
}

/// Looks up one path on all branches. An error of a branch is returned with its path, and a branch that lacks the path is
/// left out.
pub(crate) fn look(pool: &PoolLink, path: &Path) -> (Vec<FileCopy>, Vec<(PathBuf, Errno)>) {
    let (mut copies, mut failed) = (Vec::new(), Vec::new());
    for (branch, link) in pool.branches.iter().enumerate() {
        match link.stat(path) {
            Ok(stat) => copies.push(FileCopy { branch, stat }),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NODEV) => {}
            Err(errno) => failed.push((link.path.join(path), errno)),
        }
    }
    (copies, failed)
}

/// What the daemon says of one copy of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Judged {
    pub(crate) branch: usize,
    /// It is up to date, as far as rules with copies know.
    pub(crate) current: bool,
    /// It is known to be a copy of the others.
    pub(crate) known: bool,
}

/// Asks the daemon which copies of a file are up to date. Where there is but one, or no file, there is nothing to ask.
///
/// # Errors
/// Why it cannot tell, and the branch whose copy is the cause, if one is.
pub(crate) fn judge(
    pool: &PoolLink,
    path: &Path,
    copies: &[FileCopy],
) -> Result<Vec<Judged>, (Option<usize>, Errno)> {
    let plain = |copy: &FileCopy| Judged { branch: copy.branch, current: true, known: false };
    if copies.len() < 2 || copies.iter().any(FileCopy::is_dir) {
        return Ok(copies.iter().map(plain).collect());
    }
    let index = |branch: &OsText| pool.branches.iter().position(|it| it.path == branch.to_path());
    let report = match pool.daemon.copies(path.as_os_str()) {
        Ok(report) => report,
        // A daemon of an older version does not know the question. Without a rule, all are alike.
        Err(_) if pool.placement().is_ok_and(|placement| !placement.knows_copies()) => {
            return Ok(copies.iter().map(plain).collect());
        }
        Err(errno) => return Err((None, errno)),
    };
    if let Some((number, branch)) = report.failed {
        let errno = canopy_sys::errno::from_raw(number);
        return Err((branch.as_ref().and_then(index), errno));
    }
    let said = |copy: &FileCopy| {
        let of = |it: &&CopyReport| index(&it.branch) == Some(copy.branch);
        report.copies.iter().find(of)
    };
    // What has come or gone since is not up to date for as long as nobody has said so.
    let judged = |copy: &FileCopy| {
        let (current, known) = said(copy).map_or((false, false), |it| (it.current, it.known));
        Judged { branch: copy.branch, current, known }
    };
    let judged: Vec<Judged> = copies.iter().map(judged).collect();
    if judged.iter().any(|copy| copy.current) { Ok(judged) } else { Err((None, Errno::AGAIN)) }
}

/// Returns the branches whose copies of a file are up to date, as far as rules with copies know: all, if none do, or if one
/// cannot tell. What cannot be judged is not old.
pub(crate) fn current(pool: &PoolLink, path: &Path, copies: &[FileCopy]) -> Vec<usize> {
    match judge(pool, path, copies) {
        Ok(judged) => judged.iter().filter(|copy| copy.current).map(|copy| copy.branch).collect(),
        Err(_) => copies.iter().map(|copy| copy.branch).collect(),
    }
}

/// Returns the copies that are up to date, on branches that the pool relies on.
pub(crate) fn up_to_date(pool: &PoolLink, path: &Path, copies: &[FileCopy]) -> Vec<FileCopy> {
    let current = current(pool, path, copies);
    let counts = |copy: &&FileCopy| {
        copy.kind() == FileType::RegularFile
            && current.contains(&copy.branch)
            && pool.branches[copy.branch].is_well
    };
    copies.iter().filter(counts).copied().collect()
}

/// Returns the disks that copies are on, as the filesystems of their branches.
pub(crate) fn disks_of(pool: &PoolLink, copies: &[FileCopy]) -> BTreeSet<u64> {
    copies.iter().filter_map(|copy| pool.branches[copy.branch].filesystem()).collect()
}

/// Lists a directory of the pool, in the order of the names.
pub(crate) fn list(pool: &PoolLink, dir: &Path, failed: &mut dyn FnMut(PathBuf, Errno)) -> Vec<Entry> {
    let mut names: BTreeMap<OsString, Vec<FileCopy>> = BTreeMap::new();
    for (branch, link) in pool.branches.iter().enumerate() {
        let mut read = || -> Result<(), Errno> {
            let fd = link.dir(dir)?;
            let mut entries = Dir::read_from(&fd)?;
            while let Some(entry) = entries.read() {
                let entry = entry?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") || is_hidden(dir, name.to_bytes()) {
                    continue;
                }
                match rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => {
                        let name = OsString::from_vec(name.to_bytes().to_vec());
                        names.entry(name).or_default().push(FileCopy { branch, stat });
                    }
                    // Removed since.
                    Err(Errno::NOENT) => {}
                    Err(errno) => failed(link.path.join(dir).join(OsStr::from_bytes(name.to_bytes())), errno),
                }
            }
            Ok(())
        };
        match read() {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NODEV) => {}
            Err(errno) => failed(link.path.join(dir), errno),
        }
    }
    names.into_iter().map(|(name, copies)| Entry { path: dir.join(name), copies }).collect()
}

/// Visits some files and directories of the pool, none within another, and what is below those for which `visit` returns true.
/// Returns what could not be looked at.
///
/// # Errors
/// If one of them does not exist.
pub(crate) fn walk_all(
    pool: &PoolLink,
    starts: &[PathBuf],
    visit: &mut dyn FnMut(&Entry) -> bool,
) -> crate::error::Result<Vec<(PathBuf, Errno)>> {
    let mut failed = Vec::new();
    for start in starts {
        let (copies, errors) = look(pool, start);
        failed.extend(errors);
        if copies.is_empty() {
            return Err(Error::Path { path: pool.mountpoint.join(start), why: Errno::NOENT.into() });
        }
        let entry = Entry { path: start.clone(), copies };
        if visit(&entry) && entry.is_dir() {
            walk(pool, start, &mut |path, errno| failed.push((path, errno)), visit);
        }
    }
    Ok(failed)
}

/// Visits everything below a directory of the pool, directories before what they hold. `visit` returns whether to go
/// on; of a directory, whether to visit what it holds.
pub(crate) fn walk(
    pool: &PoolLink,
    dir: &Path,
    failed: &mut dyn FnMut(PathBuf, Errno),
    visit: &mut dyn FnMut(&Entry) -> bool,
) {
    // Depth first, with the next entries of each level on a stack: trees may be deeper than the stack of a thread.
    let mut levels = vec![list(pool, dir, failed).into_iter()];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next() else {
            levels.pop();
            continue;
        };
        if visit(&entry) && entry.is_dir() {
            levels.push(list(pool, &entry.path, failed).into_iter());
        }
    }
}
