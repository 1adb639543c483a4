//! `canopy status`: shows the pools of this machine, their branches, and what is wrong with them.
//!
//! Each query that a disk or a daemon may not answer runs in its own process ([`canopy_monitor::probe`]), all at the same time and with
//! one deadline. So a hung branch is reported as such.

pub mod model;
pub mod notify;
mod render;
mod unmounted;
mod warnings;

use self::model::{BranchStatus, Health, PoolStatus, State, Status, Warning, WarningCode};
use super::probe::BranchFacts;
use crate::error::Error;
use crate::mount_lookup;
use crate::terminal;
use canopy_branch::branch::state::BranchState;
use canopy_config::{fstab, state};
use canopy_control::{BranchReport, ExplainReport, OsText, PoolReport, RestReport};
use canopy_monitor::deadline_command::RunningCommand;
use canopy_monitor::disks::{self, DisksArgs, Obstacle, Row};
use canopy_monitor::probe::{self, Cause, QueryOutcome};
use canopy_monitor::sleep;
use canopy_schedule::{Check, Jobs, JobsArgs, Look};
use canopy_server::badge;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_upkeep::{BranchSpace, TierStatus};
use clap::Args;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Show pools, their branches, and what is wrong with them
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct StatusArgs {
    /// A pool's mountpoint or name [default: all pools]
    #[arg(value_name = "POOL")]
    pub mount: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Also show the kernel's features and privileges
    #[arg(short, long)]
    pub verbose: bool,
    /// The fstab to look at
    #[arg(long, value_name = "FILE", default_value = "/etc/fstab")]
    pub fstab_file: PathBuf,
    /// What is known of disks
    #[arg(long, value_name = "FILE", default_value = state::DISKS, hide = true)]
    pub disks_file: PathBuf,
}

const NOTES: &str = "\
Each warning says how to fix the problem. A branch or pool that does not answer
within 0.6 seconds is reported as such, or within three where others take long
too. FREE is the space that users can fill;
USED includes the space reserved for root.
Exit status: 0 if every configured pool is mounted and has all its branches,
1 if something is missing or failing. Advice does not change it.

Examples:
  canopy status
  canopy status /pool --json | jq -r '.pools[].warnings[].text'";

/// The most time that a pool, and then its branches, have to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The least time that a branch has to answer, and how many times as long as the slowest of the others it may take.
const LEAST_PATIENCE: Duration = Duration::from_millis(600);
const SLOWER: u32 = 10;
/// How often to look for what a pool publishes that does not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub fn run(args: &StatusArgs, takes: Check<'_>) -> ExitCode {
    let status = match look_at_all(args, takes) {
        Ok(status) => status,
        Err(error) => {
            error.lines().iter().for_each(|line| terminal::eprint_line(line));
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        terminal::print_json(&status);
    } else {
        terminal::print_styled(&render::status(&status, args.verbose));
    }
    ExitCode::from(u8::from(!status.is_well()))
}

/// Returns the status of all pools, or of one.
pub(super) fn look(args: &StatusArgs) -> Result<Status, Error> {
    let listed = mountinfo::list().map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    let only = args.mount.as_deref();
    let unmounted = unmounted::find(&listed, &args.fstab_file, only);
    // One that was asked for and is known not to be mounted is no mistake.
    let mut pools = if only.is_some() && !unmounted.is_empty() { Vec::new() } else { pools(only)? };
    look_at_disks(&mut pools, &args.disks_file);
    Ok(Status { linux: release(), pools, unmounted })
}

/// Returns it with what is scheduled. `takes` says whether the program takes a command line.
fn look_at_all(args: &StatusArgs, takes: Check<'_>) -> Result<Status, Error> {
    let mut status = look(args)?;
    status.pools.iter_mut().for_each(|pool| pool.jobs = Jobs::at(&pool.mountpoint.to_path(), takes));
    Ok(status)
}

/// Asks the disks of all pools at the same time, as far as they may be asked now.
fn look_at_disks(pools: &mut [PoolStatus], records: &Path) -> Option<Obstacle> {
    let below = |pool: &PoolStatus| -> BTreeSet<String> {
        pool.branches
            .iter()
            .filter_map(|branch| branch.facts.as_ref())
            .flat_map(|facts| facts.disks.clone())
            .collect()
    };
    let all: BTreeSet<String> = pools.iter().flat_map(below).collect();
    let look = disks::look(&all.into_iter().collect::<Vec<_>>(), records);
    for pool in pools {
        let names = below(pool);
        pool.disks = look.disks.iter().filter(|disk| names.contains(&disk.name)).cloned().collect();
        let found = warnings::disk_warnings(pool);
        pool.warnings.extend(found);
    }
    look.obstacle
}

/// Runs `canopy disks`.
///
/// # Errors
/// If there is no such pool.
pub fn disks(args: &DisksArgs) -> Result<(), Error> {
    let mut pools = pools(args.mount.as_deref())?;
    let obstacle = look_at_disks(&mut pools, &args.disks_file);
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for (pool, disk) in pools.iter().flat_map(|pool| pool.disks.iter().map(move |disk| (pool, disk))) {
        let row = || Row { health: disk.clone(), branches: Vec::new() };
        let on_it = pool.branches.iter().filter(|branch| branch.is_on(&disk.name));
        rows.entry(disk.name.clone())
            .or_insert_with(row)
            .branches
            .extend(on_it.map(|branch| branch.path.clone()));
    }
    disks::print_list(rows.into_values().collect(), obstacle, args.json);
    Ok(())
}

/// Runs `canopy jobs`.
pub fn jobs(args: &JobsArgs, takes: Check<'_>) -> Result<(), Error> {
    let eyes = |pool: &Path| {
        let mut pools = pools(Some(pool)).map_err(|why| why.line())?;
        look_at_disks(&mut pools, &args.disks_file);
        let fails = |warning: &&Warning| warning.code == WarningCode::DiskFailing;
        let failing = pools.iter().flat_map(|pool| pool.warnings.iter().filter(fails));
        let failing = failing.filter_map(|warning| warning.branch.as_ref().map(OsText::one_line)).collect();
        let asleep = pools.iter().flat_map(|pool| pool.disks.iter().filter(|disk| disk.asleep));
        Ok(Look { failing, asleep: asleep.map(|disk| disk.name.clone()).collect() })
    };
    Ok(canopy_schedule::jobs(args, takes, &eyes)?)
}

/// Returns the branches of a pool with their modes, for completions. None if the pool does not answer.
pub fn branches_of(pool: &str) -> Vec<(String, String)> {
    let pools = pools(Some(Path::new(pool))).unwrap_or_default();
    let branches = pools.into_iter().flat_map(|pool| pool.branches);
    let path = |branch: &BranchStatus| branch.path.to_path().to_string_lossy().into_owned();
    branches.map(|branch| (path(&branch), branch.mode.unwrap_or_default())).collect()
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Returns all pools, or the one of this mountpoint or name.
fn pools(mount: Option<&Path>) -> Result<Vec<PoolStatus>, Error> {
    let listed = mountinfo::list().map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    let chosen: Vec<MountEntry> = match mount {
        None => topmost_pools(listed),
        Some(path) => {
            let path = canopy_config::source::named::mountpoint(path)?;
            let path = mountinfo::listed_path(&path).map_err(|_| Error::NoPool(path))?;
            let mounted = listed.into_iter().rev().find(|mounted| mounted.mountpoint == path);
            vec![mounted.filter(MountEntry::is_pool).ok_or(Error::NoPool(path))?]
        }
    };
    let points = chosen.iter().map(|mounted| mounted.mountpoint.as_path());
    let queries = probe::start_all("pool", points).map_err(probe_start_error)?;
    let began = Instant::now();
    let deadline = began + PATIENCE;
    let mut pools = Vec::new();
    let mut slowest = Duration::ZERO;
    for (mounted, mut query) in chosen.into_iter().zip(queries) {
        // Its root may wait for a branch, which the daemon then says elsewhere.
        let mut patience = began + LEAST_PATIENCE;
        let mut published = None;
        while query.ended_before(patience.min(deadline)).is_none()
            && patience < deadline
            && published.is_none()
        {
            published = published_report(&mounted);
            patience = Instant::now() + LOOK_AGAIN;
        }
        if let Some(report) = published {
            // Ends the query.
            drop(query.output_before(Instant::now()));
            pools.push((mounted, State::DoesNotAnswer, None, Some(report)));
            continue;
        }
        let ended = query.ended_before(deadline);
        slowest = slowest.max(ended.map_or(Duration::ZERO, |ended| ended.duration_since(began)));
        let (state, error, report) = match probe::answer::<PoolReport>(query, deadline) {
            QueryOutcome::Answered(report) => (State::Serving, None, Some(report)),
            QueryOutcome::TimedOut => (State::DoesNotAnswer, None, None),
            QueryOutcome::Failed(failure) => match failure.cause {
                Cause::Ended => (State::Ended, None, None),
                Cause::Mute => (State::Mute, None, None),
                // A mount of this type by another program.
                Cause::Foreign if mount.is_none() => continue,
                Cause::Foreign => return Err(Error::NotCanopy(mounted.mountpoint)),
                Cause::Missing | Cause::Other => (State::Unreachable, Some(failure.why), None),
            },
        };
        pools.push((mounted, state, error, report));
    }
    pools
        .into_iter()
        .map(|(mounted, state, error, report)| pool(mounted, state, error, report, slowest))
        .collect()
}

/// Returns what the daemon has published while branches do not answer well.
fn published_report(mounted: &MountEntry) -> Option<PoolReport> {
    let (report, age) = badge::published_report(mounted)?;
    // It is replaced every second. A daemon that is stopped says nothing new.
    (age < PATIENCE).then(|| serde_json::from_slice(&report).ok()).flatten()
}

fn probe_start_error(why: std::io::Error) -> Error {
    Error::System { what: "cannot start /proc/self/exe to look at pools and branches", why }
}

/// Returns the topmost pool at each mountpoint. Pools below another mount cannot be reached.
fn topmost_pools(listed: Vec<MountEntry>) -> Vec<MountEntry> {
    let mut pools: Vec<MountEntry> = Vec::new();
    for mounted in listed {
        pools.retain(|pool| pool.mountpoint != mounted.mountpoint);
        if mounted.is_pool() {
            pools.push(mounted);
        }
    }
    pools
}

fn pool(
    mounted: MountEntry,
    state: State,
    error: Option<String>,
    report: Option<PoolReport>,
    slowest: Duration,
) -> Result<PoolStatus, Error> {
    let branches = match &report {
        Some(report) => branches(report, slowest)?,
        // A hung daemon still has its branches open.
        None if state == State::DoesNotAnswer => {
            let held = badge::servers_of(&mounted).into_iter().flat_map(open_path_fds).collect();
            branches_at(without_nested(held), &[], slowest)?
        }
        None => Vec::new(),
    };
    // The daemon looks at its branches to answer, and a hung branch would block one of its threads.
    let hangs = branches
        .iter()
        .any(|branch| matches!(branch.health, Health::DoesNotAnswer | Health::Asleep | Health::Lagging));
    let create = if state == State::Serving && !hangs {
        let query = probe::start("create", &mounted.mountpoint).map_err(probe_start_error)?;
        probe::answer::<ExplainReport>(query, Instant::now() + PATIENCE).ok()
    } else {
        None
    };
    let mut status = PoolStatus {
        mountpoint: OsText::from(mounted.mountpoint.as_path()),
        fstype: mounted.fstype,
        source: OsText::from(mounted.source.as_os_str()),
        state,
        error,
        version: report.as_ref().map(|report| report.version.clone()),
        pid: report.as_ref().map(|report| report.pid),
        transport: report.as_ref().map(|report| report.transport.clone()),
        threads: report.as_ref().map(|report| report.threads),
        low_priority_threads: report.as_ref().map(|report| report.low_priority_threads),
        parked: report.as_ref().map(|report| report.parked.clone()),
        passthrough: report.as_ref().map(passthrough),
        kernel: report.as_ref().map(|report| report.kernel.clone()),
        security: report.as_ref().map(|report| report.security.clone()),
        survival: report.as_ref().and_then(|report| report.survival.clone()),
        trash_alarms: report.as_ref().map(|report| report.trash_alarms.clone()),
        read_caches: report.as_ref().map(|report| report.read_caches.clone()),
        options: report.as_ref().map(|report| report.options.clone()),
        tiering: TierStatus::of(&mounted.mountpoint, report.as_ref(), branches.iter().filter_map(space)),
        jobs: Jobs::default(),
        branches,
        disks: Vec::new(),
        sleep: sleep::look(report.iter().flat_map(|report| &report.disks)).map_err(probe_start_error)?,
        catalogue: report.as_ref().and_then(|report| report.catalogue),
        warnings: Vec::new(),
    };
    let given = report.map(|report| report.given).unwrap_or_default();
    status.warnings = warnings::warnings(&mut status, create.as_ref(), &given);
    if status.state == State::Serving {
        let query = probe::start("below", &mounted.mountpoint).map_err(probe_start_error)?;
        let hidden = probe::answer::<bool>(query, Instant::now() + PATIENCE).ok();
        status.warnings.extend(hidden.filter(|hidden| *hidden).map(|_| warnings::hidden_files(&status)));
    }
    Ok(status)
}

/// Returns the space of a branch that has answered.
fn space(branch: &BranchStatus) -> Option<BranchSpace> {
    let BranchFacts { filesystem, size, available, .. } = *branch.facts.as_ref()?;
    Some(BranchSpace { path: branch.path.to_path(), filesystem, size, available })
}

/// Returns the passthrough mode in effect.
fn passthrough(report: &PoolReport) -> String {
    let wanted = report.options.get("passthrough.io").map_or("off", String::as_str);
    let any = report.branches.iter().any(|branch| branch.passes_through);
    if any { wanted.to_owned() } else { "off".to_owned() }
}

fn branches(pool: &PoolReport, slowest: Duration) -> Result<Vec<BranchStatus>, Error> {
    let reports = &pool.branches;
    // Of a branch that is known not to answer, a query would only leave a process behind.
    let is_asked =
        |report: &&BranchReport| !matches!(answers(report), BranchState::Asleep | BranchState::Hung);
    let asked = reports.iter().filter(is_asked).map(|branch| branch.path.to_path()).collect();
    let mut of_asked = branches_at(asked, &pool.disks, slowest)?.into_iter();
    let sees_mounts = sees_mounts_of(pool.pid);
    let mut found = Vec::new();
    for report in reports {
        let unasked = || BranchStatus::new(report.path.clone(), Health::DoesNotAnswer);
        let mut branch = if is_asked(&report) { of_asked.next() } else { None }.unwrap_or_else(unasked);
        let status = &mut branch;
        status.mode = Some(report.mode.clone());
        status.min_free = Some(report.min_free);
        status.passes_through = Some(report.passes_through);
        status.illness = report.illness.clone();
        status.unwatched = report.unwatched.clone();
        status.unfinished_moves = report.unfinished_moves.clone();
        status.trash = Some(report.trash);
        status.trash_unusable = report.trash_unusable.clone();
        status.unreadable_copies = report.unreadable_copies;
        status.set_aside = report.set_aside;
        status.remembered.clone_from(&report.remembered);
        status.waits = report.waits.clone();
        if let Some(facts) = status.facts.as_mut().filter(|facts| facts.read_only && !sees_mounts) {
            let mounted = mount_lookup::mount_of(&report.path.to_path()).ok().flatten();
            facts.read_only = mounted.is_some_and(|it| it.has_read_only_filesystem());
        }
        status.health = health(report, status);
        if matches!(report.found(), BranchState::Gone | BranchState::Awaited) {
            // The directory at its path does not belong to the pool.
            (status.facts, status.passes_through) = (None, None);
        }
        found.push(branch);
    }
    Ok(found)
}

/// Returns whether mounts are for this process as they are for a daemon: for a unit with `ProtectSystem=`, all are read-only.
fn sees_mounts_of(pid: u32) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    namespace(&pid.to_string()).is_none_or(|daemons| namespace("self") == Some(daemons))
}

/// Returns what is the matter with a branch, as its daemon reports it and as `status` has found it now.
fn health(report: &BranchReport, status: &BranchStatus) -> Health {
    let reported = report.found();
    match (reported, answers(report)) {
        (BranchState::Gone, _) => return Health::Gone,
        (BranchState::Awaited, _) => {
            // It is there, and the pool does not use it: not because its disk is not mounted.
            let is_away = || fstab::away(&report.path.to_path()).is_some();
            return if status.facts.is_some() && !is_away() { Health::Gone } else { Health::Awaited };
        }
        (_, BranchState::Hung) => return Health::DoesNotAnswer,
        (_, BranchState::Asleep) => return Health::Asleep,
        (_, BranchState::Lagging) => return Health::Lagging,
        _ => {}
    }
    let Some(facts) = &status.facts else { return status.health };
    if (facts.dev, facts.ino) != (report.dev, report.ino) {
        Health::Replaced
    } else if (facts.read_only && report.mode != "RO") || reported == BranchState::ReadOnly {
        Health::ReadOnly
    } else if reported != BranchState::Up {
        Health::Failing
    } else if facts.errors.is_some_and(|errors| errors > 0) {
        Health::Errors
    } else {
        Health::Ok
    }
}

/// Returns how a branch answers, as its daemon says. One that is left out does not.
fn answers(report: &BranchReport) -> BranchState {
    if report.found() == BranchState::Hung { BranchState::Hung } else { report.answers() }
}

/// Queries branches. `slowest` is how long the slowest query of the same kind has taken so far.
fn branches_at(
    paths: Vec<PathBuf>,
    disks: &[RestReport],
    slowest: Duration,
) -> Result<Vec<BranchStatus>, Error> {
    let start = |path: &PathBuf| probe::start(sleep::query(disks, path), path);
    let mut queries =
        paths.iter().map(start).collect::<std::io::Result<Vec<_>>>().map_err(probe_start_error)?;
    // On a busy machine all of them take long.
    let began = Instant::now();
    let ended = |query: &mut RunningCommand| query.ended_before(began + LEAST_PATIENCE);
    let slowest = queries
        .iter_mut()
        .filter_map(ended)
        .map(|ended| ended.saturating_duration_since(began))
        .fold(slowest, Duration::max);
    let deadline = began + (slowest * SLOWER).clamp(LEAST_PATIENCE, PATIENCE);
    let status = |(path, query): (PathBuf, RunningCommand)| {
        let (health, facts, error) = match probe::answer::<BranchFacts>(query, deadline) {
            QueryOutcome::Answered(facts) => (Health::Ok, Some(facts), None),
            QueryOutcome::TimedOut => (Health::DoesNotAnswer, None, None),
            QueryOutcome::Failed(failure) => {
                let missing = failure.cause == Cause::Missing;
                let health = if missing { Health::Missing } else { Health::Unreachable };
                (health, None, Some(failure.why))
            }
        };
        BranchStatus { error, facts, ..BranchStatus::new(OsText::from(path.as_path()), health) }
    };
    Ok(paths.into_iter().zip(queries).map(status).collect())
}

/// Returns the paths that a process has open with O_PATH, in the order of the descriptors: a daemon's branches, among
/// others.
fn open_path_fds(pid: Pid) -> Vec<PathBuf> {
    const O_PATH: u32 = 0o10_000_000;
    let process = PathBuf::from(format!("/proc/{pid}"));
    let Ok(files) = fs::read_dir(process.join("fd")) else { return Vec::new() };
    let mut numbers: Vec<u32> =
        files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let is_path = |number: &u32| {
        let info = fs::read_to_string(process.join(format!("fdinfo/{number}"))).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & O_PATH != 0))
    };
    numbers
        .into_iter()
        .filter(is_path)
        .filter_map(|number| fs::read_link(process.join(format!("fd/{number}"))).ok())
        // A detached copy of a branch's mount, which the daemon uses for times, reads as `/`.
        .filter(|path| path != Path::new("/"))
        .collect()
}

/// Removes duplicates, and paths below other paths.
fn without_nested(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !found.iter().any(|other| path.starts_with(other)) {
            found.retain(|other| !other.starts_with(&path));
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_paths_are_removed() {
        let paths = ["/a/x", "/a", "/b", "/b", "/b/y", "/ab"].map(PathBuf::from).to_vec();
        assert_eq!(without_nested(paths), ["/a", "/b", "/ab"].map(PathBuf::from));
    }
}
