//! A server in this process, asked by a double of the kernel: what a request does, what the kernel may believe afterwards,
//! and what it is told when a branch changes.

mod changes;
mod operations;
mod random;
mod rig;
