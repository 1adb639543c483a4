//! Mapped pages of files that are written past the page cache (`cache.files=off`).
//!
//! The kernel drops the pages under such a write before it asks for it, and once more when it has the answer
//! (fs/fuse/file.c fuse_direct_io). A page that a fault fetches in between holds what was there before the write, and if it is
//! stored to meanwhile, the second time it comes back whole, and would undo the write. From the moment that the write is
//! done until the page is fetched anew, nothing that comes back with it can be newer than the write, as far as the write
//! reaches: a store that follows the write meets a page that was fetched after it. So that part is left out.

use crate::lock::rank;
use crate::lock::ranked::{Mutex, RwLock};
use std::collections::VecDeque;
use std::ops::Range;

/// More writes than can be under way at once. Of those that are done no page is left.
const WRITES: usize = 128;

/// What direct writes have overtaken of the pages of one open file. It exists once a page has been fetched.
#[derive(Default)]
pub(crate) struct DirectWrites {
    /// Exclusive for a direct write, shared for pages that are fetched and that come back.
    pub(crate) order: RwLock<(), rank::DirectWrites>,
    /// Since pages there were fetched; the newest write last.
    written: Mutex<VecDeque<Range<u64>>, rank::OvertakenPages>,
}

impl DirectWrites {
    /// Something was written past the page cache. The caller holds `order` exclusively.
    pub(crate) fn written(&self, range: Range<u64>) {
        let mut written = self.written.lock();
        match written.back_mut().filter(|last| last.start <= range.end && range.start <= last.end) {
            Some(last) => *last = last.start.min(range.start)..last.end.max(range.end),
            None => {
                if written.len() == WRITES {
                    written.pop_front();
                }
                written.push_back(range);
            }
        }
    }

    /// Pages have been read. The caller holds `order`.
    pub(crate) fn fetched(&self, pages: Range<u64>) {
        let mut written = self.written.lock();
        if written.iter().any(|range| range.start < pages.end && pages.start < range.end) {
            let rest = written.iter().flat_map(|range| {
                let before = range.start..range.end.min(pages.start);
                let after = range.start.max(pages.end)..range.end;
                [before, after]
            });
            *written = rest.filter(|range| !range.is_empty()).collect();
        }
    }

    /// Of pages that come back from `at` to `end`: how many bytes are to be left out, and how many are to be written
    /// behind these. The caller holds `order`.
    pub(crate) fn next(&self, at: u64, end: u64) -> (u64, u64) {
        let written = self.written.lock();
        let mut from = at;
        while let Some(range) = written.iter().find(|range| range.contains(&from) && from < end) {
            from = range.end.min(end);
        }
        let to = written.iter().map(|range| range.start).filter(|start| (from..end).contains(start)).min();
        (from - at, to.unwrap_or(end) - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of 0 to 100 that would be written.
    fn left(overtaken: &DirectWrites) -> Vec<(u64, u64)> {
        let mut at = 0;
        let mut left = Vec::new();
        while at < 100 {
            let (skipped, len) = overtaken.next(at, 100);
            assert!(skipped + len > 0);
            if len > 0 {
                left.push((at + skipped, at + skipped + len));
            }
            at += skipped + len;
        }
        left
    }

    #[test]
    fn written_ranges_are_left_out_until_they_are_fetched() {
        let overtaken = DirectWrites::default();
        assert_eq!(left(&overtaken), [(0, 100)]);
        overtaken.written(10..20);
        overtaken.written(20..30);
        assert_eq!(left(&overtaken), [(0, 10), (30, 100)]);
        overtaken.written(90..200);
        overtaken.written(0..15);
        assert_eq!(left(&overtaken), [(30, 90)]);
        overtaken.fetched(12..16);
        assert_eq!(left(&overtaken), [(12, 16), (30, 90)]);
        overtaken.fetched(0..95);
        assert_eq!(left(&overtaken), [(0, 95)]);
        overtaken.fetched(0..1000);
        assert_eq!(left(&overtaken), [(0, 100)]);
    }

    #[test]
    fn old_writes_are_forgotten() {
        let overtaken = DirectWrites::default();
        for write in 0..2 * WRITES as u64 {
            overtaken.written(write * 10..write * 10 + 1);
        }
        assert_eq!(overtaken.written.lock().len(), WRITES);
        assert_eq!(left(&overtaken), [(0, 100)]);
    }
}
