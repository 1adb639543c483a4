//! What the handler says of a request that has something to wait for.

use std::cell::Cell;
use std::time::Duration;

/// What a request waits for, in the handler's own terms. Requests with the same cause wait for the same thing.
pub type Cause = [u64; 3];

/// How a request waits that has come upon a cause before it has changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What it waits for.
    pub cause: Cause,
    /// How long it may wait in all. Then its caller gets `ETIMEDOUT`.
    pub longest: Duration,
    /// The positive errno for a caller who has too many requests that wait.
    pub refusal: i32,
    /// Whether any signal ends the wait, as it does where a file system waits for it. Else only one that kills.
    pub interruptible: bool,
    /// It must not fail for lack of memory.
    pub must_wait: bool,
}

/// What has reached the client of a request that is to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Nothing.
    None,
    /// A signal.
    Caught,
    /// A signal that kills it.
    Kills,
}

impl Wait {
    /// Returns whether the signal ends the wait.
    pub(crate) fn ends_by(&self, signal: Signal) -> bool {
        match signal {
            Signal::None => false,
            Signal::Caught => self.interruptible,
            Signal::Kills => true,
        }
    }
}

/// One attempt of a worker at a request.
#[derive(Default)]
pub(crate) struct Attempt {
    /// What it has found that it has to wait for.
    pub(crate) wait: Cell<Option<Wait>>,
}

impl Attempt {
    /// Records what the request has to wait for.
    pub(crate) fn waits_for(&self, wait: Wait) {
        self.wait.set(Some(wait));
    }
}
