//! The check that a test runs as root.

/// Fails the test unless root runs it.
///
/// A test that needs mounts checks nothing without root, and returning early would look like a pass.
#[track_caller]
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts filesystems and needs root: run it with sudo, or leave it out by name"
    );
}
