//! How much free space a branch must have for files on it to be written by passthrough (`passthrough.io=auto`).
//!
//! A file with a passthrough writer cannot move when its branch is full. Only the client sees the write fail; the
//! kernel cannot be given another backing file, and its writes cannot be redirected to the daemon. So a writer gets
//! passthrough only where the branch has room for all that this and the other passthrough writers may write. Nobody
//! knows that amount in advance, so each written file has a reservation:
//! * The new writer must find a part of the disk's size, since files are as large as disks allow (`ample`), plus the
//!   most that any one file has grown since the mount.
//! * A file that is open reserves what its kind suggests (`at_first`), and from then on what its growth does
//!   (`reserved_next`): ten minutes of it, and half as much as before each second while it does not grow. Most files
//!   that are open for writing, such as those of databases, do not grow.
//!
//! Reservations belong to files, because several writers of one file share its blocks.
//!
//! When a file moves, passthrough readers keep the old file, and a new writer gets a separate node beside them
//! (`ops/data/detach.rs`). So where room is short, a file that may be in use is not read by passthrough either: then
//! all its open handles move with it. A file that has not changed for a day is unlikely to be written today.

use super::Branch;
use super::space::{Space, millis};
use crate::fs::stat::{self, Attr, FileKey};
use crate::tend;
use canopy_base::hash::{HashMap, shrink};
use canopy_base::ids::BranchId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Returns the bytes that must be free for a new writer on a disk of this size, whatever others have written: an
/// eighth of the disk, but at least 4 GiB and at most 64 GiB.
fn ample(size: u64) -> u64 {
    (size / 8).clamp(4 << 30, 64 << 30)
}

/// The least that an open file reserves, in bytes.
const LEAST: u64 = 4 << 20;

/// A file that grows reserves what it would grow in this many seconds.
const HORIZON: u64 = 600;

/// A writer that was open for less cannot have written a sixty-fourth of the least allowance: 64 MiB, at 16 GiB a
/// second.
const BRIEF: Duration = Duration::from_millis(4);

/// How often growth and free space are checked while there are passthrough writers, and space for readers.
const INTERVAL: Duration = Duration::from_secs(1);

/// With less, writers may use it up between two checks.
const PRESSED: u64 = 4 << 30;

/// The name of the threads that check them, one for each branch.
const CHECKS: &CStr = c"headroom";

/// Seconds after which an unchanged file counts as idle.
const AT_REST: i64 = 24 * 60 * 60;

#[derive(Default)]
pub struct Headroom {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The most that a file has grown through one passthrough writer, in bytes.
    most: AtomicU64,
    branches: Mutex<Branches, rank::Leaf>,
}

#[derive(Default)]
struct Branches {
    known: HashMap<BranchId, Watched>,
    /// The files are checked again and again.
    watching: bool,
}

#[derive(Default)]
struct Watched {
    /// Open files keep the branch alive.
    branch: Weak<Branch>,
    /// The files that are written by passthrough.
    files: HashMap<FileKey, WrittenFile>,
    /// The sum of their reservations, in bytes.
    reserved: u64,
    /// The branch had too little room at the last check.
    scarce: bool,
    /// Its passthrough writers may use up the rest within seconds.
    pressed: bool,
    /// The warning about its passthrough writers has been logged.
    warned: bool,
}

struct WrittenFile {
    /// The number of handles that write by passthrough.
    writers: usize,
    /// For asking its size; not kept open.
    fd: Weak<OwnedFd>,
    /// The bytes allocated to it at the last check.
    allocated: u64,
    /// In bytes.
    reserved: u64,
}

/// A handle that writes by passthrough, for as long as it is open.
pub struct PassthroughWriter {
    shared: Arc<Shared>,
    branch: BranchId,
    file: FileKey,
    /// The size of the file when it was opened, and the time of the open.
    before: u64,
    since: Instant,
}

impl Headroom {
    /// Admits a writer of a file to passthrough, if the branch has room for this writer too. `flags` are those of its
    /// open(2).
    pub fn admit(
        &self,
        branch: &Arc<Branch>,
        fd: &Arc<OwnedFd>,
        flags: OFlags,
        attr: &Attr,
    ) -> Option<PassthroughWriter> {
        // Not cached: fallocate(2) takes room faster than anybody writes. And before the lock, because a disk may be
        // slow to answer.
        let space = Space::of(branch.root()).ok()?;
        let most = self.shared.most.load(Ordering::Relaxed);
        let ample = ample(space.size()).saturating_add(most);
        let mut branches = self.shared.branches.lock();
        let watched = branches.known.entry(branch.id).or_default();
        watched.branch = Arc::downgrade(branch);
        let key = attr.key();
        let own = watched.files.get(&key).map_or(0, |file| file.reserved);
        let others = watched.reserved.saturating_sub(own);
        watched.scarce = !has_room(&space, others.saturating_add(ample.max(own)), watched.scarce);
        branch.room.put(watched.scarce);
        if watched.scarce {
            return None;
        }
        let file = watched.files.entry(key).or_insert_with(|| WrittenFile {
            writers: 0,
            fd: Weak::new(),
            allocated: allocated(attr),
            reserved: 0,
        });
        file.writers += 1;
        file.fd = Arc::downgrade(fd);
        file.reserved = file.reserved.max(at_first(flags, attr.size, ample));
        watched.reserved = others.saturating_add(file.reserved);
        let begins = !std::mem::replace(&mut branches.watching, true);
        drop(branches);
        if begins {
            tend::sweep(INTERVAL, (CHECKS, 0), &self.shared, watch);
        }
        let (shared, since) = (self.shared.clone(), Instant::now());
        Some(PassthroughWriter { shared, branch: branch.id, file: key, before: attr.size, since })
    }

    /// Returns whether a branch has little left, and files that are written by passthrough: these would fail first. Asks no disk.
    pub fn is_pressed(&self, branch: BranchId) -> bool {
        let branches = self.shared.branches.lock();
        branches.known.get(&branch).is_some_and(|watched| watched.pressed && !watched.files.is_empty())
    }

    /// Returns how many bytes are to be available where it is pressed.
    pub fn relief(&self) -> u64 {
        2 * PRESSED
    }

    /// Returns true if readers of a file on this branch, last modified at `modified`, should go through the daemon.
    pub fn readers_must_be_served(&self, branch: &Branch, modified: i64) -> bool {
        if clock_gettime(ClockId::RealtimeCoarse).tv_sec.saturating_sub(modified) > AT_REST {
            return false;
        }
        let seen = branch.room.0.load(Ordering::Relaxed);
        let scarce = seen & 1 == 1;
        if seen != 0 && millis().wrapping_sub(seen >> 1) < INTERVAL.as_millis() as u64 {
            return scarce;
        }
        let Ok(space) = Space::of(branch.root()) else { return scarce };
        let most = self.shared.most.load(Ordering::Relaxed);
        let scarce = !has_room(&space, ample(space.size()).saturating_add(most), scarce);
        branch.room.put(scarce);
        scarce
    }
}

impl PassthroughWriter {
    /// Records how much the file has grown; called when the handle is closed. `size` returns the file's present size.
    pub fn closed(&self, size: impl FnOnce() -> u64) {
        if self.since.elapsed() >= BRIEF {
            self.shared.most.fetch_max(size().saturating_sub(self.before), Ordering::Relaxed);
        }
    }
}

impl Drop for PassthroughWriter {
    fn drop(&mut self) {
        let mut branches = self.shared.branches.lock();
        let Some(watched) = branches.known.get_mut(&self.branch) else { return };
        let Some(file) = watched.files.get_mut(&self.file) else { return };
        file.writers -= 1;
        if file.writers == 0 {
            watched.reserved = watched.reserved.saturating_sub(file.reserved);
            watched.files.remove(&self.file);
            shrink(&mut watched.files);
        }
    }
}

/// Returns true if so many bytes are free. Where room was scarce, it takes a quarter more, so that the answer does not
/// change with every open and close.
fn has_room(space: &Space, needed: u64, scarce: bool) -> bool {
    space.avail >= if scarce { needed.saturating_add(needed / 4) } else { needed }
}

/// Returns what a file of `size` bytes reserves when it is opened with these flags.
///
/// A file that is only written is a stream, and takes all that streams may. One that is also read is usually that of a
/// database or a virtual machine, which mostly writes in place: it reserves at most an eighth of that, and less if it is
/// small and not new.
fn at_first(flags: OFlags, size: u64, ample: u64) -> u64 {
    let few = ample / 8;
    match flags.contains(OFlags::RDWR) {
        false => ample,
        true if size == 0 || flags.contains(OFlags::TRUNC) => few,
        true => size.clamp(LEAST, few.max(LEAST)),
    }
}

/// Returns what a file reserves that has grown by `grown` bytes in the last second.
fn reserved_next(reserved: u64, grown: u64, ample: u64) -> u64 {
    let suggested = grown.saturating_mul(HORIZON).min(ample);
    suggested.max(reserved / 2).max(LEAST)
}

/// Returns the bytes that a file takes up. A hole that is filled counts as growth; a block that is written again does
/// not. (Where filesystems write elsewhere first, the old blocks are soon free.)
fn allocated(attr: &Attr) -> u64 {
    attr.blocks.saturating_mul(512)
}

/// Has the files of passthrough writers checked; returns whether there are any.
fn watch(shared: &Arc<Shared>) -> bool {
    let busy: Vec<Arc<Branch>> = {
        let mut branches = shared.branches.lock();
        let busy = branches.known.values().filter(|watched| !watched.files.is_empty());
        let busy: Vec<Weak<Branch>> = busy.map(|watched| watched.branch.clone()).collect();
        branches.watching = !busy.is_empty();
        if busy.is_empty() {
            return false;
        }
        busy.iter().filter_map(Weak::upgrade).collect()
    };
    // None waits for another one.
    for branch in busy.into_iter().filter(|branch| !branch.is_silent()) {
        let shared = Arc::clone(shared);
        tend::apart_if_free((CHECKS, branch.id.0.into()), move || check(&shared, &branch));
    }
    true
}

/// Adjusts the reservations of a branch's files to their growth, and warns when room gets short.
fn check(shared: &Shared, branch: &Branch) {
    let Ok(space) = Space::of(branch.root()) else { return };
    let most = shared.most.load(Ordering::Relaxed);
    let ample = ample(space.size()).saturating_add(most);
    let open: Vec<(FileKey, Arc<OwnedFd>)> = {
        let branches = shared.branches.lock();
        let Some(watched) = branches.known.get(&branch.id) else { return };
        watched.files.iter().filter_map(|(key, file)| Some((*key, file.fd.upgrade()?))).collect()
    };
    // Without the lock, because a disk may be slow to answer. A file that has moved is another one.
    let now: Vec<(FileKey, u64)> = open
        .into_iter()
        .filter_map(|(key, fd)| Some((key, stat::of(fd.as_fd()).ok().filter(|attr| attr.key() == key)?)))
        .map(|(key, attr)| (key, allocated(&attr)))
        .collect();
    let mut branches = shared.branches.lock();
    let Some(watched) = branches.known.get_mut(&branch.id) else { return };
    for (key, allocated) in now {
        if let Some(file) = watched.files.get_mut(&key) {
            let grown = allocated.saturating_sub(file.allocated);
            (file.allocated, file.reserved) = (allocated, reserved_next(file.reserved, grown, ample));
        }
    }
    watched.reserved = watched.files.values().fold(0, |sum, file| sum.saturating_add(file.reserved));
    watched.pressed = space.avail < PRESSED;
    let short = !has_room(&space, watched.reserved.max(ample), false);
    watched.scarce = !has_room(&space, watched.reserved.max(ample), watched.scarce);
    if short && !watched.warned {
        tracing::warn!(
            "{}: little room is left, and {} files are written by passthrough: writing to these fails with \
             \"no space left\" when the room is used up; files opened from now on are not affected",
            branch.path.shown(),
            watched.files.len()
        );
    }
    watched.warned = short;
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;

    #[test]
    fn a_new_writer_needs_a_part_of_the_disk_and_a_quarter_more_after_scarcity() {
        for (size, avail, others, scarce, expected) in [
            (4 * TIB, 64 * GIB, 0, false, true),
            (4 * TIB, 64 * GIB - 1, 0, false, false),
            (4 * TIB, 64 * GIB, 0, true, false),
            (4 * TIB, 80 * GIB, 0, true, true),
            (4 * TIB, 127 * GIB, 64 * GIB, false, false),
            (4 * TIB, 128 * GIB, 64 * GIB, false, true),
            (80 * GIB, 10 * GIB, 0, false, true),
            (80 * GIB, 10 * GIB - 1, 0, false, false),
            (8 * GIB, 4 * GIB, 0, false, true),
            (2 * GIB, 2 * GIB, 0, false, false),
            (u64::MAX, u64::MAX, u64::MAX, true, true),
            (0, 0, 0, false, false),
        ] {
            let space = Space { avail, used: size - avail, readonly: false, inodes: None };
            let needed = ample(space.size()).saturating_add(others);
            assert_eq!(has_room(&space, needed, scarce), expected, "{size} {avail} {others} {scarce}");
        }
    }

    #[test]
    fn streams_reserve_more_at_first_than_databases() {
        for (flags, size, expected) in [
            (OFlags::WRONLY, 0, 64 * GIB),
            (OFlags::WRONLY, GIB, 64 * GIB),
            (OFlags::RDWR, 0, 8 * GIB),
            (OFlags::RDWR | OFlags::TRUNC, MIB, 8 * GIB),
            (OFlags::RDWR, 8192, LEAST),
            (OFlags::RDWR, GIB, GIB),
            (OFlags::RDWR, 100 * GIB, 8 * GIB),
        ] {
            assert_eq!(at_first(flags, size, 64 * GIB), expected, "{flags:?} {size}");
        }
    }

    #[test]
    fn a_reservation_grows_with_the_speed_of_the_file_and_shrinks_while_it_rests() {
        let ample = 64 * GIB;
        let (mut reserved, mut seconds) = (ample, 0);
        while reserved > LEAST {
            reserved = reserved_next(reserved, 0, ample);
            seconds += 1;
        }
        assert_eq!((reserved, seconds), (LEAST, 14));
        assert_eq!(reserved_next(LEAST, 10 * MIB, ample), 10 * MIB * HORIZON);
        // A pause of a second does not take away more than half.
        assert_eq!(reserved_next(10 * MIB * HORIZON, 0, ample), 10 * MIB * HORIZON / 2);
        assert_eq!(reserved_next(LEAST, GIB, ample), ample);
    }
}
