//! What commands remember from one run to the next, in files that may be lost without harm.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::NamedTempFile;

/// What disks have told of themselves, by default.
pub const DISKS: &str = "/var/lib/canopy/disks.json";
/// What has been told of pools, by default.
pub const TOLD: &str = "/var/lib/canopy/notify.json";

/// Replaces such a file, whole or not at all. Nothing is written if it has these bytes already, so that no disk wakes for it.
pub fn keep(file: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if fs::read(file).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let dir = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
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
