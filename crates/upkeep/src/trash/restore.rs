//! Bringing back what is in the trash: a rename on its branch. Directories that are gone come back with it, as the trash has them.

use super::find::Item;
use super::{Home, TrashArgs, consent, report};
use crate::consent::Alone;
use crate::error::{Error, Result};
use crate::held::aside::set_times;
use crate::output::{complain, print, print_json, shown};
use crate::pool_link::{BranchLink, PoolLink};
use crate::stop::Stop;
use canopy_base::text::os_error;
use canopy_branch::fs::reserved::{TRASH, is_reserved};
use canopy_branch::relocate::clone_dirs;
use canopy_branch::trash::sweep::{Trashed, Verdict};
use canopy_control::{COMMAND, OsText};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, RenameFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Runs `canopy trash restore`.
pub(super) fn restore(args: &TrashArgs, home: &Home, pool: &PoolLink, items: Vec<Item>) -> Result<()> {
    if pool.is_read_only {
        return Err(Error::PoolReadOnly(pool.mountpoint.clone()));
    }
    if pool.missing().next().is_some() {
        let why = "a branch that cannot be looked at may hold its name (canopy status)".into();
        return Err(Error::PutBack { path: args.pool.clone(), why });
    }
    let into = match &args.into {
        None => PathBuf::new(),
        Some(dir) => inside(pool, dir)?,
    };
    let mut wanted: Vec<Item> = Vec::new();
    let mut stays: Vec<(PathBuf, String)> = Vec::new();
    let (mut seen, mut older, mut by_others) = (HashSet::new(), 0, 0_usize);
    // The latest of each path.
    for item in items.into_iter().rev() {
        let target = into.join(&item.path);
        let is_new = seen.insert(item.path.clone());
        let is_dir = item.kind == FileType::Directory;
        let why = match (is_new, &pool.branches[item.branch]) {
            (false, _) => {
                // That is no failure.
                older += 1;
                Some("another of this path was removed later".to_owned())
            }
            (true, branch) if !branch.gives() => Some("its branch cannot be changed".to_owned()),
            (true, _) if is_taken(pool, &target, is_dir) => Some(TAKEN.to_owned()),
            _ => None,
        };
        match why {
            Some(_) if is_new && is_gone(pool, &item) => by_others += 1,
            Some(why) => stays.push((item.path, why)),
            None => wanted.push(item),
        }
    }
    wanted.reverse();
    let consent = consent(args, Alone::Acts);
    let stop = Stop::on_signals()?;
    if !args.json && !wanted.is_empty() {
        print(&report::table(&wanted));
    }
    let acts = consent.agrees("Restore them?", wanted.is_empty(), &stop)?;
    let mut done: Vec<PathBuf> = Vec::new();
    let mut made = HashSet::new();
    let mut failed = Vec::new();
    if acts {
        failed = home.each(&wanted, &stop, |item, found| {
            let target = into.join(&item.path);
            match bring_back(pool, item, found, &target, &mut made) {
                Ok(()) => {
                    done.push(target);
                    Verdict::Taken
                }
                Err(_) if is_gone(pool, item) => Verdict::Taken,
                Err(why) => {
                    stays.push((item.path.clone(), why));
                    Verdict::Stays
                }
            }
        });
        // The kernel may know that a name is not there, and no disk but a local one tells the pool of a new one.
        if !done.is_empty() {
            let _ = pool.daemon.set(&format!("{COMMAND}invalidate-all-nodes"), OsStr::new(""));
        }
        // Another command may have taken out the rest.
        let met: HashSet<&Path> =
            done.iter().chain(stays.iter().map(|(path, _)| path)).map(PathBuf::as_path).collect();
        let unmet = |item: &&Item| {
            !met.contains(into.join(&item.path).as_path()) && !met.contains(item.path.as_path())
        };
        by_others += wanted.iter().filter(unmet).filter(|item| is_gone(pool, item)).count();
    }
    if args.json {
        let path = |path: &PathBuf| OsText::from(path.as_path());
        let stays: Vec<_> =
            stays.iter().map(|(at, why)| serde_json::json!({ "path": path(at), "why": why })).collect();
        let restored: Vec<_> = if acts { done.iter().map(path).collect() } else { Vec::new() };
        print_json(
            &serde_json::json!({ "acts": acts, "found": wanted.len() + stays.len(), "restored": restored, "stays": stays }),
        );
    } else {
        stays.iter().for_each(|(path, why)| complain(&format!("{} stays in the trash: {why}", shown(path))));
        if acts {
            print(&format!("Restored: {}\n", done.len()));
        }
        if by_others > 0 {
            print(&format!("Taken out by another command meanwhile: {by_others}\n"));
        }
    }
    report::failures(&failed)?;
    stop.check()?;
    match stays.len() - older {
        0 => consent.only_shown(wanted.is_empty()),
        count => Err(Error::NotRestored(count as u64)),
    }
}

const TAKEN: &str = "the pool has something under its name (--into brings it elsewhere)";

/// Returns a directory of the pool, which need not exist, relative to its root.
fn inside(pool: &PoolLink, dir: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(dir).map_err(|why| Error::Path { path: dir.to_owned(), why })?;
    let path = absolute.strip_prefix(&pool.mountpoint).map(Path::to_owned);
    let path = path.map_err(|_| Error::OtherPool { path: dir.to_owned(), pool: pool.mountpoint.clone() })?;
    let is_plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(name) if !is_reserved(name.as_bytes())));
    if is_plain { Ok(path) } else { Err(Error::NotDirectory(dir.to_owned())) }
}

/// Returns whether another command has taken something out of the trash.
fn is_gone(pool: &PoolLink, item: &Item) -> bool {
    matches!(pool.branches[item.branch].stat(&item.kept()), Err(Errno::NOENT | Errno::NOTDIR))
}

/// Returns whether some branch has something under a path, or above it, that is in the way. No directory is in that of another.
fn is_taken(pool: &PoolLink, path: &Path, is_dir: bool) -> bool {
    pool.branches.iter().any(|branch| match branch.stat(path) {
        Ok(attr) => !(is_dir && FileType::from_raw_mode(attr.st_mode) == FileType::Directory),
        Err(errno) => errno != Errno::NOENT,
    })
}

/// Gives a file its name in the pool again, on its branch. Errors: why it stays.
fn bring_back(
    pool: &PoolLink,
    item: &Item,
    found: &Trashed<'_>,
    target: &Path,
    made: &mut HashSet<(usize, PathBuf)>,
) -> Result<(), String> {
    let branch = &pool.branches[item.branch];
    let (from, name) = found.at;
    let is_dir = item.kind == FileType::Directory;
    let dir = if is_dir { target } else { target.parent().unwrap_or(Path::new("")) };
    // A client may have been faster.
    if is_taken(pool, target, is_dir) {
        return Err(TAKEN.into());
    }
    let opened = directory(pool, branch, item, (dir, target), made).map_err(os_error)?;
    if is_dir {
        return rustix::fs::unlinkat(from, name, AtFlags::REMOVEDIR).map_err(os_error);
    }
    let last = target.file_name().ok_or("its path has no name")?;
    let before = rustix::fs::fstat(&opened).map_err(os_error)?;
    match rustix::fs::renameat_with(from, name, &opened, last, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => return Err(TAKEN.into()),
        other => other.map_err(os_error)?,
    }
    let of_others = pool.branches.iter().filter(|other| other.path != branch.path);
    if of_others.into_iter().any(|other| !matches!(other.stat(target), Err(Errno::NOENT))) {
        // A client was faster, on another branch.
        rustix::fs::renameat_with(&opened, last, from, name, RenameFlags::NOREPLACE).map_err(os_error)?;
        return Err(TAKEN.into());
    }
    if made.contains(&(item.branch, dir.to_owned())) {
        set_times(opened.as_fd(), &before);
    }
    rustix::fs::fsync(&opened).map_err(os_error)
}

/// Opens a directory of the branch. What is missing of it is made as another branch has it, or else as the trash has it.
fn directory(
    pool: &PoolLink,
    branch: &BranchLink,
    item: &Item,
    (dir, target): (&Path, &Path),
    made: &mut HashSet<(usize, PathBuf)>,
) -> Result<OwnedFd, Errno> {
    match branch.dir(dir) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let above = dir.ancestors().find(|path| branch.stat(path).is_ok()).unwrap_or(Path::new(""));
    let shared = dir.ancestors().find(|path| pool.branches.iter().any(|other| other.dir(path).is_ok()));
    let shared = shared.unwrap_or(Path::new(""));
    if let Some(other) = pool.branches.iter().find(|other| other.dir(shared).is_ok()) {
        clone_dirs(other.root()?, branch.root()?, shared.as_os_str().as_bytes(), &|_, _| true)?;
    }
    if shared != dir {
        // Below `--into`, the directories of the trash come after those that are made for it.
        let depth = target.components().count() - item.path.components().count();
        let into: PathBuf = target.components().take(depth).collect();
        let below = dir.strip_prefix(&into).unwrap_or(Path::new(""));
        make_plain(branch, &into)?;
        let batch = Path::new(OsStr::from_bytes(TRASH)).join(OsStr::from_bytes(&item.kept_in));
        let (batch, into_dir) = (branch.dir(&batch)?, branch.dir(&into)?);
        clone_dirs(batch.as_fd(), into_dir.as_fd(), below.as_os_str().as_bytes(), &|_, _| true)?;
    }
    let is_made = |path: &&Path| above != *path && path.starts_with(above);
    made.extend(dir.ancestors().take_while(is_made).map(|path| (item.branch, path.to_owned())));
    branch.dir(dir)
}

/// Makes a directory that has no model, for root alone.
fn make_plain(branch: &BranchLink, path: &Path) -> Result<(), Errno> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| branch.stat(path).is_err()).collect();
    for path in missing.into_iter().rev() {
        let (above, Some(name)) = (path.parent().unwrap_or(Path::new("")), path.file_name()) else {
            continue;
        };
        match rustix::fs::mkdirat(branch.dir(above)?, name, rustix::fs::Mode::RWXU) {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
