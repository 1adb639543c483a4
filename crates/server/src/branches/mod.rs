//! The branches of a running pool: which are in force, and how they are.
//!
//! `topology` changes which branches are in force. `monitor` looks after those that are sick or gone, `pending` waits for
//! those that do not exist yet, `liveness` finds those that do not answer, `access_times` has them read as the pool's
//! mount says.

mod access_times;
pub(crate) mod liveness;
pub(crate) mod monitor;
pub(crate) mod pending;
pub(crate) mod topology;
