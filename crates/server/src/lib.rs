//! Serves a pool to the kernel: the only crate that knows both the FUSE protocol and the pool.
//!
//! From top to bottom:
//!
//! - `start` starts a pool; `negotiate` chooses what to ask of the kernel.
//! - `progress` tells whether requests make any, and `progress::systemd` tells systemd.
//! - `deadline` is a layer around `dispatch`, which holds the one match over the operations.
//! - `parking` tells when requests go on that wait for something else than a disk.
//! - `control` is the runtime interface, by which users query and change a running pool.
//! - `branches` watches over the branches and decides which are in force.
//! - `watch` follows changes on the branches behind the pool's back.
//! - `coherence` decides what the kernel may cache.
//! - `probes` tries what the kernel must do for that.
//! - `settings` is the configuration in force.
//! - `translate` converts between the types of the protocol and the pool, and lists the properties of each operation.
//! - `kernel_link` is what the pool asks of the kernel.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod affinity;
pub mod badge;
mod branches;
mod coherence;
pub mod confine;
mod control;
mod deadline;
mod dispatch;
pub mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod interrupts;
mod kernel_link;
mod landmarks;
mod lock_rank;
pub mod log;
pub mod negotiate;
mod parking;
mod probes;
mod progress;
mod settings;
mod start;
pub mod survival;
pub mod takeover;
pub mod test_switches;
mod translate;
mod watch;

pub use error::Error;
pub use progress::{Progress, systemd};
#[cfg(feature = "test-switches")]
pub use start::serve_device;
pub use start::{Serving, start};
