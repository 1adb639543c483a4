//! Files that were written, of which the kernel has not been notified yet.
//!
//! A program that writes a file through the pool by passthrough causes events, and mostly looks at the file itself soon. A
//! notification then makes it ask once more; one that is sent by the very request that has processed the event makes the
//! kernel reject that request's answer. So it waits for some milliseconds, and is not sent if an answer that is not overtaken
//! has gone out since: whatever the kernel knew before, it is replaced by that.

use crate::lock_rank as rank;
use canopy_base::ids::NodeId;
use canopy_base::lock::ranked::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

#[derive(Default)]
pub(crate) struct Untold {
    count: AtomicUsize,
    /// The files, and whether an answer about them from before may be in flight.
    files: Mutex<HashMap<NodeId, bool>, rank::Leaf>,
}

impl Untold {
    /// Adds a file after its change was told, so that an answer from before is overtaken.
    pub(crate) fn add(&self, node: NodeId, in_flight: bool) {
        let mut files = self.files.lock();
        *files.entry(node).or_default() |= in_flight;
        self.count.store(files.len(), SeqCst);
    }

    /// Records that an answer that is not overtaken has the attributes of a file.
    pub(crate) fn given(&self, node: NodeId) {
        if self.count.load(SeqCst) == 0 {
            return;
        }
        let mut files = self.files.lock();
        files.remove(&node);
        self.count.store(files.len(), SeqCst);
    }

    /// Returns the files that the kernel is to be notified of.
    pub(crate) fn take(&self) -> HashMap<NodeId, bool> {
        if self.count.load(SeqCst) == 0 {
            return HashMap::new();
        }
        let mut files = self.files.lock();
        self.count.store(0, SeqCst);
        std::mem::take(&mut files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_left_until_it_is_given_or_taken() {
        let untold = Untold::default();
        let [one, other, third] = [7, 8, 9].map(NodeId);
        untold.given(one);
        assert!(untold.take().is_empty());
        untold.add(one, false);
        untold.add(other, true);
        untold.add(other, false);
        untold.add(third, false);
        untold.given(one);
        assert_eq!(untold.take(), HashMap::from([(other, true), (third, false)]));
        assert!(untold.take().is_empty());
    }
}
