//! Requests that wait without a worker, in line or for a cause.
//!
//! A request that is stuck occupies a worker, and the number of workers is limited. When the handler knows that a request
//! would wait for what many others are stuck in already ([`Handler::expect`](super::Handler::expect)), its worker puts it
//! aside and is free for others. The watchdog starts a worker for it once the limit of its line ([`Limits`]) allows it.
//!
//! A request that has come upon something to wait for before it has changed anything ([`Reply::later`](crate::Reply::later))
//! is put aside in the same way, under its own number, and handled once more when its turn comes (`turns`).

mod limits;
mod turns;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use canopy_sys::fuse::uring;
use parking_lot::Mutex;

use crate::request::Header;
use crate::wait::{Cause, Signal, Wait};
use turns::Turns;

pub use limits::Limits;
pub(super) use turns::Park;

/// The most memory that the requests in line may take, in bytes. Beyond it, requests occupy workers.
const MAX_MEMORY: usize = 64 << 20;
/// What large ones leave of it: otherwise some writes of one user would leave others no room for their opens.
const FOR_SMALL: usize = MAX_MEMORY / 4;
/// The size of a small one, with a name of any length.
const SMALL: usize = 8 << 10;

/// A request that was put aside.
pub(crate) enum HeldRequest {
    /// A message that was read from this device, where its answer goes.
    Message(Arc<OwnedFd>, Box<[u8]>),
    /// In the memory of its entry.
    Entry(uring::HeldEntry),
}

/// A place in a line.
pub(super) struct Waiting {
    /// The group of workers that received it.
    pub(super) group: usize,
    pub(super) held: HeldRequest,
    /// The memory that it takes, in bytes.
    pub(super) size: usize,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    /// In this line.
    Line(u64),
    /// For a cause that the handler knows. The number is the request's.
    Parked(u64),
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// How many requests of the line were admitted and have not ended.
    under_way: usize,
}

/// The requests of a connection that wait without a worker.
#[derive(Default)]
pub(super) struct Parked {
    state: Mutex<State>,
    /// Of those that wait for a cause.
    turns: Mutex<Turns>,
    /// How often a request was put aside for a cause.
    count: AtomicU64,
}

/// A request that waits for a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedRequest {
    /// What it waits for.
    pub cause: Cause,
    /// The user of its client.
    pub uid: u32,
    /// Since when it waits.
    pub since: Instant,
}

#[derive(Default)]
struct State {
    lines: BTreeMap<u64, Line>,
    parked: HashMap<u64, Waiting>,
    memory: usize,
    limits: Limits,
}

impl Parked {
    /// Returns whether there is memory for another request of this size.
    pub(super) fn has_room(&self, size: usize) -> bool {
        let most = if size > SMALL { MAX_MEMORY - FOR_SMALL } else { MAX_MEMORY };
        self.state.lock().memory + size <= most
    }

    /// Puts a request aside; if in a line, at its end.
    pub(super) fn push(&self, aside: Aside, waiting: Waiting) {
        let mut state = self.state.lock();
        state.memory += waiting.size;
        match aside {
            Aside::Line(line) => state.lines.entry(line).or_default().waiting.push_back(waiting),
            Aside::Parked(unique) => drop(state.parked.insert(unique, waiting)),
        }
    }

    /// Takes the first request of a line, or the one with this number. That one may be about to be put aside.
    pub(super) fn take(&self, aside: Aside) -> Option<Waiting> {
        let mut state = self.state.lock();
        let first = match aside {
            Aside::Line(line) => state.lines.get_mut(&line)?.waiting.pop_front()?,
            Aside::Parked(unique) => state.parked.remove(&unique)?,
        };
        state.memory -= first.size;
        Some(first)
    }

    /// Puts back a request that was taken.
    pub(super) fn put_back(&self, aside: Aside, waiting: Waiting) {
        let mut state = self.state.lock();
        state.memory += waiting.size;
        match aside {
            Aside::Line(line) => state.lines.entry(line).or_default().waiting.push_front(waiting),
            Aside::Parked(unique) => drop(state.parked.insert(unique, waiting)),
        }
    }

    /// Returns whether any request waits for a cause.
    pub(super) fn any_parked(&self) -> bool {
        !self.state.lock().parked.is_empty()
    }

    /// Decides about a request that has to wait. With `room`, it can be put aside; else there is no memory for it.
    pub(super) fn park(&self, header: &Header, wait: &Wait, signal: Signal, room: bool) -> Park {
        let Header { unique, uid, .. } = *header;
        let park = self.turns.lock().park((unique, uid), wait, signal, room, Instant::now());
        if park == Park::Aside {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        park
    }

    /// Returns the numbers of requests that are to be handled once more now, at most this many.
    pub(super) fn resume(&self, most: usize) -> Vec<u64> {
        self.turns.lock().resume(most, Instant::now())
    }

    /// Records that a request no longer waits for a cause.
    pub(super) fn unparked(&self, unique: u64) {
        self.turns.lock().leave(unique, true);
    }

    /// Records that a signal has reached the client of a request.
    pub(super) fn interrupted(&self, unique: u64) {
        self.turns.lock().interrupt(unique);
    }

    /// Returns how often a request was put aside for a cause.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the requests that wait for a cause, with or without a worker that tries.
    pub(super) fn requests(&self) -> Vec<ParkedRequest> {
        let turns = self.turns.lock();
        let all = turns.requests.values();
        all.map(|one| ParkedRequest { cause: one.cause, uid: one.uid, since: one.since }).collect()
    }

    /// Drops all requests. The connection has ended.
    pub(super) fn clear(&self) {
        let lines = std::mem::take(&mut *self.state.lock());
        drop(lines);
    }

    /// Records that a request has left its line and is under way.
    pub(super) fn began(&self, aside: Aside) {
        if let Aside::Line(line) = aside {
            self.state.lock().lines.entry(line).or_default().under_way += 1;
        }
    }

    /// Records that such a request has ended.
    pub(super) fn ended(&self, aside: Aside) {
        let Aside::Line(line) = aside else { return };
        let mut state = self.state.lock();
        if let Some(of_line) = state.lines.get_mut(&line) {
            of_line.under_way = of_line.under_way.saturating_sub(1);
            if of_line.under_way == 0 && of_line.waiting.is_empty() {
                state.lines.remove(&line);
            }
        }
    }

    /// Sets how many requests of each line may be under way.
    pub(super) fn limit(&self, limits: Limits) {
        self.state.lock().limits = limits;
    }

    /// Returns whether there are lines that requests are sent to.
    pub(super) fn has_lines(&self) -> bool {
        self.state.lock().limits.any
    }

    /// Returns whether one of the requests that wait in a line may leave it.
    pub(super) fn admits(&self, line: u64) -> bool {
        let state = self.state.lock();
        state.lines.get(&line).is_some_and(|of_line| of_line.under_way < state.limits.of(line))
    }

    /// Returns the lines in which requests wait.
    pub(super) fn occupied(&self) -> Vec<u64> {
        let state = self.state.lock();
        state.lines.iter().filter(|(_, line)| !line.waiting.is_empty()).map(|(number, _)| *number).collect()
    }

    /// Returns how many requests wait without a worker.
    pub(super) fn waiting(&self) -> usize {
        let state = self.state.lock();
        state.parked.len() + state.lines.values().map(|line| line.waiting.len()).sum::<usize>()
    }

    /// Returns how many requests of a line wait, and how many are under way.
    pub(super) fn count_in(&self, line: u64) -> (usize, usize) {
        self.state.lock().lines.get(&line).map_or((0, 0), |line| (line.waiting.len(), line.under_way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u8) -> Waiting {
        let null = std::fs::File::open("/dev/null").unwrap();
        let held = HeldRequest::Message(Arc::new(null.into()), Box::new([number]));
        Waiting { group: 0, held, size: MAX_MEMORY / 2 }
    }

    fn first(lines: &Parked, line: u64) -> Option<(u8, Waiting)> {
        let waiting = lines.take(Aside::Line(line))?;
        let HeldRequest::Message(_, bytes) = &waiting.held else { panic!("a message") };
        Some((bytes[0], waiting))
    }

    #[test]
    fn requests_leave_a_line_in_their_order() {
        let lines = Parked::default();
        assert!(lines.has_room(MAX_MEMORY - FOR_SMALL) && lines.occupied().is_empty());
        lines.push(Aside::Line(7), message(1));
        lines.push(Aside::Line(7), message(2));
        assert!(!lines.has_room(1));
        assert_eq!((lines.occupied(), lines.count_in(7), lines.waiting()), (vec![7], (2, 0), 2));
        let (number, waiting) = first(&lines, 7).unwrap();
        assert!(number == 1 && lines.has_room(1));
        // No worker could be started for it.
        lines.put_back(Aside::Line(7), waiting);
        assert!(!lines.has_room(1));
        assert_eq!([(); 2].map(|()| first(&lines, 7).unwrap().0), [1, 2]);
        assert!(first(&lines, 7).is_none() && first(&lines, 8).is_none());
        assert!(lines.has_room(MAX_MEMORY - FOR_SMALL) && lines.occupied().is_empty());
    }

    #[test]
    fn what_waits_for_a_cause_takes_memory_and_is_found_by_its_number() {
        let lines = Parked::default();
        lines.push(Aside::Parked(7), message(1));
        lines.push(Aside::Line(7), message(2));
        assert!(!lines.has_room(1) && lines.any_parked() && lines.waiting() == 2);
        assert!(lines.take(Aside::Parked(8)).is_none());
        let parked = lines.take(Aside::Parked(7)).unwrap();
        assert!(lines.has_room(1) && !lines.any_parked() && lines.take(Aside::Parked(7)).is_none());
        lines.put_back(Aside::Parked(7), parked);
        assert!(!lines.has_room(1) && lines.occupied() == [7]);
        lines.clear();
        assert!(lines.has_room(MAX_MEMORY - FOR_SMALL) && lines.waiting() == 0);
    }

    #[test]
    fn large_requests_leave_room_for_small_ones() {
        let lines = Parked::default();
        let large = Waiting { size: MAX_MEMORY - FOR_SMALL, ..message(1) };
        lines.push(Aside::Parked(1), large);
        assert!(!lines.has_room(SMALL + 1) && lines.has_room(SMALL));
        lines.push(Aside::Parked(2), Waiting { size: FOR_SMALL, ..message(2) });
        assert!(!lines.has_room(1));
    }
}
