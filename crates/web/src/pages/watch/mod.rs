//! Pages that look on: what pools do, and what is where.

pub mod activity;
pub mod events;
pub mod map;
