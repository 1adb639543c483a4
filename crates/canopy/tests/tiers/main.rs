//! Tiers and rules: where new files go, and what moves later, on real pools. Needs root.

#![forbid(unsafe_code)]

mod placing;
mod settings;
