//! Records of the open handles in memory that outlives this process, by which the next one takes the handles over.
//!
//! The descriptors themselves stay open, because the processes share one table of them. A record is complete once its
//! first word is set, and void once that is zero; everything else is written before and read after. No store moves before
//! an earlier one (`Release`), or the rest of a record that is used again might be written while the first word still says
//! that it is the former one.

use super::FileHandle;
use canopy_base::ids::{HandleId, NodeId};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_sys::process::{AtomicU64, SharedWords};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use rustix::fs::OFlags;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The words of a record.
pub const RECORD: usize = 8;

const HANDLE: usize = 0;
const NODE: usize = 1;
/// The node's generation, and above it the bits below.
const GENERATION: usize = 2;
/// The open flags, and above them the descriptor.
const FD: usize = 3;
/// The seed of the branch.
const BRANCH: usize = 4;
const BACKING: usize = 5;
/// The inode number that clients know of a file that has moved.
const NUMBER: usize = 6;
/// One more than the descriptor to which the handle is being moved.
const NEXT_FD: usize = 7;

const PASSTHROUGH: u64 = 1 << 32;
const DIRECT: u64 = 1 << 33;

/// The records of a pool's handles.
#[derive(Debug)]
pub struct HandleRecords {
    words: Arc<SharedWords>,
    range: Range<usize>,
    free: Mutex<Free, rank::Leaf>,
}

#[derive(Debug, Default)]
struct Free {
    slots: Vec<u32>,
    /// All from here on have never been used.
    unused: u32,
}

/// The record of one handle. Dropping it makes it void.
#[derive(Debug)]
pub(crate) struct HandleRecord {
    records: Arc<HandleRecords>,
    slot: u32,
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recorded {
    pub(crate) handle: HandleId,
    pub(crate) node: NodeId,
    pub(crate) generation: u32,
    pub(crate) fd: RawFd,
    /// The descriptor of the file's copy, if the process ended while the file moved there.
    pub(crate) next_fd: Option<RawFd>,
    pub(crate) flags: OFlags,
    pub(crate) branch: u64,
    /// 0 for none.
    pub(crate) backing: u32,
    /// 0 for a file that has not moved.
    pub(crate) number: u64,
    pub(crate) passthrough: bool,
    pub(crate) direct: bool,
}

impl Recorded {
    fn of(handle: HandleId, file: &FileHandle) -> Recorded {
        Recorded {
            handle,
            node: file.node.id,
            generation: file.node.generation,
            fd: file.fd().as_fd().as_raw_fd(),
            next_fd: None,
            flags: file.flags,
            branch: file.open.location().branch.seed.number(),
            backing: file.open.backing.as_ref().map_or(0, |file| file.id()),
            number: file.node.kept_number(),
            passthrough: file.passthrough,
            direct: file.is_direct(),
        }
    }
}

impl HandleRecords {
    /// The records in a range of words: first the number of those that have ever been used, then [`RECORD`] words each.
    #[must_use]
    pub fn new(words: Arc<SharedWords>, range: Range<usize>) -> Arc<HandleRecords> {
        let records = HandleRecords { words, range, free: Mutex::default() };
        let unused = records.used().load(Ordering::Acquire) as u32;
        let slots = (0..unused).filter(|&slot| records.handle(slot) == 0).collect();
        *records.free.lock() = Free { slots, unused };
        Arc::new(records)
    }

    /// Records a handle that is about to be given to the kernel; `None` if there are too many.
    pub(crate) fn add(self: &Arc<Self>, id: HandleId, handle: &FileHandle) -> Option<HandleRecord> {
        self.add_said(&Recorded::of(id, handle))
    }

    fn add_said(self: &Arc<Self>, said: &Recorded) -> Option<HandleRecord> {
        let slot = {
            let mut free = self.free.lock();
            match free.slots.pop() {
                Some(slot) => slot,
                None if free.unused < self.capacity() => {
                    free.unused += 1;
                    self.used().store(free.unused.into(), Ordering::Release);
                    free.unused - 1
                }
                None => return None,
            }
        };
        let record = HandleRecord { records: Arc::clone(self), slot };
        record.set(said);
        Some(record)
    }

    /// Returns the records that another process has left, with what they say.
    pub(crate) fn left(self: &Arc<Self>) -> Vec<(HandleRecord, Recorded)> {
        let unused = self.free.lock().unused;
        let used = (0..unused).filter(|&slot| self.handle(slot) != 0);
        used.map(|slot| (HandleRecord { records: Arc::clone(self), slot }, self.read(slot))).collect()
    }

    /// Returns the descriptors that the records name, in order. To be called before this process opens any: forgets those of
    /// copies that are not open, whose numbers will be used again.
    #[must_use]
    pub fn descriptors(self: &Arc<Self>) -> Vec<RawFd> {
        for slot in 0..self.free.lock().unused {
            let next = &self.record(slot)[NEXT_FD];
            if !canopy_sys::fd::is_open(next.load(Ordering::Relaxed) as RawFd - 1) {
                next.store(0, Ordering::Release);
            }
        }
        let unused = self.free.lock().unused;
        let word = |slot: u32, word: usize| self.record(slot)[word].load(Ordering::Relaxed);
        let mut descriptors: Vec<RawFd> = (0..unused)
            .filter(|&slot| self.handle(slot) != 0)
            .flat_map(|slot| [high(word(slot, FD)), word(slot, NEXT_FD) as RawFd - 1])
            .filter(|&fd| fd >= 0)
            .collect();
        descriptors.sort_unstable();
        descriptors
    }

    /// Returns the ids of the backing files that the handles use, in order.
    #[must_use]
    pub fn backing_ids(&self) -> Vec<u32> {
        let unused = self.free.lock().unused;
        let used = (0..unused).filter(|&slot| self.handle(slot) != 0);
        let mut ids: Vec<u32> =
            used.map(|slot| self.record(slot)[BACKING].load(Ordering::Relaxed) as u32).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn capacity(&self) -> u32 {
        (self.range.len() / RECORD) as u32 - 1
    }

    fn used(&self) -> &AtomicU64 {
        &self.words[self.range.start]
    }

    fn record(&self, slot: u32) -> &[AtomicU64] {
        let start = self.range.start + (slot as usize + 1) * RECORD;
        &self.words[start..start + RECORD]
    }

    fn handle(&self, slot: u32) -> u64 {
        self.record(slot)[HANDLE].load(Ordering::Acquire)
    }

    fn read(&self, slot: u32) -> Recorded {
        let words: [u64; RECORD] =
            std::array::from_fn(|word| self.record(slot)[word].load(Ordering::Relaxed));
        Recorded {
            handle: HandleId(words[HANDLE]),
            node: NodeId(words[NODE]),
            generation: words[GENERATION] as u32,
            fd: high(words[FD]),
            next_fd: (words[NEXT_FD] as RawFd).checked_sub(1).filter(|&fd| fd >= 0),
            flags: OFlags::from_bits_retain(words[FD] as u32),
            branch: words[BRANCH],
            backing: words[BACKING] as u32,
            number: words[NUMBER],
            passthrough: words[GENERATION] & PASSTHROUGH != 0,
            direct: words[GENERATION] & DIRECT != 0,
        }
    }
}

impl HandleRecord {
    fn words(&self) -> &[AtomicU64] {
        self.records.record(self.slot)
    }

    fn set(&self, said: &Recorded) {
        let words = self.words();
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let bits = bit(said.passthrough, PASSTHROUGH) | bit(said.direct, DIRECT);
        words[NODE].store(said.node.0, Ordering::Release);
        words[GENERATION].store(u64::from(said.generation) | bits, Ordering::Release);
        words[BACKING].store(said.backing.into(), Ordering::Release);
        words[NEXT_FD].store(0, Ordering::Release);
        self.place(said);
        words[HANDLE].store(said.handle.0, Ordering::Release);
    }

    /// Records where the handle is now.
    pub(crate) fn moved(&self, handle: &FileHandle) {
        self.place(&Recorded::of(HandleId(0), handle));
    }

    fn place(&self, said: &Recorded) {
        let words = self.words();
        words[BRANCH].store(said.branch, Ordering::Release);
        words[NUMBER].store(said.number, Ordering::Release);
        words[FD].store(join(said.fd, said.flags.bits()), Ordering::Release);
        words[NEXT_FD].store(0, Ordering::Release);
    }

    /// Records that the handle's file is about to be replaced by a copy on another branch, open as `fd`.
    pub(crate) fn moves_to(&self, fd: impl AsFd) {
        self.set_next(fd.as_fd().as_raw_fd());
    }

    fn set_next(&self, fd: RawFd) {
        self.words()[NEXT_FD].store(u64::from(fd.cast_unsigned()) + 1, Ordering::Release);
    }
}

impl Drop for HandleRecord {
    fn drop(&mut self) {
        self.words()[HANDLE].store(0, Ordering::Release);
        self.records.free.lock().slots.push(self.slot);
    }
}

fn join(high: RawFd, low: u32) -> u64 {
    u64::from(high.cast_unsigned()) << 32 | u64::from(low)
}

fn high(word: u64) -> RawFd {
    (word >> 32) as RawFd
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use canopy_sys::process::left_by_the_dead;

    fn said(handle: u64, fd: RawFd, branch: u64, next_fd: Option<RawFd>) -> Recorded {
        Recorded {
            handle: HandleId(handle),
            node: NodeId(10 * handle),
            generation: handle as u32,
            fd,
            next_fd,
            flags: OFlags::RDWR,
            branch,
            backing: handle as u32,
            number: 100 * branch,
            passthrough: handle == 1,
            direct: handle == 2,
        }
    }

    /// Returns what the next process may find of a record after one that has died in `write`.
    fn left(write: impl Fn(HandleRecord) + Send + Sync + 'static) -> Vec<Option<Recorded>> {
        let open = |words: &Arc<SharedWords>| HandleRecords::new(Arc::clone(words), 0..words.len());
        let words = || Arc::new(SharedWords::new(2 * RECORD).unwrap());
        left_by_the_dead(
            words,
            move |words| write(open(words).add_said(&said(1, 5, 1, None)).unwrap()),
            move |words| {
                let records = open(words);
                let unused = records.free.lock().unused;
                (0..unused).find(|&slot| records.handle(slot) != 0).map(|slot| records.read(slot))
            },
        )
    }

    fn same<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T]) {
        assert!(
            found.iter().all(|one| expected.contains(one)) && expected.iter().all(|one| found.contains(one)),
            "{found:#?} instead of {expected:#?}"
        );
    }

    #[test]
    fn a_record_that_is_used_again_is_the_one_or_the_other() {
        let found = left(|record| {
            let records = Arc::clone(&record.records);
            drop(record);
            std::mem::forget(records.add_said(&said(2, 6, 2, None)));
        });
        same(&found, &[None, Some(said(1, 5, 1, None)), Some(said(2, 6, 2, None))]);
    }

    #[test]
    fn a_handle_that_moves_has_its_branch_or_a_copy() {
        let found = left(|record| {
            record.set_next(7);
            record.place(&said(1, 7, 2, None));
            std::mem::forget(record);
        });
        let moving = |fd, branch, number| Some(Recorded { number, ..said(1, fd, branch, Some(7)) });
        same(
            &found,
            &[
                None,
                Some(said(1, 5, 1, None)),
                // Then the file itself tells whether it has moved.
                moving(5, 1, 100),
                moving(5, 2, 100),
                moving(5, 2, 200),
                moving(7, 2, 200),
                Some(said(1, 7, 2, None)),
            ],
        );
    }
}
