//! Who waits for which cause, and whose turn it is. Knows no clock and no message.
//!
//! Of all that wait for one cause, one tries now and then; once it gets through, the others follow. Users take turns, so who
//! has a thousand files leased delays nobody who waits for another one. Nobody waits for ever, and no user makes others fail:
//! each wait has a bound, and each user a share of the places.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::wait::{Cause, Signal, Wait};

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

/// How long a worker that cannot leave its request stays before it tries again, how many stay so, and after what time one that
/// has not tried again has ended.
const STAY: Duration = Duration::from_millis(50);
const MAX_STAYING: usize = 64;
const STAYED: Duration = Duration::from_secs(1);
/// The kernel's own requests, and root's.
const KERNEL: u32 = 0;

/// What is to be done with a request that would have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Park {
    /// It is put aside, without a worker, until its turn comes.
    Aside,
    /// Its worker waits for this long and then handles it once more.
    Stay(Duration),
    /// Its caller gets this errno.
    Refuse(i32),
}

#[derive(Default)]
pub(super) struct Turns {
    /// By number.
    pub(super) requests: HashMap<u64, Waiter>,
    causes: HashMap<Cause, Queue>,
    /// How many requests each user has.
    users: HashMap<u32, usize>,
    /// When requests have waited long enough.
    bounds: BTreeSet<(Instant, u64)>,
    /// Requests that are to be answered now, whatever comes of it.
    urgent: VecDeque<u64>,
    /// Requests whose workers stay with them, and when they last tried.
    staying: HashMap<u64, Instant>,
    /// The user who was served last.
    last_user: u32,
}

pub(super) struct Waiter {
    pub(super) cause: Cause,
    pub(super) uid: u32,
    pub(super) since: Instant,
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

impl Turns {
    /// Decides about a request of this number and user that has to wait, also for the second time. With `room`, it can be put
    /// aside; else there is no memory for it.
    pub(super) fn park(
        &mut self,
        (unique, uid): (u64, u32),
        wait: &Wait,
        signal: Signal,
        room: bool,
        now: Instant,
    ) -> Park {
        let known = self.requests.get(&unique);
        if wait.ends_by(signal) || wait.interruptible && known.is_some_and(|known| known.interrupted) {
            self.leave(unique, false);
            return Park::Refuse(Errno::INTR.raw_os_error());
        }
        if known.is_some_and(|known| known.bound <= now) {
            self.leave(unique, false);
            return Park::Refuse(Errno::TIMEDOUT.raw_os_error());
        }
        let (others, own) = (self.requests.len(), self.users.get(&uid).copied().unwrap_or(0));
        if known.is_none() && own >= MAX_OF_USER.min(MAX_WAITING.saturating_sub(others)) {
            return Park::Refuse(wait.refusal);
        }
        if !room {
            // A write does not fail for lack of memory here, as long as some workers suffice. If the kernel writes pages back,
            // they would be lost.
            if wait.must_wait && (self.stays(unique, now) || uid == KERNEL) {
                return Park::Stay(STAY);
            }
            self.leave(unique, false);
            return Park::Refuse(wait.refusal);
        }
        self.queue((unique, uid), wait, now);
        Park::Aside
    }

    /// Returns whether a worker may stay with a request.
    fn stays(&mut self, unique: u64, now: Instant) -> bool {
        self.staying.retain(|_, tried| now.saturating_duration_since(*tried) < STAYED);
        let may = self.staying.len() < MAX_STAYING || self.staying.contains_key(&unique);
        if may {
            self.staying.insert(unique, now);
        }
        may
    }

    /// Puts a request, new or known, at the end of the queue of its cause.
    fn queue(&mut self, (unique, uid): (u64, u32), wait: &Wait, now: Instant) {
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
        let Wait { cause, longest, .. } = *wait;
        let bound = since + longest;
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
        queue.open = through;
        if !through {
            queue.next = now + queue.pause;
            queue.pause = (2 * queue.pause).min(LAST_PAUSE);
        }
    }

    /// Forgets a request. `through`: it did not have to wait any longer for its cause.
    pub(super) fn leave(&mut self, unique: u64, through: bool) {
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

    /// Records that a signal has reached the client of a request.
    pub(super) fn interrupt(&mut self, unique: u64) {
        if let Some(waiter) = self.requests.get_mut(&unique)
            && !std::mem::replace(&mut waiter.interrupted, true)
        {
            self.urgent.push_back(unique);
        }
    }

    /// Returns the numbers of requests that are to be handled once more now, at most this many.
    pub(super) fn resume(&mut self, most: usize, now: Instant) -> Vec<u64> {
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
                if open {
                    followers += 1;
                } else {
                    queue.trying = Some(unique);
                    tries += 1;
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

    const FILE: Wait = Wait {
        cause: [1, 2, 3],
        longest: Duration::from_secs(60),
        refusal: Errno::AGAIN.raw_os_error(),
        interruptible: true,
        must_wait: false,
    };
    const MOVE: Wait = Wait {
        cause: [3, 5, 0],
        longest: Duration::from_secs(3600),
        interruptible: false,
        must_wait: true,
        ..FILE
    };

    fn other(number: u64) -> Wait {
        Wait { cause: [1, number, 3], ..FILE }
    }

    fn park(state: &mut Turns, unique: u64, uid: u32, wait: Wait, now: Instant) -> Park {
        state.park((unique, uid), &wait, Signal::None, true, now)
    }

    #[test]
    fn one_tries_and_the_others_follow_once_it_gets_through() {
        let (mut state, now) = (Turns::default(), Instant::now());
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
        let (mut state, now) = (Turns::default(), Instant::now());
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
        let (mut state, now) = (Turns::default(), Instant::now());
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
        let (mut state, now) = (Turns::default(), Instant::now());
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
        let search = Wait { cause: [4, 1, 0], refusal: Errno::TIMEDOUT.raw_os_error(), ..FILE };
        let walk = park(&mut state, unique, 0, search, now);
        assert_eq!(walk, Park::Refuse(Errno::TIMEDOUT.raw_os_error()));
        // Those who wait already go on waiting.
        assert_eq!(park(&mut state, 0, 0, FILE, now), Park::Aside);
    }

    #[test]
    fn a_wait_ends_at_its_bound_or_by_a_signal() {
        let (mut state, now) = (Turns::default(), Instant::now());
        for (unique, cause) in [(1, FILE), (2, FILE), (3, MOVE)] {
            assert_eq!(park(&mut state, unique, 7, cause, now), Park::Aside);
        }
        // A signal, before the request is put aside and after.
        assert_eq!(
            state.park((9, 7), &FILE, Signal::Caught, true, now),
            Park::Refuse(Errno::INTR.raw_os_error())
        );
        for unique in [2, 3] {
            state.interrupt(unique);
        }
        assert_eq!(state.resume(100, now), [2, 3]);
        assert_eq!(park(&mut state, 2, 7, FILE, now), Park::Refuse(Errno::INTR.raw_os_error()));
        // Whoever writes is not killed, and expects the write to complete.
        assert_eq!(state.park((3, 7), &MOVE, Signal::Caught, true, now), Park::Aside);
        assert_eq!(park(&mut state, 3, 7, MOVE, now), Park::Aside);
        let late = now + FILE.longest;
        assert_eq!(state.resume(1, late), [1]);
        assert_eq!(park(&mut state, 1, 7, FILE, late), Park::Refuse(Errno::TIMEDOUT.raw_os_error()));
        assert!(state.requests.len() == 1 && state.causes.len() == 1);
    }

    #[test]
    fn without_memory_a_write_stays_with_its_worker() {
        let (mut state, now) = (Turns::default(), Instant::now());
        assert_eq!(state.park((1, 7), &MOVE, Signal::None, false, now), Park::Stay(STAY));
        let again = Park::Refuse(Errno::AGAIN.raw_os_error());
        assert_eq!(state.park((2, 7), &FILE, Signal::None, false, now), again);
        assert!(state.requests.is_empty());
    }

    #[test]
    fn writes_of_a_user_do_not_keep_all_workers() {
        let (mut state, now) = (Turns::default(), Instant::now());
        let mut write =
            |unique: u64, uid: u32, now: Instant| state.park((unique, uid), &MOVE, Signal::None, false, now);
        let again = Park::Refuse(Errno::AGAIN.raw_os_error());
        for unique in 0..MAX_STAYING as u64 {
            assert_eq!(write(unique, 7, now), Park::Stay(STAY));
        }
        assert_eq!((write(500, 7, now), write(500, 8, now)), (again, again));
        // Those that stay go on, and pages that the kernel writes back are not lost.
        assert_eq!((write(0, 7, now), write(501, KERNEL, now)), (Park::Stay(STAY), Park::Stay(STAY)));
        // Those that have got through make room.
        assert_eq!(write(500, 7, now + STAYED), Park::Stay(STAY));
    }
}
