//! Changes made directly on the branches, as they show through the pool.

#![forbid(unsafe_code)]

#[path = "coherence/at_once.rs"]
mod at_once;
#[path = "coherence/kinds.rs"]
mod kinds;
#[path = "coherence/limits.rs"]
mod limits;
#[path = "coherence/listings.rs"]
mod listings;
#[path = "coherence/parts.rs"]
mod parts;
#[path = "coherence/rig.rs"]
mod rig;
#[path = "coherence/storm.rs"]
mod storm;
#[path = "coherence/twice.rs"]
mod twice;
