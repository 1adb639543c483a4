//! Requests that wait for something else than a disk: a lease that somebody holds on a branch's file, the move of a file, the
//! search for an inode.
//!
//! They wait without a worker and without a lock: an operation that has changed nothing yet returns
//! [`Error::Wait`](canopy_pool::Error::Wait), the transport puts its message aside, and this module says when it is handled
//! once more. Of all that wait for one cause, one tries now and then; once it gets through, the others follow. Users take
//! turns, so who has a thousand files leased delays nobody who waits for another one.
//!
//! Nobody waits for ever, and no user makes others fail: each cause has a longest wait, and each user a share of the places.

use crate::interrupts::Interrupts;
use crate::lock_rank as rank;
use canopy_fuse::Request;
use canopy_fuse::transport::{Note, Park};
use canopy_pool::branch::BranchId;
use canopy_pool::lock::ranked::Mutex;
use canopy_pool::{Cause, NodeId};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The most requests that wait, and those of one user. A user has at most as many as there are places left, so that there is
/// always room for another one.
const MAX_WAITING: usize = 4096;
const MAX_OF_USER: usize = 1024;

/// How long after its last try a cause is tried again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// How many causes are tried in a tick of the transport, and how many requests follow those that got through. Each is a
/// thread that starts.
const TRIES: usize = 4;
const FOLLOWERS: usize = 16;

/// How long a worker that cannot leave its request stays before it tries again.
const STAY: Duration = Duration::from_millis(50);

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

#[derive(Default)]
struct State {
    /// By number.
    requests: HashMap<u64, Waiter>,
    causes: HashMap<Cause, Queue>,
    /// How many requests each user has.
    users: HashMap<u32, usize>,
    /// When requests have waited long enough.
    bounds: BTreeSet<(Instant, u64)>,
    /// Requests that are to be answered now, whatever comes of it.
    urgent: VecDeque<u64>,
    /// The user who was served last.
    last_user: u32,
}

struct Waiter {
    cause: Cause,
    uid: u32,
    since: Instant,
    bound: Instant,
    /// It is in the queue of its cause. Else a worker has it, or will in a moment.
    queued: bool,
    interrupted: bool,
}

/// What waits for one cause.
struct Queue {
    waiting: VecDeque<u64>,
    /// The request that tries.
    trying: Option<u64>,
    next: Instant,
    pause: Duration,
    /// One got through. The others follow.
    open: bool,
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
            causes.insert(waiter.cause);
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

impl State {
    fn park(
        &mut self,
        (unique, uid): (u64, u32),
        cause: Cause,
        interrupted: bool,
        room: bool,
        now: Instant,
    ) -> Park {
        let kind = Kind::of(cause);
        let refuse = |errno: Errno| Park::Refuse(errno.raw_os_error());
        let known = self.requests.get(&unique);
        let interrupted =
            interrupted || kind.is_interruptible() && known.is_some_and(|known| known.interrupted);
        if interrupted {
            self.leave(unique, false);
            return refuse(Errno::INTR);
        }
        if known.is_some_and(|known| known.bound <= now) {
            self.leave(unique, false);
            return refuse(Errno::TIMEDOUT);
        }
        let (others, own) = (self.requests.len(), self.users.get(&uid).copied().unwrap_or(0));
        if known.is_none() && own >= MAX_OF_USER.min(MAX_WAITING.saturating_sub(others)) {
            return refuse(kind.refusal());
        }
        if !room {
            // A write must not fail for lack of memory here.
            if kind == Kind::Move {
                return Park::Stay(STAY);
            }
            self.leave(unique, false);
            return refuse(kind.refusal());
        }
        self.queue((unique, uid), cause, now);
        Park::Aside
    }

    /// Puts a request, new or known, at the end of the queue of its cause.
    fn queue(&mut self, (unique, uid): (u64, u32), cause: Cause, now: Instant) {
        let since = match self.requests.remove(&unique) {
            Some(before) => {
                self.bounds.remove(&(before.bound, unique));
                self.settle(before.cause, unique, false, now);
                before.since
            }
            None => {
                *self.users.entry(uid).or_default() += 1;
                now
            }
        };
        let bound = since + Kind::of(cause).patience();
        let waiter = Waiter { cause, uid, since, bound, queued: true, interrupted: false };
        self.requests.insert(unique, waiter);
        self.bounds.insert((bound, unique));
        let queue = self.causes.entry(cause).or_insert_with(|| Queue {
            waiting: VecDeque::new(),
            trying: None,
            next: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            open: false,
        });
        queue.waiting.push_back(unique);
    }

    /// Records the end of a try for a cause.
    fn settle(&mut self, cause: Cause, unique: u64, through: bool, now: Instant) {
        let Some(queue) = self.causes.get_mut(&cause) else { return };
        if queue.trying == Some(unique) {
            queue.trying = None;
        }
        match through {
            true => queue.open = true,
            false => {
                queue.open = false;
                queue.next = now + queue.pause;
                queue.pause = (2 * queue.pause).min(LAST_PAUSE);
            }
        }
    }

    /// Forgets a request. `through`: it did not have to wait any longer for its cause.
    fn leave(&mut self, unique: u64, through: bool) {
        let Some(waiter) = self.requests.remove(&unique) else { return };
        self.bounds.remove(&(waiter.bound, unique));
        if let Some(count) = self.users.get_mut(&waiter.uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&waiter.uid);
            }
        }
        self.settle(waiter.cause, unique, through, Instant::now());
        let queue = self.causes.get_mut(&waiter.cause);
        if let Some(queue) = queue {
            if waiter.queued {
                queue.waiting.retain(|other| *other != unique);
            }
            if queue.waiting.is_empty() && queue.trying.is_none() {
                self.causes.remove(&waiter.cause);
            }
        }
    }

    /// Takes a request out of its queue, so that a worker handles it.
    fn begin(&mut self, unique: u64) -> Option<u64> {
        let waiter = self.requests.get_mut(&unique).filter(|waiter| waiter.queued)?;
        waiter.queued = false;
        let queue = self.causes.get_mut(&waiter.cause)?;
        queue.waiting.retain(|other| *other != unique);
        Some(unique)
    }

    fn resume(&mut self, most: usize, now: Instant) -> Vec<u64> {
        let mut resumed = Vec::new();
        while let Some(&(bound, unique)) = self.bounds.first()
            && bound <= now
        {
            // Only once: its worker finds out that it has waited long enough.
            self.bounds.remove(&(bound, unique));
            self.urgent.push_back(unique);
        }
        while resumed.len() < most.min(FOLLOWERS)
            && let Some(unique) = self.urgent.pop_front()
        {
            // One that a worker has now finds out by itself.
            resumed.extend(self.begin(unique));
        }
        let (mut tries, mut followers) = (0, resumed.len());
        // Each turn is one request of each user who has one that may go on.
        while resumed.len() < most && (tries < TRIES || followers < FOLLOWERS) {
            let ready = self.ready(now, tries < TRIES, followers < FOLLOWERS);
            if ready.is_empty() {
                break;
            }
            let after = self.last_user;
            let (later, first): (Vec<_>, Vec<_>) = ready.into_iter().partition(|(uid, _)| *uid <= after);
            for (uid, (unique, cause)) in first.into_iter().chain(later) {
                let Some(queue) = self.causes.get_mut(&cause) else { continue };
                let (open, full) = (queue.open, resumed.len() >= most);
                if full || if open { followers >= FOLLOWERS } else { tries >= TRIES } {
                    continue;
                }
                match open {
                    true => followers += 1,
                    false => {
                        queue.trying = Some(unique);
                        tries += 1;
                    }
                }
                resumed.extend(self.begin(unique));
                self.last_user = uid;
            }
        }
        resumed
    }

    /// Returns a request that may go on of each user who has one: the one whose cause is due longest.
    fn ready(&self, now: Instant, tries: bool, followers: bool) -> BTreeMap<u32, (u64, Cause)> {
        let mut ready: BTreeMap<u32, (Instant, u64, Cause)> = BTreeMap::new();
        for (cause, queue) in &self.causes {
            let may =
                if queue.open { followers } else { tries && queue.trying.is_none() && queue.next <= now };
            let Some(&unique) = queue.waiting.front().filter(|_| may) else { continue };
            let Some(waiter) = self.requests.get(&unique) else { continue };
            let candidate = (queue.next, unique, *cause);
            let best = ready.entry(waiter.uid).or_insert(candidate);
            if queue.next < best.0 {
                *best = candidate;
            }
        }
        ready.into_iter().map(|(uid, (_, unique, cause))| (uid, (unique, cause))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Cause = Cause::Lease { dev: 1, ino: 2, write: true };

    fn other(ino: u64) -> Cause {
        Cause::Lease { dev: 1, ino, write: true }
    }

    fn park(state: &mut State, unique: u64, uid: u32, cause: Cause, now: Instant) -> Park {
        state.park((unique, uid), cause, false, true, now)
    }

    #[test]
    fn a_note_tells_the_cause() {
        for one in [FILE, other(u64::MAX), Cause::Move(NodeId(u64::MAX)), Cause::Walk(BranchId(u32::MAX))] {
            assert_eq!(cause(note(one)), Some(one));
        }
        assert_eq!(
            cause(note(Cause::Lease { dev: 3, ino: 4, write: false })).map(Kind::of),
            Some(Kind::Lease)
        );
        assert_eq!(cause(Note::default()), None);
    }

    #[test]
    fn one_tries_and_the_others_follow_once_it_gets_through() {
        let (mut state, now) = (State::default(), Instant::now());
        for unique in 0..600 {
            assert_eq!(park(&mut state, unique, 7, FILE, now), Park::Aside);
        }
        assert!(state.resume(100, now).is_empty());
        // Each try is one request, in turn, and less and less often.
        let (mut at, mut tried) = (now, 0);
        while at < now + Duration::from_secs(10) {
            at += FIRST_PAUSE;
            for unique in state.resume(100, at) {
                assert_eq!((unique, state.resume(100, at)), (tried, vec![]), "one at a time");
                assert_eq!(park(&mut state, unique, 7, FILE, at), Park::Aside);
                tried += 1;
            }
        }
        assert!((90..=110).contains(&tried), "{tried}");
        let through = state.resume(100, at + LAST_PAUSE)[0];
        state.leave(through, true);
        let mut left = 599;
        while left > 0 {
            let followers = state.resume(100, at);
            assert!((1..=FOLLOWERS).contains(&followers.len()));
            left -= followers.len();
            followers.into_iter().for_each(|unique| state.leave(unique, true));
        }
        assert!(state.causes.is_empty() && state.users.is_empty() && state.bounds.is_empty());
    }

    #[test]
    fn who_comes_upon_the_cause_again_stops_those_that_follow() {
        let (mut state, now) = (State::default(), Instant::now());
        (0..3).for_each(|unique| assert_eq!(park(&mut state, unique, 7, FILE, now), Park::Aside));
        let later = now + LAST_PAUSE;
        assert_eq!(state.resume(100, later), [0]);
        state.leave(0, true);
        assert_eq!(state.resume(1, later), [1]);
        assert_eq!(park(&mut state, 1, 7, FILE, later), Park::Aside);
        assert!(state.resume(100, later).is_empty());
        assert_eq!(state.resume(100, later + LAST_PAUSE), [2]);
    }

    #[test]
    fn users_take_turns() {
        let (mut state, now) = (State::default(), Instant::now());
        for unique in 0..1000 {
            assert_eq!(park(&mut state, unique, 7, other(unique + 10), now), Park::Aside);
        }
        let later = now + LAST_PAUSE;
        state.resume(100, later).into_iter().for_each(|unique| {
            assert_eq!(park(&mut state, unique, 7, other(unique + 10), later), Park::Aside);
        });
        assert_eq!(park(&mut state, 5000, 8, FILE, now), Park::Aside);
        let resumed = state.resume(100, later);
        assert!(resumed.len() == TRIES && resumed.contains(&5000), "{resumed:?}");
    }

    #[test]
    fn no_user_takes_all_places() {
        let (mut state, now) = (State::default(), Instant::now());
        let again = Park::Refuse(Errno::AGAIN.raw_os_error());
        let mut unique = 0;
        for uid in 0..40 {
            let mut own = 0;
            while park(&mut state, unique, uid, FILE, now) == Park::Aside {
                (unique, own) = (unique + 1, own + 1);
            }
            assert_eq!(park(&mut state, unique, uid, FILE, now), again);
            assert!((1..=MAX_OF_USER).contains(&own) || uid > 12, "user {uid}: {own}");
        }
        assert!(state.requests.len() <= MAX_WAITING);
        let walk = park(&mut state, unique, 0, Cause::Walk(BranchId(1)), now);
        assert_eq!(walk, Park::Refuse(Errno::TIMEDOUT.raw_os_error()));
        // Those who wait already go on waiting.
        assert_eq!(park(&mut state, 0, 0, FILE, now), Park::Aside);
    }

    #[test]
    fn a_wait_ends_at_its_bound_or_by_a_signal() {
        let (mut state, now) = (State::default(), Instant::now());
        for (unique, cause) in [(1, FILE), (2, FILE), (3, Cause::Move(NodeId(5)))] {
            assert_eq!(park(&mut state, unique, 7, cause, now), Park::Aside);
        }
        // A signal, before the request is put aside and after.
        assert_eq!(state.park((9, 7), FILE, true, true, now), Park::Refuse(Errno::INTR.raw_os_error()));
        for unique in [2, 3] {
            state.requests.get_mut(&unique).unwrap().interrupted = true;
            state.urgent.push_back(unique);
        }
        assert_eq!(state.resume(100, now), [2, 3]);
        assert_eq!(park(&mut state, 2, 7, FILE, now), Park::Refuse(Errno::INTR.raw_os_error()));
        // Whoever writes is not killed, and expects the write to complete.
        assert_eq!(park(&mut state, 3, 7, Cause::Move(NodeId(5)), now), Park::Aside);
        let late = now + Kind::Lease.patience();
        assert_eq!(state.resume(1, late), [1]);
        assert_eq!(park(&mut state, 1, 7, FILE, late), Park::Refuse(Errno::TIMEDOUT.raw_os_error()));
        assert!(state.requests.len() == 1 && state.causes.len() == 1);
    }

    #[test]
    fn without_memory_a_write_stays_with_its_worker() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!(state.park((1, 7), Cause::Move(NodeId(5)), false, false, now), Park::Stay(STAY));
        let again = Park::Refuse(Errno::AGAIN.raw_os_error());
        assert_eq!(state.park((2, 7), FILE, false, false, now), again);
        assert!(state.requests.is_empty());
    }
}
