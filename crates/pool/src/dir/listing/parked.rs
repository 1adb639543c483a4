//! Cursors between two answers, found by directory and position.
//!
//! They belong to nobody: whoever asks for a position takes the cursor that is there, if any is, or makes one. So they can
//! be dropped at any time, and there are so many that take so much memory at most. Those not used for some seconds
//! are dropped, with the directories that they hold open on the branches.

use super::cursor::Cursor;
use crate::ids::NodeId;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use canopy_sys::sched;
use rustix::process::Resource;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How many, at most.
const CURSORS: usize = 64;
/// What they may take together, in bytes.
const BYTES: usize = 32 << 20;
/// Of the descriptors that the process may have, one in so many.
const SHARE: u64 = 16;
/// A cursor is dropped when nobody has used it between two looks.
const MOMENT: Duration = Duration::from_secs(2);

pub(crate) struct Cursors {
    shared: Arc<Mutex<Parked, rank::Cursors>>,
    descriptors: usize,
}

#[derive(Default)]
struct Parked {
    /// Those not used for longest first.
    list: VecDeque<ParkedCursor>,
    bytes: usize,
    descriptors: usize,
    /// A thread looks at them.
    looking: bool,
}

struct ParkedCursor {
    node: NodeId,
    cursor: Box<Cursor>,
    bytes: usize,
    used: bool,
}

impl Default for Cursors {
    fn default() -> Self {
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
        Cursors { shared: Arc::default(), descriptors: (limit / SHARE) as usize }
    }
}

impl Cursors {
    /// The cursor that is at a position of a directory's listing, or has been there in its last answer.
    pub(crate) fn take(&self, node: NodeId, position: u64) -> Option<Box<Cursor>> {
        if position == 0 {
            // That is read afresh.
            return None;
        }
        let mut parked = self.shared.lock();
        let at = parked.list.iter().rposition(|p| p.node == node && p.cursor.find(position).is_some())?;
        let mut cursor = parked.remove(at)?.cursor;
        drop(parked);
        cursor.advance_to(position).then_some(cursor)
    }

    /// Keeps a cursor for who goes on.
    pub(crate) fn park(&self, node: NodeId, cursor: Box<Cursor>) {
        let mut parked = self.shared.lock();
        let bytes = cursor.size();
        parked.bytes += bytes;
        parked.descriptors += cursor.sources().len();
        parked.list.push_back(ParkedCursor { node, cursor, bytes, used: true });
        let mut dropped = Vec::new();
        while parked.list.len() > CURSORS || parked.bytes > BYTES || parked.descriptors > self.descriptors {
            dropped.extend(parked.remove(0));
        }
        if !std::mem::replace(&mut parked.looking, true) {
            let shared = Arc::downgrade(&self.shared);
            let thread = std::thread::Builder::new().name("cursors".into());
            parked.looking = thread.spawn(move || look(&shared)).is_ok();
            if !parked.looking {
                // Nobody would drop it.
                dropped.extend(parked.clear());
            }
        }
        drop(parked);
    }

    /// Drops all, with what they hold open.
    pub(crate) fn clear(&self) {
        let dropped = self.shared.lock().clear();
        drop(dropped);
    }
}

impl Parked {
    fn remove(&mut self, at: usize) -> Option<ParkedCursor> {
        let place = self.list.remove(at)?;
        self.bytes -= place.bytes;
        self.descriptors -= place.cursor.sources().len();
        Some(place)
    }

    fn clear(&mut self) -> VecDeque<ParkedCursor> {
        (self.bytes, self.descriptors) = (0, 0);
        std::mem::take(&mut self.list)
    }
}

/// Drops what is not used any more, until there is nothing left.
fn look(shared: &Weak<Mutex<Parked, rank::Cursors>>) {
    sched::unpin();
    loop {
        std::thread::sleep(MOMENT);
        let Some(shared) = shared.upgrade() else { return };
        let mut parked = shared.lock();
        let mut unused = Vec::new();
        for at in (0..parked.list.len()).rev() {
            if !std::mem::take(&mut parked.list[at].used) {
                unused.extend(parked.remove(at));
            }
        }
        parked.looking = !parked.list.is_empty();
        let ends = !parked.looking;
        drop(parked);
        drop(unused);
        if ends {
            return;
        }
    }
}
