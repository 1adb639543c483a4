//! What is found out in the background, and kept for a while: to walk through a pool takes long, and its disks' time.

use super::command::{Failure, Program};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long what was found is shown.
const FRESH: Duration = Duration::from_secs(10 * 60);
/// When what has failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// A command that takes longer is given up.
const DEADLINE: Duration = Duration::from_secs(30 * 60);
/// How many answers are remembered.
const MOST: usize = 24;
/// How many walk at once: more only make disks seek.
const AT_ONCE: usize = 1;

/// What is known of something.
#[derive(Debug)]
pub enum Progress<T> {
    Nothing,
    /// A command is at it.
    Looking,
    /// Another one is.
    Busy,
    Failed(Failure),
    /// So many seconds ago.
    Known(Arc<T>, u64),
}

#[derive(Debug)]
enum Entry<T> {
    Looking,
    Done(Instant, Result<Arc<T>, Failure>),
}

type Entries<T> = Arc<Mutex<BTreeMap<Vec<OsString>, Entry<T>>>>;

/// Commands, and what they have said.
#[derive(Debug)]
pub struct Background<T>(Entries<T>);

impl<T> Default for Background<T> {
    fn default() -> Self {
        Background(Arc::default())
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Background<T> {
    /// Returns what a command says, and has it run if that is not known, or old.
    pub fn look(&self, program: &Arc<Program>, command: Vec<OsString>) -> Progress<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, entry| match entry {
            Entry::Looking => true,
            Entry::Done(at, Ok(_)) => at.elapsed() <= FRESH,
            Entry::Done(at, Err(_)) => at.elapsed() <= AGAIN,
        });
        match all.get(&command) {
            Some(Entry::Looking) => return Progress::Looking,
            Some(Entry::Done(_, Err(failure))) => return Progress::Failed(failure.clone()),
            Some(Entry::Done(at, Ok(known))) => {
                return Progress::Known(Arc::clone(known), at.elapsed().as_secs());
            }
            None => {}
        }
        if all.values().filter(|entry| matches!(entry, Entry::Looking)).count() >= AT_ONCE {
            return Progress::Busy;
        }
        if all.len() >= MOST
            && let Some(old) = oldest(&all)
        {
            all.remove(&old);
        }
        all.insert(command.clone(), Entry::Looking);
        tokio::spawn(run(Arc::clone(&self.0), Arc::clone(program), command));
        Progress::Looking
    }
}

/// Returns what was found first.
fn oldest<T>(all: &BTreeMap<Vec<OsString>, Entry<T>>) -> Option<Vec<OsString>> {
    let done = all.iter().filter_map(|(command, entry)| match entry {
        Entry::Done(at, _) => Some((*at, command)),
        Entry::Looking => None,
    });
    done.min().map(|(_, command)| command.clone())
}

async fn run<T: DeserializeOwned>(entries: Entries<T>, program: Arc<Program>, command: Vec<OsString>) {
    let done = match program.run_within(&command, DEADLINE).await {
        Ok(output) => serde_json::from_slice::<T>(&output.stdout)
            .map(Arc::new)
            .map_err(|_| output.failure(|| "says nothing that is understood".into())),
        Err(failure) => Err(failure),
    };
    let mut all = entries.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(command, Entry::Done(Instant::now(), done));
}
