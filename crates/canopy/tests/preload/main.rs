//! `libcanopy_preload.so` in programs that use a pool: C programs in this directory, and real ones. Needs root and a C
//! compiler.

#![forbid(unsafe_code)]

mod fallbacks;
mod functions;
mod programs;
mod rig;
mod threads;
