//! The FUSE kernel protocol: wire types, decoding, replies, transports, mounting.
//!
//! A [`request`] borrows from the buffer it was read into, and its [`reply`] is built in the buffer it is sent from.
//! [`session`] negotiates versions and features with the kernel and runs the threads of a [`transport`]. [`notify`]
//! invalidates what the kernel caches, [`backing`] registers files for passthrough, and [`mount`] mounts and unmounts.
//! [`request_counter`] counts what the kernel sends.
//!
//! This crate does not depend on what is served.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![warn(missing_docs)]

pub mod abi;
pub mod backing;
pub mod flags;
pub mod mount;
pub mod negotiate;
pub mod notify;
pub mod opcode;
pub mod reply;
pub mod request;
pub mod request_counter;
pub mod session;
pub mod transport;
pub mod wait;

pub use negotiate::{Agreed, KernelLimits, SessionOptions};
pub use opcode::Opcode;
pub use reply::{NoData, Replied, Reply};
pub use request::{NodeId, Op, Request};
pub use session::Session;
pub use transport::{Handler, Transport, Undelivered};
