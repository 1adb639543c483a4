//! Asking a branch whether it answers.
//!
//! A filesystem on a disk answers most questions from memory, also when its disk is dead. So its disk is asked: a read
//! that passes every cache. It is asked only while operations on the branch take long, because it wakes a disk that
//! sleeps. A branch without a disk (remote, FUSE) is asked what operations ask.
//!
//! A question may never be answered, and the thread that asks it is then stuck. Nothing waits for such a thread.

use canopy_branch::branch::Branch;
use canopy_branch::fs::disk::Disk;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Asks its disks, or the branch itself without any, and returns false if there is no way to ask. An error is an answer.
/// `number` is a different one each time.
pub(super) fn ask(branch: &Branch, disks: &[Disk], number: u64) -> bool {
    if disks.is_empty() {
        let _ = ask_root(branch, number);
        return true;
    }
    // Far apart, so that no disk has the block in its own memory: a multiple of the golden ratio.
    let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
    disks.iter().filter(|disk| disk.read(place).is_some()).count() > 0
}

/// Does what operations do.
fn ask_root(branch: &Branch, number: u64) -> Result<(), Errno> {
    // AT_STATX_FORCE_SYNC in include/uapi/linux/fcntl.h: not from a cache.
    let sync = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(0x2000);
    rustix::fs::statx(branch.root(), c"", sync, StatxFlags::BASIC_STATS)?;
    rustix::fs::fstatvfs(branch.root())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(branch.root(), c".", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    if let Some(entry) = RawDir::new(&dir, &mut buffer).next() {
        entry?;
    }
    // A new name each time, because a missing name may be cached.
    let name = format!("{}{number}", String::from_utf8_lossy(&canopy_branch::fs::reserved::temporary_name()));
    match rustix::fs::statx(branch.root(), name.as_str(), AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) {
        Err(errno) if errno != Errno::NOENT => Err(errno),
        _ => Ok(()),
    }
}
