//! What is known of the jobs of pools, for `canopy jobs` and `canopy status`.

use crate::due::{overdue, shown};
use crate::error::{Error, Result};
use crate::gates::mounted;
use crate::place::JobsDir;
use crate::record::{Outcome, Record, Run};
use crate::table::{Check, Job, Table};
use crate::work::{Work, drained};
use canopy_base::text::one_line;
use canopy_config::source::named::NamedPool;
use canopy_terminal::{BAD, BOLD, WARNING, paragraph, styled, table};
use jiff::Zoned;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// What a job does at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Rests,
    /// It is due, and has not begun.
    Waits,
    Runs,
}

/// What is known of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct JobReport {
    pub name: String,
    /// Null for a job that `[health]` begins.
    pub when: Option<String>,
    pub command: String,
    pub state: State,
    /// What it waits for.
    pub waits: Option<String>,
    /// Since when it should have run, if that is too long ago.
    pub overdue: Option<i64>,
    /// Seconds since 1970.
    pub next: Option<i64>,
    /// The last run, or the one that runs.
    pub last: Option<Run>,
    /// How often it was done.
    pub done: u64,
    /// What the file says of it, as text by key.
    pub says: BTreeMap<String, String>,
}

/// The jobs of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Jobs {
    pub all: Vec<JobReport>,
    /// A mistake in the pool's file, for which nothing is scheduled.
    #[serde(skip)]
    pub mistake: Option<String>,
    #[serde(skip)]
    pool: String,
}

impl Jobs {
    /// Returns the jobs of the pool that is mounted here; none for who is not root.
    #[must_use]
    pub fn at(mountpoint: &Path, check: Check<'_>) -> Jobs {
        let pools = canopy_config::source::named::all();
        let here = |pool: &NamedPool| mounted(pool).is_some_and(|mounted| mounted.mountpoint == mountpoint);
        pools.into_iter().find(here).map_or_else(Jobs::default, |pool| Jobs::of(&pool, check))
    }

    pub(crate) fn of(pool: &NamedPool, check: Check<'_>) -> Jobs {
        let now = Zoned::now();
        let place = JobsDir::of(&pool.name);
        let mountpoint = mounted(pool).map(|mounted| mounted.mountpoint).or_else(|| pool.mountpoint());
        let mountpoint = mountpoint.unwrap_or_else(|| PathBuf::from(&pool.name));
        let (found, mistake) = match Table::of(pool, check) {
            Ok(found) => (found, None),
            Err(why) => (Table::default(), Some(one_line(&why.to_string()))),
        };
        let changed = fs::metadata(&pool.file).and_then(|meta| meta.modified()).unwrap_or(UNIX_EPOCH);
        let known = changed.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let known = i64::try_from(known).unwrap_or(i64::MAX);
        let mut all: Vec<JobReport> =
            found.jobs.iter().filter_map(|job| of(&place, job, &mountpoint, &now, known)).collect();
        let drains = place.recorded().into_iter().filter_map(|name| drain(&place, name, &mountpoint));
        all.extend(drains);
        Jobs { all, mistake, pool: pool.name.clone() }
    }

    /// Returns what a person is told of them beside other facts.
    pub fn facts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let now = Zoned::now();
        let all: Vec<String> =
            self.all.iter().map(|job| format!("{} {}", job.name, job.words(&now))).collect();
        let told = self.mistake.clone().into_iter().chain((!all.is_empty()).then(|| all.join("; ")));
        told.map(|text| ("jobs", text)).collect::<Vec<_>>().into_iter()
    }

    /// Returns what somebody has to look after: the job, a code, what is wrong, and what to do.
    pub fn troubles(&self) -> impl Iterator<Item = (String, &'static str, String, String)> {
        let now = Zoned::now();
        let pool = &self.pool;
        let of = |job: &JobReport| {
            let name = &job.name;
            let last = job.last.as_ref().filter(|run| run.outcome.is_some_and(Outcome::is_failure));
            let failed = last.map(|run| {
                let text = format!("the job {name} {}", run.words(&now));
                (name.clone(), "job-failed", text, fix(pool, name, run))
            });
            let late = job.overdue.map(|since| {
                let text = format!("the job {name} should have run on {}{}", shown(since, &now), job.because());
                (name.clone(), "job-overdue", text, format!("canopy jobs {pool} shows what it waits for; canopy jobs {pool} run {name} runs it now"))
            });
            [failed, late]
        };
        let mistake = self.mistake.iter().map(|why| {
            let text = format!("nothing is scheduled, because of a mistake: {why}");
            (
                String::new(),
                "schedule-mistake",
                text,
                "edit the file: canopy jobs says when it is right".to_owned(),
            )
        });
        let all: Vec<_> = mistake.chain(self.all.iter().flat_map(of).flatten()).collect();
        all.into_iter()
    }

    /// Returns how often each job was done, with what it has said last.
    pub fn done(&self) -> impl Iterator<Item = (String, u64, String)> {
        let text = |job: &JobReport| {
            let said = job.last.as_ref().map_or("", |run| run.text.as_str());
            let said = if said.is_empty() { String::new() } else { format!(": {said}") };
            (job.name.clone(), job.done, format!("the job {} is done{said}", job.name))
        };
        let all: Vec<_> = self.all.iter().map(text).collect();
        all.into_iter()
    }
}

fn fix(pool: &str, name: &str, run: &Run) -> String {
    match (run.outcome, drained(name)) {
        (Some(Outcome::HeldBack), _) => {
            "look whether they were meant to go; snapraid sync by hand, or raise deletions, if they were"
                .into()
        }
        (_, Some(branch)) => {
            format!("canopy drain {pool} {} --dry-run shows what stays, and why", one_line(&branch))
        }
        _ => format!(
            "canopy jobs {pool} log {name} shows what it said; canopy jobs {pool} run {name} tries again"
        ),
    }
}

impl Run {
    /// Returns when it has run, and what has become of it, as what follows the name of the job.
    fn words(&self, now: &Zoned) -> String {
        let text = if self.text.is_empty() { String::new() } else { format!(": {}", self.text) };
        let outcome = match self.outcome {
            Some(Outcome::HeldBack) => "was held back",
            Some(Outcome::Stopped) => "was stopped",
            Some(Outcome::CutOff) | None => "was cut off",
            Some(Outcome::TimeUp) => "goes on the next time",
            Some(outcome) => outcome.word(),
        };
        format!("{outcome} ({}){text}", shown(self.ended.unwrap_or(self.began), now))
    }
}

impl JobReport {
    fn words(&self, now: &Zoned) -> String {
        match (self.state, &self.last) {
            (State::Runs, Some(run)) => format!("runs since {}", shown(run.began, now)),
            (State::Runs, None) => "runs".into(),
            (State::Waits, _) => format!("waits: {}", self.waits.as_deref().unwrap_or_default()),
            (State::Rests, _) if self.overdue.is_some() => "is overdue".into(),
            (State::Rests, Some(run)) => run.words(now),
            (State::Rests, None) => match self.next {
                Some(next) => format!("runs first on {}", shown(next, now)),
                None => "has not run yet".into(),
            },
        }
    }

    fn because(&self) -> String {
        self.waits.as_ref().map_or_else(String::new, |why| format!(", and waits: {why}"))
    }
}

fn of(place: &JobsDir, job: &Job, pool: &Path, now: &Zoned, known: i64) -> Option<JobReport> {
    // Only root knows what has become of it.
    let record = place.record(&job.name).ok()?;
    let runs = place.runs(&job.name);
    let late = overdue(job, record.as_ref(), now, known).filter(|_| !runs);
    let record = record.unwrap_or_default();
    Some(JobReport {
        when: Some(job.when.to_string()),
        command: job.work.shown(pool),
        says: job.says.clone(),
        overdue: late,
        next: job.when.next(now).map(|next| next.timestamp().as_second()),
        ..report(job.name.clone(), record, runs)
    })
}

fn drain(place: &JobsDir, name: String, pool: &Path) -> Option<JobReport> {
    let command = Work::Drain(drained(&name)?).shown(pool);
    let record = place.record(&name).ok()??;
    let runs = place.runs(&name);
    Some(JobReport { command, ..report(name, record, runs) })
}

fn report(name: String, record: Record, runs: bool) -> JobReport {
    let mut last = record.last;
    if let Some(run) = last.as_mut().filter(|run| run.ended.is_none() && !runs) {
        run.outcome = Some(Outcome::CutOff);
    }
    let state = match (runs, &record.waits) {
        (true, _) => State::Runs,
        (false, Some(_)) => State::Waits,
        (false, None) => State::Rests,
    };
    JobReport {
        name,
        when: None,
        command: String::new(),
        state,
        waits: record.waits.filter(|_| !runs),
        overdue: None,
        next: None,
        last,
        done: record.done,
        says: BTreeMap::new(),
    }
}

/// A pool in the list of all.
#[derive(Debug, Serialize)]
pub(crate) struct PoolJobs {
    /// Its name.
    pub(crate) pool: String,
    pub(crate) file: PathBuf,
    pub(crate) mistake: Option<String>,
    pub(crate) jobs: Jobs,
}

#[derive(Debug, Serialize)]
pub(crate) struct Listed {
    /// Whether a process runs them.
    pub(crate) watched: bool,
    pub(crate) pools: Vec<PoolJobs>,
}

pub(crate) fn print(listed: &Listed, json: bool) -> Result<()> {
    if json {
        canopy_terminal::print_json(listed);
        return Ok(());
    }
    let now = Zoned::now();
    let mut text = String::new();
    for pool in &listed.pools {
        text.push_str(&format!("{}\n", styled(BOLD, &pool.pool)));
        if let Some(why) = &pool.mistake {
            text.push_str(&paragraph("  mistake: ", why));
        }
        let rows = pool.jobs.all.iter().map(|job| {
            let next = job.next.map_or_else(|| "-".into(), |next| shown(next, &now));
            let when = job.when.clone().unwrap_or_else(|| "when a disk fails".into());
            vec![job.name.clone(), when, next, job.words(&now)]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if !rows.is_empty() {
            text.push_str(&table(&["JOB", "WHEN", "NEXT", "STATE"], rows, 2, &[]));
        } else if pool.mistake.is_none() {
            let set = format!(
                "nothing is scheduled (for instance: canopy jobs {} set verify do=verify 'when=every month')",
                pool.pool
            );
            text.push_str(&paragraph("  ", &set));
        }
        for (_, code, what, fix) in pool.jobs.troubles().filter(|(_, code, ..)| *code != "schedule-mistake") {
            let style = if code == "job-failed" { BAD } else { WARNING };
            let words = paragraph("  warning: ", &what);
            text.push_str(&format!("\n{}", words.replacen("warning: ", &styled(style, "warning: "), 1)));
            text.push_str(&paragraph("      fix: ", &fix));
        }
        text.push('\n');
    }
    if !listed.watched && listed.pools.iter().any(|pool| !pool.jobs.all.is_empty()) {
        text.push_str(&paragraph(
            "",
            "nobody runs them at their times (systemctl enable --now canopy-jobs; without systemd: canopy jobs watch)",
        ));
    }
    canopy_terminal::print_styled(&text);
    if listed.pools.is_empty() { Err(Error::Nothing) } else { Ok(()) }
}
