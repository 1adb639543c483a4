//! Cursors between two answers, found by directory and position.
//!
//! A parked cursor belongs to no client. A request for a position takes the cursor that is there, or makes a new one.
//! So cursors can be dropped at any time; their number and their memory are limited. A cursor that was not used for
//! some seconds is dropped, with the directories that it holds open on the branches.

use super::cursor::Cursor;
use canopy_base::ids::NodeId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::tend::{self, Line};
use rustix::process::Resource;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// In which the directories are closed.
const LINE: Line = (c"cursors", 0);

/// The most cursors.
const MAX_CURSORS: usize = 64;
/// The most memory of all cursors, in bytes.
const MAX_BYTES: usize = 32 << 20;
/// The share of the process's descriptors for cursors: one in so many.
const SHARE: u64 = 16;
/// The pause between two checks. A cursor that was not used between two checks is dropped.
const CHECK_PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct Cursors {
    shared: Arc<Mutex<Parked, rank::Leaf>>,
    descriptors: usize,
}

#[derive(Default)]
struct Parked {
    /// Least recently used first.
    list: VecDeque<ParkedCursor>,
    bytes: usize,
    descriptors: usize,
    /// The list is checked again and again.
    watching: bool,
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
        let descriptors = (limit / SHARE) as usize;
        Cursors { shared: Arc::default(), descriptors }
    }
}

impl Cursors {
    /// Takes the cursor that is at a position of a directory's listing, or was there in its last answer.
    pub(crate) fn take(&self, node: NodeId, position: u64) -> Option<Box<Cursor>> {
        if position == 0 {
            // A listing from the beginning is read afresh.
            return None;
        }
        let mut parked = self.shared.lock();
        let at = parked.list.iter().rposition(|p| p.node == node && p.cursor.find(position).is_some())?;
        let mut cursor = parked.remove(at)?.cursor;
        drop(parked);
        cursor.advance_to(position).then_some(cursor)
    }

    /// Keeps a cursor for the next request.
    pub(crate) fn park(&self, node: NodeId, cursor: Box<Cursor>) {
        let mut parked = self.shared.lock();
        let bytes = cursor.size();
        parked.bytes += bytes;
        parked.descriptors += cursor.sources().len();
        parked.list.push_back(ParkedCursor { node, cursor, bytes, used: true });
        let mut dropped = Vec::new();
        while parked.list.len() > MAX_CURSORS
            || parked.bytes > MAX_BYTES
            || parked.descriptors > self.descriptors
        {
            dropped.extend(parked.remove(0));
        }
        let begins = !std::mem::replace(&mut parked.watching, true);
        drop(parked);
        if begins {
            tend::sweep(CHECK_PAUSE, LINE, &self.shared, drop_unused);
        }
    }

    /// Drops all cursors, with what they hold open.
    pub(crate) fn clear(&self) {
        let dropped = self.shared.lock().clear();
        drop(dropped);
    }
}

impl Parked {
    fn remove(&mut self, at: usize) -> Option<ParkedCursor> {
        let removed = self.list.remove(at)?;
        self.bytes -= removed.bytes;
        self.descriptors -= removed.cursor.sources().len();
        Some(removed)
    }

    fn clear(&mut self) -> VecDeque<ParkedCursor> {
        (self.bytes, self.descriptors) = (0, 0);
        std::mem::take(&mut self.list)
    }
}

/// Drops unused cursors; returns whether others are left.
fn drop_unused(shared: &Arc<Mutex<Parked, rank::Leaf>>) -> bool {
    let mut parked = shared.lock();
    let mut unused = Vec::new();
    for at in (0..parked.list.len()).rev() {
        if !std::mem::take(&mut parked.list[at].used) {
            unused.extend(parked.remove(at));
        }
    }
    parked.watching = !parked.list.is_empty();
    let more = parked.watching;
    drop(parked);
    if !unused.is_empty() {
        tend::apart(LINE, move || drop(unused));
    }
    more
}
