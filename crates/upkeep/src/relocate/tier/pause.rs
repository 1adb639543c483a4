//! When the mover of tiers waits: while clients keep the pool busy, and on battery.

use crate::pool_link::PoolLink;
use crate::stop::Stop;
use canopy_control::calm;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long requests are counted. Nothing moves meanwhile: moves make requests as well.
const COUNT: Duration = Duration::from_secs(1);
/// How long a pool that was found idle counts as such.
const REST: Duration = Duration::from_secs(10);

/// Looks now and then whether anything speaks against a move.
#[derive(Debug)]
pub(super) struct IdleGate<'p> {
    pool: &'p PoolLink,
    stop: &'p Stop,
    /// When nothing did.
    found: Cell<Option<Instant>>,
}

impl<'p> IdleGate<'p> {
    pub(super) fn new(pool: &'p PoolLink, stop: &'p Stop) -> IdleGate<'p> {
        IdleGate { pool, stop, found: Cell::new(None) }
    }

    /// Returns why nothing should move now. Looking takes a second.
    pub(super) fn disturbed(&self) -> Option<&'static str> {
        if self.found.get().is_some_and(|found| found.elapsed() < REST) {
            return None;
        }
        let (began, before) = (Instant::now(), self.answered());
        self.stop.sleep_until(began + COUNT);
        let requests = self.answered().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        if let Some(why) = calm::disturbance(requests, began.elapsed()) {
            return Some(why);
        }
        self.found.set(Some(Instant::now()));
        None
    }

    /// Returns how many requests the daemon has answered.
    fn answered(&self) -> Option<u64> {
        calm::answered(&self.pool.daemon)
    }
}
