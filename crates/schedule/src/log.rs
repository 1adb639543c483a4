//! The log of a job: what its runs have printed. It is bounded, and the oldest goes.

use canopy_base::text::one_line;
use jiff::Zoned;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How large a log becomes before it is set aside; what was set aside before goes then. In bytes.
const LARGEST: u64 = 256 << 10;
/// How much of a line is kept, in characters.
const LONGEST: usize = 1000;

/// The log of a job that runs.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    largest: u64,
}

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Log> {
        Log::with(path, LARGEST)
    }

    fn with(path: &Path, largest: u64) -> io::Result<Log> {
        let file = File::options().append(true).create(true).mode(0o600).open(path)?;
        let size = file.metadata()?.len();
        Ok(Log { path: path.to_owned(), file, size, largest })
    }

    /// Adds a line. A log that cannot be written stops no job: the disk may be full.
    pub(crate) fn line(&mut self, text: &str) {
        let line: String = one_line(text).chars().take(LONGEST).chain(['\n']).collect();
        if self.size + line.len() as u64 > self.largest {
            self.set_aside();
        }
        if self.file.write_all(line.as_bytes()).is_ok() {
            self.size += line.len() as u64;
        }
    }

    /// Adds a line with the time.
    pub(crate) fn event(&mut self, now: &Zoned, text: &str) {
        self.line(&format!("{} {text}", now.strftime("%Y-%m-%d %H:%M:%S")));
    }

    fn set_aside(&mut self) {
        if fs::rename(&self.path, aside(&self.path)).is_ok()
            && let Ok(new) = Log::with(&self.path, self.largest)
        {
            *self = new;
        } else if self.file.set_len(0).is_ok() {
            self.size = 0;
        }
    }
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Returns the lines of a log, the oldest first.
///
/// # Errors
/// `NotFound` if there is none.
pub(crate) fn lines(path: &Path) -> io::Result<Vec<String>> {
    let text = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let newest = text(path)?;
    let oldest = text(&aside(path)).unwrap_or_default();
    Ok(oldest.lines().chain(newest.lines()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_keeps_what_is_newest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("verify.log");
        assert_eq!(lines(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut log = Log::with(&path, 1000).unwrap();
        for number in 0..500 {
            log.line(&format!("line {number}"));
        }
        // Another run goes on.
        Log::with(&path, 1000).unwrap().line("a\u{1b}[2Jb");
        let kept = lines(&path).unwrap();
        assert!(kept.len() < 250 && kept.len() > 100, "{}", kept.len());
        assert_eq!(kept[kept.len() - 2..], ["line 499", "a\\u{1b}[2Jb"]);
        assert!(fs::read_dir(dir.path()).unwrap().count() == 2);
        log.line(&"x".repeat(5000));
        assert!(fs::metadata(&path).unwrap().len() <= 2000);
    }
}
