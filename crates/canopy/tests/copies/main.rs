//! Copies that rules want, as clients see them while a disk cannot read its own.
//!
//! These tests need root.

#![forbid(unsafe_code)]

mod healing;
