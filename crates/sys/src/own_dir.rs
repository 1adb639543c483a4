//! Directories in which the daemon and commands keep what they know. The daemon has no umask, and what is kept there is believed and
//! names private files: so nobody else may write, or look, there.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Makes a directory, and those above it that are missing. Others may look into it.
///
/// # Errors
/// Those of mkdir(2).
pub fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

/// Makes a directory for this user alone, and those above it that are missing. One that others could enter is closed to them.
///
/// # Errors
/// Those of mkdir(2) and chmod(2); `PermissionDenied` if somebody else has made it.
pub fn make_private(dir: &Path) -> io::Result<()> {
    dir.parent().map_or(Ok(()), make)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it is not a directory of this user"));
    }
    if found.mode() & 0o077 == 0 { Ok(()) } else { fs::set_permissions(dir, Permissions::from_mode(0o700)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn nobody_else_gets_into_a_private_directory() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("a/b");
        make_private(&dir).unwrap();
        assert_eq!((mode(dir.parent().unwrap()) & 0o022, mode(&dir)), (0, 0o700));
        // As an earlier version has left it.
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        make_private(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        let link = home.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert_eq!(make_private(&link).unwrap_err().kind(), ErrorKind::PermissionDenied);
        // Only root can give it away.
        if std::os::unix::fs::chown(&dir, Some(4242), None).is_ok() {
            assert_eq!(make_private(&dir).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
}
