//! Transports, which carry requests from the kernel to a handler.
//!
//! A worker of a transport owns a buffer for requests and one for replies. It receives a request, calls [`serve`], and
//! sends the reply from the buffer it was built in. The buffers do not grow: their sizes follow from the negotiation.

mod admitted;
mod attend;
mod dev;
mod lines;
mod parked;
mod pause;
mod priority;
mod serve;
mod served;
mod stalled;
mod tally;
mod trace;
pub mod uring;
mod wake_queue;
mod watchdog;
mod worker_thread;
mod workers;

use std::fmt;

pub(crate) use admitted::FirstRequest;
pub(crate) use dev::DevWorker;
pub use lines::Lines;
pub(crate) use parked::HeldRequest;
pub use parked::{Limits, ParkedRequest};
pub use pause::Pause;
pub use priority::{LowWorkers, WorkerPriority};
pub(crate) use serve::write_header;
pub use serve::{Expected, Grants, Handler, Out, Outcome, Undelivered, report_undelivered, serve};
pub use served::{Served, ServedRequests};
pub use stalled::{Note, Stalled, Verdict};
pub use tally::{BOUNDS, KindTally, ONE_IN};
pub use trace::TARGET as TRACE_TARGET;
pub use uring::UringUnavailable;
pub(crate) use wake_queue::FindLandmarks;
pub use wake_queue::Landmarks;
pub(crate) use watchdog::{GroupSpawner, Spawned, Watchdog, Watched};
pub(crate) use worker_thread::{WorkerThread, WorkersEnd};
pub use workers::WorkerGrowth;
pub(crate) use workers::{ThreadStart, WorkerSlot, Workers};

/// The transport of a connection. FORGET, INTERRUPT and notifications always use `/dev/fuse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `/dev/fuse`, because io_uring is unavailable.
    Device(UringUnavailable),
    /// io_uring.
    Uring {
        /// The number of queues, one for each processor.
        queues: u16,
        /// The number of workers of all queues at the start.
        workers: usize,
    },
}

/// A short description, for the log.
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
