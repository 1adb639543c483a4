//! Whether requests make progress, for a watchdog that ends the process otherwise.

pub mod systemd;

use crate::branches::liveness::Liveness;
use crate::control::Control;
use crate::dispatch::Dispatch;
use canopy_fuse::Opcode;
use canopy_fuse::transport::Served;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Looks now and then whether requests make progress.
///
/// They do if none has waited since the last look, or some were answered since. They also do if those that wait, wait for
/// branches: a disk that hangs is no fault of this process, and another process would wait for it just the same. What is left
/// are requests that are stuck in the process itself.
pub struct Progress {
    dispatch: Weak<Dispatch>,
    last: Option<Look>,
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    answered: u64,
    waits: bool,
}

impl Progress {
    pub(crate) fn new(dispatch: &Arc<Dispatch>) -> Progress {
        Progress { dispatch: Arc::downgrade(dispatch), last: None }
    }

    /// Returns whether requests have made progress since the last look. `None` once the pool is not served any more.
    pub fn look(&mut self) -> Option<bool> {
        let dispatch = self.dispatch.upgrade()?;
        let control: &Control = &dispatch.control;
        let now = Look::at(Instant::now(), &control.served());
        let last = self.last.replace(now);
        Some(last.is_none_or(|last| now.follows(last) || waits_for_branches(control.liveness(), last.at)))
    }
}

fn waits_for_branches(liveness: &Liveness, since: Instant) -> bool {
    liveness.stalls().all_wait_for_branches(since)
}

impl Look {
    /// Requests that wait in line wait for a branch, without a worker. That one was put aside for a cause is no answer, but it
    /// does not hang.
    fn at(at: Instant, served: &Served) -> Look {
        let answered = served.kinds.iter().filter(|(opcode, _)| has_a_client(*opcode));
        let answered = answered.map(|(_, kind)| kind.answered).sum::<u64>() + served.parked;
        Look { at, answered, waits: served.under_way > 0 }
    }

    /// Whether nothing is stuck that was under way at the earlier look: if nothing was answered since, it still is.
    fn follows(self, last: Look) -> bool {
        self.answered != last.answered || !self.waits || !last.waits
    }
}

/// Whether a client waits for the answer. There are also requests that the watchdog of the transport provokes.
fn has_a_client(opcode: Opcode) -> bool {
    !matches!(
        opcode,
        Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply | Opcode::Init
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_fuse::transport::KindTally;

    fn look(under_way: usize, answers: &[(Opcode, u64)]) -> Look {
        let kind =
            |&(opcode, answered): &(Opcode, u64)| (opcode, KindTally { answered, ..KindTally::default() });
        let kinds = answers.iter().map(kind).collect();
        Look::at(Instant::now(), &Served { kinds, under_way, ..Served::default() })
    }

    #[test]
    fn a_request_that_waits_while_none_is_answered_makes_no_progress() {
        let idle = look(0, &[(Opcode::Getattr, 5)]);
        let waits = look(1, &[(Opcode::Getattr, 5)]);
        assert!(idle.follows(idle) && waits.follows(idle) && idle.follows(waits));
        assert!(!waits.follows(waits));
        assert!(look(1, &[(Opcode::Getattr, 5), (Opcode::Lookup, 1)]).follows(waits));
        assert!(
            !look(1, &[(Opcode::Getattr, 5), (Opcode::NotifyReply, 7), (Opcode::Forget, 7)]).follows(waits)
        );
    }
}
