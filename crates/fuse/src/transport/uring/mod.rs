//! The transport over io_uring (Linux 6.14): one system call sends a reply and receives the next request.
//!
//! The kernel has a queue for every processor, and puts a request into the queue of the processor on which its caller runs.
//! Each queue has several workers, and each worker has a ring with a single entry. A request goes only to an entry whose
//! worker is idle, so a worker that waits for a sleeping disk delays no other request while another worker is idle.
//! FORGET, INTERRUPT and notifications use `/dev/fuse`.

mod cpus;
mod params;
mod queue;
mod unavailable;
mod worker;

pub use cpus::online as online_cpus;
pub use params::{Parameter, requests_expire, turn_on};
pub(crate) use queue::Rings;
pub use unavailable::UringUnavailable;
