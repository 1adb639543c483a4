//! Requests that wait for something else than a disk: a lease that somebody holds on a branch's file, the move of a file, the
//! search for an inode.
//!
//! They wait without a worker and without a lock: an operation that has changed nothing yet returns
//! [`Error::Wait`](canopy_pool::Error::Wait), the transport puts its message aside, and this module says when it is handled
//! once more. Of all that wait for one cause, one tries now and then; once it gets through, the others follow. Users take
//! turns, so who has a thousand files leased delays nobody who waits for another one.
//!
//! Nobody waits for ever, and no user makes others fail: each cause has a longest wait, and each user a share of the places.

mod state;

use crate::interrupts::Interrupts;
use crate::lock_rank as rank;
use canopy_fuse::Request;
use canopy_fuse::transport::{Note, Park};
use canopy_pool::branch::BranchId;
use canopy_pool::lock::ranked::Mutex;
use canopy_pool::{Cause, NodeId};
use rustix::io::Errno;
use state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How much longer than the kernel's holders of leases may take (`fs.lease-break-time`) an open waits, and the least of the
/// latter: the kernel may be told to wait for ever.
const LEASE_MARGIN: Duration = Duration::from_secs(15);
const LEASE_BREAK: Duration = Duration::from_secs(45);
const LEASE_BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

pub(crate) struct Parking {
    interrupts: Arc<Interrupts>,
    state: Mutex<State, rank::Parking>,
    /// How often a request was put aside.
    parked: AtomicU64,
}

/// What waits for causes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) requests: usize,
    pub(crate) users: usize,
    /// How many leases, moves or searches.
    pub(crate) causes: usize,
    pub(crate) since: SystemTime,
}

/// The kinds of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lease,
    Move,
    Search,
}

impl Kind {
    pub(crate) fn of(cause: Cause) -> Kind {
        match cause {
            Cause::Lease { .. } => Kind::Lease,
            Cause::Move(_) => Kind::Move,
            Cause::Walk(_) => Kind::Search,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Lease => "lease",
            Kind::Move => "move",
            Kind::Search => "search",
        }
    }

    /// How long a request may wait.
    fn patience(self) -> Duration {
        match self {
            // Then the kernel has ended the lease, unless its holder takes it again and again.
            Kind::Lease => {
                let set = fs::read_to_string(LEASE_BREAK_TIME).ok().and_then(|text| text.trim().parse().ok());
                set.map_or(LEASE_BREAK, Duration::from_secs).max(LEASE_BREAK) + LEASE_MARGIN
            }
            // As long as a disk may take to copy a file.
            Kind::Move => Duration::from_secs(3600),
            // A server of NFS then lets its client ask again; to others the kernel says ESTALE.
            Kind::Search => Duration::from_secs(60),
        }
    }

    /// The errno for a user who has too many.
    fn refusal(self) -> Errno {
        match self {
            Kind::Lease | Kind::Move => Errno::AGAIN,
            Kind::Search => Errno::TIMEDOUT,
        }
    }

    /// Whether any signal ends the wait, as it does where a file system waits for it. Else only one that kills.
    fn is_interruptible(self) -> bool {
        self == Kind::Lease
    }
}

/// Encodes a cause for the transport.
pub(crate) fn note(cause: Cause) -> Note {
    match cause {
        Cause::Lease { dev, ino, write } => [1 + u64::from(write), dev, ino],
        Cause::Move(node) => [3, node.0, 0],
        Cause::Walk(branch) => [4, branch.0.into(), 0],
    }
}

fn cause(note: Note) -> Option<Cause> {
    match note {
        [kind @ (1 | 2), dev, ino] => Some(Cause::Lease { dev, ino, write: kind == 2 }),
        [3, node, _] => Some(Cause::Move(NodeId(node))),
        [4, branch, _] => u32::try_from(branch).ok().map(|branch| Cause::Walk(BranchId(branch))),
        _ => None,
    }
}

impl Parking {
    pub(crate) fn new(interrupts: &Arc<Interrupts>) -> Arc<Parking> {
        let interrupts = Arc::clone(interrupts);
        Arc::new(Parking { interrupts, state: Mutex::default(), parked: AtomicU64::new(0) })
    }

    /// Decides about a request that has to wait for a cause.
    pub(crate) fn park(&self, request: &Request<'_>, note: Note, room: bool) -> Park {
        let Some(cause) = cause(note) else { return Park::Refuse(Errno::IO.raw_os_error()) };
        let interrupted = match Kind::of(cause).is_interruptible() {
            true => self.interrupts.caller_is_interrupted(),
            false => self.interrupts.caller_is_killed(),
        };
        let (unique, uid) = (request.header.unique, request.header.uid);
        let park = self.state.lock().park((unique, uid), cause, interrupted, room, Instant::now());
        if park == Park::Aside {
            self.parked.fetch_add(1, Ordering::Relaxed);
        }
        park
    }

    /// Returns requests that are to be handled once more now.
    pub(crate) fn resume(&self, most: usize) -> Vec<u64> {
        self.state.lock().resume(most, Instant::now())
    }

    /// Records that a request no longer waits.
    pub(crate) fn unparked(&self, unique: u64) {
        self.state.lock().leave(unique, true);
    }

    /// Records that a signal has reached the client of a request.
    pub(crate) fn interrupted(&self, unique: u64) {
        let State { requests, urgent, .. } = &mut *self.state.lock();
        if let Some(waiter) = requests.get_mut(&unique)
            && !std::mem::replace(&mut waiter.interrupted, true)
        {
            urgent.push_back(unique);
        }
    }

    /// Returns how often a request was put aside.
    pub(crate) fn count(&self) -> u64 {
        self.parked.load(Ordering::Relaxed)
    }

    /// Returns what waits, by kind.
    pub(crate) fn waits(&self) -> BTreeMap<Kind, Waits> {
        let state = self.state.lock();
        let mut by_kind: BTreeMap<Kind, (usize, BTreeSet<u32>, BTreeSet<Cause>, Duration)> = BTreeMap::new();
        for waiter in state.requests.values() {
            let (requests, users, causes, longest) = by_kind.entry(Kind::of(waiter.cause)).or_default();
            *requests += 1;
            users.insert(waiter.uid);
            causes.insert(match waiter.cause {
                // Readers and writers try by themselves, but wait for one lease.
                Cause::Lease { dev, ino, .. } => Cause::Lease { dev, ino, write: false },
                other => other,
            });
            *longest = (*longest).max(waiter.since.elapsed());
        }
        let now = SystemTime::now();
        let waits =
            |(kind, (requests, users, causes, longest)): (Kind, (usize, BTreeSet<_>, BTreeSet<_>, _))| {
                let since = now.checked_sub(longest).unwrap_or(now);
                (kind, Waits { requests, users: users.len(), causes: causes.len(), since })
            };
        by_kind.into_iter().map(waits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_and_writers_wait_for_one_lease() {
        let parking = Parking::new(&Arc::default());
        for (unique, write, ino) in [(1, false, 7), (2, true, 7), (3, true, 8)] {
            let cause = Cause::Lease { dev: 1, ino, write };
            parking.state.lock().park((unique, 5), cause, false, true, Instant::now());
        }
        let waits = parking.waits()[&Kind::Lease];
        assert_eq!((waits.requests, waits.users, waits.causes), (3, 1, 2));
    }

    #[test]
    fn a_note_tells_the_cause() {
        for one in [
            Cause::Lease { dev: 1, ino: u64::MAX, write: true },
            Cause::Move(NodeId(u64::MAX)),
            Cause::Walk(BranchId(u32::MAX)),
        ] {
            assert_eq!(cause(note(one)), Some(one));
        }
        assert_eq!(
            cause(note(Cause::Lease { dev: 3, ino: 4, write: false })).map(Kind::of),
            Some(Kind::Lease)
        );
        assert_eq!(cause(Note::default()), None);
    }
}
