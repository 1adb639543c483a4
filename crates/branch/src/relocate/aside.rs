//! Where a file is kept that has to give way, and must not be lost: in a directory of its branch that no pool shows.

use super::kept_times::with_times_kept;
use crate::fs::beneath;
use crate::fs::reserved::ASIDE;
use crate::fs::stat::{self, Attr};
use canopy_base::path::{join, split};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Sets a file aside that has the name of something newer. `at` is the number of what is newer, and tells when that was. On disk
/// when it returns. Another name of the file stays, and then keeps what it holds.
///
/// Errors: `EPERM` if somebody else could take away what is set aside.
pub fn give_way(
    root: BorrowedFd<'_>,
    (dir, path): (BorrowedFd<'_>, &[u8]),
    attr: &Attr,
    at: u64,
) -> Result<(), Errno> {
    let name = split(path).1;
    canopy_sys::creds::as_daemon()?;
    if attr.nlink > 1 {
        return with_times_kept(dir, || rustix::fs::unlinkat(dir, name, AtFlags::empty()));
    }
    let aside = directory(root, &place(path, at), &mut |_| Ok(()))?;
    with_times_kept(dir, || keep(dir, name, aside.as_fd()))?;
    rustix::fs::fsync(&aside)
}

/// Returns the directory for what gives way under this path.
pub(crate) fn place(path: &[u8], at: u64) -> Vec<u8> {
    let place = join(ASIDE, at.to_string().as_bytes());
    let above = split(path).0;
    if above.is_empty() { place.to_vec() } else { join(&place, above).to_vec() }
}

/// Renames into such a directory, beside what has the name there.
pub(crate) fn keep(dir: BorrowedFd<'_>, name: &[u8], aside: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut to = name.to_vec();
    loop {
        match rustix::fs::renameat_with(dir, name, aside, to.as_slice(), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if to.len() < 250 => to.push(b'~'),
            Err(Errno::INVAL) => break rustix::fs::renameat(dir, name, aside, to.as_slice()),
            other => break other,
        }
    }
}

/// Opens a directory of a branch, and makes what is missing of it. `making` hears the path of each before it is made.
pub(crate) fn directory(
    root: BorrowedFd<'_>,
    path: &[u8],
    making: &mut dyn FnMut(&[u8]) -> Result<(), Errno>,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match beneath::open(root, path, flags) {
        Err(Errno::NOENT) => {}
        // Whoever else owns it could take away what is set aside there.
        Ok(dir) if path == ASIDE && !stat::of(dir.as_fd())?.is_daemons_alone() => {
            return Err(Errno::PERM);
        }
        other => return other,
    }
    let above = directory(root, split(path).0, making)?;
    making(path)?;
    let make = || rustix::fs::mkdirat(&above, split(path).1, Mode::RWXU);
    match if path == ASIDE { with_times_kept(above.as_fd(), make) } else { make() } {
        Ok(()) | Err(Errno::EXIST) => beneath::open(root, path, flags),
        Err(errno) => Err(errno),
    }
}
