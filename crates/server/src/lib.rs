//! Serves a pool to the kernel: the only crate that knows both the protocol and the pool.
//!
//! `start` brings a pool up, `negotiate` says what is asked of the kernel. `dispatch` is the one match over the
//! operations, `translate` turns values of one side into the other's. `coherence` decides what the kernel may still
//! believe, `watch` sees what changes on the branches behind the pool's back. `branches` looks after branches that are
//! missing, gone or hang; `offload` keeps them from holding up whoever does not need them. `control` is the interface by
//! which a running pool is changed and asked.
#![forbid(unsafe_code)]

mod affinity;
pub mod badge;
mod branches;
mod coherence;
mod confine;
mod control;
mod dispatch;
pub mod error;
mod kernel_link;
pub mod log;
pub mod negotiate;
mod offload;
mod start;
mod translate;
mod watch;

pub use error::Error;
pub use start::{Serving, start};
