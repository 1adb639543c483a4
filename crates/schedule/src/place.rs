//! Where what is known of the jobs of a pool lies: for each a record, a log, and a lock that is held while it runs.

use crate::error::{Error, Result};
use crate::record::Record;
use canopy_config::state;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a lock may be held by those who only look.
const LOOKS: Duration = Duration::from_secs(1);

/// The directory of a pool's jobs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JobsDir(PathBuf);

/// Held while a job runs. It is inherited by the job's command, so that a job whose keeper was killed still counts as running.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl JobsDir {
    pub(crate) fn of(pool: &str) -> JobsDir {
        JobsDir(jobs().join(pool))
    }

    pub(crate) fn record_file(&self, job: &str) -> PathBuf {
        self.0.join(format!("{job}.json"))
    }

    pub(crate) fn log_file(&self, job: &str) -> PathBuf {
        self.0.join(format!("{job}.log"))
    }

    /// Returns what is known of a job. What is damaged is begun anew: at worst a job runs once more.
    ///
    /// # Errors
    /// If it cannot be read, as by anybody but root.
    pub(crate) fn record(&self, job: &str) -> Result<Option<Record>> {
        let file = self.record_file(job);
        match fs::read(&file) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(Error::File { file, why }),
        }
    }

    /// Keeps it, for root alone: the names of files are in it.
    pub(crate) fn keep(&self, job: &str, record: &Record) -> Result<()> {
        let file = self.record_file(job);
        let bytes = serde_json::to_vec(record).unwrap_or_default();
        state::keep(&file, &bytes, 0o600).map_err(Error::file(file))
    }

    /// Forgets a job that nobody runs.
    pub(crate) fn forget(&self, job: &str) {
        let _ = fs::remove_file(self.record_file(job));
    }

    /// Returns the names of the jobs that have a record.
    pub(crate) fn recorded(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned());
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort();
        names
    }

    /// Takes the lock of a job; `None` while it runs.
    pub(crate) fn lock(&self, job: &str) -> Result<Option<Lock>> {
        Ok(lock(&self.0, &self.0.join(format!("{job}.lock")), &|| self.runs(job))?.map(Lock))
    }

    /// Returns whether a job runs now.
    pub(crate) fn runs(&self, job: &str) -> bool {
        is_locked(&self.0.join(format!("{job}.lock")))
    }
}

impl Lock {
    /// Lets programs that are started from now on inherit it.
    pub(crate) fn share(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.0, rustix::io::FdFlags::empty())?)
    }
}

/// Locks a file of a directory, both of which are made if they are missing; `None` while another process has the lock, which `is_taken`
/// may know at once.
fn lock(dir: &Path, file: &Path, is_taken: &dyn Fn() -> bool) -> Result<Option<File>> {
    let failed = |why| Error::File { file: file.to_owned(), why };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    // Whoever can open it can lock it.
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let open = options.open(file).map_err(failed)?;
    let begun = Instant::now();
    loop {
        match flock(&open, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(open)),
            Err(Errno::WOULDBLOCK) if is_taken() => return Ok(None),
            // Whoever looks holds it for a moment.
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOOKS => std::thread::sleep(LOOKS / 50),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

/// Takes the lock of the process that runs all jobs of the machine, for as long as this lives.
///
/// # Errors
/// If another process has it.
pub(crate) fn watch() -> Result<File> {
    lock(&jobs(), &watch_file(), &|| false)?.ok_or(Error::Watched)
}

/// Returns whether a process runs the jobs of the machine.
pub(crate) fn is_watched() -> bool {
    is_locked(&watch_file())
}

fn jobs() -> PathBuf {
    state::directory().join("jobs")
}

fn watch_file() -> PathBuf {
    // No pool has this name: a name begins with no dot.
    jobs().join(".watch")
}

fn is_locked(file: &Path) -> bool {
    let Ok(open) = File::open(file) else { return false };
    flock(&open, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = JobsDir(dir.path().join("media"));
        assert!(!place.runs("verify"));
        let lock = place.lock("verify").unwrap();
        assert!(lock.is_some() && place.runs("verify") && !place.runs("balance"));
        assert!(place.lock("verify").unwrap().is_none());
        drop(lock);
        assert!(!place.runs("verify") && place.lock("verify").unwrap().is_some());
    }

    #[test]
    fn records_are_kept_and_damaged_ones_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let place = JobsDir(dir.path().join("media"));
        assert_eq!((place.record("a").unwrap(), place.recorded()), (None, Vec::new()));
        let record = Record { when: "every hour".into(), due: 7, ..Record::default() };
        place.keep("a", &record).unwrap();
        assert_eq!((place.record("a").unwrap(), place.recorded()), (Some(record), vec!["a".to_owned()]));
        fs::write(place.record_file("a"), "{").unwrap();
        assert_eq!(place.record("a").unwrap(), None);
        place.forget("a");
        assert!(place.recorded().is_empty());
    }
}
