//! Threads: what one is blocked in, and the priority of its input and output.

pub mod blocked_call;
pub mod ioprio;
