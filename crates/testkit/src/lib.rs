//! What Canopy's tests stand on: branches on loop devices, mount guards, exact tree comparison, a generator of
//! realistic trees, and checks that a test leaves nothing behind.
//!
//! Everything that changes the machine is a guard: it undoes itself on drop, and panics there when it could not
//! (unless the test is failing already; then it reports on stderr and still cleans up as far as it can).
//! Most of it needs root; [`require_root`] says so in words rather than skipping.

#![forbid(unsafe_code)]

pub mod cmd;
mod faulty;
mod ground;
pub mod grow;
pub mod leaks;
mod loopfs;
pub mod model;
mod nested;
mod pool;
pub mod procs;
mod rng;
pub mod tree;
mod user;

pub use canopy_fuse::Opcode;
pub use faulty::{Claim, Fault, Faulty};
pub use ground::{Ground, program_to_test};
pub use grow::{Spec, grow};
pub use loopfs::{Kind, LoopFs};
pub use nested::Nested;
pub use pool::{MountFailed, Pool, PoolBuilder};
pub use rng::Rng;
pub use tree::{Fields, Tree};
pub use user::{User, as_user};

/// Ends the test as failed when it is not run by root.
///
/// A test which needs mounts cannot say anything without root, and one that returns early would look like a pass.
#[track_caller]
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts filesystems and needs root: run it with sudo, or leave it out by name"
    );
}
