//! What a connection's workers do and have done, for reports.

use std::sync::{Arc, OnceLock};

use super::parked::ParkedRequest;
use super::tally::KindTally;
use super::workers::Workers;
use crate::opcode::Opcode;

/// Reads what the workers of a session count, at any time.
#[derive(Clone, Default)]
pub struct ServedRequests(Arc<OnceLock<Arc<Workers>>>);

/// What the workers of a connection have answered since it is served here, and what they do.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The kinds of operations that were answered.
    pub kinds: Vec<(Opcode, KindTally)>,
    /// How many answers were each errno. 0 stands for those that are not known.
    pub errors: Vec<(i32, u64)>,
    /// How many workers take requests.
    pub workers: usize,
    /// How many requests have a worker and no answer yet.
    pub under_way: usize,
    /// How many workers are stuck in a request ([`WorkerGrowth`](super::WorkerGrowth)).
    pub stuck: usize,
    /// How many requests wait in line without a worker.
    pub in_line: usize,
    /// How often a request was put aside for something that it has to wait for ([`Wait`](crate::wait::Wait)).
    pub parked: u64,
}

impl ServedRequests {
    /// Returns what the workers have counted. Nothing until the session is served.
    #[must_use]
    pub fn read(&self) -> Served {
        let Some(workers) = self.0.get() else { return Served::default() };
        let (tally, sample) = workers.served();
        Served {
            kinds: tally.kinds(),
            errors: tally.errors(),
            workers: sample.alive,
            under_way: sample.under_way,
            stuck: sample.stuck,
            in_line: workers.parked().waiting(),
            parked: workers.parked().count(),
        }
    }

    /// Returns the requests that wait for a cause.
    #[must_use]
    pub fn parked(&self) -> Vec<ParkedRequest> {
        self.0.get().map_or_else(Vec::new, |workers| workers.parked().requests())
    }

    pub(crate) fn set(&self, workers: &Arc<Workers>) {
        let _ = self.0.set(Arc::clone(workers));
    }
}
