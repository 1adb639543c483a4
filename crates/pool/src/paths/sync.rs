//! The locks of the protocol; those of `loom` when it is tested.

use super::scope::{Changing, Scope};
#[cfg(not(loom))]
use canopy_base::lock::rank;
#[cfg(not(loom))]
use canopy_base::lock::ranked::{Condvar, Mutex, MutexGuard};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// The claims in the order in which they were entered, with their numbers.
#[derive(Default)]
struct List {
    last: u64,
    claims: Vec<(u64, Scope)>,
}

#[derive(Default)]
pub(super) struct Claims {
    #[cfg(not(loom))]
    list: Mutex<List, rank::PathClaims>,
    #[cfg(not(loom))]
    changed: Condvar,
    #[cfg(loom)]
    list: Mutex<List>,
}

pub(super) struct ClaimsGuard<'a> {
    claims: &'a Claims,
    #[cfg(not(loom))]
    list: MutexGuard<'a, List, rank::PathClaims>,
    #[cfg(loom)]
    list: Option<MutexGuard<'a, List>>,
}

impl Claims {
    pub(super) fn lock(&self) -> ClaimsGuard<'_> {
        #[cfg(not(loom))]
        let list = self.list.lock();
        #[cfg(loom)]
        let list = Some(self.list.lock().unwrap());
        ClaimsGuard { claims: self, list }
    }

    /// Wakes those who wait, unless the claims are just being looked at. Whatever locks the calling thread holds.
    pub(super) fn wake(&self) {
        #[cfg(not(loom))]
        if self.list.try_lock().is_some() {
            self.changed.notify_all();
        }
    }
}

impl ClaimsGuard<'_> {
    #[cfg(not(loom))]
    fn list(&mut self) -> &mut List {
        &mut self.list
    }

    #[cfg(loom)]
    fn list(&mut self) -> &mut List {
        self.list.as_mut().unwrap()
    }

    pub(super) fn any(&mut self, mut matches: impl FnMut(u64, &[Changing]) -> bool) -> bool {
        self.list().claims.iter().any(|(number, scope)| matches(*number, scope))
    }

    pub(super) fn enter(&mut self, scope: Scope) -> u64 {
        let list = self.list();
        list.last += 1;
        list.claims.push((list.last, scope));
        list.last
    }

    pub(super) fn leave(&mut self, number: u64) {
        self.list().claims.retain(|(other, _)| *other != number);
        self.notify();
    }

    /// Wakes those who wait for a change of uses or claims.
    pub(super) fn notify(&mut self) {
        #[cfg(not(loom))]
        self.claims.changed.notify_all();
    }

    /// Waits for a change, for so long at most.
    pub(super) fn wait(&mut self, limit: Duration) {
        #[cfg(not(loom))]
        let _ = self.claims.changed.wait_for(&mut self.list, limit);
        #[cfg(loom)]
        {
            let _ = limit;
            self.list = None;
            loom::thread::yield_now();
            self.list = Some(self.claims.list.lock().unwrap());
        }
    }
}

pub(super) fn pause(time: Duration) {
    #[cfg(not(loom))]
    std::thread::sleep(time);
    #[cfg(loom)]
    {
        let _ = time;
        loom::thread::yield_now();
    }
}

std::thread_local! {
    static LAST_SLOT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the slot that the calling thread had last.
pub(super) fn last_slot() -> usize {
    LAST_SLOT.get()
}

pub(super) fn set_last_slot(index: usize) {
    LAST_SLOT.set(index);
}
