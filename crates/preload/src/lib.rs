//! `libcanopy_preload.so`: in a program started with `LD_PRELOAD`, functions that open files of a pool return descriptors
//! of the files on their branches, so that their data bypasses the pool.
//!
//! First the C library's function opens the file on the pool. If the result is a descriptor of a regular file on a pool,
//! the library then makes that descriptor refer to the file on its branch. In case of doubt the pool's descriptor stays. No
//! call fails because of this library, and none changes `errno`.
//!
//! The library runs inside unknown programs: between fork and exec, in signal handlers, on small stacks. So after its
//! constructors it takes no locks, allocates nothing, uses little stack, never panics, and calls only system calls.

// From Rust 1.99 the compiler compares these definitions with the C library's. `open` takes `...` there, which Rust
// cannot define; `interpose!` says why a fixed parameter does.
#![allow(unknown_lints, invalid_runtime_symbol_definitions)]

mod identity;
mod interpose;
mod location;
mod open;
mod redirect;
mod stat;
mod syscalls;
