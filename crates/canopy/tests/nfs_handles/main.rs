//! File handles as an NFS server creates them with name_to_handle_at(2). After the kernel forgets a file, and after a
//! restart of the pool, its handle leads to the same file or is stale. Needs root.

#![forbid(unsafe_code)]

mod persistent_handles;
mod rig;
mod stale_handles;
mod stress;
