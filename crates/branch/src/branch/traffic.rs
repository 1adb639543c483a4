//! What the daemon has read, written and opened on a branch.
//!
//! Each thread counts in a shard of its own, so that no cache line travels between processors. What passthrough carries
//! does not come to the daemon and is not in these counts, except that its files were opened.

use canopy_base::lock::sharded::Sharded;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The counters of a branch. They live as long as the process, so that an open file can refer to them without counting
/// references, which all threads would share.
#[derive(Default)]
pub struct Traffic(Sharded<Counters>);

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    opens: AtomicU64,
    passed_opens: AtomicU64,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TrafficCounts {
    /// Reads and writes that the daemon has done for clients.
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    /// Opens of files whose data the daemon reads and writes.
    pub opens: u64,
    /// Opens of files whose data the kernel reads and writes by passthrough.
    pub passed_opens: u64,
}

/// By the path of the branch, so that a branch which comes back goes on counting, and there are no more of them than paths.
static KNOWN: Mutex<BTreeMap<PathBuf, &Traffic>> = Mutex::new(BTreeMap::new());

impl Traffic {
    /// Returns the counters of the branch at this path.
    pub fn of(path: &Path) -> &'static Traffic {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(traffic) = known.get(path).copied() {
            return traffic;
        }
        let traffic: &'static Traffic = Box::leak(Box::default());
        known.insert(path.to_owned(), traffic);
        traffic
    }

    pub fn count_read(&self, bytes: usize) {
        let mine = self.0.mine();
        mine.reads.fetch_add(1, Ordering::Relaxed);
        mine.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn count_write(&self, bytes: usize) {
        let mine = self.0.mine();
        mine.writes.fetch_add(1, Ordering::Relaxed);
        mine.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn count_open(&self, passthrough: bool) {
        let mine = self.0.mine();
        let opens = if passthrough { &mine.passed_opens } else { &mine.opens };
        opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the sum of what all threads have counted.
    pub fn counts(&self) -> TrafficCounts {
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            self.0.iter().map(|shard| counter(shard).load(Ordering::Relaxed)).sum()
        };
        TrafficCounts {
            reads: sum(|counters| &counters.reads),
            read_bytes: sum(|counters| &counters.read_bytes),
            writes: sum(|counters| &counters.writes),
            written_bytes: sum(|counters| &counters.written_bytes),
            opens: sum(|counters| &counters.opens),
            passed_opens: sum(|counters| &counters.passed_opens),
        }
    }
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.counts().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_count_for_the_path_of_a_branch() {
        let path = Path::new("/a branch of this test");
        let threads = [(); 3].map(|()| {
            std::thread::spawn(|| {
                let traffic = Traffic::of(path);
                (1..=10).for_each(|bytes| traffic.count_read(bytes));
                traffic.count_write(7);
                traffic.count_open(true);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        Traffic::of(path).count_open(false);
        let expected = TrafficCounts {
            reads: 30,
            read_bytes: 165,
            writes: 3,
            written_bytes: 21,
            opens: 1,
            passed_opens: 3,
        };
        assert_eq!(Traffic::of(path).counts(), expected);
        assert_eq!(Traffic::of(Path::new("/another")).counts(), TrafficCounts::default());
    }
}
