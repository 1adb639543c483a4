//! A message in words: what happened, to whom, and what to do.

use crate::event::{Event, Phase, Severity};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// How many events a message tells in full.
const MOST: usize = 20;

/// What one or more targets get at one time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) host: String,
    /// When it was made, in seconds since 1970.
    pub(crate) at: i64,
    /// The gravest first; at least one.
    pub(crate) events: Vec<Event>,
    /// It is a trial (`canopy notify test`).
    pub(crate) test: bool,
    /// So many messages before it could not be sent, and are given up.
    pub(crate) lost: u64,
}

impl Message {
    pub(crate) fn severity(&self) -> Severity {
        self.events.iter().map(Event::severity).max().unwrap_or(Severity::Notice)
    }

    /// Returns one line without control characters.
    pub(crate) fn title(&self) -> String {
        let Some(first) = self.events.first() else { return String::new() };
        let word = match (first.phase, first.severity()) {
            _ if self.test => "test",
            (Phase::Ends, _) => "over",
            (_, Severity::Problem) => "problem",
            (_, Severity::Warning) => "warning",
            (_, Severity::Notice) => "notice",
        };
        let more = match self.events.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        canopy_base::text::one_line(&format!("{}: {word}: {}{more}", self.host, first.condition.text))
    }

    /// Returns the text, in lines.
    pub(crate) fn body(&self) -> String {
        let mut text = String::new();
        for event in self.events.iter().take(MOST) {
            let condition = &event.condition;
            let what = match event.phase {
                Phase::Begins | Phase::Happened => "",
                Phase::Lasts => "still: ",
                Phase::Ends => "over: ",
                Phase::Brief => "for less than a minute: ",
            };
            let _ = writeln!(text, "{}: {what}{}", condition.subject.pool, condition.text);
            if event.comes_and_goes {
                let _ = writeln!(
                    text,
                    "  It comes and goes: you hear of it again when it has been over for half an hour."
                );
            }
            if event.phase != Phase::Ends && !condition.fix.is_empty() {
                let _ = writeln!(text, "  What to do: {}", condition.fix);
            }
        }
        if let Some(more) = self.events.len().checked_sub(MOST).filter(|more| *more > 0) {
            let _ = writeln!(text, "... and {more} more: canopy status shows all.");
        }
        if self.lost > 0 {
            let _ = writeln!(text, "{} earlier messages could not be sent and are lost.", self.lost);
        }
        text
    }

    /// Returns the message for programs.
    pub(crate) fn json(&self) -> String {
        let value = serde_json::json!({
            "host": self.host,
            "at": self.at,
            "severity": self.severity(),
            "test": self.test,
            "lost": self.lost,
            "title": self.title(),
            "text": self.body(),
            "events": self.events,
        });
        format!("{value}\n")
    }
}
