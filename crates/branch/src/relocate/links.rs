//! Finding all names of a file on its branch.

use crate::fs::beneath;
use crate::fs::stat::{self, Attr};
use crate::fs::walk::walk;
use canopy_base::path::{PoolPath, join, split};
use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::ops::ControlFlow;

/// Returns all paths of a file on a branch, sorted; none for a file without a name.
///
/// `known` are the paths that it is believed to have. The branch is walked only if the file has more links than
/// those.
///
/// Errors: `EMLINK` if there are links that are not on the branch.
pub fn all_names(
    root: BorrowedFd<'_>,
    attr: &Attr,
    known: impl Iterator<Item = PoolPath>,
) -> Result<Vec<PoolPath>, Errno> {
    let mut names: Vec<PoolPath> = known.filter(|path| holds(root, path, attr)).collect();
    names.sort();
    names.dedup();
    if names.len() < attr.nlink as usize {
        names = search(root, attr)?;
    }
    if names.len() != attr.nlink as usize {
        return Err(Errno::MLINK);
    }
    Ok(names)
}

/// Returns true if the path leads to the file without symlinks.
pub fn holds(root: BorrowedFd<'_>, path: &[u8], attr: &Attr) -> bool {
    let (dir, name) = split(path);
    beneath::dir(root, dir)
        .and_then(|dir| stat::at(dir, name))
        .is_ok_and(|found| found.is_regular() && found.key() == attr.key())
}

fn search(root: BorrowedFd<'_>, attr: &Attr) -> Result<Vec<PoolPath>, Errno> {
    let mut found = Vec::new();
    walk(root, attr.dev, |visited| {
        if visited.ino == attr.ino && matches!(visited.kind, FileType::RegularFile | FileType::Unknown) {
            let full = join(visited.dir, visited.name);
            if holds(root, &full, attr) {
                found.push(full);
            }
        }
        if found.len() == attr.nlink as usize { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::{Mode, OFlags};
    use std::fs;

    #[test]
    fn all_names_are_found_or_it_is_an_error() {
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
