//! Mirrors: the other copies of a file that is open for writing, which get each write at the same time (`when = "written"`).
//!
//! While they may differ, the node's own copy has the largest number, without the mark, and each mirror a smaller one of its own, with
//! it: so whatever ends in between, the own copy is right, and the mirrors are old; and one that is the newest because the others are
//! away gets a larger number than theirs before it changes. When all of them are on disk with the same
//! data and attributes, they get one number with the mark, as copies that the mover has made.

use canopy_base::error::{Failure, is_full, is_illness};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::MutexGuard;
use canopy_branch::branch::Branch;
use canopy_branch::fs::generation::{self, Generation};
use canopy_branch::fs::stat::{self, FileKey};
use canopy_branch::relocate;
use canopy_sys::shown::Show as _;
use canopy_sys::thread::sched;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use smallvec::SmallVec;
use std::sync::Arc;

/// Writes of so many bytes, and whatever waits for a disk, are done on all disks at the same time. Starting a thread takes longer than
/// to copy less into the page cache.
const SIDE_BY_SIDE: usize = 256 << 10;

/// One copy of a file that is open for writing.
pub(crate) struct Mirror {
    pub(crate) branch: Arc<Branch>,
    /// Open for reading and writing; of the node's own copy perhaps only for reading.
    pub(crate) fd: OwnedFd,
    pub(crate) key: FileKey,
}

impl Mirror {
    pub(crate) fn generation(&self) -> Result<Option<Generation>, Errno> {
        self.branch.reads(|| generation::read(self.fd.as_fd()))
    }

    fn put(&self, number: u64, shared: bool) -> Result<(), Errno> {
        self.branch.changes(|| generation::write(self.fd.as_fd(), Generation { number, shared }))
    }

    fn sync(&self, data_only: bool) -> Result<(), Errno> {
        let sync = if data_only { rustix::fs::fdatasync } else { rustix::fs::fsync::<&OwnedFd> };
        match self.branch.changes(|| sync(&self.fd)) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
            other => other,
        }
    }

    fn write(&self, mut data: &[u8], mut at: u64, flags: ReadWriteFlags) -> Result<(), Errno> {
        while !data.is_empty() {
            let write = || {
                if flags.is_empty() {
                    rustix::io::pwrite(&self.fd, data, at)
                } else {
                    rustix::io::pwritev2(&self.fd, &[IoSlice::new(data)], at, flags)
                }
            };
            match self.branch.changes(write) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => {
                    self.branch.traffic.count_write(written);
                    data = &data[written..];
                    at += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// The mirrors of a node, and its own copy. Locked by whatever changes the data of the file, so that all copies see the same order.
#[derive(Default)]
pub(crate) struct Mirrors {
    pub(crate) own: Option<Mirror>,
    pub(crate) list: SmallVec<[Mirror; 1]>,
    /// The copies may differ, and have different numbers. Before anything is written.
    apart: bool,
    /// The number of the node's own copy while they are apart.
    pub(crate) number: u64,
    /// How often the node had moved when its own copy became that.
    pub(crate) moves: u32,
    /// The handles that write.
    pub(crate) users: usize,
    /// The node's own copy has failed, and a mirror is to take its place before anything else happens.
    pub(crate) failed: Option<Errno>,
}

pub(crate) type Locked<'n> = MutexGuard<'n, Mirrors, rank::Mirrors>;

impl Mirrors {
    /// Mirrors of a new file, which have their numbers.
    pub(crate) fn of_new(own: Mirror, list: SmallVec<[Mirror; 1]>, number: u64) -> Mirrors {
        Mirrors { own: Some(own), list, apart: true, number, users: 1, ..Mirrors::default() }
    }

    /// Mirrors that are equal, with the mark.
    pub(crate) fn of_equal(own: Mirror, list: SmallVec<[Mirror; 1]>) -> Mirrors {
        Mirrors { own: Some(own), list, ..Mirrors::default() }
    }

    pub(crate) fn is_apart(&self) -> bool {
        self.apart
    }

    /// Notes that no other copy has the number of the own one, though no mirror is left.
    pub(crate) fn now_alone(&mut self) {
        self.apart = true;
    }

    pub(crate) fn keys(&self) -> SmallVec<[FileKey; 4]> {
        self.own.iter().chain(&self.list).map(|copy| copy.key).collect()
    }

    /// Lets the mirrors go that `keeps` does not want. They are old, as long as all are apart.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&Mirror, &Mirror) -> bool) {
        if let Some(own) = &self.own {
            self.list.retain(|mirror| keeps(own, mirror));
        }
    }

    /// Gives all copies numbers larger than `before`, the own copy the largest, and waits until these are on disk. Before, all hold
    /// the same; from then on, they may differ. The own copy comes first: a process that is killed in between must not leave a
    /// mirror that is newer than the copy which the handles know.
    pub(crate) fn renumber(&mut self, before: u64) -> Result<(), Errno> {
        self.number_from(generation::next(before.max(self.number)))
    }

    /// As `renumber`, where the own copy has taken the place of one that had the number `before`, and can be written no more.
    pub(crate) fn succeed(&mut self, before: u64) -> Result<(), Errno> {
        self.number_from(generation::successor(before.max(self.number)))
    }

    fn number_from(&mut self, first: u64) -> Result<(), Errno> {
        let Some(own) = &self.own else { return Ok(()) };
        self.number = first.saturating_add(self.list.len() as u64);
        own.put(self.number, false).inspect_err(|&errno| self.failed = Some(errno))?;
        let mut number = self.number;
        self.list.retain(|mirror| {
            number -= 1;
            mirror.put(number, true).inspect_err(|&errno| mirror_fails(mirror, errno)).is_ok()
        });
        self.apart = true;
        self.on_all(true, |own| own.sync(false), |mirror| mirror.sync(false))
    }

    /// Parts copies that are equal, before one of them changes. Those that others have changed since are let go. If none is left, the own
    /// copy still has the number that it had.
    pub(crate) fn part(&mut self) -> Result<(), Errno> {
        let Some(own) = self.own.as_ref().filter(|_| !self.apart) else { return Ok(()) };
        let before = own.generation().inspect_err(|&errno| self.failed = Some(errno))?;
        let Some(before) = before.filter(|before| before.shared) else {
            self.list.clear();
            return Ok(());
        };
        let size = |copy: &Mirror| copy.branch.reads(|| stat::of(copy.fd.as_fd())).map(|attr| attr.size);
        self.retain(|own, mirror| {
            mirror.generation() == Ok(Some(before)) && size(own).is_ok_and(|own| size(mirror) == Ok(own))
        });
        if self.list.is_empty() { Ok(()) } else { self.renumber(before.number) }
    }

    /// Waits until all copies are on disk, and says that they are equal. The caller has the right to claim that.
    pub(crate) fn seal(&mut self) -> Result<(), Errno> {
        let number = self.number;
        let Some(own) = self.own.as_ref().filter(|_| self.apart) else { return Ok(()) };
        let known = Some(Generation { number, shared: false });
        if own.generation().inspect_err(|&errno| self.failed = Some(errno))? != known {
            // It has become newer by another way than the lock.
            self.list.clear();
            return self.sync(false);
        }
        let attr = |copy: &Mirror| copy.branch.reads(|| stat::of(copy.fd.as_fd()));
        let own_attr = attr(own).inspect_err(|&errno| self.failed = Some(errno))?;
        self.retain(|_, mirror| {
            attr(mirror).is_ok_and(|attr| (attr.size, attr.nlink) == (own_attr.size, own_attr.nlink))
        });
        self.level();
        if self.list.is_empty() {
            return self.sync(false);
        }
        // First, and on disk with the data: whoever opens this copy for writing then knows that others may be equal.
        let number = loop {
            let number = self.number;
            let own = self.own.as_ref().ok_or(Errno::BADF)?;
            own.put(number, true).inspect_err(|&errno| self.failed = Some(errno))?;
            self.sync(false)?;
            // One that could not sync was let go, and the others have got other numbers.
            if self.number == number {
                break number;
            }
        };
        self.list.retain(|mirror| {
            mirror.put(number, true).inspect_err(|&errno| mirror_fails(mirror, errno)).is_ok()
        });
        self.apart = false;
        Ok(())
    }

    /// Gives the mirrors the attributes of the own copy. One that cannot have them is let go.
    pub(crate) fn level(&mut self) {
        self.retain(|own, mirror| {
            let level = || {
                own.branch.reads(|| {
                    relocate::level_metadata(own.fd.as_fd(), mirror.fd.as_fd(), generation::ATTRIBUTE)
                })
            };
            mirror.branch.reads(level).inspect_err(|&errno| mirror_fails(mirror, errno)).is_ok()
        });
    }

    /// Waits until all copies are on disk.
    pub(crate) fn sync(&mut self, data_only: bool) -> Result<(), Errno> {
        self.on_all(true, |own| own.sync(data_only), |mirror| mirror.sync(data_only))
    }

    /// Writes data at an offset. `own` writes it to the own copy, and says how much of it.
    pub(crate) fn write(
        &mut self,
        own: impl Fn() -> Result<usize, Errno>,
        data: &[u8],
        at: u64,
        flags: ReadWriteFlags,
    ) -> Result<usize, Errno> {
        let own = |_: &Mirror| loop {
            match own() {
                Err(Errno::INTR) => {}
                other => return other,
            }
        };
        let waits = data.len() >= SIDE_BY_SIDE || !flags.is_empty();
        self.on_all(waits, own, |mirror| mirror.write(data, at, flags))
    }

    /// Changes all copies, on all disks at once if that is worth it. The result is that of the own copy. If only that has failed, the
    /// error is nobody's: a mirror is to [take its place](Mirrors::failed), and the change is to be made again. Mirrors that fail
    /// are let go.
    pub(crate) fn on_all<T, E: Failure + From<Errno>>(
        &mut self,
        waits: bool,
        own: impl FnOnce(&Mirror) -> Result<T, E>,
        other: impl Fn(&Mirror) -> Result<(), Errno> + Sync,
    ) -> Result<T, E> {
        let Some(first) = &self.own else { return Err(Errno::BADF.into()) };
        let (done, others) = if waits && !self.list.is_empty() {
            let (list, other) = (&self.list, &other);
            std::thread::scope(|scope| {
                let start = |mirror| {
                    let run = move || {
                        sched::start_afresh();
                        other(mirror)
                    };
                    // Without a thread, one after the other.
                    std::thread::Builder::new()
                        .name("canopy-mirror".into())
                        .spawn_scoped(scope, run)
                        .map_err(|_| mirror)
                };
                let started: SmallVec<[_; 1]> = list.iter().map(start).collect();
                let done = own(first);
                let ended = started.into_iter().map(|started| match started {
                    Ok(thread) => thread.join().unwrap_or(Err(Errno::IO)),
                    Err(mirror) => other(mirror),
                });
                (done, ended.collect::<SmallVec<[Result<(), Errno>; 1]>>())
            })
        } else {
            let done = own(first);
            (done, self.list.iter().map(&other).collect())
        };
        self.judge(done.as_ref().map(drop).map_err(Failure::errno), &others);
        done
    }

    /// Draws the conclusions of a change: what the own copy said, and the others.
    fn judge(&mut self, own: Result<(), Errno>, others: &[Result<(), Errno>]) {
        if let Err(errno) = own {
            if !is_full(errno) && !is_illness(errno) && others.iter().all(|other| *other == Err(errno)) {
                // The change makes no sense.
                return;
            }
            if others.contains(&Ok(())) {
                self.failed = Some(errno);
            }
        }
        let mut results = others.iter();
        let before = self.list.len();
        self.list.retain(|mirror| match results.next() {
            Some(Err(errno)) => {
                mirror_fails(mirror, *errno);
                false
            }
            _ => true,
        });
        if own.is_ok() && self.apart && self.list.len() < before && !self.list.is_empty() {
            // The one that is let go must not be newer than those that stay.
            let _ = self.renumber(self.number);
        }
    }
}

fn mirror_fails(mirror: &Mirror, errno: Errno) {
    let branch = mirror.branch.path.shown();
    if is_full(errno) {
        tracing::info!(
            "{branch} is full: a file that is written there and elsewhere goes on elsewhere, and its copy is to be made again"
        );
    } else {
        tracing::warn!(
            "{branch}: a file that is written there and elsewhere goes on elsewhere ({errno}); its copy is to be made again"
        );
    }
}
