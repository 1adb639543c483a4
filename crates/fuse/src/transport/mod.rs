//! How requests reach a handler, whatever carries them.
//!
//! A transport's worker owns one buffer for requests and one for answers. It receives, calls [`serve_one`], and sends
//! what was built in place. Neither buffer grows: their sizes follow from what was agreed in INIT.

mod detached;
mod dev;
mod serve;
mod trace;
pub mod uring;
mod watchdog;
mod workers;

use std::fmt;

pub use detached::DetachedReply;
pub(crate) use dev::DevWorker;
pub(crate) use serve::write_header;
pub use serve::{Grants, Handler, Out, Outcome, Undelivered, report_undelivered, serve, serve_one};
pub use trace::TARGET as TRACE_TARGET;
pub use uring::UringUnavailable;
pub(crate) use watchdog::{GroupSpawner, Spawned, Watchdog};
pub use workers::Growth;
pub(crate) use workers::{WorkerEnd, WorkerSlot, Workers};

/// What carries requests and answers. FORGET, INTERRUPT and notifications go over `/dev/fuse` in either case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `/dev/fuse`, and why not the other.
    Device(UringUnavailable),
    /// io_uring: this many queues, with this many workers in all.
    Uring {
        /// One for each processor.
        queues: u16,
        /// On all queues together, those that every pool begins with.
        workers: usize,
    },
}

/// A few words for the log.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Device(why) => write!(f, "requests over /dev/fuse ({why})"),
            Transport::Uring { queues, workers } => {
                write!(f, "requests over io_uring, {queues} queues, {workers} workers")
            }
        }
    }
}
