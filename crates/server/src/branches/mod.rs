pub(crate) mod access_times;
pub(crate) mod liveness;
pub(crate) mod monitor;
pub(crate) mod pending;
