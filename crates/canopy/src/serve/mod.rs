//! The translator between the kernel's protocol and the pool: the only room that knows both.
//!
//! `dispatch` is the one match over the operations; `convert` turns values of one side into the other's;
//! `kernel` is what the pool may ask of the kernel; `control` changes a running pool, `tell` tells about it. Here is the start of it all.

mod control;
mod convert;
mod dispatch;
mod fresh;
mod kernel;
mod start;
mod tell;

pub use start::{Serving, start};
