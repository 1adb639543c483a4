//! One look at a pool: what its daemon says, and what its branches and their disks have.

use crate::error::{Error, Result};
use crate::probe::{self, QueryOutcome};
use canopy_branch::branch::state::BranchState;
use canopy_config::source::named;
use canopy_control::metrics::MetricsReport;
use canopy_control::{BranchReport, PoolReport};
use canopy_sys::mountinfo::{self, MountEntry};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a daemon says of its pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonFigures {
    pub pool: PoolReport,
    /// `None` if it counts nothing: an older version, or one that does not answer now.
    pub metrics: Option<MetricsReport>,
}

/// What a branch's filesystem has, in bytes and inodes, for users other than root.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BranchSpace {
    pub size: u64,
    pub available: u64,
    /// 0 if the filesystem does not count them.
    pub inodes: u64,
    pub inodes_free: u64,
    /// Its disks, by their numbers in /sys/dev/block.
    pub disks: Vec<String>,
}

/// Returns what the daemon of a mount has published because branches do not answer, and how old that is.
pub type Published = fn(&MountEntry) -> Option<(Vec<u8>, Duration)>;

/// What was seen of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) mountpoint: PathBuf,
    pub(crate) at: Instant,
    /// `None` if the daemon does not answer, or the pool is not mounted.
    pub(crate) daemon: Option<DaemonFigures>,
    /// In the order of the daemon's list.
    pub(crate) branches: Vec<BranchObservation>,
    pub(crate) process: Option<Process>,
}

/// What was seen of a branch.
#[derive(Clone, Debug)]
pub(crate) struct BranchObservation {
    /// `None` if the branch did not answer in time, or is known not to.
    pub(crate) space: Option<BranchSpace>,
    pub(crate) disks: Vec<Disk>,
}

/// What the block layer has counted for a disk since it was attached (Documentation/block/stat.rst).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Disk {
    /// Its name in /dev.
    pub(crate) name: String,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// For how long it had requests to answer.
    pub(crate) busy: Duration,
}

/// What the daemon's process uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) resident_bytes: u64,
    pub(crate) cpu: Duration,
}

/// Returns whether the branch can be asked: a question to one that does not answer would only leave a process behind.
fn can_be_asked(branch: &BranchReport) -> bool {
    use BranchState::{Asleep, Awaited, Gone, Hung};
    !matches!(branch.state(), Hung | Asleep | Gone | Awaited)
}

/// The most time that a daemon has to answer, and then all of its branches together.
const PATIENCE: Duration = Duration::from_secs(3);
const BRANCH_PATIENCE: Duration = Duration::from_secs(1);
/// A daemon publishes every second while branches do not answer. One that is stopped says nothing new.
const RECENT: Duration = Duration::from_secs(3);
/// How often to look whether the daemon has published something, while it does not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Looks at one pool again and again.
pub(crate) struct Observer {
    mountpoint: PathBuf,
    published: Published,
    /// For how long an answer of the branches counts.
    fresh_for: Duration,
    /// The last answer, by the paths of the branches, and when they were asked.
    spaces: Vec<(PathBuf, Option<BranchSpace>)>,
    asked: Option<Instant>,
}

impl Observer {
    pub(crate) fn new(mountpoint: PathBuf, published: Published, fresh_for: Duration) -> Observer {
        Observer { mountpoint, published, fresh_for, spaces: Vec::new(), asked: None }
    }

    /// Looks at the pool. Returns within a few seconds, whatever hangs.
    pub(crate) fn look(&mut self) -> Result<Observation> {
        let mounted = pool_at(&self.mountpoint)?;
        let daemon = mounted.map(|mounted| self.ask_daemon(&mounted)).transpose()?.flatten();
        let at = Instant::now();
        let mut branches = Vec::new();
        if let Some(figures) = &daemon {
            self.ask_branches(&figures.pool.branches)?;
            branches = figures.pool.branches.iter().map(|branch| self.branch(branch)).collect();
        }
        let process = daemon.as_ref().and_then(|figures| process(figures.pool.pid));
        Ok(Observation { mountpoint: self.mountpoint.clone(), at, daemon, branches, process })
    }

    fn ask_daemon(&self, mounted: &MountEntry) -> Result<Option<DaemonFigures>> {
        let mut query = probe::start("figures", &self.mountpoint).map_err(PROBE)?;
        let deadline = Instant::now() + PATIENCE;
        while query.ended_before((Instant::now() + LOOK_AGAIN).min(deadline)).is_none() {
            // The root of the pool may wait for a branch.
            if let Some(pool) = self.published(mounted) {
                // Ends the query.
                drop(query.output_before(Instant::now()));
                return Ok(Some(DaemonFigures { pool, metrics: None }));
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Ok(probe::answer(query, deadline).ok())
    }

    fn published(&self, mounted: &MountEntry) -> Option<PoolReport> {
        let (report, age) = (self.published)(mounted)?;
        (age < RECENT).then(|| serde_json::from_slice(&report).ok()).flatten()
    }

    /// Asks the branches what they have, unless they have answered a moment ago.
    fn ask_branches(&mut self, branches: &[BranchReport]) -> Result<()> {
        let paths = branches.iter().map(|branch| branch.path.to_path());
        let same = paths.clone().eq(self.spaces.iter().map(|(path, _)| path.clone()));
        if same && self.asked.is_some_and(|asked| asked.elapsed() < self.fresh_for) {
            return Ok(());
        }
        let is_asked = |branch: &&BranchReport| can_be_asked(branch);
        let asked: Vec<PathBuf> =
            branches.iter().filter(is_asked).map(|branch| branch.path.to_path()).collect();
        let mut queries =
            probe::start_all("space", asked.iter().map(PathBuf::as_path)).map_err(PROBE)?.into_iter();
        let deadline = Instant::now() + BRANCH_PATIENCE;
        let answer = |query| match probe::answer::<BranchSpace>(query, deadline) {
            QueryOutcome::Answered(space) => Some(space),
            QueryOutcome::Failed(_) | QueryOutcome::TimedOut => None,
        };
        let spaces = branches.iter().map(|branch| {
            let query = if is_asked(&branch) { queries.next() } else { None };
            query.and_then(answer)
        });
        self.spaces = paths.zip(spaces).collect();
        self.asked = Some(Instant::now());
        Ok(())
    }

    fn branch(&self, branch: &BranchReport) -> BranchObservation {
        let path = branch.path.to_path();
        let space = self.spaces.iter().find(|(known, _)| *known == path).and_then(|(_, space)| space.clone());
        let numbers = space.iter().flat_map(|space| &space.disks);
        let disks = numbers.filter_map(|number| disk(number)).collect();
        BranchObservation { space, disks }
    }
}

const PROBE: fn(std::io::Error) -> Error =
    |why| Error::System { what: "cannot start /proc/self/exe to look at pools and branches", why };

/// Returns the mountpoint that a name or a path means, whether a pool is mounted there or not.
pub(crate) fn mountpoint(word: &Path) -> Result<PathBuf> {
    let path = named::mountpoint(word)?;
    let absolute = || std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    Ok(mountinfo::listed_path(&path).unwrap_or_else(|_| absolute()))
}

/// Returns the mountpoints of all pools.
pub(crate) fn all_pools() -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for mounted in list()? {
        // A mount hides those that were there before.
        found.retain(|pool| *pool != mounted.mountpoint);
        if mounted.is_pool() {
            found.push(mounted.mountpoint);
        }
    }
    Ok(found)
}

/// Returns the pool that is mounted there, if there is one.
pub(crate) fn pool_at(mountpoint: &Path) -> Result<Option<MountEntry>> {
    let mounted = list()?.into_iter().rev().find(|mounted| mounted.mountpoint == mountpoint);
    Ok(mounted.filter(MountEntry::is_pool))
}

fn list() -> Result<Vec<MountEntry>> {
    mountinfo::list().map_err(Error::system("cannot read /proc/self/mountinfo"))
}

/// Reads the counters of a disk; `None` once it is missing. Does not touch the disk.
fn disk(number: &str) -> Option<Disk> {
    // A link to the directory of the disk, named as the disk.
    let dir = fs::canonicalize(Path::new("/sys/dev/block").join(number)).ok()?;
    let name = dir.file_name()?.to_str()?.to_owned();
    parse_disk(name, &fs::read_to_string(dir.join("stat")).ok()?)
}

fn parse_disk(name: String, stat: &str) -> Option<Disk> {
    /// Whatever the sectors of the disk are.
    const SECTOR: u64 = 512;
    let fields: Vec<u64> = stat.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(Disk {
        name,
        read_bytes: fields.get(2)? * SECTOR,
        written_bytes: fields.get(6)? * SECTOR,
        busy: Duration::from_millis(*fields.get(9)?),
    })
}

/// Returns what a process uses, if that can be read.
fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = rustix::param::clock_ticks_per_second();
    parse_process(&stat, rustix::param::page_size() as u64, ticks)
}

/// Parses /proc/PID/stat (proc_pid_stat(5)).
fn parse_process(stat: &str, page: u64, ticks: u64) -> Option<Process> {
    // The second field is a name in parentheses, which may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let used = field(14)? + field(15)?;
    let cpu = Duration::from_secs_f64(used as f64 / ticks.max(1) as f64);
    Some(Process { resident_bytes: field(24)? * page, cpu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_kernel() {
        let stat = "  10  1  200  3   20  4  500  6   7  8000  9   30 0 0 0   40 0\n";
        let expected = Disk {
            name: "sda".into(),
            read_bytes: 200 * 512,
            written_bytes: 500 * 512,
            busy: Duration::from_secs(8),
        };
        assert_eq!(parse_disk("sda".into(), stat), Some(expected));
        assert_eq!(parse_disk("sda".into(), "1 2 3"), None);

        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 1000 99999 300 18446744073709551615 1";
        let expected = Process { resident_bytes: 300 * 4096, cpu: Duration::from_secs(3) };
        assert_eq!(parse_process(stat, 4096, 100), Some(expected));
        assert_eq!(parse_process("7 (a)", 4096, 100), None);
        assert!(process(std::process::id()).is_some_and(|own| own.resident_bytes > 4096));
    }
}
