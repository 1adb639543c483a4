//! What directories take, counted in the background: to walk through a pool takes long, and its disks' time.

use super::command::{Failure, Program};
use super::model::Du;
use canopy_base::text::one_line;
use canopy_sys::shown::Show as _;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long what was counted is shown.
const FRESH: Duration = Duration::from_secs(10 * 60);
/// When a directory that could not be counted is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// A count that takes longer is given up.
const DEADLINE: Duration = Duration::from_secs(30 * 60);
/// How many directories are remembered.
const MOST: usize = 24;
/// How many are counted at once: more only make disks seek.
const AT_ONCE: usize = 1;

/// What is known of a directory.
#[derive(Clone, Debug)]
pub enum Counted {
    Nothing,
    Counting,
    Busy,
    Failed(Failure),
    Known { du: Arc<Du>, seconds: u64 },
}

#[derive(Debug)]
enum Entry {
    Counting,
    Done(Instant, Result<Arc<Du>, Failure>),
}

#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<PathBuf, Entry>>>);

impl Counts {
    /// Returns what is known of a directory, and has it counted if that is nothing, or old.
    pub fn look(&self, program: &Arc<Program>, path: &Path) -> Counted {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, entry| match entry {
            Entry::Counting => true,
            Entry::Done(at, Ok(_)) => at.elapsed() <= FRESH,
            Entry::Done(at, Err(_)) => at.elapsed() <= AGAIN,
        });
        match all.get(path) {
            Some(Entry::Counting) => return Counted::Counting,
            Some(Entry::Done(_, Err(failure))) => return Counted::Failed(failure.clone()),
            Some(Entry::Done(at, Ok(du))) => {
                return Counted::Known { du: Arc::clone(du), seconds: at.elapsed().as_secs() };
            }
            None => {}
        }
        if all.values().filter(|entry| matches!(entry, Entry::Counting)).count() >= AT_ONCE {
            return Counted::Busy;
        }
        if all.len() >= MOST
            && let Some(old) = oldest(&all)
        {
            all.remove(&old);
        }
        all.insert(path.to_owned(), Entry::Counting);
        tokio::spawn(count(self.clone(), Arc::clone(program), path.to_owned()));
        Counted::Counting
    }
}

/// Returns what was counted first.
fn oldest(all: &BTreeMap<PathBuf, Entry>) -> Option<PathBuf> {
    let done = all.iter().filter_map(|(path, entry)| match entry {
        Entry::Done(at, _) => Some((*at, path)),
        Entry::Counting => None,
    });
    done.min().map(|(_, path)| path.clone())
}

async fn count(counts: Counts, program: Arc<Program>, path: PathBuf) {
    let arguments = [OsStr::new("du"), "--json".as_ref(), "--".as_ref(), path.as_os_str()];
    let done = match program.run_within(arguments, DEADLINE).await {
        Ok(output) => serde_json::from_slice::<Du>(&output.stdout)
            .map(Arc::new)
            .map_err(|_| output.failure(|| one_line(&format!("cannot count {}", path.shown())))),
        Err(failure) => Err(failure),
    };
    let mut all = counts.0.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(path, Entry::Done(Instant::now(), done));
}
