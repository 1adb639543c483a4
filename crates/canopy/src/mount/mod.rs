//! Checks before a mount, waiting for branches, and unmounting.

pub mod preflight;
pub mod unmount;
pub mod wait_for_branches;
