//! Tiers and rules: where new files go, and what moves later, on real pools. Needs root.

#![forbid(unsafe_code)]

mod aside;
mod commands;
mod copies;
mod mover;
mod placing;
mod rig;
mod settings;
mod throttled;
