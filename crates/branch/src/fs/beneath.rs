//! Opening files on a branch so that nothing leaves the branch.
//!
//! A path is relative to the branch's root, without a leading slash; the root is the empty path. No component may be
//! a symlink: the directory `a` of one branch may be a symlink on another.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory on a branch: the root, which the branch keeps open, or one opened for this operation.
pub enum Dir<'b> {
    Root(BorrowedFd<'b>),
    Opened(OwnedFd),
}

impl AsFd for Dir<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Dir::Root(fd) => *fd,
            Dir::Opened(fd) => fd.as_fd(),
        }
    }
}

/// The longest part of a path that one call accepts; PATH_MAX counts the terminating NUL.
const PIECE: usize = 4095;

/// Set once the kernel turns out not to have openat2(2) (Linux before 5.6).
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Makes every later open walk component by component, as on a kernel without openat2(2). For tests.
pub fn pretend_no_openat2(pretend: bool) {
    NO_OPENAT2.store(pretend, Ordering::Relaxed);
}

/// Opens `path` beneath `root`. `flags` should contain `O_NOFOLLOW` or `O_DIRECTORY`, so that a symlink as the last
/// component is never followed.
///
/// Errors: `ELOOP` for a symlink on the way, `ENOENT`, `ENOTDIR`, and those of open(2).
pub fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return open_piece(root, b".", flags);
    }
    if path.len() <= PIECE {
        return open_piece(root, path, flags);
    }
    // Longer than one call accepts: open part by part, each beneath the one before.
    let mut at: Option<OwnedFd> = None;
    let mut rest = path;
    while rest.len() > PIECE {
        let cut = rest[..=PIECE].iter().rposition(|&b| b == b'/').ok_or(Errno::NAMETOOLONG)?;
        let from = at.as_ref().map_or(root, |fd| fd.as_fd());
        at = Some(open_piece(from, &rest[..cut], OFlags::PATH | OFlags::DIRECTORY)?);
        rest = &rest[cut + 1..];
    }
    open_piece(at.as_ref().map_or(root, |fd| fd.as_fd()), rest, flags)
}

fn open_piece(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    if !NO_OPENAT2.load(Ordering::Relaxed) {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        loop {
            match rustix::fs::openat2(root, path, flags, Mode::empty(), beneath) {
                // A concurrent rename kept the kernel from checking the path (openat2(2)).
                Err(Errno::AGAIN) => continue,
                Err(Errno::NOSYS) => {
                    NO_OPENAT2.store(true, Ordering::Relaxed);
                    break;
                }
                other => return other,
            }
        }
    }
    walk(root, path, flags)
}

/// As `open_piece` without openat2(2): opens one component at a time, never through a symlink or `..`.
fn walk(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut at: Option<OwnedFd> = None;
    let mut parts = path.split(|&b| b == b'/').peekable();
    while let Some(part) = parts.next() {
        if part == b".." {
            return Err(Errno::XDEV);
        }
        let from = at.as_ref().map_or(root, |fd| fd.as_fd());
        if parts.peek().is_none() {
            return rustix::fs::openat(from, part, flags | OFlags::NOFOLLOW, Mode::empty());
        }
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = Some(rustix::fs::openat(from, part, step, Mode::empty()).map_err(|errno| {
            // O_DIRECTORY gives ENOTDIR for a symlink where openat2 gives ELOOP.
            if errno == Errno::NOTDIR { Errno::LOOP } else { errno }
        })?);
    }
    Err(Errno::NOENT)
}

/// Opens a directory of a branch, for use with the *at() calls.
pub fn dir<'b>(root: BorrowedFd<'b>, path: &[u8]) -> Result<Dir<'b>, Errno> {
    if path.is_empty() {
        return Ok(Dir::Root(root));
    }
    open(root, path, OFlags::PATH | OFlags::DIRECTORY).map(Dir::Opened)
}

/// Opens a directory (`O_PATH`) by its name in another one. Errors: as those of `dir`.
pub fn subdir(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Opens a descriptor (`O_PATH`) that pins a file of any type.
pub fn pin(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Returns true for errors that mean "this branch does not hold that path".
pub fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// `/proc/self/fd/N`: names a file for calls that accept no `O_PATH` descriptor. It is a magic link, so a symlink
/// that it leads to is not followed.
pub struct ProcPath {
    buffer: [u8; 32],
    len: usize,
}

impl ProcPath {
    pub fn of(fd: impl AsFd) -> Self {
        let mut buffer = [0; 32];
        let mut rest = &mut buffer[..];
        // Cannot fail: 14 bytes and at most 10 digits.
        let _ = write!(rest, "/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let len = 32 - rest.len();
        ProcPath { buffer, len }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// Returns `/proc/self/fd`, kept open, in which the number of a descriptor is a name: looking that up takes 1 us less than
/// a [`ProcPath`]. `None` in a process that was forked from the one that opened it.
pub fn descriptors() -> Option<BorrowedFd<'static>> {
    static OPENED: OnceLock<Option<(u32, OwnedFd)>> = OnceLock::new();
    let process = std::process::id();
    let opened = OPENED.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()).ok().map(|fd| (process, fd))
    });
    opened.as_ref().filter(|(opener, _)| *opener == process).map(|(_, fd)| fd.as_fd())
}

/// Opens the file behind a descriptor once more, with other flags. Never waits for a process that holds a lease on the file
/// (fcntl(2), `F_SETLEASE`), nor for one that opens the other end of a FIFO. For files and directories `O_NONBLOCK` means
/// nothing after that.
///
/// Errors: `EAGAIN` while there is such a lease. The kernel has then told its holder, and ends the lease in time.
pub fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut flags = (flags - (OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW)) | OFlags::CLOEXEC;
    flags.set(OFlags::NONBLOCK, !flags.contains(OFlags::PATH));
    // Borrowed: an owned descriptor that moved into the path would be closed before the path is used.
    rustix::fs::open(ProcPath::of(&fd).as_bytes(), flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root(path: &std::path::Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn nothing_leaves_the_branch_with_or_without_openat2() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tmp.path().join("branch/a/b")).unwrap();
        std::fs::write(tmp.path().join("secret"), b"x").unwrap();
        symlink("../secret", tmp.path().join("branch/out")).unwrap();
        symlink("a", tmp.path().join("branch/link")).unwrap();
        let root = root(&tmp.path().join("branch"));
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        for through in [open_piece, walk] {
            let try_open =
                |path: &[u8], flags| through(root.as_fd(), path, flags | OFlags::CLOEXEC).map(drop);
            assert_eq!(try_open(b"a/b", flags), Ok(()));
            assert!(try_open(b"../secret", flags).is_err());
            assert_eq!(try_open(b"link/b", flags), Err(Errno::LOOP));
            assert!(try_open(b"out", OFlags::RDONLY | OFlags::NOFOLLOW).is_err());
            assert_eq!(try_open(b"none/x", flags), Err(Errno::NOENT));
        }
    }

    #[test]
    fn paths_longer_than_path_max_are_opened() {
        let tmp = tempfile::tempdir().unwrap();
        let root = root(tmp.path());
        let name = [b'n'; 200];
        let mut at = rustix::io::dup(&root).unwrap();
        let mut path = Vec::new();
        for _ in 0..50 {
            rustix::fs::mkdirat(&at, &name[..], Mode::from_raw_mode(0o755)).unwrap();
            at = rustix::fs::openat(&at, &name[..], OFlags::PATH, Mode::empty()).unwrap();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
        }
        let deep = dir(root.as_fd(), &path).unwrap();
        assert_eq!(
            super::super::stat::of(deep.as_fd()).unwrap().ino,
            super::super::stat::of(at.as_fd()).unwrap().ino
        );
    }
}
