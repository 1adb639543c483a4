//! Clients see the newest data: of several copies, and of what the kernel has cached.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod apart;
mod cached_pages;
mod copies;
mod copy_rights;
mod links;
mod random;
mod refusing;
mod rejoin;
mod written;
