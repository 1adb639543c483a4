//! Threads: what one is blocked in, how it is interrupted, where and when it runs, and the priority of its input and output.

pub mod blocked_call;
pub mod interrupt;
pub mod ioprio;
pub mod sched;
