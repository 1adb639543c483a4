//! The translator between the kernel's protocol and the pool: the only room that knows both.
//!
//! `dispatch` is the one match over the operations; `convert` turns values of one side into the other's;
//! `kernel` is what the pool may ask of the kernel; `control` changes a running pool, `tell` tells about it; `missing`
//! waits for branches, `health` looks after them, `times` has them read as the pool's mount says; `deputies` wait for those that hang, and `probes` find out which do; `pin`
//! says where the workers run; `drain`, `fresh` and `listed` keep the kernel from remembering what is no longer so, and `forget` has it forget everything;
//! `watch` sees what changes on the branches behind the pool's back, and `young` looks at what may be changing unseen. Here is the
//! start of it all.

mod control;
mod convert;
mod deputies;
mod dispatch;
mod drain;
mod forget;
mod fresh;
mod health;
mod interrupts;
mod kernel;
mod listed;
mod missing;
mod pin;
mod probes;
mod start;
mod tell;
mod times;
mod watch;
mod young;

pub use start::{Serving, StartError, start};
