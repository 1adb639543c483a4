//! Over io_uring: the tests of `mounted.rs` once more, and those that only this transport needs.

#[path = "mounted.rs"]
mod mounted;
