//! Cloning the missing parents of a new entry.
//!
//! A missing chain of directories is built under a temporary name, with owner, mode (setgid too), extended
//! attributes, ACLs, flags and times, and then renamed into place. So no client sees an incomplete directory, and a
//! crash leaves nothing under a real name. Where the branch does not take that name, because it is a pool, which reserves it,
//! the chain is built in its place.
//!
//! The caller uses its path, so that no directory on the way is renamed meanwhile.

use super::chattr::named_in;
use super::kept_times::TimesKept;
use super::metadata::{copy_metadata, set_times};
use crate::fs::beneath::{self, Dir};
use crate::fs::reserved::temporary_name;
use crate::fs::stat::{self, Attr};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use smallvec::SmallVec;

/// Opens the directory `path` below `to` (usually the root of a branch), and first clones what is missing of it from
/// the same path below `from`.
///
/// A clone with the same birth time as its original is kept only if it `fits`, given its path and attributes;
/// otherwise it is made again, a limited number of times.
///
/// Errors: `ENOTDIR` if `to` holds something other than a directory under one of the names; those of mkdir(2).
pub fn clone_dirs<'b>(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'b>,
    path: &[u8],
    fits: Fits<'_>,
) -> Result<Cloned<'b>, Errno> {
    let mut made = Vec::new();
    loop {
        match beneath::dir(to, path) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(if errno == Errno::LOOP { Errno::NOTDIR } else { errno }),
            Ok(dir) => return Ok(Cloned { dir, made }),
        }
        made = match build(from, to, path, fits) {
            // Another thread or process has made one of them in the meantime.
            Err(Errno::EXIST | Errno::NOTEMPTY) => Vec::new(),
            Err(errno) => return Err(errno),
            Ok(made) => made,
        };
    }
}

/// A directory that has been cloned.
pub struct Cloned<'b> {
    pub dir: Dir<'b>,
    /// The last directories of the path, if this call has made all that were missing: empty, except for each other.
    pub made: Vec<OwnedFd>,
}

pub(super) type Fits<'a> = &'a dyn Fn(&[u8], &Attr) -> bool;

/// How often an attempt is repeated that succeeds with a probability of one half.
const TRIES: usize = 16;

/// Makes an empty clone of the directory at `path`, whose attributes are `source`.
fn make(
    parent: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    source: &Attr,
    fits: Fits<'_>,
) -> Result<OwnedFd, Errno> {
    // Kept open until the end, so that the next attempt gets another inode number.
    let mut unfit: SmallVec<[OwnedFd; 2]> = SmallVec::new();
    loop {
        rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
        let made = open_dir(parent, name).and_then(|dir| Ok((stat::of(dir.as_fd())?, dir)));
        let is_suitable = |attr: &Attr| attr.btime > source.btime || unfit.len() >= TRIES || fits(path, attr);
        match made {
            Ok((attr, dir)) if is_suitable(&attr) => return Ok(dir),
            other => {
                rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
                unfit.push(other?.1);
            }
        }
    }
}

/// Makes what is missing of `path` below `to`, and returns the directories that it has made, from the top.
fn build(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    path: &[u8],
    fits: Fits<'_>,
) -> Result<Vec<OwnedFd>, Errno> {
    canopy_sys::creds::as_daemon()?;
    let mut source = open_dir(from, b".")?;
    let mut target = open_dir(to, b".")?;
    let mut parts = path.split(|&b| b == b'/');
    let missing = loop {
        let part = parts.next().ok_or(Errno::EXIST)?;
        source = open_dir(source.as_fd(), part)?;
        match open_dir(target.as_fd(), part) {
            Ok(dir) => target = dir,
            Err(Errno::NOENT) => break part,
            Err(errno) => return Err(errno),
        }
    };
    // The pool shows no change in the directory that was there before.
    let kept = TimesKept::of(target.as_fd())?;
    let temporary = temporary_name();
    let mut made: Vec<(OwnedFd, Vec<u8>, Attr)> = Vec::new();
    let result = (|| {
        let mut name: &[u8] = &temporary;
        let mut next = Some(missing);
        while next.is_some() {
            let parent = made.last().map_or(target.as_fd(), |(fd, ..)| fd.as_fd());
            let attr = stat::of(source.as_fd())?;
            let rest: usize = parts.clone().map(|part| part.len() + 1).sum();
            let its_path = &path[..path.len() - rest];
            let dir = match make(parent, name, its_path, &attr, fits) {
                Err(Errno::INVAL) if name == temporary => {
                    name = missing;
                    make(parent, name, its_path, &attr, fits)?
                }
                made => made?,
            };
            made.push((dir, name.to_vec(), attr));
            copy_metadata(source.as_fd(), made[made.len() - 1].0.as_fd(), &attr)?;
            next = parts.next();
            if let Some(part) = next {
                source = open_dir(source.as_fd(), part)?;
                name = part;
            }
        }
        // Times last and bottom-up: making an entry changes its parent's times.
        for (dir, _, attr) in made.iter().rev() {
            set_times(dir.as_fd(), attr)?;
        }
        match made.first() {
            Some((dir, name, _)) if *name == temporary => {
                let naming = || move_into_place(target.as_fd(), &temporary, missing);
                named_in(target.as_fd(), dir.as_fd(), true, naming)
            }
            _ => Ok(()),
        }
    })();
    if result.is_err() {
        for index in (0..made.len()).rev() {
            let parent = index.checked_sub(1).map_or(target.as_fd(), |above| made[above].0.as_fd());
            let _ = rustix::fs::unlinkat(parent, made[index].1.as_slice(), AtFlags::REMOVEDIR);
        }
    }
    drop(kept);
    result.map(|()| made.into_iter().map(|(dir, ..)| dir).collect())
}

pub(super) fn open_dir(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

pub(crate) fn move_into_place(dir: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        // A filesystem without the flag: renaming over a directory works only while that is empty.
        Err(Errno::INVAL) => rustix::fs::renameat(dir, from, dir, to),
        other => other,
    }
}
