//! What the pages show. All of it comes from `canopy COMMAND --json`: the commands alone judge what is well.

pub mod background;
pub mod command;
pub mod metrics;
pub mod model;

use background::{Background, Progress};
use command::{Failure, Output, Program};
use metrics::{Activity, Look};
use model::{
    Doctor, Du, Events, Jobs, Listing, Log, OptionHelp, Pool, Proposal, Receivers, Status, Trash, Which,
};
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OnceCell};

/// Within this time, all who look see the same.
const FRESH: Duration = Duration::from_millis(900);
/// A look that is older tells nothing of now.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// How many lines of the log a page has.
const LOG_LINES: &str = "200";
/// How many names a search ends with: a page has no more.
const MOST_FOUND: usize = 300;

#[derive(Debug)]
pub struct Data {
    program: Arc<Program>,
    looks: Mutex<Option<(Look, Arc<Activity>)>>,
    counts: Background<Du>,
    searches: Background<Listing>,
    status: Mutex<Option<(Instant, Arc<Status>)>>,
    options: OnceCell<Vec<OptionHelp>>,
}

impl Data {
    pub fn new(program: Program) -> Data {
        Data {
            program: Arc::new(program),
            looks: Mutex::new(None),
            counts: Background::default(),
            searches: Background::default(),
            status: Mutex::new(None),
            options: OnceCell::new(),
        }
    }

    /// Returns the state of all pools. Who asks while it is being found out gets the same.
    ///
    /// # Errors
    /// If the command fails.
    pub async fn status(&self) -> Result<Arc<Status>, Failure> {
        self.status_within(FRESH).await
    }

    /// The same as it is now: what is edited is not what was before the last action.
    ///
    /// # Errors
    /// If the command fails.
    pub async fn status_now(&self) -> Result<Arc<Status>, Failure> {
        self.status_within(Duration::ZERO).await
    }

    async fn status_within(&self, age: Duration) -> Result<Arc<Status>, Failure> {
        let mut kept = self.status.lock().await;
        if let Some((_, status)) = kept.as_ref().filter(|(at, _)| at.elapsed() < age) {
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

    /// Returns what `canopy init` would take, and what it says of the disks of this machine.
    pub async fn proposal(&self) -> (Result<Proposal, Failure>, String) {
        let (proposal, said) =
            tokio::join!(self.ask(["init", "--dry-run", "--json"]), self.program.run(["init", "--dry-run"]));
        let said =
            said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        // What it would write is of the plan.
        let disks = said.split("\n\n").find(|part| part.starts_with("Disks")).unwrap_or_default().to_owned();
        (proposal, disks)
    }

    /// Returns what pools do, since somebody has looked before, or in the last second.
    ///
    /// # Errors
    /// If the command fails.
    pub async fn activity(&self) -> Result<Arc<Activity>, Failure> {
        let mut kept = self.looks.lock().await;
        let before = match kept.take() {
            Some((look, activity)) if look.at.elapsed() < FRESH => {
                let same = Arc::clone(&activity);
                *kept = Some((look, activity));
                return Ok(same);
            }
            Some((look, _)) if look.at.elapsed() < LONGEST_LOOK => look,
            _ => {
                let look = self.look().await?;
                tokio::time::sleep(FRESH).await;
                look
            }
        };
        let now = self.look().await?;
        let activity = Arc::new(Activity::between(&before, &now));
        *kept = Some((now, Arc::clone(&activity)));
        Ok(activity)
    }

    async fn look(&self) -> Result<Look, Failure> {
        let output = self.program.run(["metrics"]).await?;
        let numbers = metrics::parse(&String::from_utf8_lossy(&output.stdout));
        if numbers.is_empty() {
            return Err(output.failure(|| "tells nothing".into()));
        }
        Ok(Look { at: Instant::now(), numbers })
    }

    /// Returns what is known of the room that a directory takes, which is counted meanwhile.
    pub fn counted(&self, path: &Path) -> Progress<Du> {
        let command = [OsStr::new("du"), "--json".as_ref(), "--".as_ref(), path.as_os_str()];
        self.counts.look(&self.program, command.map(OsStr::to_owned).to_vec())
    }

    /// Returns what was found below a directory by a part of its name, which is searched meanwhile.
    pub fn searched(&self, path: &Path, name: &str) -> Progress<Listing> {
        let named = format!("--named={name}");
        let most = format!("--most={MOST_FOUND}");
        let words = ["ls", "--json", &named, &most, "--"].map(OsStr::new);
        let command = words.into_iter().chain([path.as_os_str()]).map(OsStr::to_owned).collect();
        self.searches.look(&self.program, command)
    }

    /// Returns what has happened, as far as it was kept.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn events(&self) -> Result<Events, Failure> {
        self.ask(["notify", "events", "--json"]).await
    }

    /// Returns who is told of events.
    ///
    /// # Errors
    /// If a file has a mistake.
    pub async fn receivers(&self) -> Result<Receivers, Failure> {
        self.ask(["notify", "list", "--json"]).await
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
