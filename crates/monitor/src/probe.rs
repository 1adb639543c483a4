//! Queries branches and pools that may never answer, each in its own process.
//!
//! A thread that waits for a hung disk or daemon can keep its process from exiting, but a child process can be left
//! behind. `canopy probe` is that child. It writes an empty line to its standard output when it begins to ask, and then one
//! line of JSON. How long it takes to start says nothing about what it asks.

use crate::deadline_command::{self, RunningCommand};
use canopy_base::text::os_error;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Why there is no answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub cause: Cause,
    pub why: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// The directory does not exist.
    Missing,
    /// The pool's daemon has ended.
    Ended,
    /// The pool does not answer attribute requests.
    Mute,
    /// The pool is served by another program.
    Foreign,
    Other,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let cause = if error.kind() == io::ErrorKind::NotFound { Cause::Missing } else { Cause::Other };
        Failure { cause, why: os_error(error) }
    }
}

/// The outcome of a query.
#[derive(Clone, Debug)]
pub enum QueryOutcome<T> {
    Answered(T),
    Failed(Failure),
    /// Not in time.
    TimedOut,
}

impl<T> QueryOutcome<T> {
    pub fn ok(self) -> Option<T> {
        match self {
            QueryOutcome::Answered(answer) => Some(answer),
            QueryOutcome::Failed(_) | QueryOutcome::TimedOut => None,
        }
    }
}

/// How long the children may take to start.
const START: Duration = Duration::from_secs(30);

/// Starts a query, and returns when it has begun. `what` is one of the words of `canopy probe`, which say what the answer is.
pub fn start(what: &str, path: &Path) -> io::Result<RunningCommand> {
    let query = spawn(what, path)?;
    query.wait_for_output(Instant::now() + START);
    Ok(query)
}

/// Starts queries at the same time, and returns when all have begun.
pub fn start_all<'p>(
    what: &str,
    paths: impl IntoIterator<Item = &'p Path>,
) -> io::Result<Vec<RunningCommand>> {
    let queries: Vec<_> = paths.into_iter().map(|path| spawn(what, path)).collect::<Result<_, _>>()?;
    let deadline = Instant::now() + START;
    queries.iter().for_each(|query| query.wait_for_output(deadline));
    Ok(queries)
}

fn spawn(what: &str, path: &Path) -> io::Result<RunningCommand> {
    deadline_command::start(Command::new("/proc/self/exe").args(["probe", what]).arg(path))
}

/// Waits for the answer to a query.
pub fn answer<T: DeserializeOwned>(query: RunningCommand, deadline: Instant) -> QueryOutcome<T> {
    let Some(bytes) = query.output_before(deadline) else { return QueryOutcome::TimedOut };
    match serde_json::from_slice::<Result<T, Failure>>(&bytes) {
        Ok(Ok(facts)) => QueryOutcome::Answered(facts),
        Ok(Err(failure)) => QueryOutcome::Failed(failure),
        Err(why) => {
            QueryOutcome::Failed(Failure { cause: Cause::Other, why: format!("the probe failed: {why}") })
        }
    }
}
