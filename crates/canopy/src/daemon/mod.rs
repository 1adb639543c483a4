//! The life of the process that serves a pool.

pub mod background;
pub mod keeper;
pub mod process;
pub mod signals;
pub mod systemd;
