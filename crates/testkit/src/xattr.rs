//! Reading extended attributes.

use std::path::Path;

use rustix::io::Errno;

/// The largest value of an extended attribute (`XATTR_SIZE_MAX`).
const MAX: usize = 65_536;

/// Returns the value of an extended attribute. Follows symlinks.
pub fn get(path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; MAX];
    let length = rustix::fs::getxattr(path.as_ref(), name, value.as_mut_slice())?;
    value.truncate(length);
    Ok(value)
}
