//! Direct writes beside mappings of the same file (`cache.files=off`).
//!
//! The kernel drops the cached pages under a direct write before it sends the request, and once more when it has the
//! reply (fs/fuse/file.c, fuse_direct_io). A page that a fault fetches in between holds the data from before the
//! write. If a mapping stores to that page meanwhile, the second drop writes the whole page back, which would undo
//! the write. Until the page is fetched again after the write, no data of it within the range of the write can be
//! newer than the write: a later store meets a page that was fetched after the write. So that range is left out when
//! the page is written back.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Mutex, RwLock};
use std::collections::VecDeque;
use std::ops::Range;

/// More than the direct writes that can be in flight at once. No page remains of those that are done.
const MAX_WRITES: usize = 128;

/// The ranges of an open file whose cached pages are older than direct writes. Exists once a page has been fetched.
#[derive(Default)]
pub(crate) struct DirectWrites {
    /// Held exclusively by a direct write, shared by fetches and write-backs of pages.
    pub(crate) order: RwLock<(), rank::DirectWrites>,
    /// The ranges written since pages there were fetched; the newest write last.
    written: Mutex<VecDeque<Range<u64>>, rank::Leaf>,
}

impl DirectWrites {
    /// Records a direct write. The caller holds `order` exclusively.
    pub(crate) fn written(&self, range: Range<u64>) {
        let mut written = self.written.lock();
        match written.back_mut().filter(|last| last.start <= range.end && range.start <= last.end) {
            Some(last) => *last = last.start.min(range.start)..last.end.max(range.end),
            None => {
                if written.len() == MAX_WRITES {
                    written.pop_front();
                }
                written.push_back(range);
            }
        }
    }

    /// Records that pages were fetched. The caller holds `order`.
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

    /// For pages that are written back from `at` to `end`, returns how many bytes to skip and how many to write after
    /// those. The caller holds `order`.
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

    /// Returns the ranges of 0 to 100 that would be written.
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
    fn a_direct_write_is_left_out_until_its_pages_are_fetched() {
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
    fn old_direct_writes_are_dropped() {
        let overtaken = DirectWrites::default();
        for write in 0..2 * MAX_WRITES as u64 {
            overtaken.written(write * 10..write * 10 + 1);
        }
        assert_eq!(overtaken.written.lock().len(), MAX_WRITES);
        assert_eq!(left(&overtaken), [(0, 100)]);
    }
}
