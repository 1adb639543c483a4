//! `canopy status`: the pools of this machine, their branches, and what is not as it should be.
//!
//! Every question that a disk or a daemon may leave unanswered is asked by a process of its own ([`probe`]),
//! all at once, with one deadline: a hung branch is told as one.

pub mod model;
mod render;
mod warnings;

use self::model::{BranchStatus, Health, PoolStatus, State, Status};
use super::probe::{self, Answer, BranchFacts, Cause};
use crate::deadline_command::RunningCommand;
use crate::error::Error;
use crate::terminal;
use canopy_config::control_api::{BranchReport, ExplainReport, OsText, PoolReport};
use canopy_server::badge;
use canopy_sys::mountinfo::{self, MountEntry};
use clap::Args;
use rustix::process::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Show pools, their branches, and what is wrong with them
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct StatusArgs {
    /// A pool's mountpoint; all pools when left out
    pub mount: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
Each warning comes with its mend. A branch or pool that does not answer within
three seconds is told as such. FREE is what users may fill; USED counts what is
reserved for root as well.";

/// How long a pool, and then its branches, have to answer.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(args: &StatusArgs) -> Result<(), Error> {
    let status = Status { linux: release(), pools: pools(args.mount.as_deref())? };
    if args.json {
        terminal::print_json(&status);
    } else {
        terminal::print_styled(&render::status(&status));
    }
    Ok(())
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// All pools, or the one mounted there.
fn pools(mount: Option<&Path>) -> Result<Vec<PoolStatus>, Error> {
    let listed = mountinfo::list().map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    let chosen: Vec<MountEntry> = match mount {
        None => topmost_pools(listed),
        Some(path) => {
            let path = mountinfo::listed_path(path).map_err(|_| Error::NoPool(path.to_owned()))?;
            let mounted = listed.into_iter().rev().find(|mounted| mounted.mountpoint == path);
            vec![mounted.filter(MountEntry::is_pool).ok_or(Error::NoPool(path))?]
        }
    };
    let ask = |mounted: &MountEntry| probe::start("pool", &mounted.mountpoint);
    let asked: Vec<_> = chosen.iter().map(ask).collect::<Result<_, _>>().map_err(probe_start_error)?;
    let deadline = Instant::now() + PATIENCE;
    let mut pools = Vec::new();
    for (mounted, asked) in chosen.into_iter().zip(asked) {
        let (state, error, told) = match probe::answer::<PoolReport>(asked, deadline) {
            Answer::Answered(told) => (State::Serving, None, Some(told)),
            Answer::TimedOut => (State::DoesNotAnswer, None, None),
            Answer::Failed(failure) => match failure.cause {
                Cause::Ended => (State::Ended, None, None),
                Cause::Mute => (State::Mute, None, None),
                // Of the same type, and none of ours.
                Cause::Foreign if mount.is_none() => continue,
                Cause::Foreign => return Err(Error::NotCanopy(mounted.mountpoint)),
                Cause::Missing | Cause::Other => (State::Unreachable, Some(failure.why), None),
            },
        };
        pools.push((mounted, state, error, told));
    }
    pools.into_iter().map(|(mounted, state, error, told)| pool(mounted, state, error, told)).collect()
}

fn probe_start_error(why: std::io::Error) -> Error {
    Error::System { what: "cannot start /proc/self/exe to look at pools and branches", why }
}

/// One a mountpoint: what is mounted over is out of reach.
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
    told: Option<PoolReport>,
) -> Result<PoolStatus, Error> {
    let branches = match &told {
        Some(told) => branches(&told.branches)?,
        // A daemon that is stuck still holds its branches open.
        None if state == State::DoesNotAnswer => {
            let held = badge::servers_of(&mounted).into_iter().flat_map(open_path_fds).collect();
            branches_at(without_nested(held))?
        }
        None => Vec::new(),
    };
    // To answer, the daemon asks its branches: not while one of them would keep a thread of it waiting.
    let hangs = branches.iter().any(|branch| branch.health == Health::DoesNotAnswer);
    let create = match told.is_some() && !hangs {
        true => {
            let asked = probe::start("create", &mounted.mountpoint).map_err(probe_start_error)?;
            probe::answer::<ExplainReport>(asked, Instant::now() + PATIENCE).ok()
        }
        false => None,
    };
    let mut status = PoolStatus {
        mountpoint: OsText::from(mounted.mountpoint.as_path()),
        fstype: mounted.fstype,
        source: OsText::from(mounted.source.as_os_str()),
        state,
        error,
        version: told.as_ref().map(|told| told.version.clone()),
        pid: told.as_ref().map(|told| told.pid),
        transport: told.as_ref().map(|told| told.transport.clone()),
        threads: told.as_ref().map(|told| told.threads),
        passthrough: told.as_ref().map(passthrough),
        kernel: told.as_ref().map(|told| told.kernel.clone()),
        security: told.as_ref().map(|told| told.security.clone()),
        options: told.as_ref().map(|told| told.options.clone()),
        branches,
        warnings: Vec::new(),
    };
    let given = told.map(|told| told.given).unwrap_or_default();
    status.warnings = warnings::warnings(&mut status, create.as_ref(), &given);
    Ok(status)
}

/// What is passed through now.
fn passthrough(told: &PoolReport) -> String {
    let wanted = told.options.get("passthrough.io").map_or("off", String::as_str);
    let any = told.branches.iter().any(|branch| branch.passes_through);
    if any { wanted.to_owned() } else { "off".to_owned() }
}

fn branches(told: &[BranchReport]) -> Result<Vec<BranchStatus>, Error> {
    let mut found = branches_at(told.iter().map(|branch| branch.path.to_path()).collect())?;
    for (status, told) in found.iter_mut().zip(told) {
        status.mode = Some(told.mode.clone());
        status.min_free = Some(told.min_free);
        status.passes_through = Some(told.passes_through);
        status.illness = told.illness.clone();
        status.unwatched = told.unwatched.clone();
        if told.illness.as_ref().is_some_and(|illness| illness.health == "gone") {
            // What is in its place by now is none of the pool's.
            (status.health, status.facts, status.passes_through) = (Health::Gone, None, None);
        }
        if told.awaited {
            (status.health, status.facts, status.passes_through) = (Health::Awaited, None, None);
        }
        let Some(facts) = &status.facts else { continue };
        let is_told = |health: &str| told.illness.as_ref().is_some_and(|illness| illness.health == health);
        status.health = if (facts.dev, facts.ino) != (told.dev, told.ino) {
            Health::Replaced
        } else if (facts.read_only && told.mode != "RO") || is_told("read-only") {
            Health::ReadOnly
        } else if told.illness.is_some() {
            Health::Failing
        } else if facts.errors.is_some_and(|errors| errors > 0) {
            Health::Errors
        } else {
            Health::Ok
        };
    }
    Ok(found)
}

fn branches_at(paths: Vec<PathBuf>) -> Result<Vec<BranchStatus>, Error> {
    let asked: Vec<_> = paths
        .iter()
        .map(|path| probe::start("branch", path))
        .collect::<Result<_, _>>()
        .map_err(probe_start_error)?;
    let deadline = Instant::now() + PATIENCE;
    let look = |(path, asked): (PathBuf, RunningCommand)| {
        let (health, facts, error) = match probe::answer::<BranchFacts>(asked, deadline) {
            Answer::Answered(facts) => (Health::Ok, Some(facts), None),
            Answer::TimedOut => (Health::DoesNotAnswer, None, None),
            Answer::Failed(failure) => {
                let missing = failure.cause == Cause::Missing;
                let health = if missing { Health::Missing } else { Health::Unreachable };
                (health, None, Some(failure.why))
            }
        };
        let path = OsText::from(path.as_path());
        BranchStatus {
            path,
            mode: None,
            min_free: None,
            passes_through: None,
            health,
            error,
            illness: None,
            unwatched: None,
            facts,
        }
    };
    Ok(paths.into_iter().zip(asked).map(look).collect())
}

/// What a process holds open for its place alone (O_PATH), in the order in which it was opened: a daemon's
/// branches, and whatever else it looks at.
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
        // The root of a mount that is nowhere in the tree reads so: a copy of a branch's mount (`pool/src/times.rs`).
        .filter(|path| path != Path::new("/"))
        .collect()
}

/// Each once, and none that lies below another.
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
    fn what_lies_below_another_is_no_branch() {
        let paths = ["/a/x", "/a", "/b", "/b", "/b/y", "/ab"].map(PathBuf::from).to_vec();
        assert_eq!(without_nested(paths), ["/a", "/b", "/ab"].map(PathBuf::from));
    }
}
