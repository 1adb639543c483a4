//! execve(2) that leaves the signals as they are. `std::os::unix::process::CommandExt::exec` unblocks all of them first.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::raw::c_char;

/// Replaces the program of this process. Returns only if that fails, with the reason.
///
/// What the process has open and has not marked close-on-exec stays open, and signals that it has blocked stay blocked.
#[must_use]
pub fn exec(program: &CStr, args: &[CString], environment: &[CString]) -> Errno {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args, environment) = (pointers(args), pointers(environment));
    // SAFETY: the strings end with NULs and the lists with null pointers, and all of them outlive the call.
    unsafe { libc::execve(program.as_ptr(), args.as_ptr(), environment.as_ptr()) };
    last_errno()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_leaves_everything_as_it_is() {
        let args = [c"none".to_owned()];
        assert_eq!(exec(c"/no/such/program", &args, &[]), Errno::NOENT);
        assert_eq!(exec(c"/", &args, &args), Errno::ACCESS);
    }
}
