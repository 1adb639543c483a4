//! Runs what the files of pools have scheduled: `canopy jobs`.
//!
//! A pool's file says what is to be done (`table`, `work`) and when (`when`). One process looks at all pools now and then
//! (`watch`), decides what is due (`due`) and may begin (`gates`), and begins it in a process of its own (`run`), which holds the
//! job's lock and keeps its log and what has become of it (`place`, `record`, `log`). The program that serves a pool has no
//! part in it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod due;
mod edit;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod gates;
mod list;
mod log;
mod place;
mod record;
mod run;
mod snapraid;
mod table;
mod watch;
mod when;
mod work;

pub use error::{Error, Result};
pub use gates::{Eyes, Look};
pub use list::{JobReport, Jobs, State};
pub use record::{Outcome, Run};
pub use table::Check;

use canopy_config::options::closest;
use canopy_config::source::named::{self, NamedPool};
use canopy_config::source::tables::Change;
use canopy_config::state::DISKS;
use clap::Args;
use list::{Listed, PoolJobs};
use place::JobsDir;
use run::Asked;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Show and run what the files of pools have scheduled
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct JobsArgs {
    /// A pool; list, run, log, set or drop NAME; or watch
    #[arg(value_name = "POOL|ACTION", num_args = 0..)]
    pub words: Vec<String>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Only show what set or drop would change
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// How often 'watch' looks what is due
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub every: u32,
    /// The time that the job is run for, as the watching process says
    #[arg(long, value_name = "SECONDS", hide = true, allow_negative_numbers = true)]
    pub due: Option<i64>,
    /// What is known of disks
    #[arg(long, value_name = "FILE", default_value = DISKS, hide = true)]
    pub disks_file: PathBuf,
}

const NOTES: &str = "\
'list' shows the jobs, when they run next and what became of them, 'run' runs
one now, 'log' shows what it has said. 'set' and 'drop' change what the pool's
file says of a job; set makes a new one, too, and KEY= takes a key away. 'watch'
runs them at their times until it is stopped, as canopy-jobs.service does.
docs/schedule.md explains it all.

In the file of a pool, /etc/canopy/NAME.toml:
  [[schedule]]
  do = \"verify\"                  # or balance, dedup, tier, \"snapraid sync\", ...
  when = \"every month at 02:00\"  # or \"every Sunday\", \"every 6 hours\", ...
  idle = true                    # begin while clients leave the pool alone
  awake-only = true              # begin while no disk sleeps
  missed = \"skip\"                # do not catch up after a shutdown
  at-most = \"5 hours\"            # stop then; verify goes on the next time
  deletions = 100                # snapraid sync: do not begin beyond these
  nice = 10                      # 0 to 19

Examples:
  canopy jobs
  canopy jobs media run verify
  canopy jobs log verify
  canopy jobs media set verify do=verify 'when=every month'
  systemctl enable --now canopy-jobs";

/// The words that are no pool.
const ACTIONS: [&str; 6] = ["list", "watch", "run", "log", "set", "drop"];

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Action {
    List,
    Watch,
    Run(String),
    Log(String),
    Change(String, Change),
}

/// Runs the command. `check` says whether the program takes a command line, `eyes` looks at a pool and its disks.
///
/// # Errors
/// A mistake in the command line or a file; what becomes of a job that is run.
pub fn jobs(args: &JobsArgs, check: Check<'_>, eyes: Eyes<'_>) -> Result<()> {
    let (pool, action) = parse(&args.words)?;
    match action {
        Action::Watch => watch::watch(Duration::from_secs(args.every.into()), check, eyes),
        Action::List => list(pool.as_deref(), check, args.json),
        Action::Run(name) => {
            let pool = pool_of(pool.as_deref(), &name, "run", check)?;
            run_one(&pool, &name, args.due, check)
        }
        Action::Log(name) => {
            let pool = pool_of(pool.as_deref(), &name, "log", check)?;
            show_log(&pool, &name, args.json)
        }
        Action::Change(name, change) => {
            let pool = pool_of(pool.as_deref(), &name, "drop", check)?;
            edit::change(&pool, &name, &change, args.dry_run, check)
        }
    }
}

fn parse(words: &[String]) -> Result<(Option<String>, Action)> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let name = |name: &str| name.to_owned();
    Ok(match words[..] {
        [] | ["list"] => (None, Action::List),
        ["watch"] => (None, Action::Watch),
        ["run", job] => (None, Action::Run(name(job))),
        ["log", job] => (None, Action::Log(name(job))),
        ["drop", job] => (None, Action::Change(name(job), Change::Drop)),
        [pool, "drop", job] => (Some(name(pool)), Action::Change(name(job), Change::Drop)),
        [_, "set", job] => {
            return Err(Error::Usage(format!(
                "say what {job} is to do, or what changes: KEY=VALUE, such as do=verify 'when=every month'"
            )));
        }
        [pool, "set", job, ref pairs @ ..] => {
            let pairs = pairs.iter().map(|word| edit::pair(word)).collect::<Result<_>>()?;
            (Some(name(pool)), Action::Change(name(job), Change::Set(pairs)))
        }
        [pool] if !ACTIONS.contains(&pool) => (Some(name(pool)), Action::List),
        [pool, "list"] => (Some(name(pool)), Action::List),
        [pool, "run", job] => (Some(name(pool)), Action::Run(name(job))),
        [pool, "log", job] => (Some(name(pool)), Action::Log(name(job))),
        _ => {
            let known = "write canopy jobs [POOL] [list], canopy jobs [POOL] run NAME, canopy jobs [POOL] log NAME, canopy jobs POOL set NAME KEY=VALUE..., canopy jobs [POOL] drop NAME or canopy jobs watch";
            return Err(Error::Usage(format!("'{}' is not understood ({known})", words.join(" "))));
        }
    })
}

/// Finds a pool by its name, its file or its mountpoint.
fn find(word: &str) -> Result<NamedPool> {
    if let Some(pool) = NamedPool::find(OsStr::new(word)) {
        return Ok(pool);
    }
    let path = Path::new(word);
    let listed = canopy_sys::mountinfo::listed_path(path).unwrap_or_else(|_| path.to_owned());
    let is_there = |pool: &NamedPool| {
        pool.mountpoint().is_some_and(|place| place == path)
            || gates::mounted(pool).is_some_and(|mounted| mounted.mountpoint == listed)
    };
    if let Some(pool) = named::all().into_iter().find(is_there) {
        return Ok(pool);
    }
    match NamedPool::by_name(OsStr::new(word)) {
        Some(pool) => Err(pool.not_found().into()),
        None => Err(Error::Usage(format!(
            "no file in /etc/canopy describes the pool {} (jobs are for pools that have one: canopy init makes it)",
            canopy_base::text::one_line(word)
        ))),
    }
}

/// Returns the pool that was named, or the only one that has such a job.
fn pool_of(word: Option<&str>, job: &str, action: &'static str, check: Check<'_>) -> Result<NamedPool> {
    if let Some(word) = word {
        return find(word);
    }
    let mut found = Vec::new();
    let mut known = Vec::new();
    for (pool, table) in table::all(check) {
        let is_recorded = JobsDir::of(&pool.name).recorded().iter().any(|name| name == job);
        let names: Vec<String> = table?.jobs.into_iter().map(|job| job.name).collect();
        if names.iter().any(|name| name == job) || action == "log" && is_recorded {
            found.push(pool);
        }
        known.extend(names);
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 if known.is_empty() => Err(Error::Nothing),
        0 => Err(Error::NoJob { name: job.to_owned(), known }),
        _ => {
            let pools = found.into_iter().map(|pool| pool.name).collect();
            Err(Error::Ambiguous { name: job.to_owned(), action, pools })
        }
    }
}

/// A word that is no pool may be an action with a letter too few.
fn or_action(word: &str, why: Error) -> Error {
    match closest(word, ACTIONS.iter().map(|action| (*action).to_owned())) {
        Some(action) => {
            let word = canopy_base::text::one_line(word);
            Error::Usage(format!("'{word}' is no pool (did you mean 'canopy jobs {action}'?)"))
        }
        None => why,
    }
}

fn list(word: Option<&str>, check: Check<'_>, json: bool) -> Result<()> {
    let pools: Vec<NamedPool> = match word {
        Some(word) => vec![find(word).map_err(|why| or_action(word, why))?],
        None => table::all(check).into_iter().map(|(pool, _)| pool).collect(),
    };
    let of = |pool: NamedPool| {
        let jobs = Jobs::of(&pool, check);
        // Not to be taken for a pool without jobs.
        JobsDir::of(&pool.name).record("any")?;
        Ok(PoolJobs { pool: pool.name, file: pool.file, mistake: jobs.mistake.clone(), jobs })
    };
    let pools = pools.into_iter().map(of).collect::<Result<Vec<_>>>()?;
    list::print(&Listed { watched: place::is_watched(), pools }, json)
}

fn run_one(pool: &NamedPool, name: &str, due: Option<i64>, check: Check<'_>) -> Result<()> {
    let job = watch::job_of(pool, name, due.is_some(), check)?;
    let mounted = gates::mounted(pool).ok_or_else(|| Error::NotMounted(pool.name.clone()))?;
    let job = if gates::trash_waits_for_sync(&mounted) {
        table::Job { work: job.work.with_trash(), ..job }
    } else {
        job
    };
    let asked = due.map_or(Asked::ByHand, Asked::Due);
    let outcome = run::run(&pool.name, &mounted.mountpoint, &job, asked)?;
    // Who has asked for a time reads what is kept.
    if due.is_some() || !outcome.is_some_and(Outcome::is_failure) {
        return Ok(());
    }
    let record = JobsDir::of(&pool.name).record(name)?;
    let why = record.and_then(|record| record.last).map(|run| run.text).unwrap_or_default();
    Err(Error::Failed { name: name.to_owned(), why })
}

fn show_log(pool: &NamedPool, name: &str, json: bool) -> Result<()> {
    let file = JobsDir::of(&pool.name).log_file(name);
    let lines = match log::lines(&file) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoLog { name: name.to_owned(), pool: pool.name.clone() });
        }
        lines => lines.map_err(Error::file(file))?,
    };
    if json {
        canopy_terminal::print_json(&serde_json::json!({ "pool": pool.name, "job": name, "lines": lines }));
    } else {
        lines.iter().for_each(|line| canopy_terminal::print(&format!("{line}\n")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_pool_and_an_action() {
        let parsed = |text: &str| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            parse(&words).map_err(|error| error.to_string())
        };
        let (media, verify) = (Some("media".to_owned()), "verify".to_owned());
        for (text, expected) in [
            ("", (None, Action::List)),
            ("list", (None, Action::List)),
            ("media", (media.clone(), Action::List)),
            ("media list", (media.clone(), Action::List)),
            ("run verify", (None, Action::Run(verify.clone()))),
            ("media run verify", (media.clone(), Action::Run(verify.clone()))),
            ("/mnt/media log verify", (Some("/mnt/media".into()), Action::Log(verify.clone()))),
            ("watch", (None, Action::Watch)),
            ("drop verify", (None, Action::Change(verify.clone(), Change::Drop))),
            (
                "media set verify when=x idle=",
                (
                    media.clone(),
                    Action::Change(
                        verify.clone(),
                        Change::Set(vec![("when".into(), "x".into()), ("idle".into(), String::new())]),
                    ),
                ),
            ),
        ] {
            assert_eq!(parsed(text), Ok(expected), "{text}");
        }
        for text in ["run", "log", "media run", "media frob verify", "watch media", "a b c", "media set"] {
            assert!(
                parsed(text).unwrap_err().contains("is not understood (write canopy jobs [POOL]"),
                "{text}"
            );
        }
        assert!(parsed("media set verify").unwrap_err().contains("say what verify is to do"));
    }
}
