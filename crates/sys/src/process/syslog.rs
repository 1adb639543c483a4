//! The connection to syslog, which the C library keeps (syslog(3)).

use std::ffi::CStr;

/// Closes the connection. The next message opens another, and has this name and the process id.
pub fn reopen(name: &'static CStr) {
    // SAFETY: the name lives as long as the program, as openlog(3) demands.
    unsafe {
        libc::closelog();
        libc::openlog(name.as_ptr(), libc::LOG_PID, libc::LOG_DAEMON);
    }
}
