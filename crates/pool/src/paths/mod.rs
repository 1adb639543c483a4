//! Which paths are in use, and which are about to change.
//!
//! Every operation that turns nodes into branch paths says which nodes and names it uses, from before it builds a path to
//! after the last system call on it ([`Paths::using`]). Whoever moves a directory, or exchanges the file behind a node,
//! claims what it moves ([`Paths::claim`]): it begins once nobody uses that, and whoever would use it then waits. Otherwise
//! a file could be created in the directory that took over the old name, or a missing parent could be cloned there. A use
//! elsewhere neither waits nor is waited for, however long it takes. Files need no claim against renames of files: an
//! operation that finds another file than its node's under a name retries.
//!
//! # Protocol
//! A user writes what it uses to a slot, and then looks whether there are claims. A claimant enters its claim, and then
//! looks at the slots. A fence stands between the two steps on both sides, so at least one sees the other: a user that
//! sees a claim on what it uses leaves its slot and waits; a claimant that sees a use waits. Of two claimants the one
//! that entered first goes first. Both wait for a time at most, and look again.

pub(crate) mod clones;
mod scope;
mod slots;
mod sync;

pub(crate) use scope::{Changing, Scope, Tree, Uses};

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Hold;
use scope::{exclude, touches};
use slots::Slots;
use std::time::{Duration, Instant};
use sync::{AtomicU64, AtomicUsize, Claims, Ordering, fence};

/// How long a claim waits before it lets others pass: at first, and at most. The latter is longer than most requests take
/// on a busy disk, so that they do not keep a claim waiting.
const FIRST_SLICE: Duration = Duration::from_millis(10);
const LAST_SLICE: Duration = Duration::from_millis(150);
/// How often a waiting thread looks at slots, which do not wake it each time: at first, and at least.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LAST_LOOK: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct Paths {
    slots: Slots,
    claims: Claims,
    /// How many claims there are.
    claimed: AtomicUsize,
    /// How often a claim was granted.
    moves: AtomicU64,
}

/// Keeps what is used in place, or is the right to change what is claimed, until it is dropped.
#[must_use]
pub(crate) struct PathGuard<'a> {
    paths: &'a Paths,
    held: Claimed,
    _rank: Hold<rank::Paths>,
}

enum Claimed {
    /// The index of a slot.
    Use(usize),
    /// The number of a claim.
    Claim(u64),
}

impl Paths {
    /// Keeps what is used in place while the guard lives. A thread must not call it twice.
    pub(crate) fn using(&self, uses: Uses, tree: &impl Tree) -> PathGuard<'_> {
        let rank = Hold::take();
        loop {
            let index = self.slots.take(uses);
            fence(Ordering::SeqCst);
            if self.claimed.load(Ordering::Relaxed) == 0 {
                return PathGuard { paths: self, held: Claimed::Use(index), _rank: rank };
            }
            let mut claims = self.claims.lock();
            if !claims.any(|_, scope| touches(scope, uses.0, tree)) {
                return PathGuard { paths: self, held: Claimed::Use(index), _rank: rank };
            }
            self.slots.leave(index);
            claims.notify();
            while claims.any(|_, scope| touches(scope, uses.0, tree)) {
                claims.wait(LAST_LOOK * 10);
            }
        }
    }

    /// Claims what is about to change: nobody uses it while the guard lives. `None` if others use it for longer than
    /// `limit`.
    ///
    /// While a claim waits, nobody else gets what it waits for, and a present user may be waiting for a disk. So the thread
    /// waits in slices, and between them leaves it to others for twice as long.
    pub(crate) fn claim(
        &self,
        scope: &Scope,
        limit: Option<Duration>,
        tree: &impl Tree,
    ) -> Option<PathGuard<'_>> {
        let mut rank = Hold::take();
        let began = Instant::now();
        let mut slice = FIRST_SLICE;
        loop {
            let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(began.elapsed()));
            match self.claim_within(scope, slice.min(left), tree) {
                Some(number) => {
                    return Some(PathGuard { paths: self, held: Claimed::Claim(number), _rank: rank });
                }
                None if left.is_zero() => return None,
                None => {}
            }
            drop(rank);
            sync::pause((2 * slice).min(left));
            rank = Hold::take();
            slice = (2 * slice).min(LAST_SLICE);
        }
    }

    /// Returns the number of the claim, once nobody uses its scope.
    fn claim_within(&self, scope: &Scope, limit: Duration, tree: &impl Tree) -> Option<u64> {
        let until = Instant::now() + limit;
        let mut look = FIRST_LOOK;
        let mut claims = self.claims.lock();
        let number = claims.enter(scope.clone());
        self.claimed.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while claims.any(|earlier, other| earlier < number && exclude(scope, other, tree))
            || self.slots.any_uses(scope, tree)
        {
            if Instant::now() >= until {
                claims.leave(number);
                self.claimed.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
            claims.wait(look);
            look = (2 * look).min(LAST_LOOK);
        }
        drop(claims);
        self.moves.fetch_add(1, Ordering::Relaxed);
        Some(number)
    }

    /// Returns [`Paths::moves`] if nothing is claimed. As long as that stays the same, nothing has moved.
    pub(crate) fn resting(&self) -> Option<u64> {
        // In this order: a claim is counted before it is granted.
        let moves = self.moves.load(Ordering::SeqCst);
        (self.claimed.load(Ordering::SeqCst) == 0).then_some(moves)
    }

    /// Returns how often a claim was granted. The number does not change while [`Uses::EVERYTHING`] is held.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}

impl Drop for PathGuard<'_> {
    fn drop(&mut self) {
        match self.held {
            Claimed::Use(index) => {
                self.paths.slots.leave(index);
                // A claimant that is missed here looks again soon.
                if self.paths.claimed.load(Ordering::Relaxed) > 0 {
                    self.paths.claims.wake();
                }
            }
            Claimed::Claim(number) => {
                let mut claims = self.paths.claims.lock();
                claims.leave(number);
                self.paths.claimed.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
