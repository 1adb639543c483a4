//! Free space of branches, and a cache of it.

use canopy_base::hash::HashMap;
use canopy_base::ids::BranchId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use rustix::fs::{StatVfs, StatVfsMountFlags};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Space of the filesystem that holds a branch's root, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes available to unprivileged users: `f_bavail * f_frsize`.
    pub avail: u64,
    /// Bytes in use, including the reserve for root: `(f_blocks - f_bavail) * f_frsize`.
    pub used: u64,
    /// Mounted read-only (ST_RDONLY).
    pub readonly: bool,
    /// How many inodes unprivileged users may still use: `f_favail`. `None` if the filesystem does not count them.
    pub inodes: Option<u64>,
}

impl Space {
    /// Returns the total size, as far as unprivileged users may use it.
    pub fn size(&self) -> u64 {
        self.avail.saturating_add(self.used)
    }

    /// Asks the filesystem of `root`, a descriptor of a branch's root (`O_PATH` is enough).
    pub fn of(root: BorrowedFd<'_>) -> rustix::io::Result<Space> {
        Ok(Space::from(&rustix::fs::fstatvfs(root)?))
    }
}

impl From<&StatVfs> for Space {
    fn from(stat: &StatVfs) -> Space {
        // Some filesystems report absurd figures; saturating is better than wrapping.
        Space {
            avail: stat.f_bavail.saturating_mul(stat.f_frsize),
            used: stat.f_blocks.saturating_sub(stat.f_bavail).saturating_mul(stat.f_frsize),
            readonly: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
            inodes: (stat.f_files > 0).then_some(stat.f_favail),
        }
    }
}

/// A rate in bytes per second that no disk reaches.
const FASTEST: u64 = 16 << 30;
/// At that rate, an inode is used up by each so many bytes: a million a second.
const BYTES_PER_INODE: u64 = 16 << 10;

/// Caches each branch's space for `cache.statfs` seconds.
///
/// With a time-to-live of zero (the default) it takes no lock and always asks the filesystem. Errors are not cached:
/// they are returned, and the next call asks again, so that a failing disk is never mistaken for an empty one.
///
/// Its lock is held only for lookup and insertion, never while a filesystem is asked.
#[derive(Debug, Default)]
pub struct SpaceCache {
    ttl_seconds: AtomicU64,
    known: RwLock<HashMap<BranchId, (Instant, Space)>, rank::Leaf>,
}

impl SpaceCache {
    /// `ttl_seconds`: the value of `cache.statfs`.
    pub fn new(ttl_seconds: u64) -> SpaceCache {
        SpaceCache { ttl_seconds: AtomicU64::new(ttl_seconds), known: RwLock::default() }
    }

    /// Changes the time-to-live, also for answers that are cached already.
    pub fn set_ttl(&self, seconds: u64) {
        self.ttl_seconds.store(seconds, Ordering::Relaxed);
        if seconds == 0 {
            self.clear();
        }
    }

    /// Drops all answers, for when branches are added, removed or remounted.
    pub fn clear(&self) {
        self.known.write().clear();
    }

    /// Returns the space of branch `id`, whose root is `root`.
    pub fn get(&self, id: BranchId, root: BorrowedFd<'_>) -> rustix::io::Result<Space> {
        self.get_with(id, Instant::now, || Space::of(root))
    }

    /// Returns the space of a branch where it only matters whether `needed` bytes are available. An earlier answer is
    /// used for a second at most, and only while nothing written at `FASTEST` can have used up the rest. (Allocation
    /// without writing can be faster.)
    pub fn at_least(&self, id: BranchId, root: BorrowedFd<'_>, needed: u64) -> rustix::io::Result<Space> {
        self.recent(id, root, Instant::now(), is_enough(needed))
    }

    /// As `at_least`, where the space is also the weight of a random choice: an earlier answer is used only while
    /// writing cannot have reduced it by more than an eighth.
    pub fn roughly(&self, id: BranchId, root: BorrowedFd<'_>, needed: u64) -> rustix::io::Result<Space> {
        self.recent(id, root, Instant::now(), is_enough_roughly(needed))
    }

    /// Returns an earlier answer that is still `good`, given the bytes that may have been written since, or younger than
    /// the time-to-live; otherwise asks.
    fn recent(
        &self,
        id: BranchId,
        root: BorrowedFd<'_>,
        at: Instant,
        good: impl Fn(&Space, u64) -> bool,
    ) -> rustix::io::Result<Space> {
        if let Some((then, space)) = self.known.read().get(&id).copied() {
            let age = at.saturating_duration_since(then);
            let used = u64::try_from(age.as_micros()).unwrap_or(u64::MAX).saturating_mul(FASTEST / 1_000_000);
            let ttl = Duration::from_secs(self.ttl_seconds.load(Ordering::Relaxed));
            let holds = age <= Duration::from_secs(1) && !space.readonly && good(&space, used);
            if holds || age < ttl {
                return Ok(space);
            }
        }
        let space = Space::of(root)?;
        self.known.write().insert(id, (at, space));
        Ok(space)
    }

    fn get_with(
        &self,
        id: BranchId,
        now: impl Fn() -> Instant,
        ask: impl FnOnce() -> rustix::io::Result<Space>,
    ) -> rustix::io::Result<Space> {
        let ttl = Duration::from_secs(self.ttl_seconds.load(Ordering::Relaxed));
        if ttl.is_zero() {
            return ask();
        }
        let at = now();
        if let Some((then, space)) = self.known.read().get(&id).copied()
            && at.saturating_duration_since(then) <= ttl
        {
            return Ok(space);
        }
        let space = ask()?;
        // Aged from before the question: a slow disk may have computed its answer early.
        self.known.write().insert(id, (at, space));
        Ok(space)
    }
}

fn is_enough(needed: u64) -> impl Fn(&Space, u64) -> bool {
    move |space, used| {
        space.avail.saturating_sub(used) >= needed
            && space.inodes.is_none_or(|inodes| inodes > used / BYTES_PER_INODE)
    }
}

fn is_enough_roughly(needed: u64) -> impl Fn(&Space, u64) -> bool {
    move |space, used| is_enough(needed)(space, used) && used <= space.avail / 8
}

/// The last check of a branch's room for passthrough readers: its time in milliseconds, shifted left by one, with the
/// lowest bit set if room was scarce. 0 before the first check.
#[derive(Default, Debug)]
pub struct RoomSeen(pub(crate) AtomicU64);

impl RoomSeen {
    pub fn put(&self, scarce: bool) {
        self.0.store(millis() << 1 | u64::from(scarce), Ordering::Relaxed);
    }
}

/// Until when a branch cannot run out of space, in milliseconds. To ask the filesystem costs less than to write with other
/// ids, but is not needed for each write.
#[derive(Default, Debug)]
pub struct AmpleUntil(AtomicU64);

impl AmpleUntil {
    /// What may be written before a write that has been let through is done, and by the time that the clock shows the next
    /// tick.
    const MARGIN: u64 = 1 << 30;
    /// Whoever takes space faster than by writing (fallocate(2)) has his advantage for so many milliseconds only.
    const LONGEST: u64 = 100;

    /// Returns whether a branch has space for something this large, whatever others write meanwhile. `ask`: for its
    /// available space.
    pub(crate) fn is_ample(&self, wanted: u64, ask: impl FnOnce() -> Option<Space>) -> bool {
        if wanted > Self::MARGIN / 64 {
            // It may well use up the rest.
            self.0.store(0, Ordering::Relaxed);
            return false;
        }
        let now = millis();
        if now < self.0.load(Ordering::Relaxed) {
            return true;
        }
        let avail = ask().map_or(0, |space| space.avail);
        let time = (avail.saturating_sub(Self::MARGIN) / (FASTEST / 1000)).min(Self::LONGEST);
        self.0.store(now + time, Ordering::Relaxed);
        time > 0
    }
}

/// When a file that somebody may have open has lost its last name, so that its room comes free in a moment.
#[derive(Default, Debug)]
pub struct LastFreed {
    /// In milliseconds.
    at: AtomicU64,
    /// How many operations wait for that room.
    waiting: AtomicUsize,
}

impl LastFreed {
    /// For how long an operation may hope. Files that programs keep open give nothing back meanwhile.
    pub const LONGEST: Duration = Duration::from_millis(100);
    const PAUSE: Duration = Duration::from_millis(2);
    /// How many operations wait at the same time, each in a worker. Others fail at once.
    const MOST: usize = 4;

    pub fn now(&self) {
        self.at.store(millis(), Ordering::Relaxed);
    }

    /// Waits a little if such a file was removed a moment ago. Returns whether it has waited.
    pub fn waits(&self) -> bool {
        let age = millis().saturating_sub(self.at.load(Ordering::Relaxed));
        if age >= Self::LONGEST.as_millis() as u64 {
            return false;
        }
        let may = self.waiting.fetch_add(1, Ordering::Relaxed) < Self::MOST;
        if may {
            std::thread::sleep(Self::PAUSE);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        may
    }
}

pub fn millis() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32).as_millis() as u64
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::AsFd;

    use rustix::io::Errno;

    use super::*;

    const ONE: BranchId = BranchId(1);
    const TWO: BranchId = BranchId(2);

    fn space(avail: u64) -> Space {
        Space { avail, used: 1, readonly: false, inodes: None }
    }

    fn stat(frsize: u64, blocks: u64, bavail: u64, flags: StatVfsMountFlags) -> StatVfs {
        let file = std::fs::File::open("/").expect("the root directory");
        let mut stat = rustix::fs::fstatvfs(file.as_fd()).expect("fstatvfs");
        (stat.f_bsize, stat.f_frsize, stat.f_blocks, stat.f_bavail) = (1 << 17, frsize, blocks, bavail);
        stat.f_bfree = bavail + 7;
        stat.f_files = 0;
        stat.f_flag = flags;
        stat
    }

    #[test]
    fn figures_are_blocks_times_fragment_size() {
        let rw = StatVfsMountFlags::empty();
        for (stat, expected) in [
            (
                stat(4096, 100, 30, rw),
                Space { avail: 30 * 4096, used: 70 * 4096, readonly: false, inodes: None },
            ),
            (
                stat(1, 5, 5, StatVfsMountFlags::RDONLY),
                Space { avail: 5, used: 0, readonly: true, inodes: None },
            ),
            (stat(1, 5, 6, rw), Space { avail: 6, used: 0, readonly: false, inodes: None }),
            (
                stat(4096, u64::MAX, 1, rw),
                Space { avail: 4096, used: u64::MAX, readonly: false, inodes: None },
            ),
        ] {
            assert_eq!(Space::from(&stat), expected);
        }
    }

    #[test]
    fn inodes_are_known_where_the_filesystem_counts_them_and_an_answer_serves_while_they_last() {
        let mut stat = stat(4096, 100, 30, StatVfsMountFlags::empty());
        for (files, favail, expected) in [(0, 0, None), (100, 0, Some(0)), (100, 7, Some(7))] {
            (stat.f_files, stat.f_favail) = (files, favail);
            assert_eq!(Space::from(&stat).inodes, expected);
        }
        for (inodes, written, serves) in [
            (None, u64::MAX >> 20, true),
            (Some(0), 0, false),
            (Some(1), 0, true),
            (Some(1000), 999 * BYTES_PER_INODE, true),
            (Some(1000), 1000 * BYTES_PER_INODE, false),
        ] {
            let space = Space { inodes, ..space(u64::MAX) };
            assert_eq!(is_enough(0)(&space, written), serves, "{inodes:?} after {written}");
        }
    }

    #[test]
    fn a_path_descriptor_is_enough() {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).expect("open");
        let seen = Space::of(root.as_fd()).expect("fstatvfs");
        assert_ne!((seen.avail, seen.used), (0, 0));
        assert_eq!(SpaceCache::new(0).get(ONE, root.as_fd()).map(|space| space.readonly), Ok(seen.readonly));
    }

    #[test]
    fn a_zero_time_to_live_always_asks_the_filesystem() {
        let cache = SpaceCache::default();
        for avail in [1, 2, 3] {
            assert_eq!(
                cache.get_with(ONE, || unreachable!("no clock"), || Ok(space(avail))),
                Ok(space(avail))
            );
        }
        assert!(cache.known.read().is_empty());
    }

    #[test]
    fn defect_06_the_time_to_live_applies_from_the_start() {
        let cache = SpaceCache::new(2);
        let start = Instant::now();
        let asked = Cell::new(0u64);
        let get = |id, seconds| {
            let at = start + Duration::from_secs(seconds);
            let ask = || {
                asked.set(asked.get() + 1);
                Ok(space(asked.get()))
            };
            cache.get_with(id, || at, ask).expect("an answer").avail
        };
        assert_eq!([get(ONE, 0), get(ONE, 1), get(ONE, 2)], [1, 1, 1], "cached for two seconds");
        assert_eq!(get(TWO, 2), 2, "each branch has its own answer");
        assert_eq!([get(ONE, 3), get(ONE, 3)], [3, 3], "asked again");
        cache.set_ttl(1);
        assert_eq!(get(ONE, 5), 4);
        cache.clear();
        assert_eq!(get(ONE, 5), 5);
        cache.set_ttl(0);
        assert_eq!([get(ONE, 5), get(ONE, 5)], [6, 7]);
    }

    #[test]
    fn an_earlier_answer_holds_while_writing_cannot_have_changed_much() {
        let root = std::fs::File::open("/").expect("the root directory");
        let cache = SpaceCache::default();
        let now = Instant::now();
        let put = |age, avail, readonly| {
            let at = now - Duration::from_millis(age);
            cache.known.write().insert(ONE, (at, Space { readonly, ..space(avail) }));
        };
        let root = root.as_fd();
        let (enough, roughly) = (
            || cache.recent(ONE, root, now, is_enough(1 << 30)).expect("an answer").used == 1,
            || cache.recent(ONE, root, now, is_enough_roughly(1 << 30)).expect("an answer").used == 1,
        );
        // The real answer has more than one byte in use.
        for (age, gib, readonly, expected) in [
            (100, 100, false, [true, true]),
            (100, 4, false, [true, false]),
            (100, 2, false, [false, false]),
            (100, 100, true, [false, false]),
            (1001, 1 << 20, false, [false, false]),
        ] {
            let used = |get: &dyn Fn() -> bool| {
                put(age, gib << 30, readonly);
                get()
            };
            assert_eq!([used(&enough), used(&roughly)], expected, "{age} ms, {gib} GiB");
        }
        cache.set_ttl(60);
        put(2000, 0, false);
        assert!(roughly(), "within the time-to-live");
    }

    #[test]
    fn failures_are_not_cached() {
        let cache = SpaceCache::new(60);
        let now = Instant::now();
        for _ in 0..2 {
            assert_eq!(cache.get_with(ONE, || now, || Err(Errno::IO)), Err(Errno::IO));
        }
        assert_eq!(cache.get_with(ONE, || now, || Ok(space(5))), Ok(space(5)));
    }

    #[test]
    fn space_is_ample_only_where_nobody_can_use_it_up_in_time() {
        const GIB: u64 = 1 << 30;
        for (avail, wanted, ample) in [
            (0, 1, false),
            (GIB, 1, false),
            (GIB + (20 << 20), 1, true),
            (100 * GIB, 16 << 20, true),
            (100 * GIB, 17 << 20, false),
            (u64::MAX, 1, true),
        ] {
            let until = AmpleUntil::default();
            assert_eq!(until.is_ample(wanted, || Some(space(avail))), ample, "{avail} {wanted}");
        }
        let until = AmpleUntil::default();
        assert!(until.is_ample(1, || Some(space(100 * GIB))));
        assert!(until.is_ample(1, || panic!("it is known")));
        assert!(!until.is_ample(GIB, || panic!("it does not matter")));
        assert!(!until.is_ample(1, || None), "it is asked for again");
    }
}
