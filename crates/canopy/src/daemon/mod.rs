//! The life of the process that serves a pool.

pub mod background;
pub mod handover;
pub mod keeper;
pub mod process;
pub mod signals;
