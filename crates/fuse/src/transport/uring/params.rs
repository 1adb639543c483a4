//! Parameters of the kernel that matter for io_uring.

use std::fs;
use std::io;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The module parameter `fuse.enable_uring`. It is the whole machine's, and counts when a filesystem is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Linux before 6.14, or built without io_uring for FUSE.
    Missing,
    /// It is off.
    Off,
    /// It is on.
    On,
}

impl Parameter {
    /// What it is now.
    #[must_use]
    pub fn read() -> Parameter {
        match fs::read_to_string(PARAMETER) {
            Ok(text) if text.starts_with(['Y', '1']) => Parameter::On,
            Ok(_) => Parameter::Off,
            Err(_) => Parameter::Missing,
        }
    }
}

/// Turns `fuse.enable_uring` on for the whole machine, if it is there and off; true if that was done. To be called
/// before mounting.
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

/// Whether the kernel ends a connection some of whose requests are not answered in time (7.43), though its server has not asked for
/// that.
pub(super) fn requests_expire() -> bool {
    ["default_request_timeout", "max_request_timeout"].iter().any(|limit| {
        fs::read_to_string(format!("/proc/sys/fs/fuse/{limit}")).is_ok_and(|text| text.trim() != "0")
    })
}
