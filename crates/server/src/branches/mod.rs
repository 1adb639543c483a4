//! The branches of a running pool.
//!
//! `topology` changes which branches are in force. `monitor` checks the health of the branches, `pending`
//! waits for branches that do not exist yet, `liveness` finds branches that do not answer, and `access_times` applies
//! the pool's access time flags to them. `stalls` knows which branch a stuck request waits for, `probe` asks a branch
//! whether it answers, and `condition` concludes how it does. `remembered` keeps what the branches hold for the time when they are
//! missing. `crowded` tells which requests are to wait in line.

mod access_times;
pub(crate) mod condition;
pub(crate) mod crowded;
pub(crate) mod liveness;
pub(crate) mod monitor;
pub(crate) mod pending;
mod probe;
mod remembered;
pub(crate) mod stalls;
pub(crate) mod topology;
