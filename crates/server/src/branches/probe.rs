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
use std::time::{Duration, Instant};

/// What is known of whether a branch answers.
pub(super) struct ProbeState {
    pub(super) deadline: Option<Duration>,
    /// When the question was asked that is not answered yet.
    pub(super) asked_at: Option<Instant>,
    /// When the last answered question was asked, and how long the answer took.
    pub(super) answered: Option<(Instant, Duration)>,
    /// The question has waited too long for the deadline.
    pub(super) unanswered: bool,
    /// There is no way to read the disk.
    pub(super) unreadable: bool,
    /// Operations that are stuck on the branch and whose callers have been given an error, and since when there are any.
    pub(super) stuck_operations: usize,
    pub(super) stuck_since: Option<Instant>,
    /// The branch is left out.
    pub(super) silent: bool,
    /// It answers again, and a thread has begun then to bring it up to date.
    pub(super) returning: bool,
    /// When that has failed.
    pub(super) stayed_out: Option<Instant>,
    /// The branch was removed, or need not be asked any more.
    pub(super) removed: bool,
}

impl ProbeState {
    pub(super) fn new(deadline: Option<Duration>) -> ProbeState {
        ProbeState {
            deadline,
            asked_at: None,
            answered: None,
            unanswered: false,
            unreadable: false,
            stuck_operations: 0,
            stuck_since: None,
            silent: false,
            returning: false,
            stayed_out: None,
            removed: false,
        }
    }

    /// Returns when the branch has last answered a question.
    pub(super) fn last_answer(&self) -> Option<Instant> {
        self.answered.map(|(asked_at, took)| asked_at + took)
    }
}

/// Whom to ask.
pub(super) enum Question {
    /// Each of these disks.
    Disks(Vec<Disk>),
    /// The root directory.
    Root,
}

impl Question {
    pub(super) fn for_branch(branch: &Branch) -> Question {
        match branch.disks() {
            disks if disks.is_empty() => Question::Root,
            disks => Question::Disks(disks),
        }
    }

    pub(super) fn disks(&self) -> &[Disk] {
        match self {
            Question::Disks(disks) => disks,
            Question::Root => &[],
        }
    }

    /// Asks, and returns false if there is no way to ask. An error is an answer. `number` is a different one each time.
    pub(super) fn ask(&self, branch: &Branch, number: u64) -> bool {
        match self {
            Question::Disks(disks) => {
                // Far apart, so that no disk has the block in its own memory: a multiple of the golden ratio.
                let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
                disks.iter().filter(|disk| disk.read(place).is_some()).count() > 0
            }
            Question::Root => {
                let _ = ask_root(branch, number);
                true
            }
        }
    }
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
