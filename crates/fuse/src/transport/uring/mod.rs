//! Requests over io_uring (Linux 6.14): one system call hands over an answer and takes the next request.
//!
//! The kernel has a queue for every processor and puts a request into that of the processor its caller runs on. Each
//! queue has several workers, and each worker a ring of its own with one entry: a request goes only to an entry whose
//! worker is idle, so one that waits for a sleeping disk holds up nobody while another is left. FORGET, INTERRUPT and
//! notifications stay on `/dev/fuse`.

mod cpus;
mod params;
mod queue;
mod unavailable;
mod worker;

pub use cpus::online as online_cpus;
pub use params::{Parameter, turn_on};
pub(crate) use queue::Rings;
pub use unavailable::UringUnavailable;
