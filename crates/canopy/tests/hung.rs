//! A branch that hangs does not freeze the pool.

#![forbid(unsafe_code)]

#[path = "hung/ending.rs"]
mod ending;
#[path = "hung/fio.rs"]
mod fio;
#[path = "hung/going_on.rs"]
mod going_on;
#[path = "hung/rig.rs"]
mod rig;
#[path = "hung/told.rs"]
mod told;
