//! What is known of a job: when it has run, and what has become of it.

use serde::{Deserialize, Serialize};

/// How a run has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Done,
    Failed,
    /// It was not begun, because too much was deleted before.
    HeldBack,
    /// Its time was up. It goes on the next time, as far as its command does so.
    TimeUp,
    /// Somebody has stopped it.
    Stopped,
    /// The machine was shut down, or the process was killed.
    CutOff,
}

impl Outcome {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::HeldBack => "held back",
            Outcome::TimeUp => "time was up",
            Outcome::Stopped => "stopped",
            Outcome::CutOff => "cut off",
        }
    }

    /// Returns whether somebody has to look after it.
    #[must_use]
    pub fn is_failure(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::HeldBack)
    }
}

/// A run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The command line.
    pub command: String,
    /// Seconds since 1970.
    pub began: i64,
    /// Null while it runs.
    pub ended: Option<i64>,
    pub outcome: Option<Outcome>,
    /// The last line of its output, or why there is none.
    pub text: String,
    pub by_hand: bool,
}

/// What is kept of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    /// When it is to run, in the words that the next field is for.
    pub(crate) when: String,
    /// Times up to this one have been dealt with. Seconds since 1970.
    pub(crate) due: i64,
    /// What it waits for.
    #[serde(default)]
    pub(crate) waits: Option<String>,
    /// The last run that has ended, or runs.
    #[serde(default)]
    pub(crate) last: Option<Run>,
    /// How often it was done.
    #[serde(default)]
    pub(crate) done: u64,
    /// How often in turn it was cut off.
    #[serde(default)]
    pub(crate) cut_off: u32,
}

impl Record {
    /// Returns whether the last run has to be begun anew. Nobody runs the job now.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|run| !run.by_hand && (run.ended.is_none() || run.outcome == Some(Outcome::CutOff)))
    }
}
