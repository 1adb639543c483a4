//! Handling a request, which the watchdog may answer first; or putting it aside.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;

use super::parked::Park;
use super::serve::{Expected, Handler, Out, Outcome, refuse, report_undelivered, serve, serve_in};
use super::stalled::Note;
use super::wake_queue::is_wake_call;
use super::workers::{Ended, ReplyToken, WorkerSlot};
use crate::request::{Header, Malformed, Request};
use crate::wait::Attempt;

/// How a request was handled.
pub(super) enum Attended {
    /// The worker is to send the answer.
    Done(Outcome, ReplyToken),
    /// It is to be put aside.
    Park(ReplyToken),
    /// It was answered in the worker's place, and what the worker has answered is taken back.
    Late,
}

/// Returns what the handler says of a request before it is handled. It names a line only if a request of this size can be
/// put aside.
pub(super) fn expect<H: Handler>(
    slot: &WorkerSlot,
    request: &Result<Request<'_>, Malformed>,
    size: usize,
    handler: &H,
) -> Expected {
    let Some(request) = request.as_ref().ok().filter(|request| !is_wake_call(request)) else {
        return Expected::default();
    };
    let expected = catch_unwind(AssertUnwindSafe(|| handler.expect(request))).unwrap_or_default();
    Expected { line: expected.line.filter(|_| slot.can_hold(size)), ..expected }
}

/// A request as it was received.
pub(super) struct Received {
    /// What it takes to answer it.
    pub(super) token: ReplyToken,
    /// What the handler has said of it.
    pub(super) note: Note,
    /// The memory that it takes while it is put aside, in bytes.
    pub(super) size: usize,
    /// It has waited for a cause before.
    pub(super) again: bool,
}

/// Serves a request.
pub(super) fn attend<H: Handler>(
    slot: &WorkerSlot,
    header: Header,
    request: Result<Request<'_>, Malformed>,
    out: Out<'_>,
    handler: &H,
    Received { token, note, size, again }: Received,
) -> Attended {
    let Ok(request) = request else {
        // The error is sent without asking the handler.
        return Attended::Done(serve(header, request, out, handler), token);
    };
    slot.begin(header, note, token);
    let Out { header: out_header, payload } = out;
    let attempt = Attempt::default();
    let outcome = loop {
        let out = Out { header: &mut *out_header, payload: &mut *payload };
        let outcome = serve_in(header, Ok(request), out, handler, Some(&attempt));
        let Outcome::Later(signal) = outcome else { break outcome };
        match slot.park(&header, attempt.wait.take(), signal, size) {
            Park::Aside => break outcome,
            Park::Refuse(errno) => break refuse(&header, out_header, errno),
            Park::Stay(time) => sleep(time),
        }
    };
    let waits = matches!(outcome, Outcome::Later(_));
    let Ended { token, stalled } = slot.end((!waits).then_some(outcome.errno()));
    if !waits && again || waits && token.is_none() {
        slot.unparked(header.unique);
    }
    if stalled {
        if let (None, Outcome::Answer { payload: len, grants, .. }) = (&token, outcome) {
            report_undelivered(handler, grants, &payload[..len]);
        }
        if catch_unwind(AssertUnwindSafe(|| handler.resumed(&request, token.is_none()))).is_err() {
            tracing::error!(unique = header.unique, "the handler panicked over a request that took long");
        }
        slot.done();
    }
    match token {
        Some(token) if waits => Attended::Park(token),
        Some(token) => Attended::Done(outcome, token),
        None => Attended::Late,
    }
}
