//! Listings that the kernel keeps by itself.
//!
//! A kernel to which OPENDIR was once answered with ENOSYS (`FUSE_NO_OPENDIR_SUPPORT`, Linux 5.1) opens directories by
//! itself, and lists them from its cache. So what OPENDIR would decide, whether the cached listing may be used, is decided
//! when a listing ends and when a directory changes. How the kernel fills its cache (fs/fuse/readdir.c):
//!
//! - It adds the names of an answer in its order, as clients read it; all clients fill the same listing. The listing is
//!   used only once it is complete: an empty answer was processed, at the position where the last name ended.
//! - If a page of a complete listing is missing, the listing is discarded, and the next client begins another.
//! - If a page of an incomplete listing is missing, no name can be added any more, nor is it discarded: the directory is
//!   not cached again until its inode is evicted.
//!
//! So a complete listing is dropped (its pages are) when its directory changes, while an incomplete one is only marked.
//! When it ends, a marked listing is dropped just before the empty answer. The kernel then finds a complete listing
//! without its first page. Whether a listing is incomplete is known here: the kernel asks for position 0 only if it has no
//! complete listing, and completes it only with an empty answer.

use super::Coherence;
use super::freshness::{EXTERNAL, ThreadId};
use super::ttl::SETTLED;
use crate::lock_rank as rank;
use canopy_base::ids::NodeId;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::tend::{self, Waker};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The most directories that are known. Beyond that, the listings of all are dropped, and read again once.
const MAX_DIRS: usize = 262_144;
/// The shortest time for which a listing is kept: they are dropped once a second.
const LEAST_AGE: Duration = Duration::from_secs(1);
/// A listing that may be kept for so long is not dropped before it changes: to know all of these costs more than to ask for
/// attributes one by one once a day.
const LONG: Duration = Duration::from_secs(3600);
/// How long an answer may wait for its client thread to be scheduled and process it.
const IN_FLIGHT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct KeptListings {
    /// The kernel opens directories by itself, until the pool is unmounted.
    in_use: AtomicBool,
    /// What is known of the kernel's listings. Of a directory that is missing here, the kernel may have a complete
    /// listing, and no answer is in flight.
    dirs: Mutex<HashMap<NodeId, Known>, rank::Leaf>,
    /// None has to be dropped later.
    idle: AtomicBool,
    waker: OnceLock<Waker>,
}

/// What is known of the kernel's listing of a directory.
struct Known {
    /// It is incomplete: it has begun, and no client has come to its end since.
    is_incomplete: bool,
    /// Attributes of files that were written a moment ago came with it ([`SETTLED`]).
    has_young: bool,
    /// When names were last given out that must not be used again: they have changed since, or a branch could not be
    /// read.
    doubtful: Option<Instant>,
    /// When names, or the end, were last given out.
    answered: Instant,
    /// It may be complete and in use; the client that came to its end.
    completed_by: Option<ThreadId>,
    /// When it is to be dropped.
    due: Option<Instant>,
}

/// How long the kernel may keep a listing that ends now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// Until its directory changes.
    Always,
    /// Likewise, but no longer than this.
    For(Duration),
    Not,
}

impl Known {
    fn new(now: Instant) -> Known {
        Known {
            is_incomplete: false,
            has_young: false,
            doubtful: None,
            answered: now,
            completed_by: None,
            due: None,
        }
    }

    /// Returns whether an answer may not have reached the kernel's listing yet.
    fn may_be_in_flight(&self, now: Instant) -> bool {
        now < self.answered + IN_FLIGHT
    }
}

impl KeptListings {
    /// From now on the kernel opens directories by itself.
    pub(crate) fn begin_use(&self) {
        self.in_use.store(true, Ordering::SeqCst);
    }

    /// Returns whether the kernel opens directories by itself.
    pub(crate) fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Records that a client is about to be given names of a directory: the first ones, with when the request for them
    /// began, or others. `young`: with attributes of files that were written a moment ago. Returns whether the listing must
    /// be dropped before the answer.
    pub(crate) fn gives(&self, dir: NodeId, client: ThreadId, first: Option<Instant>, young: bool) -> bool {
        let now = Instant::now();
        let mut dirs = self.dirs.lock();
        let known = dirs.entry(dir).or_insert_with(|| Known::new(now));
        let mut drops = false;
        if let Some(begun) = first
            && !known.is_incomplete
        {
            // The kernel has asked for the first names, so its listing was not complete then. But the answer that completes
            // it may have been in flight to another client.
            drops = known.may_be_in_flight(begun)
                && known.completed_by.is_some_and(|other| client == EXTERNAL || client != other);
            (known.is_incomplete, known.completed_by, known.due) = (true, None, None);
            known.has_young = false;
        }
        known.has_young |= young;
        known.answered = now;
        drops
    }

    /// Records that the names that a client is about to be given must not be used again.
    pub(crate) fn doubt(&self, dir: NodeId) {
        let now = Instant::now();
        self.dirs.lock().entry(dir).or_insert_with(|| Known::new(now)).doubtful = Some(now);
    }

    /// Records that a client has come to the end of a listing. Returns whether it must be dropped before the answer.
    pub(crate) fn ends(&self, dir: NodeId, client: ThreadId, keep: Keep) -> bool {
        let now = Instant::now();
        let mut dirs = self.dirs.lock();
        let known = dirs.entry(dir).or_insert_with(|| Known::new(now));
        let may_stay = match keep {
            Keep::Always => true,
            Keep::For(age) => age >= LEAST_AGE,
            Keep::Not => false,
        };
        let drops = known.doubtful.is_some() || !may_stay;
        // An answer with doubtful names may be in flight to another client, and be added to the next listing.
        known.doubtful = known.doubtful.filter(|at| now < *at + IN_FLIGHT);
        known.is_incomplete = false;
        known.answered = now;
        known.completed_by = (!drops).then_some(client);
        known.due = match keep {
            // Before the attributes expire, so that they come with the next listing.
            Keep::For(age) if !drops => {
                let age = if known.has_young { age.min(SETTLED) } else { age };
                (age < LONG).then(|| now + age * 9 / 10)
            }
            _ => None,
        };
        drops
    }

    /// Records that a directory has changed. Returns whether its listing must be dropped now; an incomplete one is
    /// dropped when it ends.
    pub(crate) fn changed(&self, dir: NodeId) -> bool {
        let mut dirs = self.dirs.lock();
        let Some(known) = dirs.get_mut(&dir) else { return true };
        known.doubtful = Some(Instant::now());
        (known.completed_by, known.due) = (None, None);
        !known.is_incomplete
    }

    /// Returns whether the listing of a directory has begun and not ended. It must not be dropped then.
    pub(crate) fn is_incomplete(&self, dir: NodeId) -> bool {
        self.dirs.lock().get(&dir).is_some_and(|known| known.is_incomplete)
    }

    /// Forgets what needs not be known any more, and returns the directories whose listings are due to be dropped.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<NodeId> {
        let mut dirs = self.dirs.lock();
        if dirs.len() > MAX_DIRS {
            return std::mem::take(&mut *dirs).into_keys().collect();
        }
        let mut due = Vec::new();
        dirs.retain(|dir, known| {
            if known.due.is_some_and(|at| at <= now) {
                (known.completed_by, known.due) = (None, None);
                due.push(*dir);
            }
            known.is_incomplete || known.due.is_some() || known.may_be_in_flight(now)
        });
        if dirs.is_empty() {
            *dirs = HashMap::new();
        }
        due
    }

    /// Returns whether there is nothing to do later.
    pub(crate) fn is_idle(&self) -> bool {
        self.dirs.lock().values().all(|known| known.is_incomplete)
    }

    /// Has listings looked at if that rests.
    fn wake(&self) {
        if self.idle.load(Ordering::SeqCst)
            && self.idle.swap(false, Ordering::SeqCst)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }

    /// Returns whether nothing need be looked at until it is woken.
    fn rests(&self) -> bool {
        self.idle.store(true, Ordering::SeqCst);
        let idle = self.is_idle();
        if !idle {
            self.idle.store(false, Ordering::SeqCst);
        }
        idle
    }
}

impl Drop for KeptListings {
    fn drop(&mut self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

impl Coherence {
    /// Begins to drop the listings whose attributes are about to expire. It ends with the pool.
    pub(super) fn start_dropping_listings(&self) {
        let weak = self.weak_self.clone();
        let waker = tend::repeat(LEAST_AGE, move || {
            let coherence = weak.upgrade()?;
            coherence.drop_due_listings();
            Some(if coherence.kept.rests() { Duration::MAX } else { LEAST_AGE })
        });
        let _ = self.kept.waker.set(waker);
    }

    /// Makes sure that listings are looked at, because one will have to be dropped.
    pub(super) fn wake_dropping(&self) {
        self.kept.wake();
    }

    fn drop_due_listings(&self) {
        for dir in self.kept.take_due(Instant::now()) {
            if !self.kept.is_incomplete(dir) {
                self.drop_listing(dir);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: NodeId = NodeId(7);
    const AGE: Duration = Duration::from_secs(10);
    const ONE: ThreadId = 11;
    const OTHER: ThreadId = 12;

    /// Gives a listing in two answers and its end.
    fn list(kept: &KeptListings, client: ThreadId) -> bool {
        assert!(!kept.gives(DIR, client, Some(Instant::now()), false));
        assert!(!kept.gives(DIR, client, None, false));
        kept.ends(DIR, client, Keep::For(AGE))
    }

    #[test]
    fn a_complete_listing_is_dropped_before_its_attributes_expire() {
        let kept = KeptListings::default();
        let begun = Instant::now();
        assert!(!list(&kept, ONE));
        assert!(kept.take_due(begun + AGE * 8 / 10).is_empty() && !kept.is_idle());
        assert_eq!(kept.take_due(begun + AGE), [DIR]);
        assert!(kept.is_idle() && kept.take_due(begun + AGE).is_empty());
    }

    #[test]
    fn a_listing_is_dropped_when_the_attributes_of_young_files_in_it_expire() {
        let (kept, day) = (KeptListings::default(), Duration::from_secs(86_400));
        let list = |young: bool| {
            assert!(!kept.gives(DIR, ONE, Some(Instant::now()), young) && !kept.gives(DIR, ONE, None, false));
            assert!(!kept.ends(DIR, ONE, Keep::For(day)));
        };
        let begun = Instant::now();
        list(false);
        assert!(kept.take_due(begun + SETTLED).is_empty() && kept.is_idle());
        list(true);
        assert_eq!(kept.take_due(Instant::now() + SETTLED), [DIR]);
        list(false);
        assert!(kept.take_due(begun + 2 * day).is_empty());
    }

    #[test]
    fn a_listing_that_may_always_be_kept_is_never_due() {
        let kept = KeptListings::default();
        assert!(!kept.ends(DIR, ONE, Keep::Always));
        assert!(kept.take_due(Instant::now() + 100 * AGE).is_empty() && kept.is_idle());
        assert!(kept.changed(DIR), "but it is dropped when the directory changes");
    }

    #[test]
    fn a_listing_that_must_not_be_kept_is_dropped_at_its_end() {
        for keep in [Keep::Not, Keep::For(Duration::ZERO), Keep::For(Duration::from_millis(900))] {
            let kept = KeptListings::default();
            assert!(kept.ends(DIR, ONE, keep), "{keep:?}");
            assert!(kept.take_due(Instant::now() + AGE).is_empty());
        }
    }

    #[test]
    fn a_change_drops_a_complete_listing_at_once_and_an_incomplete_one_at_its_end() {
        let kept = KeptListings::default();
        assert!(kept.changed(DIR), "there may be a listing of long ago");
        assert!(!kept.gives(DIR, ONE, Some(Instant::now()), false));
        assert!(!kept.changed(DIR) && !kept.changed(DIR));
        assert!(kept.changed(NodeId(8)), "another directory");
        assert!(kept.ends(DIR, ONE, Keep::For(AGE)));
        assert!(kept.changed(DIR));
    }

    #[test]
    fn a_listing_that_nobody_ended_stays_doubtful() {
        let kept = KeptListings::default();
        assert!(!kept.gives(DIR, ONE, Some(Instant::now()), false) && !kept.changed(DIR));
        assert!(kept.is_idle() && kept.take_due(Instant::now() + 100 * AGE).is_empty());
        assert!(list(&kept, OTHER), "it has the names of before");
    }

    #[test]
    fn doubtful_names_drop_the_listings_that_end_while_they_may_be_in_flight() {
        let kept = KeptListings::default();
        assert!(!kept.gives(DIR, ONE, Some(Instant::now()), false) && !kept.gives(DIR, OTHER, None, false));
        kept.doubt(DIR);
        assert!(kept.ends(DIR, ONE, Keep::For(AGE)));
        assert!(list(&kept, ONE), "the other client may add its names to this listing");
        let known = |change: fn(&mut Known)| change(kept.dirs.lock().get_mut(&DIR).unwrap());
        known(|known| known.doubtful = Some(Instant::now() - IN_FLIGHT));
        assert!(list(&kept, ONE), "the mark of this listing");
        assert!(!list(&kept, ONE));
    }

    #[test]
    fn a_listing_that_may_be_complete_after_all_is_dropped_when_another_begins() {
        let kept = KeptListings::default();
        assert!(!list(&kept, ONE));
        assert!(
            !kept.gives(DIR, ONE, Some(Instant::now()), false),
            "the client has the answer that ended it"
        );
        let begun = Instant::now();
        assert!(!kept.ends(DIR, ONE, Keep::Always));
        kept.dirs.lock().get_mut(&DIR).unwrap().answered -= IN_FLIGHT;
        assert!(!kept.gives(DIR, OTHER, Some(Instant::now()), false), "all have it by now");
        assert!(!kept.ends(DIR, ONE, Keep::Always));
        kept.dirs.lock().get_mut(&DIR).unwrap().answered -= IN_FLIGHT;
        assert!(kept.gives(DIR, OTHER, Some(begun - IN_FLIGHT), false), "a request that took long");
        assert!(!kept.ends(DIR, ONE, Keep::Always));
        assert!(kept.gives(DIR, OTHER, Some(begun), false));
        assert!(!kept.gives(DIR, OTHER, Some(Instant::now()), false), "it is incomplete now");
    }

    #[test]
    fn too_many_listings_are_all_dropped() {
        let kept = KeptListings::default();
        (0..=MAX_DIRS as u64).for_each(|dir| assert!(!kept.ends(NodeId(dir), ONE, Keep::For(AGE))));
        assert_eq!(kept.take_due(Instant::now()).len(), MAX_DIRS + 1);
        assert!(kept.is_idle());
    }
}
