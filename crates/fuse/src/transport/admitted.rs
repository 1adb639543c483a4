//! A request that was put aside, and the worker that is started for it.

use super::parked::{Aside, HeldRequest};
use super::workers::Workers;
use std::sync::Arc;

/// A request that has been put aside, for the worker that is started for it. If it was in a line, it counts as under way there
/// until this is dropped.
pub(crate) struct Admitted {
    workers: Arc<Workers>,
    aside: Aside,
}

impl Admitted {
    pub(super) fn new(workers: &Arc<Workers>, aside: Aside) -> Admitted {
        workers.parked().began(aside);
        Admitted { workers: Arc::clone(workers), aside }
    }

    /// Returns whether the request has waited for a cause.
    pub(super) fn was_parked(&self) -> bool {
        matches!(self.aside, Aside::Parked(_))
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.workers.parked().ended(self.aside);
    }
}

/// What a worker does first.
pub(crate) struct FirstRequest {
    pub(crate) held: HeldRequest,
    pub(crate) admitted: Admitted,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::WorkerGrowth;
    use crate::transport::parked::Waiting;

    #[test]
    fn a_request_is_under_way_until_its_worker_has_ended_it() {
        let workers = Workers::new(WorkerGrowth::default(), 1 << 20, 1, Arc::default());
        let lines = workers.parked();
        let null = std::fs::File::open("/dev/null").unwrap();
        let held = HeldRequest::Message(Arc::new(null.into()), Box::new([1]));
        lines.push(Aside::Line(7), Waiting { group: 0, held, size: 1 });
        let admitted = [(); 2].map(|()| Admitted::new(&workers, Aside::Line(7)));
        assert_eq!((lines.count_in(7), lines.count_in(8)), ((1, 2), (0, 0)));
        drop(lines.take(Aside::Line(7)).unwrap());
        drop(admitted);
        assert_eq!(lines.count_in(7), (0, 0));
        assert_eq!(lines.waiting(), 0);
    }
}
