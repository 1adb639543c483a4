//! The loop of `canopy jobs watch`: begins what is due, in processes of their own, and tells what has become of it.

use crate::due::{Decision, decide, shown};
use crate::error::{Error, Result};
use crate::gates::{Eyes, Gates, mounted};
use crate::place::{self, JobsDir};
use crate::record::{Outcome, Record};
use crate::table::{self, Check, Job, Table};
use crate::work::{DRAIN, Work};
use canopy_base::text::{one_line, os_error};
use canopy_config::source::named::NamedPool;
use canopy_sys::mountinfo::MountEntry;
use canopy_terminal::{Priority, journal_line};
use jiff::Zoned;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{HashMap, HashSet};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// After how many seconds a drain that has ended is tried again, as long as the disk is said to fail.
const AGAIN: i64 = 24 * 60 * 60;
/// How long jobs have to end when this ends: less than systemd gives.
const PATIENCE: Duration = Duration::from_secs(75);

/// A pool's name, and that of its job.
type Key = (String, String);

/// Runs what is due on all pools, until a signal arrives.
///
/// # Errors
/// If another process does, or nothing can be kept.
pub(crate) fn watch(every: Duration, check: Check<'_>, eyes: Eyes<'_>) -> Result<()> {
    let _alone = place::watch()?;
    let ended = canopy_terminal::ends().map_err(Error::system("cannot wait for signals"))?;
    let mut watcher = Watcher {
        check,
        eyes,
        gates: Gates::default(),
        due: HashSet::new(),
        running: HashMap::new(),
        said: HashMap::new(),
    };
    loop {
        watcher.look(&Zoned::now());
        match ended.recv_timeout(every) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    watcher.end();
    Ok(())
}

struct Watcher<'w> {
    check: Check<'w>,
    eyes: Eyes<'w>,
    gates: Gates,
    /// What is due and waits.
    due: HashSet<Key>,
    running: HashMap<Key, Child>,
    /// Mistakes that have been told, by pool.
    said: HashMap<String, String>,
}

impl Watcher<'_> {
    fn look(&mut self, now: &Zoned) {
        self.reap();
        for (pool, table) in table::all(self.check) {
            let looked = table.and_then(|table| self.look_at(&pool, &table, now));
            match looked {
                Ok(()) => _ = self.said.remove(&pool.name),
                Err(why) => {
                    let why = one_line(&why.to_string());
                    if self.said.insert(pool.name.clone(), why.clone()).as_ref() != Some(&why) {
                        journal_line(Priority::Error, &why);
                    }
                }
            }
        }
    }

    fn look_at(&mut self, pool: &NamedPool, table: &Table, now: &Zoned) -> Result<()> {
        let place = JobsDir::of(&pool.name);
        let mounted = mounted(pool);
        if table.drains
            && let Some(mounted) = &mounted
        {
            self.drain(pool, mounted, &place, now)?;
        }
        let mut busy_with = table.jobs.iter().map(|job| &job.name).find(|name| place.runs(name)).cloned();
        for job in &table.jobs {
            let key = (pool.name.clone(), job.name.clone());
            // Its process may not have come so far as to take the lock.
            if self.running.contains_key(&key) {
                busy_with = Some(job.name.clone());
                continue;
            }
            let Some(lock) = place.lock(&job.name)? else { continue };
            let record = place.record(&job.name)?;
            let decision = decide(job, record.as_ref(), now, self.due.contains(&key));
            let mut new = record.clone().unwrap_or_default();
            new.when = job.when.to_string();
            new.waits = None;
            let due = match decision {
                Decision::Nothing => None,
                Decision::Since(due) => {
                    new.due = due;
                    new.cut_off = 0;
                    None
                }
                Decision::Skip(due) => {
                    new.due = due;
                    let late = shown(due, now);
                    journal_line(
                        Priority::Notice,
                        &format!("{}: {} was missed on {late}, and is skipped", pool.name, job.name),
                    );
                    None
                }
                Decision::GiveUp => {
                    give_up(&mut new, now);
                    None
                }
                Decision::Run(due) => Some(due),
            };
            match due {
                None => _ = self.due.remove(&key),
                Some(_) => _ = self.due.insert(key.clone()),
            }
            if due.is_some() {
                new.waits = match (&mounted, &busy_with) {
                    (None, _) => Some("the pool is not mounted".into()),
                    (_, Some(other)) => Some(format!("{other} runs")),
                    (Some(mounted), None) => self.gates.disturbance(job, mounted, self.eyes),
                };
            }
            if record.as_ref() != Some(&new) && (due.is_none() || new.waits.is_some()) {
                place.keep(&job.name, &new)?;
            }
            drop(lock);
            if let (Some(due), Some(mounted), None) = (due, &mounted, &new.waits) {
                self.gates.begins(mounted);
                self.begin(pool, &job.name, &job.work.shown(&mounted.mountpoint), due);
                busy_with = Some(job.name.clone());
            }
        }
        Ok(())
    }

    /// Empties disks that say that they fail, one at a time.
    fn drain(&mut self, pool: &NamedPool, mounted: &MountEntry, place: &JobsDir, now: &Zoned) -> Result<()> {
        let look = match (self.eyes)(&mounted.mountpoint) {
            Ok(look) => look,
            // What was seen last lasts.
            Err(why) => {
                let key = format!("{} and its disks", pool.name);
                if self.said.insert(key, why.clone()).as_ref() != Some(&why) {
                    journal_line(Priority::Error, &format!("{} cannot be looked at: {why}", pool.name));
                }
                return Ok(());
            }
        };
        self.said.remove(&format!("{} and its disks", pool.name));
        let failing: Vec<Job> = look.failing.into_iter().filter_map(Job::drain).collect();
        let known: Vec<String> =
            place.recorded().into_iter().filter(|name| name.starts_with(DRAIN)).collect();
        // Forgotten once the disk is no longer said to fail: another one at its place is new.
        for name in known.iter().filter(|name| !failing.iter().any(|job| job.name == **name)) {
            if !place.runs(name) {
                place.forget(name);
            }
        }
        if known.iter().any(|name| place.runs(name))
            || self.running.keys().any(|(of, name)| *of == pool.name && name.starts_with(DRAIN))
        {
            return Ok(());
        }
        let at = now.timestamp().as_second();
        for job in failing {
            let record = place.record(&job.name)?;
            let last = record
                .as_ref()
                .filter(|record| !record.is_cut_off())
                .and_then(|record| record.last.as_ref()?.ended);
            if last.is_none_or(|ended| at - ended >= AGAIN || ended > at) {
                self.begin(pool, &job.name, &job.work.shown(&mounted.mountpoint), at);
                break;
            }
        }
        Ok(())
    }

    /// Begins a job in a process of its own, which outlives this one if it is killed.
    fn begin(&mut self, pool: &NamedPool, job: &str, shown: &str, due: i64) {
        let mut command = Command::new("/proc/self/exe");
        command.arg("jobs").arg("--due").arg(due.to_string()).arg("--").arg(&pool.file).args(["run", job]);
        match command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => {
                journal_line(Priority::Notice, &format!("{}: {job} begins: {shown}", pool.name));
                self.running.insert((pool.name.clone(), job.to_owned()), child);
            }
            Err(why) => journal_line(
                Priority::Error,
                &format!("{}: {job} cannot be started: {}", pool.name, os_error(&why)),
            ),
        }
    }

    /// Tells of what has ended.
    fn reap(&mut self) {
        self.running.retain(|(pool, job), child| {
            if matches!(child.try_wait(), Ok(None)) {
                return true;
            }
            let last = JobsDir::of(pool).record(job).ok().flatten().and_then(|record| record.last);
            let outcome = last.as_ref().and_then(|run| run.outcome);
            let priority = match outcome {
                Some(outcome) if !outcome.is_failure() => Priority::Notice,
                _ => Priority::Error,
            };
            let word = outcome.map_or("was killed", Outcome::word);
            let text = last.map(|run| run.text).filter(|text| !text.is_empty());
            let text = text.map_or_else(String::new, |text| format!(": {text}"));
            journal_line(priority, &format!("{pool}: {job} {word}{text}"));
            false
        });
    }

    /// Ends the jobs that run.
    fn end(&mut self) {
        for child in self.running.values() {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        let until = Instant::now() + PATIENCE;
        while !self.running.is_empty() && Instant::now() < until {
            self.reap();
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn give_up(record: &mut Record, now: &Zoned) {
    record.cut_off = 0;
    if let Some(run) = &mut record.last {
        run.ended = Some(now.timestamp().as_second());
        run.outcome = Some(Outcome::Failed);
        run.text = "it was cut off several times: the machine or the process ended while it ran".into();
    }
}

/// Returns the jobs of a pool's file, or the one that `[health]` has begun.
pub(crate) fn job_of(pool: &NamedPool, name: &str, due: bool, check: Check<'_>) -> Result<Job> {
    let table = Table::of(pool, check)?;
    let drain = || crate::work::drained(name).filter(|_| due && table.drains).and_then(Job::drain);
    let known = || table.jobs.iter().map(|job| job.name.clone()).collect();
    let found = table.jobs.iter().find(|job| job.name == name).cloned().or_else(drain);
    found.ok_or_else(|| {
        if table.jobs.is_empty() {
            return Error::NoSchedule(pool.file.clone());
        }
        Error::NoJob { name: name.to_owned(), known: known() }
    })
}

impl Job {
    /// Returns the job that empties a branch, if that has a path that can be written.
    fn drain(branch: String) -> Option<Job> {
        let work = Work::Drain(branch);
        let name = work.name();
        // Names of files are no longer than that.
        (name.len() < 200).then(|| Job::once(name, work))
    }
}
