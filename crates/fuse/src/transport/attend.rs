//! Handling a request at a worker's seat, where the watchdog may answer it first; or putting it aside.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::nudge::is_nudge;
use super::serve::{Handler, Out, Outcome, report_undelivered, serve};
use super::workers::{Claim, Ended, WorkerSlot};
use crate::request::{Header, Malformed, Request};

/// How a request was handled.
pub(super) enum Attended {
    /// The worker is to send the answer.
    Done(Outcome, Claim),
    /// It was answered in the worker's place, and what the worker has answered is taken back.
    Late,
}

/// Returns the line in which a request of this size is to wait without a worker, if it is.
pub(super) fn line_of<H: Handler>(
    slot: &WorkerSlot,
    request: &Result<Request<'_>, Malformed>,
    size: usize,
    handler: &H,
) -> Option<u64> {
    let request = request.as_ref().ok().filter(|request| !is_nudge(request))?;
    let line = catch_unwind(AssertUnwindSafe(|| handler.line(request))).unwrap_or_default()?;
    slot.can_hold(size).then_some(line)
}

/// Serves a request. `claim` is what it takes to answer it.
pub(super) fn attend<H: Handler>(
    slot: &WorkerSlot,
    header: Header,
    request: Result<Request<'_>, Malformed>,
    out: Out<'_>,
    handler: &H,
    claim: Claim,
) -> Attended {
    let Ok(request) = request else {
        // The error is sent without asking the handler.
        return Attended::Done(serve(header, request, out, handler), claim);
    };
    let note = catch_unwind(AssertUnwindSafe(|| handler.note(&request))).unwrap_or_default();
    slot.begin(header, note, claim);
    let Out { header: out_header, payload } = out;
    let outcome = serve(header, Ok(request), Out { header: out_header, payload: &mut *payload }, handler);
    let Ended { claim, stalled } = slot.end(outcome.errno());
    if stalled {
        if let (None, Outcome::Answer { payload: len, grants, .. }) = (&claim, outcome) {
            report_undelivered(handler, grants, &payload[..len]);
        }
        if catch_unwind(AssertUnwindSafe(|| handler.resumed(&request, claim.is_none()))).is_err() {
            tracing::error!(unique = header.unique, "the handler panicked over a request that took long");
        }
        slot.done();
    }
    match claim {
        Some(claim) => Attended::Done(outcome, claim),
        None => Attended::Late,
    }
}
