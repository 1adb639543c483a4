//! The records of what branches hold, from which the names of those are shown that are missing.
//!
//! They are in `/var/lib/canopy`, or where the catalogue is, in a directory of this pool: a file for each branch. Whenever a branch
//! comes, its record is begun anew, because nobody has told what happened to it before; unless its state proves that nothing has.

use crate::lock_rank as rank;
use crate::settings::Settings;
use crate::test_switches;
use crate::watch::Watch;
use canopy_base::hash;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::{Branch, BranchId, BranchSpec, Branches, unchanged};
use canopy_branch::remember::{Missing, MissingBranch, Record, Witness};
use canopy_config::Config;
use canopy_config::resolve::remembered::record;
use canopy_pool::Pool;
use canopy_pool::config::MissingNames;
use canopy_pool::ops;
use canopy_sys::glob::is_pattern;
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long nothing must have happened before the state of a branch is noted. By then the kernel has written back what was changed.
const QUIET: Duration = Duration::from_secs(60);
/// How long who ends this process waits for the states.
const PATIENCE: Duration = Duration::from_secs(10);

/// A record, with the id of its branch if that is there.
type Kept = (Option<BranchId>, Arc<Record>);

#[derive(Default)]
pub(crate) struct Remembered {
    /// By the path of the branch.
    records: Mutex<HashMap<PathBuf, Kept>, rank::Remembered>,
}

impl Remembered {
    /// Begins the records of branches that have come, leaves those as they are whose branches have gone, and returns which are
    /// missing. The branches are watched already.
    pub(crate) fn arrange(
        &self,
        config: &Config,
        settings: &Settings,
        (pool, watch): (&Pool, &Arc<Watch>),
        branches: &Branches,
    ) -> Missing {
        let file = |path: &Path| record(config, settings.mountpoint(), path);
        if config.pool.missing == MissingNames::Hide {
            // What is not kept current would be wrong when it is wanted.
            config.branches.iter().for_each(|spec| drop(fs::remove_file(file(&spec.path))));
            return Missing::default();
        }
        // Before the lock, for which the status waits: a disk may hang.
        let watched: Vec<bool> = branches.iter().map(|branch| watch.is_watched(&branch.path)).collect();
        let before = ops::settings::branches(pool);
        let mut records = self.records.lock();
        for (path, (there, record)) in records.iter_mut() {
            let is_there = branches.iter().any(|branch| branch.path == *path && Some(branch.id) == *there);
            if there.is_some() && !is_there {
                record.freeze();
                *there = None;
            }
        }
        let is_wanted = |path: &PathBuf| config.branches.iter().any(|spec| spec.path == *path);
        records.retain(|path, _| {
            let wanted = is_wanted(path) || branches.iter().any(|branch| branch.path == *path);
            if !wanted {
                let _ = fs::remove_file(file(path));
            }
            wanted
        });
        let mut begun = Vec::new();
        for (branch, is_watched) in branches.iter().zip(watched) {
            let known = records.get(&branch.path);
            if known.is_some_and(|(there, _)| *there == Some(branch.id)) {
                if !is_watched {
                    known.iter().for_each(|(_, record)| record.distrust());
                }
                continue;
            }
            let record = begin(&file(&branch.path), branch, is_watched);
            begun.push((Arc::clone(&record), branch, is_watched));
            records.insert(branch.path.clone(), (Some(branch.id), record));
        }
        let is_missing = |spec: &&BranchSpec| {
            !is_pattern(spec.path.as_os_str()) && branches.iter().all(|branch| branch.path != spec.path)
        };
        let mut missing = Vec::new();
        for spec in config.branches.iter().filter(is_missing) {
            let known = records.get(&spec.path).map(|(_, record)| Arc::clone(record));
            let record = known.or_else(|| {
                let record = Arc::new(Record::load(&file(&spec.path), &spec.path)?);
                records.insert(spec.path.clone(), (None, Arc::clone(&record)));
                Some(record)
            });
            if record.is_none() {
                let path = spec.path.shown();
                tracing::warn!(
                    "branch {path} is missing, and was never read, so no listing is whole (canopy forget ends that)"
                );
            }
            if !record.as_ref().is_some_and(|record| record.is_forgotten()) {
                missing.push(MissingBranch::new(&spec.path, record));
            }
        }
        let kept =
            records.values().filter(|(there, _)| there.is_some()).map(|(_, record)| Arc::clone(record));
        ops::external_changes::keep_records(pool, kept.collect());
        // Only now are they told of all events.
        for (record, branch, _) in begun.into_iter().filter(|(.., is_watched)| *is_watched) {
            keep(&record, branch, watch);
        }
        Missing::new(missing, before.missing())
    }

    /// Returns the record of a branch.
    pub(crate) fn of(&self, path: &Path) -> Option<Arc<Record>> {
        self.records.lock().get(path).map(|(_, record)| Arc::clone(record))
    }

    /// Has the states be noted of branches that hold what their records say, because this process is about to end. Does not wait long
    /// for a disk.
    pub(crate) fn end_soon(&self) {
        let until = Instant::now() + PATIENCE;
        let asked: Vec<_> =
            self.records.lock().values().filter_map(|(_, record)| record.end_soon()).collect();
        for waits in asked {
            // If it is too late, the next process reads the disk.
            let _ = waits.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Has a branch that is missing not be missed any more. Afterwards the branches have to be put in force again.
    ///
    /// Errors: those of writing its record.
    pub(crate) fn forget(&self, config: &Config, settings: &Settings, path: &Path) -> Result<(), Errno> {
        let file = record(config, settings.mountpoint(), path);
        let forgotten = match self.of(path) {
            Some(record) => record.forget(),
            // There is none to be forgotten: one is made that says so.
            None => Record::begin(&file, path).and_then(|record| {
                record.forget()?;
                self.records.lock().insert(path.to_owned(), (None, Arc::new(record)));
                Ok(())
            }),
        };
        forgotten.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))
    }
}

/// Begins the record of a branch that is there. One whose changes nobody tells says nothing.
fn begin(file: &Path, branch: &Branch, is_watched: bool) -> Arc<Record> {
    let path = branch.path.shown();
    let begun = if is_watched {
        Record::take_up(file, &branch.path)
    } else {
        Record::begin(file, &branch.path).inspect(|record| {
            tracing::warn!("branch {path} is not watched, so it is unknown what it holds once it is missing");
            record.distrust();
        })
    };
    Arc::new(begun.unwrap_or_else(|why: io::Error| {
        tracing::warn!("missing: {} cannot be made, so {path} is not remembered: {why}", file.shown());
        let _ = fs::remove_file(file);
        Record::unknown(file, &branch.path)
    }))
}

/// Has a record be kept current.
fn keep(record: &Arc<Record>, branch: &Arc<Branch>, watch: &Arc<Watch>) {
    let witness = Observer { branch: Arc::downgrade(branch), watch: Arc::downgrade(watch) };
    let root = rustix::io::fcntl_dupfd_cloexec(&branch.root, 0).map_err(io::Error::from);
    if let Err(why) = root.and_then(|root| record.keep(root, Box::new(witness))) {
        tracing::warn!("missing: {} is not remembered: {why}", branch.path.shown());
        record.distrust();
    }
}

/// Who knows whether a branch has changed. Keeps neither it nor the pool.
struct Observer {
    branch: Weak<Branch>,
    watch: Weak<Watch>,
}

impl Witness for Observer {
    fn state(&self, flush: bool) -> Result<String, String> {
        let branch = self.branch.upgrade().ok_or("it is not in the pool any more")?;
        if branch.is_silent() {
            return Err("it does not answer".into());
        }
        unchanged::state(&branch, flush).map_err(|why| why.to_string())
    }

    fn covered(&self) -> u64 {
        let covered = self.watch.upgrade().map(|watch| watch.covered());
        covered.map_or(0, |covered| hash::keyed(0, format!("{covered:?}").as_bytes()))
    }

    fn is_settled(&self) -> bool {
        self.watch
            .upgrade()
            .zip(self.branch.upgrade())
            .is_some_and(|(watch, branch)| watch.is_settled(branch.dev))
    }

    fn quiet(&self) -> Duration {
        test_switches::keeps_after().unwrap_or(QUIET)
    }
}
