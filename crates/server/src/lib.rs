//! Serves a pool to the kernel: the only crate that knows both the protocol and the pool.
//!
//! From top to bottom: `start` brings a pool up, `negotiate` says what is asked of the kernel. `deadline` is a layer around
//! `dispatch`, which holds the one match over the operations. `control` is the interface by which a running pool is asked
//! and changed. `branches` looks after the branches and decides which are in force; `watch` sees what changes on them
//! behind the pool's back; `coherence` decides what the kernel may still believe. `settings` is the configuration in force,
//! `translate` turns values of the protocol into the pool's and tells what an operation is. `kernel_link` is what the pool
//! asks of the kernel.
#![forbid(unsafe_code)]

mod affinity;
pub mod badge;
mod branches;
mod coherence;
mod confine;
mod control;
mod deadline;
mod dispatch;
pub mod error;
mod interrupts;
mod kernel_link;
pub mod log;
pub mod negotiate;
mod settings;
mod start;
mod translate;
mod watch;

pub use error::Error;
pub use start::{Serving, start};
