//! What the handler says of the lines in which requests wait without a worker.

use std::sync::{Arc, OnceLock};

use super::parked::Limits;
use super::workers::Workers;

/// Sets the limits of a session's lines, and counts who waits in them, at any time.
#[derive(Clone, Default)]
pub struct Lines(Arc<OnceLock<Arc<Workers>>>);

impl Lines {
    /// Sets the limits, instead of those before. Without effect until the session is served.
    pub fn limit(&self, limits: Limits) {
        if let Some(workers) = self.0.get() {
            workers.parked().limit(limits);
        }
    }

    /// Returns how many requests can be stuck at once while others are served.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.0.get().map_or(usize::MAX, |workers| workers.growth().max_extra)
    }

    /// Returns how many requests wait in a line.
    #[must_use]
    pub fn waiting(&self, line: u64) -> usize {
        self.0.get().map_or(0, |workers| workers.parked().count_in(line).0)
    }

    pub(crate) fn set(&self, workers: &Arc<Workers>) {
        let _ = self.0.set(Arc::clone(workers));
    }
}
