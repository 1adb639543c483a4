//! All names of a file on its branch.

use crate::node::{PoolPath, join};
use crate::ops::locate::split;
use crate::stat::{self, Attr};
use crate::{beneath, relocate};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// The paths under which a branch holds a file, all of them, in order; none for a file without a name.
///
/// `known` are those that somebody believes it has. Only if the file has more links than they account for is the
/// branch walked: one readdir of each directory, no stat but of directories. That is about a second for a million
/// names that are in memory, and as long as the disk takes to read its directories otherwise.
///
/// Errors: `EMLINK` when there are links that the branch does not show, such as outside of it.
pub(super) fn all_names(
    root: BorrowedFd<'_>,
    attr: &Attr,
    known: impl Iterator<Item = PoolPath>,
) -> Result<Vec<PoolPath>, Errno> {
    let mut names: Vec<PoolPath> = known.filter(|path| holds(root, path, attr)).collect();
    names.sort();
    names.dedup();
    if names.len() < attr.nlink as usize {
        names = walk(root, attr)?;
    }
    if names.len() != attr.nlink as usize {
        return Err(Errno::MLINK);
    }
    Ok(names)
}

/// Does this path lead to the file, without symlinks?
pub(super) fn holds(root: BorrowedFd<'_>, path: &[u8], attr: &Attr) -> bool {
    let (dir, name) = split(path);
    beneath::dir(root, dir)
        .and_then(|dir| stat::at(dir, name))
        .is_ok_and(|found| found.is_regular() && found.key() == attr.key())
}

fn walk(root: BorrowedFd<'_>, attr: &Attr) -> Result<Vec<PoolPath>, Errno> {
    let (mut found, mut todo) = (Vec::new(), vec![PoolPath::new()]);
    let mut buffer = [MaybeUninit::uninit(); 32768];
    while let Some(path) = todo.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NOATIME;
        let dir = match beneath::open(root, &path, flags) {
            Err(Errno::PERM) => beneath::open(root, &path, flags - OFlags::NOATIME)?,
            // Removed meanwhile; what was moved elsewhere is missed, and the count shows it.
            Err(errno) if beneath::is_absent(errno) => continue,
            other => other?,
        };
        // No link leads to another filesystem.
        if stat::of(dir.as_fd())?.dev != attr.dev {
            continue;
        }
        let mut entries = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || relocate::is_reserved(name) {
                continue;
            }
            let full = join(&path, name);
            match entry.file_type() {
                FileType::Directory => todo.push(full),
                FileType::Unknown if stat::at(&dir, name).is_ok_and(|attr| attr.is_dir()) => todo.push(full),
                FileType::RegularFile | FileType::Unknown
                    if entry.ino() == attr.ino && holds(root, &full, attr) =>
                {
                    found.push(full);
                    if found.len() == attr.nlink as usize {
                        found.sort();
                        return Ok(found);
                    }
                }
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;
    use std::fs;

    #[test]
    fn names_are_found_or_it_is_said_that_some_are_missing() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        fs::create_dir_all(at("branch/a/b/c")).unwrap();
        fs::create_dir_all(at("branch/d")).unwrap();
        fs::write(at("branch/a/f"), "x").unwrap();
        fs::write(at("branch/d/other"), "x").unwrap();
        fs::hard_link(at("branch/a/f"), at("branch/a/b/c/g")).unwrap();
        fs::hard_link(at("branch/a/f"), at("branch/h")).unwrap();
        let root = rustix::fs::open(at("branch"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let attr = || stat::at(&root, b"h").unwrap();
        let all = |known: &[&str]| {
            let known: Vec<PoolPath> =
                known.iter().map(|name| PoolPath::from_slice(name.as_bytes())).collect();
            all_names(root.as_fd(), &attr(), known.into_iter()).map(|names| {
                names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>()
            })
        };
        let expected = vec!["a/b/c/g".to_owned(), "a/f".into(), "h".into()];
        for known in [&[][..], &["h"], &["h", "a/f", "h"], &["none", "d/other"], &["h", "a/f", "a/b/c/g"]] {
            assert_eq!(all(known).as_ref(), Ok(&expected), "{known:?}");
        }
        fs::hard_link(at("branch/h"), at("outside")).unwrap();
        assert_eq!(all(&["h", "a/f", "a/b/c/g"]), Err(Errno::MLINK));
    }
}
