//! Processes that share descriptors and memory, so that what one of them holds outlives it; and the time zone of this one.

pub mod child;
mod clone;
mod exec;
mod fork;
pub mod local_time;
mod shared_words;
pub mod syslog;

pub use exec::exec;
pub use fork::{Child, Ended, Event, Forked, Forker, block_signal, catch_signals};
pub use shared_words::SharedWords;
