//! Requests that take long, and what the handler says about them.

use std::time::Duration;

use crate::request::NodeId;

/// What [`Handler::stalled`](super::Handler::stalled) needs to know of a request, in the handler's own terms. The
/// transport stores it for each request and does not look at it.
pub type Note = [u64; 3];

/// A request whose worker has been in it for some ticks ([`WorkerGrowth`](super::WorkerGrowth)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The number of the request. No other request of the connection has it.
    pub unique: u64,
    /// The operation.
    pub opcode: u32,
    /// The node in the request header.
    pub node: NodeId,
    /// What [`Handler::expect`](super::Handler::expect) has said of the request.
    pub note: Note,
    /// The worker's thread, as gettid(2) returns it.
    pub thread: i32,
    /// For how long the worker has been in it at least. It may have been in it for some ticks more.
    pub since: Duration,
    /// Whether the request has been answered in the worker's place.
    pub answered: bool,
}

/// What is to be done with a request that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its caller goes on waiting. The handler is asked again after this time, or a little later.
    Wait(Duration),
    /// Its caller gets this errno now; 0 is an answer without data. What the worker answers later is discarded.
    Answer(i32),
}
