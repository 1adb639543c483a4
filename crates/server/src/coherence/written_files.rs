//! Files whose writes are not reported, because they are being written: their attributes are not cached.
//!
//! Counted by hash, so a file may be taken for one of them when another is: too much, never too little. Whoever adds or
//! removes a file tells of a change of its attributes afterwards. An answer that did not see it here is then found to be
//! overtaken, or the kernel is notified after it (`freshness`).

use canopy_base::hash;
use canopy_branch::fs::stat::FileKey;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

/// The number of counters, a power of two. At most as many files are counted (`watch::writers`).
pub(crate) const SLOTS: usize = 4096;

pub(crate) struct WrittenFiles {
    count: AtomicUsize,
    slots: Box<[AtomicU32]>,
}

impl Default for WrittenFiles {
    fn default() -> Self {
        WrittenFiles { count: AtomicUsize::new(0), slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect() }
    }
}

impl WrittenFiles {
    fn slot(&self, file: FileKey) -> &AtomicU32 {
        &self.slots[hash::of(&file) as usize % SLOTS]
    }

    pub(crate) fn add(&self, file: FileKey) {
        self.slot(file).fetch_add(1, SeqCst);
        self.count.fetch_add(1, SeqCst);
    }

    pub(crate) fn remove(&self, file: FileKey) {
        self.count.fetch_sub(1, SeqCst);
        self.slot(file).fetch_sub(1, SeqCst);
    }

    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    pub(crate) fn may_contain(&self, file: FileKey) -> bool {
        self.slot(file).load(SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_contained_until_it_is_removed() {
        let written = WrittenFiles::default();
        let file = |ino| FileKey { dev: 7, ino, birth: (0, 0) };
        assert!(written.is_empty() && !written.may_contain(file(1)));
        (0..100).for_each(|ino| written.add(file(ino)));
        assert!(!written.is_empty() && (0..100).all(|ino| written.may_contain(file(ino))));
        let mistaken = (1000..2000).filter(|&ino| written.may_contain(file(ino))).count();
        assert!(mistaken < 100, "{mistaken} of 1000");
        (0..99).for_each(|ino| written.remove(file(ino)));
        assert!(!written.is_empty() && written.may_contain(file(99)));
        written.remove(file(99));
        assert!(written.is_empty() && (0..2000).all(|ino| !written.may_contain(file(ino))));
    }
}
