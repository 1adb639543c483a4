//! Requests, decoded in place.
//!
//! A [`Request`] borrows names and data from the buffer it was read into. What the kernel sends is checked as if it
//! came from a stranger: a request that does not hold together is [`Malformed`], never a panic.

mod attr;
mod body;
mod decode;
mod file;
mod forget;
mod header;
mod malformed;
mod name;
mod op;
mod owned;

pub use attr::{SetTime, Setattr, Timestamp};
pub use file::{CopyRange, Create, FileIo, Lock, Tmpfile, WriteIo};
pub use forget::{ForgetItem, Forgets};
pub use header::{Dialect, Extensions, Groups, Header, NodeId};
pub use malformed::Malformed;
pub use name::Name;
pub use op::{Op, Request};
pub use owned::OwnedRequest;
