//! What has happened, for those who look later: the last events, whether or not anybody was told.

use crate::event::Event;
use canopy_base::text::{date, one_line};
use canopy_config::state::keep;
use canopy_terminal::{paragraph, print, print_json};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// How many events are kept. The file has at most twice as many.
const MOST: usize = 1000;

/// An event, and when it was noticed to begin, to last or to be over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    at: i64,
    #[serde(flatten)]
    event: Event,
}

/// The file beside that of what was told.
#[derive(Debug)]
pub(crate) struct History {
    file: PathBuf,
    lines: usize,
}

impl History {
    pub(crate) fn beside(state: &Path) -> History {
        let file = state.with_extension("events");
        let lines = fs::read(&file).map_or(0, |bytes| bytes.iter().filter(|&&byte| byte == b'\n').count());
        History { file, lines }
    }

    /// Adds events. A line that was cut off by a crash stays one line.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn add(&mut self, at: i64, events: &[Event]) -> io::Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        if self.lines >= 2 * MOST {
            let lines = self.newest()?;
            let text: String = lines.iter().map(text).collect();
            keep(&self.file, text.as_bytes(), 0o600)?;
            self.lines = lines.len();
        }
        let text: String = events.iter().map(|event| text(&Line { at, event: event.clone() })).collect();
        let cut = fs::read(&self.file).is_ok_and(|bytes| bytes.last().is_some_and(|&byte| byte != b'\n'));
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.file)?;
        file.write_all(format!("{}{text}", if cut { "\n" } else { "" }).as_bytes())?;
        self.lines += events.len();
        Ok(())
    }

    /// Returns the last events, the oldest first. What is no event is left out.
    ///
    /// # Errors
    /// If there is a file that cannot be read.
    fn newest(&self) -> io::Result<Vec<Line>> {
        let text = match fs::read_to_string(&self.file) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let mut lines: Vec<Line> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        lines.drain(..lines.len().saturating_sub(MOST));
        Ok(lines)
    }

    /// Prints the events.
    ///
    /// # Errors
    /// If there is a file that cannot be read, in words.
    pub(crate) fn show(&self, json: bool) -> Result<(), io::Error> {
        let lines = self.newest()?;
        if json {
            print_json(&Shown { events: &lines });
            return Ok(());
        }
        for Line { at, event } in &lines {
            let condition = &event.condition;
            let what = format!(
                "{} {}: {}: {}",
                date(*at),
                one_line(&condition.subject.pool),
                event.phase.word(),
                one_line(&condition.text)
            );
            print(&paragraph("", &what));
            if !condition.fix.is_empty() && event.phase.needs_fix() {
                print(&paragraph("      fix: ", &one_line(&condition.fix)));
            }
        }
        if lines.is_empty() {
            print("Nothing has happened since canopy notify run has looked.\n");
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Shown<'l> {
    events: &'l [Line],
}

fn text(line: &Line) -> String {
    serde_json::to_string(line).map_or_else(|_| String::new(), |text| text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Condition, Phase, Severity, Subject};

    fn event(text: &str) -> Event {
        let subject = Subject { pool: "/pool".into(), code: "branch-gone".into(), branch: "/a".into() };
        let condition =
            Condition { subject, severity: Severity::Problem, text: text.into(), fix: "look".into() };
        Event { phase: Phase::Begins, condition, since: 1, comes_and_goes: false }
    }

    #[test]
    fn events_stay_over_a_restart_and_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("notify.json");
        let mut history = History::beside(&state);
        assert_eq!(history.newest().unwrap(), []);
        for number in 0..2 * MOST + 10 {
            history.add(number as i64, &[event(&format!("{number}\n<b>"))]).unwrap();
        }
        let lines = history.newest().unwrap();
        assert_eq!((lines.len(), &*lines[MOST - 1].event.condition.text), (MOST, "2009\n<b>"));
        let size = || fs::read_to_string(&history.file).unwrap().lines().count();
        assert!(size() <= 2 * MOST, "{}", size());
        // As after a power cut.
        let mut file = OpenOptions::new().append(true).open(&history.file).unwrap();
        file.write_all(b"{\"at\":5,\"pha").unwrap();
        let mut history = History::beside(&state);
        history.add(7, &[event("after"), event("and")]).unwrap();
        let lines = History::beside(&state).newest().unwrap();
        let texts: Vec<&str> = lines[MOST - 3..].iter().map(|line| &*line.event.condition.text).collect();
        assert_eq!(texts, ["2009\n<b>", "after", "and"]);
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&history.file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
