//! `libcanopy_preload.so` in programs that use a pool: C programs made for it here, and real ones.
//!
//! Root is needed, and a C compiler.

#![forbid(unsafe_code)]

mod fallbacks;
mod functions;
mod programs;
mod rig;
mod threads;
