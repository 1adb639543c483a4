//! Kernel parameters for FUSE over io_uring.

use std::fs;
use std::io;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The module parameter `fuse.enable_uring`. It is system-wide and takes effect when a filesystem is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// The kernel is older than 6.14, or built without FUSE over io_uring.
    Missing,
    /// It is off.
    Off,
    /// It is on.
    On,
}

impl Parameter {
    /// Reads the parameter.
    #[must_use]
    pub fn read() -> Parameter {
        match fs::read_to_string(PARAMETER) {
            Ok(text) if text.starts_with(['Y', '1']) => Parameter::On,
            Ok(_) => Parameter::Off,
            Err(_) => Parameter::Missing,
        }
    }
}

/// Turns `fuse.enable_uring` on for the whole system, if it exists and is off. Returns whether it did so. Call it before
/// mounting.
///
/// # Errors
/// `EACCES` unless called by root, `EROFS` where `/sys` is read-only.
pub fn turn_on() -> io::Result<bool> {
    let mut found = Parameter::read();
    if found == Parameter::Missing && canopy_sys::fuse::dev::open().is_ok() {
        // Opening the device has loaded the module.
        found = Parameter::read();
    }
    if found != Parameter::Off {
        return Ok(false);
    }
    fs::write(PARAMETER, "1")?;
    Ok(true)
}

/// Returns whether the kernel ends a connection that does not answer a request in time (7.43), even if the server has set
/// no timeout.
#[must_use]
pub fn requests_expire() -> bool {
    ["default_request_timeout", "max_request_timeout"].iter().any(|limit| {
        fs::read_to_string(format!("/proc/sys/fs/fuse/{limit}")).is_ok_and(|text| text.trim() != "0")
    })
}
