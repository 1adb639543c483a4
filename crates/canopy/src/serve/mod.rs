//! The translator between the kernel's protocol and the pool: the only room that knows both.
//!
//! `dispatch` is the one match over the operations; `convert` turns values of one side into the other's;
//! `kernel` is what the pool may ask of the kernel; `control` changes a running pool, `tell` tells about it; `missing`
//! waits for branches; `pin` says where the workers run; `fresh` and `listed` keep the kernel from remembering what
//! is no longer so. Here is the start of it all.

mod control;
mod convert;
mod dispatch;
mod fresh;
mod kernel;
mod listed;
mod missing;
mod pin;
mod start;
mod tell;

pub use start::{Serving, start};
