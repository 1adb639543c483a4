//! Whether a branch has changed while nobody watched it.
//!
//! [`state`] describes the state of the filesystem of a branch in a line of text. It is taken when nobody changes the branch any more,
//! or all changes meanwhile are known, and again later, when all changes are watched already. If both lines are the same, nothing
//! has changed in between: no name, and no attribute but access times.
//!
//! - **btrfs**: the number of its latest transaction. One that begins raises it, so none may be open when the line is taken. The
//!   number only grows, on whatever machine; the time of the latest change of the subvolume tells it from a clone that has
//!   had as many transactions.
//! - **ext2 to ext4, XFS**: the bytes that have been written to the disk since it was attached. What is changed is written, at
//!   the latest by the syncfs(2) before the line is taken. It must be the same mount, which has an id that is not given
//!   twice before a reboot: to mount writes as well, and other machines do not count here.
//!
//! It errs on one side: a write that has changed nothing of interest makes the lines differ.

use super::Branch;
use crate::fs::disk::Disk;
use crate::fs::magic::{BTRFS, EXT, XFS};
use canopy_sys::ioctl::btrfs;
use canopy_sys::mountinfo;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::fs;
use std::io;

/// How often a transaction may begin while the line is taken.
const ATTEMPTS: usize = 5;

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
pub enum Unprovable {
    #[error("{0}")]
    System(#[from] Errno),
    #[error("{0}")]
    Other(&'static str),
}

/// Returns the line. `flush`: also writes what is to be written, without which a later line differs if there is any. May wait for the
/// disk.
///
/// # Errors
/// Why nothing could be proved by it.
pub fn state(branch: &Branch, flush: bool) -> Result<String, Unprovable> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(&branch.root, c".", flags, Mode::empty())?;
    match branch.kind {
        BTRFS => of_btrfs(branch, &dir),
        EXT | XFS => of_disks(branch, &dir, flush),
        _ => Err(Unprovable::Other("its filesystem does not tell whether it was changed")),
    }
}

fn of_btrfs(branch: &Branch, dir: &OwnedFd) -> Result<String, Unprovable> {
    for _ in 0..ATTEMPTS {
        let before = btrfs::subvolume_state(dir.as_fd())?;
        // Ends the transaction. If none is open, nothing is written.
        rustix::fs::syncfs(dir)?;
        let state = btrfs::subvolume_state(dir.as_fd())?;
        // None has begun meanwhile, so a change from now on begins one, and raises the number.
        if state == before {
            let btrfs::SubvolumeState { filesystem, generation, tree, uuid, changed, changed_at } = state;
            return Ok(format!(
                "btrfs {filesystem:032x} {generation} {tree} {uuid:032x} {changed} {}.{:09} {}",
                changed_at.0, changed_at.1, branch.ino
            ));
        }
    }
    Err(Unprovable::Other("it is being changed"))
}

fn of_disks(branch: &Branch, dir: &OwnedFd, flush: bool) -> Result<String, Unprovable> {
    let stat = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, mountinfo::MNT_ID_UNIQUE)?;
    if stat.stx_mask & mountinfo::MNT_ID_UNIQUE.bits() == 0 {
        return Err(Unprovable::Other("the kernel may give the id of its mount again (before Linux 6.8)"));
    }
    if branch.kind == XFS && has_external_log(branch)? {
        return Err(Unprovable::Other("its log is on another disk"));
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(errno)?;
    if flush {
        rustix::fs::syncfs(dir)?;
    }
    let mut line = format!("disk {} {} {}", boot.trim(), stat.stx_mnt_id, branch.ino);
    let disks = Disk::below(branch.dev, dir.as_fd());
    let disks: Vec<Disk> =
        disks.into_iter().flat_map(|disk| if disk.counts() { vec![disk] } else { disk.whole() }).collect();
    if disks.is_empty() {
        return Err(Unprovable::Other("it has no disk that the kernel shows"));
    }
    for disk in disks {
        let (written, sequence) = disk
            .written()
            .zip(disk.sequence())
            .filter(|_| disk.counts())
            .ok_or(Unprovable::Other("what is written to its disk is not counted"))?;
        let _ = write!(line, " {} {sequence} {written}", disk.number());
    }
    Ok(line)
}

/// Returns whether an XFS keeps its log elsewhere: a change may be on that disk alone then.
fn has_external_log(branch: &Branch) -> Result<bool, Errno> {
    let mounts = fs::read("/proc/self/mountinfo").map_err(errno)?;
    let number = format!("{}:{}", rustix::fs::major(branch.dev), rustix::fs::minor(branch.dev));
    let mut own = mounts
        .split(|&byte| byte == b'\n')
        .filter(|line| line.split(|&byte| byte == b' ').nth(2) == Some(number.as_bytes()))
        .peekable();
    // Where the mount is not shown, nobody knows.
    Ok(own.peek().is_none() || own.any(|line| line.windows(7).any(|part| part == b"logdev=")))
}

fn errno(why: io::Error) -> Errno {
    Errno::from_io_error(&why).unwrap_or(Errno::IO)
}
