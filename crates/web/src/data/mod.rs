//! What the pages show. All of it comes from `canopy COMMAND --json`: the commands alone judge what is well.

pub mod command;
pub mod model;

use command::{Failure, Output, Program};
use model::{Doctor, Jobs, Listing, Log, OptionHelp, Pool, Status, Trash, Which};
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OnceCell};

/// Within this time, all who look see the same.
const FRESH: Duration = Duration::from_millis(900);
/// How many lines of the log a page has.
const LOG_LINES: &str = "200";

#[derive(Debug)]
pub struct Data {
    program: Program,
    status: Mutex<Option<(Instant, Arc<Status>)>>,
    options: OnceCell<Vec<OptionHelp>>,
}

impl Data {
    pub fn new(program: Program) -> Data {
        Data { program, status: Mutex::new(None), options: OnceCell::new() }
    }

    /// Returns the state of all pools. Who asks while it is being found out gets the same.
    ///
    /// # Errors
    /// If the command fails.
    pub async fn status(&self) -> Result<Arc<Status>, Failure> {
        let mut kept = self.status.lock().await;
        if let Some((_, status)) = kept.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(Arc::clone(status));
        }
        let status: Arc<Status> = Arc::new(self.ask(["status", "--json"]).await?);
        *kept = Some((Instant::now(), Arc::clone(&status)));
        Ok(status)
    }

    /// Returns the pool that is mounted there.
    ///
    /// # Errors
    /// If the command fails.
    pub async fn pool(&self, mountpoint: &Path) -> Result<Option<Pool>, Failure> {
        Ok(self.status().await?.pool(mountpoint).cloned())
    }

    /// # Errors
    /// If the command fails.
    pub async fn options(&self) -> Result<&[OptionHelp], Failure> {
        let options = self.options.get_or_try_init(|| self.ask(["options", "--json"])).await?;
        Ok(options)
    }

    /// # Errors
    /// If there is nothing, or it could not be looked at.
    pub async fn which(&self, path: &Path) -> Result<Which, Failure> {
        let arguments = [OsStr::new("which"), "--json".as_ref(), "--".as_ref(), path.as_os_str()];
        let output = self.program.run(arguments).await?;
        let which: Which = parsed(&output)?;
        // What was not found is not listed.
        let nothing = || output.failure(|| "has found nothing".into());
        (!which.paths.is_empty()).then_some(which).ok_or_else(nothing)
    }

    /// # Errors
    /// If it is no directory, or could not be read.
    pub async fn listing(&self, path: &Path) -> Result<Listing, Failure> {
        let arguments = [OsStr::new("ls"), "--json".as_ref(), "--".as_ref(), path.as_os_str()];
        self.ask(arguments).await
    }

    /// # Errors
    /// If there is no log.
    pub async fn log(&self, pool: Option<&Path>) -> Result<Log, Failure> {
        let mut arguments = vec![OsStr::new("log"), "--json".as_ref(), "-n".as_ref(), LOG_LINES.as_ref()];
        if let Some(pool) = pool {
            arguments.extend([OsStr::new("--"), pool.as_os_str()]);
        }
        self.ask(arguments).await
    }

    /// # Errors
    /// If the pool has none, or this user may not look into it.
    pub async fn trash(&self, pool: &Path) -> Result<Trash, Failure> {
        let arguments =
            [OsStr::new("trash"), "list".as_ref(), "--json".as_ref(), "--".as_ref(), pool.as_os_str()];
        self.ask(arguments).await
    }

    /// # Errors
    /// If the command fails.
    pub async fn jobs(&self, pool: &Path) -> Result<Jobs, Failure> {
        self.ask([OsStr::new("jobs"), "--json".as_ref(), "--".as_ref(), pool.as_os_str()]).await
    }

    /// # Errors
    /// If the command fails.
    pub async fn doctor(&self) -> Result<Doctor, Failure> {
        self.ask(["doctor", "--json"]).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<T, Failure> {
        parsed(&self.program.run(arguments).await?)
    }
}

/// The exit status is a judgement of what was found, so an object counts before it.
fn parsed<T: DeserializeOwned>(output: &Output) -> Result<T, Failure> {
    let why = |error| output.failure(|| format!("says what is not understood: {error}"));
    serde_json::from_slice(&output.stdout).map_err(why)
}
