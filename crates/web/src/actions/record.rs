//! What was done from pages, and how it ended: lines in a file, the newest last.

use canopy_base::text::{date, one_line};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = "actions";
/// How many lines are kept, and shown.
const MOST: usize = 200;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Line {
    pub at: i64,
    /// The session, by the beginning of a digest.
    pub by: String,
    pub command: String,
    /// `begun`, or how it ended.
    pub what: String,
}

impl Line {
    pub fn date(&self) -> String {
        date(self.at)
    }
}

/// The file, and what is in it.
#[derive(Debug)]
pub struct Record {
    path: Option<PathBuf>,
    lines: Mutex<VecDeque<Line>>,
}

impl Record {
    /// Reads what was kept. A line that is cut off, by a crash, is left out.
    pub fn open(dir: &Path) -> Record {
        let path = dir.join(FILE);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines: VecDeque<Line> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        while lines.len() > MOST {
            lines.pop_front();
        }
        let record = Record { path: Some(path), lines: Mutex::new(lines) };
        record.write_anew(&record.lines.lock().unwrap_or_else(PoisonError::into_inner));
        record
    }

    pub fn note(&self, by: &str, command: &str, what: &str) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let line = Line {
            at: i64::try_from(at).unwrap_or(i64::MAX),
            by: by.to_owned(),
            command: command.to_owned(),
            what: what.to_owned(),
        };
        // The journal has it as well.
        eprintln!("canopy-web: {}", one_line(&format!("session {by}: {command}: {what}")));
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_back(line.clone());
        if lines.len() > 2 * MOST {
            lines.drain(..MOST);
            self.write_anew(&lines);
        } else {
            self.append(&line);
        }
    }

    /// Returns the lines, the newest first.
    pub fn newest(&self) -> Vec<Line> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().rev().take(MOST).cloned().collect()
    }

    fn append(&self, line: &Line) {
        let (Some(path), Ok(text)) = (&self.path, serde_json::to_string(line)) else { return };
        let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let written = opened.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
        // What is done is done all the same, and the journal has it.
        let _ = written;
    }

    fn write_anew(&self, lines: &VecDeque<Line>) {
        let Some(path) = &self.path else { return };
        let texts: Vec<String> = lines.iter().filter_map(|line| serde_json::to_string(line).ok()).collect();
        let new = path.with_extension("new");
        let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
        let all: String = texts.iter().map(|text| format!("{text}\n")).collect();
        let written = opened.and_then(|mut file| file.write_all(all.as_bytes()));
        let _ = written.and_then(|()| fs::rename(&new, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_over_a_restart_and_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::open(dir.path());
        for n in 0..2 * MOST + 50 {
            record.note("s", "canopy x\n", &n.to_string());
        }
        assert_eq!(record.newest().len(), MOST);
        drop(record);
        let mut file = OpenOptions::new().append(true).open(dir.path().join(FILE)).unwrap();
        file.write_all(b"{\"at\":3,\"by").unwrap();
        let record = Record::open(dir.path());
        assert_eq!(record.newest()[0].what, (2 * MOST + 49).to_string());
        record.note("s", "canopy x", "last");
        let again = Record::open(dir.path()).newest();
        assert_eq!((again.len(), again[0].what.as_str()), (MOST, "last"));
        assert_eq!(again[1].command, "canopy x\n");
    }
}
