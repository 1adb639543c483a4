//! Processes that share descriptors and memory, so that what one of them holds outlives it.

pub mod child;
mod clone;
mod exec;
mod fork;
mod shared_words;

pub use exec::exec;
pub use fork::{Child, Ended, Event, Forked, Forker, block_signal};
pub use shared_words::SharedWords;
