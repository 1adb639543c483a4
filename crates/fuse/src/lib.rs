//! The FUSE kernel protocol: wire types, decoding, replies, transports, mounting.
//!
//! A request is borrowed from the buffer it was read into ([`request`]), and its answer is built in the buffer it is
//! sent from ([`reply`]). [`session`] agrees with the kernel upon what both understand, and runs the threads of
//! [`transport`]; [`notify`] tells the kernel what to forget, [`backing`] hands it files to read and write by itself,
//! and [`mount`] puts the whole into the tree and takes it out again.
//!
//! This crate knows nothing of what is served.
#![forbid(unsafe_code)]
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
pub mod session;
pub mod transport;

pub use negotiate::{Agreed, Limits, SessionOptions};
pub use opcode::Opcode;
pub use reply::{Replied, Reply};
pub use request::{NodeId, Op, Request};
pub use session::Session;
pub use transport::{Handler, Transport, Undelivered};
