//! truncate(2). rustix wraps ftruncate(2) alone.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::ffi::CStr;

/// Changes the size of the file at a path to `size` bytes.
///
/// # Errors
/// Those of truncate(2); `EINVAL` for a size beyond 2^63 - 1 bytes.
pub fn truncate(path: &CStr, size: u64) -> Result<(), Errno> {
    let size = i64::try_from(size).map_err(|_| Errno::INVAL)?;
    // SAFETY: the path is a C string, which the kernel only reads.
    match unsafe { libc::truncate64(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_file_gets_the_size() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = CString::new(file.path().as_os_str().as_bytes()).unwrap();
        for size in [5000, 3, 0] {
            truncate(&path, size).unwrap();
            assert_eq!(file.as_file().metadata().unwrap().len(), size);
        }
        assert_eq!(truncate(&path, u64::MAX), Err(Errno::INVAL));
        assert_eq!(truncate(c"/missing/file", 1), Err(Errno::NOENT));
    }
}
