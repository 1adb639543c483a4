//! The branches of a running pool.
//!
//! `topology` changes which branches are in force. `monitor` checks the health of the branches, `pending`
//! waits for branches that do not exist yet, `liveness` finds branches that do not answer, and `access_times` applies
//! the pool's access time flags to them.

mod access_times;
pub(crate) mod liveness;
pub(crate) mod monitor;
pub(crate) mod pending;
pub(crate) mod topology;
