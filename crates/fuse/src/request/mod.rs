//! Requests, decoded without a copy.
//!
//! A [`Request`] borrows names and data from the buffer it was read into. Input from the kernel is not trusted: decoding
//! an inconsistent request returns [`Malformed`] and never panics.

mod attr;
mod body;
mod decode;
mod file;
mod forget;
mod header;
mod malformed;
mod name;
mod op;

pub use attr::{SetTime, Setattr, Timestamp};
pub use file::{CopyRange, Create, FileIo, Lock, Tmpfile, WriteIo};
pub use forget::{ForgetItem, Forgets};
pub use header::{Dialect, Extensions, Groups, Header, NodeId};
pub use malformed::Malformed;
pub use name::Name;
pub use op::{Op, Request};
