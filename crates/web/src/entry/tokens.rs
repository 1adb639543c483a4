//! One-time tokens. Each is a file in a directory that only its owner reads, named by the digest of the token: whoever can write
//! there can let people in, the running program need not be asked, and what is read there lets nobody in.

use super::{Role, digest, secret};
use crate::error::{Error, Result};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long a token can be used.
pub const VALID: Duration = Duration::from_secs(15 * 60);
const SUFFIX: &str = ".token";
/// The file with the address of the running program.
const ADDRESS: &str = "address";

/// The directory of the tokens.
#[derive(Clone, Debug)]
pub struct Tokens(PathBuf);

impl Tokens {
    /// Makes the directory if it is missing.
    ///
    /// # Errors
    /// If others can change it.
    pub fn open(dir: &Path) -> Result<Tokens> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::file("make the directory", dir)(why));
            }
            _ => {}
        }
        let found = fs::symlink_metadata(dir).map_err(Error::file("look at", dir))?;
        let fault = |why| Err(Error::UnsafeState { path: dir.to_owned(), why });
        if !found.is_dir() {
            return fault("it is no directory");
        }
        if found.uid() != geteuid().as_raw() {
            return fault("it belongs to another user");
        }
        if found.mode() & 0o077 != 0 {
            return fault("others may enter it: its mode must be 700");
        }
        Ok(Tokens(dir.to_owned()))
    }

    /// Makes a token, and removes those that are too old.
    ///
    /// # Errors
    /// If the directory cannot be written to.
    pub fn make(&self, role: Role) -> Result<String> {
        self.sweep();
        let token = secret();
        let path = self.file_of(&token);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = made.map_err(Error::file("make", &path))?;
        file.write_all(role.word().as_bytes()).map_err(Error::file("write", &path))?;
        Ok(token)
    }

    /// Returns the role of a token, which cannot be used again; `None` if it is none, was used, or is too old.
    pub fn take(&self, token: &str) -> Option<Role> {
        let path = self.file_of(token);
        let mut file = File::open(&path).ok()?;
        // Of several who use it at once, the one who removes it is let in.
        fs::remove_file(&path).ok()?;
        let mut word = String::new();
        file.read_to_string(&mut word).ok()?;
        is_valid(&file.metadata().ok()?).then(|| Role::parse(&word)).flatten()
    }

    /// Remembers the address of the running program, for `canopy web token`.
    ///
    /// # Errors
    /// If the directory cannot be written to.
    pub fn set_address(&self, address: &str) -> Result<()> {
        let path = self.0.join(ADDRESS);
        fs::write(&path, address).map_err(Error::file("write", &path))
    }

    /// # Errors
    /// If no program has run with this directory.
    pub fn address(&self) -> Result<String> {
        let path = self.0.join(ADDRESS);
        fs::read_to_string(&path).map_err(|_| Error::NotRunning(path))
    }

    fn file_of(&self, token: &str) -> PathBuf {
        self.0.join(format!("{}{SUFFIX}", digest(token).to_hex()))
    }

    fn sweep(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let is_token = entry.file_name().to_str().is_some_and(|name| name.ends_with(SUFFIX));
            if is_token && entry.metadata().is_ok_and(|found| !is_valid(&found)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A file from the future is not valid: the clock was set back.
fn is_valid(found: &fs::Metadata) -> bool {
    let age = found.modified().ok().and_then(|made| SystemTime::now().duration_since(made).ok());
    age.is_some_and(|age| age <= VALID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn opened() -> (tempfile::TempDir, Tokens) {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&dir.path().join("state")).unwrap();
        (dir, tokens)
    }

    #[test]
    fn a_token_lets_in_once() {
        let (_dir, tokens) = opened();
        let (one, two) = (tokens.make(Role::Full).unwrap(), tokens.make(Role::Health).unwrap());
        assert!(one.len() == 64 && one != two);
        assert_eq!(tokens.take("guess"), None);
        assert_eq!(tokens.take(&one), Some(Role::Full));
        assert_eq!(tokens.take(&one), None);
        assert_eq!(tokens.take(&two), Some(Role::Health));
        assert_eq!(fs::read_dir(&tokens.0).unwrap().count(), 0);
    }

    #[test]
    fn what_is_read_in_the_directory_lets_nobody_in() {
        let (_dir, tokens) = opened();
        let token = tokens.make(Role::Full).unwrap();
        let name =
            fs::read_dir(&tokens.0).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
        assert!(!name.contains(&token));
        assert_eq!(tokens.take(name.trim_end_matches(SUFFIX)), None);
        for hostile in ["../address", "", ".", "/etc/passwd", "a\0b"] {
            assert_eq!(tokens.take(hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn an_old_token_lets_nobody_in() {
        let (_dir, tokens) = opened();
        for age in [VALID + Duration::from_secs(5), Duration::ZERO] {
            let token = tokens.make(Role::Full).unwrap();
            let file = File::open(tokens.file_of(&token)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            assert_eq!(tokens.take(&token).is_some(), age.is_zero());
        }
        let early = tokens.make(Role::Full).unwrap();
        let file = File::open(tokens.file_of(&early)).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(600)).unwrap();
        assert_eq!(tokens.take(&early), None);
    }

    #[test]
    fn old_tokens_are_swept() {
        let (_dir, tokens) = opened();
        let token = tokens.make(Role::Full).unwrap();
        let file = File::open(tokens.file_of(&token)).unwrap();
        file.set_modified(SystemTime::now() - 2 * VALID).unwrap();
        tokens.set_address("http://127.0.0.1:1").unwrap();
        tokens.make(Role::Full).unwrap();
        assert!(!tokens.file_of(&token).exists());
        assert_eq!(tokens.address().unwrap(), "http://127.0.0.1:1");
    }

    #[test]
    fn a_directory_that_others_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        let line = Tokens::open(&open).unwrap_err().to_string();
        assert!(line.contains("open: others may enter it: its mode must be 700 ("), "{line}");
        symlink("open", dir.path().join("link")).unwrap();
        let line = Tokens::open(&dir.path().join("link")).unwrap_err().to_string();
        assert!(line.contains("link: it is no directory"), "{line}");
        assert!(Tokens::open(&dir.path().join("none/below")).is_err());
    }
}
