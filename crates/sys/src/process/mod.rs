//! Processes that share descriptors and memory, so that what one of them holds outlives it; and the time zone of this one.

pub mod child;
mod clone;
mod exec;
pub mod fault;
mod fork;
pub mod local_time;
pub mod peer;
#[cfg_attr(loom, allow(dead_code, unreachable_pub))]
mod shared_words;
pub mod syslog;

pub use exec::exec;
pub use fault::dump_core_again;
pub use fork::{Child, Ended, Event, Forked, Forker, block_signal, catch_signals};
#[cfg(not(loom))]
pub use shared_words::SharedWords;
#[cfg(loom)]
pub use shared_words::model::{AtomicU64, SharedWords, left_by_the_dead};
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64;
