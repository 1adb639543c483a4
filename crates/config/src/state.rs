//! What commands remember from one run to the next, in files that may be lost without harm.

use canopy_sys::own_dir;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Where the daemon and commands keep what they remember, by default.
pub const DIR: &str = "/var/lib/canopy";
/// What disks have told of themselves, by default.
pub const DISKS: &str = "/var/lib/canopy/disks.json";
/// The file of what has been told of pools.
pub const TOLD: &str = "notify.json";

/// Where else is kept what commands remember.
const DIRECTORY: &str = "/var/lib/canopy";
/// The environment variable that names another place, for tests and for users who cannot write to /var/lib.
const VARIABLE: &str = "CANOPY_STATE_DIR";

/// Returns the directory of what commands remember.
pub fn directory() -> PathBuf {
    std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()).map_or_else(|| DIRECTORY.into(), PathBuf::from)
}

/// Returns a name for the file of what has this path. No two paths have the same.
pub fn name_of(path: &Path) -> String {
    // Bytes that could mean something in a path are written as numbers.
    let part = |&byte: &u8| match byte {
        b'/' => "-".to_owned(),
        byte if byte.is_ascii_alphanumeric() || b"._".contains(&byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    };
    path.as_os_str().as_bytes().iter().map(part).collect()
}

/// Replaces such a file, whole or not at all. Nothing is written if it has these bytes already, so that no disk wakes for it.
pub fn keep(file: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if fs::read(file).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let dir = file.parent().unwrap_or(Path::new("/"));
    own_dir::make(dir)?;
    let mut new = NamedTempFile::new_in(dir)?;
    new.write_all(bytes)?;
    new.as_file().set_permissions(Permissions::from_mode(mode))?;
    new.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_is_replaced_whole_and_only_if_it_differs() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("below/state");
        let is = |text: &str| {
            let found = fs::metadata(&file).unwrap();
            assert_eq!((fs::read_to_string(&file).unwrap().as_str(), found.mode() & 0o777), (text, 0o640));
            found.ino()
        };
        keep(&file, b"one", 0o640).unwrap();
        let first = is("one");
        keep(&file, b"one", 0o600).unwrap();
        assert_eq!(is("one"), first);
        keep(&file, b"two", 0o640).unwrap();
        assert_ne!(is("two"), first);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        assert!(keep(&file.join("in a file"), b"", 0o600).is_err());
    }
}
