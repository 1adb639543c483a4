//! `libcanopy_preload.so`: in a program started with `LD_PRELOAD`, the functions that open files hand out
//! descriptors on the branch where a pool keeps the file, so that its data no longer passes through the pool.
//!
//! The C library's function does its work first, on the pool; what it returns is what the program gets, except that
//! a descriptor of a regular file on a pool then refers to the file on its branch. Whatever is in doubt leaves the
//! pool's descriptor as it is. No call fails because of this library, and none changes `errno`.
//!
//! It runs inside programs it knows nothing about, between fork and exec, in signal handlers, on small stacks. So
//! after its constructors have run it takes no lock, allocates nothing, uses little stack, and never panics: what it
//! calls are system calls.

// From Rust 1.99 the compiler compares these definitions with the C library's. `open` takes `...` there, which Rust
// cannot define; `interpose!` says why a fixed parameter does.
#![allow(unknown_lints, invalid_runtime_symbol_definitions)]

mod identity;
mod interpose;
mod open;
mod redirect;
mod stat;
mod syscalls;
