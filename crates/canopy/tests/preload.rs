//! `libcanopy_preload.so` in programs that use a pool: C programs made for it here, and real ones.
//!
//! Root is needed, and a C compiler.

#![forbid(unsafe_code)]

mod preload {
    mod crowds;
    mod doubts;
    mod functions;
    mod programs;
    mod rig;
}
