//! The transports that tests of workers and requests run over.

use canopy_fuse::transport::uring;

/// Returns the values of `io-uring` that the kernel supports.
#[must_use]
pub fn transports() -> Vec<&'static str> {
    let _ = uring::turn_on();
    match uring::Parameter::read() {
        uring::Parameter::On => vec!["off", "on"],
        _ => {
            eprintln!("testing /dev/fuse only: the kernel does not support FUSE over io_uring");
            vec!["off"]
        }
    }
}
