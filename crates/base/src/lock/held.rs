//! The ranks that each thread holds: a thread-local list in debug builds, nothing in release builds.

#[cfg(debug_assertions)]
use std::{cell::RefCell, panic::Location};

#[cfg(debug_assertions)]
thread_local! {
    static RANKS: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// A lock that a thread holds: its rank, the rank's name, and where it was taken. Many locks share a rank.
#[cfg(debug_assertions)]
type Entry = (u16, &'static str, &'static Location<'static>);

/// An entry in the calling thread's list, removed when dropped.
#[derive(Debug)]
pub(super) struct HeldRank {
    #[cfg(debug_assertions)]
    order: u16,
}

#[cfg(debug_assertions)]
impl HeldRank {
    /// Records a lock that the thread may have to wait for. Panics if the thread holds a lock whose rank is not
    /// below.
    #[track_caller]
    pub(super) fn next(order: u16, name: &'static str) -> HeldRank {
        HeldRank::check(order, name, |held| held < order)
    }

    /// As `next`, but allows other locks of the same rank.
    #[track_caller]
    pub(super) fn sibling(order: u16, name: &'static str) -> HeldRank {
        HeldRank::check(order, name, |held| held <= order)
    }

    #[track_caller]
    fn check(order: u16, name: &'static str, allowed: impl Fn(u16) -> bool) -> HeldRank {
        let refused =
            RANKS.try_with(|ranks| ranks.borrow().iter().copied().find(|(held, ..)| !allowed(*held)));
        if let Ok(Some((held, holder, at))) = refused
            && !std::thread::panicking()
        {
            panic!(
                "lock order: {name} (rank {order}) is taken while {holder} (rank {held}, taken at {at}) is held; see \
                 lock/rank.rs"
            );
        }
        HeldRank::note(order, name)
    }

    /// Records a lock that the thread does not wait for.
    #[track_caller]
    pub(super) fn note(order: u16, name: &'static str) -> HeldRank {
        // The list may already be gone when the thread ends.
        let at = Location::caller();
        let _ = RANKS.try_with(|ranks| ranks.borrow_mut().push((order, name, at)));
        HeldRank { order }
    }
}

#[cfg(debug_assertions)]
impl Drop for HeldRank {
    fn drop(&mut self) {
        let _ = RANKS.try_with(|ranks| {
            let mut ranks = ranks.borrow_mut();
            if let Some(at) = ranks.iter().rposition(|(order, ..)| *order == self.order) {
                ranks.remove(at);
            }
        });
    }
}

#[cfg(not(debug_assertions))]
impl HeldRank {
    #[inline(always)]
    pub(super) fn next(_: u16, _: &'static str) -> HeldRank {
        HeldRank {}
    }

    #[inline(always)]
    pub(super) fn sibling(_: u16, _: &'static str) -> HeldRank {
        HeldRank {}
    }

    #[inline(always)]
    pub(super) fn note(_: u16, _: &'static str) -> HeldRank {
        HeldRank {}
    }
}
