//! Copies that rules want, as clients see them.
//!
//! These tests need root.

#![forbid(unsafe_code)]

mod healing;
mod written;
