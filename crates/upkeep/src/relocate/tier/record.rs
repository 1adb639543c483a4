//! The mover of a pool as others see it: a small file, which it holds locked while it runs.
//!
//! The lock also keeps a second mover from the same pool. A mover that is killed leaves an unlocked file, which says when it
//! began.

use crate::error::{Error, Result};
use canopy_config::state::name_of;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a record may be locked by those who look at it.
const LOOKS: Duration = Duration::from_secs(1);

/// What a mover does, or has done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct MoverReport {
    /// It runs now.
    #[serde(default)]
    pub running: bool,
    pub pid: u32,
    /// Seconds since the epoch.
    pub began: u64,
    /// When it last finished looking or moving; null if it has not yet, or was killed before.
    pub ended: Option<u64>,
    /// What it does, in words.
    pub state: String,
    /// What it has moved since it began.
    pub files: u64,
    pub bytes: u64,
    /// What it knows of copies; null if no rule wants any.
    #[serde(default)]
    pub copies: Option<CopiesReport>,
}

/// What a mover does that has nothing to do, in words.
pub(super) const WAITS: &str = "waits";

/// Files that have fewer copies than a rule wants.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct CopiesReport {
    /// How many the mover knows of.
    pub short: u64,
    /// When it last looked at all files: seconds since the epoch.
    pub looked: u64,
    /// The number of the last report of closed files that it has dealt with.
    pub upto: u64,
    /// How many were closed since, as far as the daemon remembers.
    #[serde(default)]
    pub since: u64,
}

/// Returns the directory of records.
fn directory() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("CANOPY_RUN_DIR").unwrap_or_else(|| {
        if rustix::process::geteuid().is_root() {
            PathBuf::from("/run/canopy")
        } else {
            set("XDG_RUNTIME_DIR").unwrap_or_else(std::env::temp_dir).join("canopy")
        }
    })
}

/// Checks that nobody else has put anything into the directory of records, which may be below /tmp.
fn check_private(dir: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !own || found.mode() & 0o022 != 0 {
        let why = "others may write there (remove it, or set XDG_RUNTIME_DIR)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Returns the path of a pool's record.
fn path_of(mountpoint: &Path) -> PathBuf {
    let name = name_of(mountpoint);
    directory().join(format!("tier{name}.json"))
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs())
}

/// The record of the mover that runs here.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    pub(super) report: MoverReport,
}

impl Record {
    /// # Errors
    /// If another mover works on the pool.
    pub(super) fn begin(mountpoint: &Path) -> Result<Record> {
        let path = path_of(mountpoint);
        let failed = |why| Error::Path { path: path.clone(), why };
        let dir = directory();
        DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(failed)?;
        check_private(&dir).map_err(|why| Error::Path { path: dir, why })?;
        // Whoever can open it can lock it.
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                // Whoever looks at the record holds it for a moment.
                Err(Errno::WOULDBLOCK) if begun.elapsed() < LOOKS => std::thread::sleep(LOOKS / 20),
                Err(Errno::WOULDBLOCK) => return Err(Error::AnotherMover(mountpoint.to_owned())),
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        let report = MoverReport { pid: std::process::id(), began: now(), ..MoverReport::default() };
        let mut record = Record { file, report };
        record.tell("looks at the pool");
        Ok(record)
    }

    /// Says what the mover does now.
    pub(super) fn tell(&mut self, state: &str) {
        if self.report.state == state {
            return;
        }
        state.clone_into(&mut self.report.state);
        self.write();
    }

    /// Says that the mover has finished a round.
    pub(super) fn finish(&mut self, state: &str) {
        self.report.ended = Some(now());
        state.clone_into(&mut self.report.state);
        self.write();
    }

    /// A record that cannot be written makes nobody stop: it is only for people who look.
    fn write(&mut self) {
        let text = serde_json::to_vec(&self.report).unwrap_or_default();
        let _ = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(&text))
            .and_then(|()| self.file.set_len(text.len() as u64));
    }
}

/// Returns what is known of the mover of a pool.
pub(super) fn mover_report(mountpoint: &Path) -> Option<MoverReport> {
    check_private(&directory()).ok()?;
    let mut file = File::open(path_of(mountpoint)).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let mut report: MoverReport = serde_json::from_str(&text).ok()?;
    report.running = flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_may_have_made_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (dir, link) = (home.path().join("canopy"), home.path().join("link"));
        fs::create_dir(&dir).unwrap();
        symlink(&dir, &link).unwrap();
        let set = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        assert!(check_private(&dir).is_ok());
        assert!(check_private(&link).is_err());
        set(0o777);
        assert_eq!(check_private(&dir).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn each_pool_has_a_file_of_its_own() {
        let name = |path: &str| path_of(Path::new(path)).file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(name("/mnt/pool"), "tier-mnt-pool.json");
        assert_ne!(name("/mnt-pool"), name("/mnt/pool"));
        assert_ne!(name("/mnt%2dpool"), name("/mnt-pool"));
    }
}
