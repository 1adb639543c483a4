//! What happens before a pool is mounted: the machine is looked at, and branches are waited for.

pub mod preflight;
pub mod unmount;
pub mod wait_for_branches;
