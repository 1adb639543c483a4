//! Which thread opened a file last, or read a symlink, and when: for the files that were opened not long ago, whether the kernel still knows
//! them or not.

use canopy_base::hash;
use canopy_branch::fs::stat::{FileKey, Time};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many files there is room for. A file may take the place of another.
const FILES: usize = 1 << 13;
/// Bits for a thread's number: the kernel has no more than 4 million (`PID_MAX_LIMIT`).
const THREAD_BITS: u32 = 22;
/// The longest tick of a kernel's clock, in milliseconds (CONFIG_HZ=100).
const TICK: u64 = 10;

/// For each place, the time and in the lowest bits the thread, and that combined with the hash of the file: two threads
/// may write a place at once, and then it says nothing.
pub(crate) struct LastOpens(Box<[[AtomicU64; 2]]>);

impl Default for LastOpens {
    fn default() -> Self {
        LastOpens((0..FILES).map(|_| Default::default()).collect())
    }
}

impl LastOpens {
    /// Records an open. Asks for the time by the clock from which files get their birth times.
    pub(crate) fn put(&self, file: FileKey, thread: u32) {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let time = millis(Time { sec: now.tv_sec, nsec: now.tv_nsec as u32 });
        let (hash, open) = (hash::of(&file), time << THREAD_BITS | u64::from(thread));
        let place = self.place(hash);
        place[0].store(open, Ordering::Relaxed);
        place[1].store(open ^ hash, Ordering::Relaxed);
    }

    /// Returns whether an open now and a birth may be of one tick of the clock, which then does not tell what was first.
    pub(crate) fn may_be_together(birth: (i64, u32)) -> bool {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let time = |sec: i64, nsec: u32| millis(Time { sec, nsec });
        time(now.tv_sec, now.tv_nsec as u32) <= time(birth.0, birth.1) + TICK
    }

    /// Returns whether this thread is known to have opened the file last, and not after this time.
    pub(crate) fn is_by(&self, file: FileKey, thread: u32, before: Time) -> bool {
        let hash = hash::of(&file);
        let [open, check] = self.place(hash).each_ref().map(|word| word.load(Ordering::Relaxed));
        open != 0
            && open ^ check == hash
            && open & ((1 << THREAD_BITS) - 1) == u64::from(thread)
            && open >> THREAD_BITS <= millis(before)
    }

    fn place(&self, hash: u64) -> &[AtomicU64; 2] {
        &self.0[(hash % FILES as u64) as usize]
    }
}

fn millis(time: Time) -> u64 {
    u64::try_from(time.sec).unwrap_or(0) * 1000 + u64::from(time.nsec / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_is_known_by_its_file_thread_and_time() {
        let file = |ino| FileKey { dev: 1, ino, birth: (5, 6) };
        let (opens, late) = (LastOpens::default(), Time { sec: 1 << 33, nsec: 0 });
        assert!(!opens.is_by(file(2), 7, late));
        opens.put(file(2), 7);
        assert!(opens.is_by(file(2), 7, late));
        assert!(!opens.is_by(file(2), 8, late) && !opens.is_by(file(3), 7, late));
        assert!(!opens.is_by(file(2), 7, Time { sec: 1_000_000_000, nsec: 0 }), "it was later");
        opens.put(file(2), 8);
        assert!(!opens.is_by(file(2), 7, late) && opens.is_by(file(2), 8, late));
    }
}
