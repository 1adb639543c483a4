//! The control interface of a running pool, for the server and its clients: [`messages`] over a [`socket`], and the control file,
//! which has the same as names of keys and JSON.
//!
//! Keys are extended attributes. Those of the control file show and change the pool; a few others belong to every file
//! and directory. [`STATUS`] of the control file is a [`PoolReport`], and [`METRICS`] a [`metrics::MetricsReport`]. [`EXPLAIN`] with a function, and for some functions
//! a slash and a name, is an [`ExplainReport`] of any file or directory.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod calm;
pub mod daemon;
pub mod messages;
pub mod metrics;
pub mod mount;
mod os_text;
pub mod read_cache;
pub mod socket;

pub use os_text::OsText;

use canopy_branch::branch::state::BranchState;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The name of the control file in the root of a pool.
pub const CONTROL_FILE: &str = ".mergerfs";
/// The prefix that turns a key into the name of its attribute.
pub const PREFIX: &str = "user.mergerfs.";

/// Control file: a [`PoolReport`].
pub const STATUS: &str = "canopy.status";
/// Control file: a [`metrics::MetricsReport`].
pub const METRICS: &str = "canopy.metrics";
/// Control file: the version of the server.
pub const VERSION: &str = "version";
/// Control file: the process id of the server.
pub const PID: &str = "pid";
/// Control file: the paths of the branches, joined by colons.
pub const SRCMOUNTS: &str = "srcmounts";
/// Control file: the prefix of keys whose value is a [`ClosedReport`]. A number follows, that of the report before or 0.
pub const CLOSED: &str = "canopy.closed.";
/// Control file: the prefix of keys that run a command.
pub const COMMAND: &str = "cmd.";
/// The keys of the control file that are not options. They cannot be set.
pub const READ_ONLY: [&str; 3] = [VERSION, PID, SRCMOUNTS];

/// Any file: the prefix of keys whose value is an [`ExplainReport`].
pub const EXPLAIN: &str = "canopy.explain.";
/// Any file: a [`CopiesReport`].
pub const COPIES: &str = "canopy.copies";
/// Any file: the path of its branch.
pub const BASEPATH: &str = "basepath";
/// Any file: its path in the pool.
pub const RELPATH: &str = "relpath";
/// Any file: its path on its branch.
pub const FULLPATH: &str = "fullpath";
/// Any file: its paths on all branches that hold it, joined by NUL.
pub const ALLPATHS: &str = "allpaths";
/// Any file: `MAJOR:MINOR INODE PATH` of the file on its branch, for the preload library.
pub const PLACE: &str = "place";

/// The largest value of an attribute, and the largest list of names (XATTR_SIZE_MAX, XATTR_LIST_MAX).
pub const LARGEST_VALUE: usize = 65_536;
/// The longest key: XATTR_NAME_MAX without the prefix.
pub const LONGEST_KEY: usize = 255 - PREFIX.len();

/// Returns the name of the attribute of a key.
pub fn attribute(key: &str) -> String {
    format!("{PREFIX}{key}")
}

/// Returns the key of an attribute, which need not be UTF-8; `None` if the attribute is not part of the control interface.
pub fn key_of(attribute: &[u8]) -> Option<&[u8]> {
    attribute.strip_prefix(PREFIX.as_bytes())
}

/// Returns the path of the control file of the pool at a mountpoint.
pub fn control_file(mountpoint: &Path) -> PathBuf {
    mountpoint.join(CONTROL_FILE)
}

/// Reads a key of a file in a pool.
pub fn read(path: &Path, key: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; LARGEST_VALUE];
    let length = rustix::fs::getxattr(path, attribute(key), value.as_mut_slice())?;
    value.truncate(length);
    Ok(value)
}

/// Files that may lack copies which a rule wants, since another such report.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClosedReport {
    /// To ask with the next time.
    pub upto: u64,
    /// There were others, which are not remembered.
    pub lost: bool,
    /// Paths in the pool.
    pub paths: Vec<OsText>,
}

/// What the branches hold under one path, and which copies are up to date, as far as rules about copies know.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CopiesReport {
    /// In the order of the branches.
    pub copies: Vec<CopyReport>,
    /// The errno for which it cannot be told which copies are up to date, and the branch that gave it, if one did.
    pub failed: Option<(i32, Option<OsText>)>,
}

/// The copy on one branch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyReport {
    pub branch: OsText,
    pub current: bool,
    /// It is known to be a copy of the others, as a rule has made it. All others are files of the same name.
    pub known: bool,
}

/// What the daemon of a pool knows without accessing a branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolReport {
    pub version: String,
    pub pid: u32,
    /// How requests arrive: `dev-fuse` or `io-uring`.
    pub transport: String,
    /// Worker threads.
    pub threads: usize,
    /// How many of them run only while their processor has nothing else to do (`worker-priority`).
    #[serde(default)]
    pub low_priority_threads: usize,
    /// Requests that wait for something else than a disk, without a worker.
    #[serde(default)]
    pub parked: Vec<ParkedReport>,
    /// Files that may lack a copy which a rule wants have numbers: the one before the first that is remembered, and the last.
    #[serde(default)]
    pub closed: (u64, u64),
    /// What kernel and daemon have negotiated.
    pub kernel: KernelReport,
    /// Every option that has a value, by name.
    pub options: BTreeMap<String, String>,
    /// The names of options that were set.
    pub given: Vec<String>,
    pub branches: Vec<BranchReport>,
    /// The privileges and restrictions of the daemon. Older versions do not report them.
    #[serde(default)]
    pub security: SecurityReport,
    /// How the pool outlives the process that serves it; `None` if it does not.
    #[serde(default)]
    pub survival: Option<SurvivalReport>,
    /// The disks below the branches, by name.
    #[serde(default)]
    pub disks: Vec<RestReport>,
    /// What is known of the branches without reading them; `None` if nothing is kept.
    #[serde(default)]
    pub catalogue: Option<CatalogueReport>,
    /// Programs that have removed or overwritten more than a rule of the trash allows.
    #[serde(default)]
    pub trash_alarms: Vec<TrashAlarm>,
    /// The directories with copies that files are read from.
    #[serde(default)]
    pub read_caches: Vec<ReadCacheReport>,
}

/// A directory with copies that files are read from. Counts begin with the process that serves the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCacheReport {
    pub path: OsText,
    pub files: u64,
    /// What the copies take.
    pub bytes: u64,
    /// Opens of files that were read from a copy here, and the sizes of these files.
    pub hits: u64,
    pub hit_bytes: u64,
    /// Opens of files of the cache without a copy, and their sizes. They count in the first directory of a cache.
    pub misses: u64,
    pub missed_bytes: u64,
    /// What was read from copies here.
    pub read_bytes: u64,
    /// Why the directory is not used.
    pub unusable: Option<String>,
}

/// Requests that wait for one kind of cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedReport {
    /// `lease`: a process holds a lease on a file that it has opened by its path on a branch; `move`: the file is being moved or
    /// copied; `search`: a branch is searched for the file of a handle.
    pub cause: String,
    /// How many leases, moves or searches there are.
    pub causes: usize,
    pub requests: usize,
    /// How many users have made them.
    pub users: usize,
    /// Since when the first one waits, in seconds since the epoch.
    pub since: u64,
}

/// The processes that have served a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SurvivalReport {
    /// Another process takes over from one that was killed; else only from one that hands over, for an upgrade or after a crash.
    #[serde(default = "yes")]
    pub deaths: bool,
    /// How often another process has taken over from one that died.
    pub takeovers: u64,
    /// How the last one ended that died, in words.
    pub last_death: Option<String>,
    /// How long nobody served then, and the longest time ever, upgrades included, in milliseconds.
    pub pause_ms: f64,
    pub longest_pause_ms: f64,
    /// How often another program has taken over (`canopy upgrade`), and how long nobody served at the last time.
    #[serde(default)]
    pub upgrades: u64,
    #[serde(default)]
    pub upgrade_pause_ms: f64,
    /// How often another program did not, and why at the last time, in words.
    #[serde(default)]
    pub refused_upgrades: u64,
    #[serde(default)]
    pub last_refusal: Option<String>,
    /// The form of what the process that serves leaves to the next. Only a program with the same form can take over.
    #[serde(default)]
    pub form: u64,
    /// Where relative paths of its command line start.
    #[serde(default)]
    pub directory: Option<OsText>,
}

/// Programs that did not tell it had no other pools.
fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SecurityReport {
    /// The effective capabilities, by their names in lower case (capabilities(7)).
    pub capabilities: Vec<String>,
    /// Workers cannot gain privileges by executing a program.
    pub no_new_privs: bool,
    /// Workers are restricted to the branches.
    pub landlock: bool,
    /// The pool has found an ACL that is not enforced.
    #[serde(default)]
    pub unheeded_acls: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelReport {
    /// The version of the FUSE protocol, such as `7.45`.
    pub protocol: String,
    /// Features in use, by the kernel's names in lower case.
    pub features: Vec<String>,
    /// Features that were requested but that this kernel does not offer.
    pub missing: Vec<String>,
    /// 0 without passthrough.
    pub max_stack_depth: u32,
    /// What it must do for long caches, and was not seen to do.
    #[serde(default)]
    pub unproved: Vec<UnprovedReport>,
}

/// Something that the kernel must do for what it is allowed to cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnprovedReport {
    /// `absence`, `all`, `names`, `attributes`, `listings` or `passed-sizes`.
    pub behaviour: String,
    /// What the kernel does instead, to follow "the kernel".
    pub fault: String,
    /// What follows.
    pub follows: String,
    /// False where it could not be tried.
    pub tried: bool,
}

impl UnprovedReport {
    /// Returns a sentence for people, and what to do.
    #[must_use]
    pub fn advice(&self) -> (String, String) {
        let (whether, fix) = if self.tried {
            ("", "use another kernel: with this one the pool is as correct, but slower")
        } else {
            ("it could not be tried whether ", "mount the pool again, and see the log for why it fails")
        };
        (format!("{whether}the kernel {}: {}", self.fault, self.follows), fix.into())
    }
}

/// Returns a sentence about copies that a branch could not read, and what to do; nothing if there are none.
#[must_use]
pub fn advice_on_unreadable(copies: usize, pool: &OsText, branch: &OsText) -> Option<(String, String)> {
    let (pool, branch) = (pool.one_line(), branch.one_line());
    let copies = match copies {
        0 => return None,
        1 => "1 copy of a file".to_owned(),
        copies => format!("{copies} copies of files"),
    };
    let text =
        format!("{branch} could not read {copies}: clients get another one, and the mover makes it again");
    let fix = format!(
        "look at the disk (dmesg | tail; smartctl -a); canopy tier {pool} --once makes copies now, canopy verify {pool} looks \
         for more that cannot be read"
    );
    Some((text, fix))
}

/// Returns a sentence about copies that gave way on a branch, and what to do; nothing if there are none.
#[must_use]
pub fn advice_on_set_aside(names: u64, pool: &OsText, branch: &OsText) -> Option<(String, String)> {
    let (pool, branch) = (pool.one_line(), branch.one_line());
    (names > 0).then_some(())?;
    let files = if names == 1 { "a file".to_owned() } else { format!("{names} files") };
    let text = format!(
        "{files} on {branch} changed while the other disks were away, and the copies on these changed without it: the pool shows \
         the newer copy and keeps the other"
    );
    let fix = format!(
        "canopy copies {pool} lists what is kept, and --put-back brings it back; when you need none of it, remove \
         {branch}/.canopy-aside"
    );
    Some((text, fix))
}

/// A program that has removed or overwritten more than a rule of the trash allows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrashAlarm {
    /// `None` if it is not known.
    pub user: Option<u32>,
    /// The name of the program; empty if it is not known.
    pub program: OsText,
    /// How many files it has removed or overwritten, and how often it was stopped.
    pub files: u64,
    pub refused: u64,
    /// The directory of the pool that is above all of them.
    pub path: OsText,
    /// In seconds since the epoch.
    pub since: u64,
    /// It gets an error until somebody lets it go.
    pub frozen: bool,
}

impl TrashAlarm {
    /// Returns a sentence for people, and what to do, given the mountpoint.
    #[must_use]
    pub fn advice(&self, pool: &OsText) -> (String, String) {
        let (program, path, pool) = (self.program.one_line(), self.path.one_line(), pool.one_line());
        let (program, filter) = if program.is_empty() {
            ("a program that is not known".to_owned(), String::new())
        } else {
            (program.clone(), format!(" --program {program}"))
        };
        let user = self.user.map_or_else(String::new, |user| format!(" of user {user}"));
        let by_user = self.user.map_or_else(String::new, |user| format!(" --user {user}"));
        let below = if path.is_empty() { String::new() } else { format!(" below {path}") };
        let since = canopy_base::text::date(i64::try_from(self.since).unwrap_or(i64::MAX));
        let stopped = if self.frozen {
            format!("; it is stopped, and was {} times", self.refused)
        } else {
            String::new()
        };
        let text = format!(
            "{program}{user} has removed or overwritten {} files{below}, too many since {since}{stopped}",
            self.files
        );
        let ends = if self.frozen { "lets it go on" } else { "ends the alarm" };
        (
            text,
            format!(
                "canopy trash list {pool}{by_user}{filter} shows what it has removed, and restore brings it back; canopy trash \
                 thaw {pool}{by_user}{filter} {ends}"
            ),
        )
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BranchReport {
    pub path: OsText,
    /// `RW`, `RO` or `NC`.
    pub mode: String,
    /// The minfreespace in effect, in bytes.
    pub min_free: u64,
    /// The device and inode of the directory that the daemon holds open; 0 if it holds none.
    pub dev: u64,
    pub ino: u64,
    /// Whether files on it can be passed through.
    pub passes_through: bool,
    /// What is wrong with the branch, if the pool has found anything.
    #[serde(default)]
    pub illness: Option<IllnessReport>,
    /// How it answers, if operations had to wait for it.
    #[serde(default)]
    pub waits: Option<WaitReport>,
    /// Why its changes cannot be watched, if that should be possible or was asked for.
    #[serde(default)]
    pub unwatched: Option<String>,
    /// What is the matter with moves to it that were cut off and are not finished.
    #[serde(default)]
    pub unfinished_moves: Vec<String>,
    /// Bytes that its trash takes, as far as they are counted.
    #[serde(default)]
    pub trash: u64,
    /// Why nothing is kept in its trash, if a rule wants that.
    #[serde(default)]
    pub trash_unusable: Option<String>,
    /// How many copies of files its disk could not read while another copy could be read, and are still to be made again.
    #[serde(default)]
    pub unreadable_copies: usize,
    /// How many names have given way there that were changed on it alone, and elsewhere without it.
    #[serde(default)]
    pub set_aside: u64,
    /// The branch does not exist yet and joins the pool when it appears.
    #[serde(default)]
    pub awaited: bool,
    /// What is remembered of it (`missing=remember`).
    #[serde(default)]
    pub remembered: Option<RememberedReport>,
}

impl BranchReport {
    /// Returns what the pool has found the branch to be: up, read-only, failing, hung, gone or awaited.
    #[must_use]
    pub fn found(&self) -> BranchState {
        match &self.illness {
            _ if self.awaited => BranchState::Awaited,
            None => BranchState::Up,
            // Whatever another version calls it, the pool does not rely on it.
            Some(illness) => BranchState::of_word(&illness.health).unwrap_or(BranchState::Failing),
        }
    }

    /// Returns how it answers those who wait for it: up, lagging, asleep or hung.
    #[must_use]
    pub fn answers(&self) -> BranchState {
        let of = |waits: &WaitReport| BranchState::of_word(&waits.answers).unwrap_or(BranchState::Lagging);
        self.waits.as_ref().map_or(BranchState::Up, of)
    }

    /// Returns the worse of both.
    #[must_use]
    pub fn state(&self) -> BranchState {
        self.found().max(self.answers())
    }
}

/// What is known of a branch for the time when it is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedReport {
    /// Directories that were read, names in them, and directories of which it is unknown what they hold now.
    pub directories: u64,
    pub names: u64,
    pub unknown: u64,
    /// All of it has been read.
    pub whole: bool,
    /// It is missing, and its names are shown.
    pub shown: bool,
    /// The file in which it is.
    pub file: OsText,
}

impl RememberedReport {
    /// Says how it ends that the names of a missing branch are shown; nothing of one that is there.
    #[must_use]
    pub fn ends(&self, pool: &str, branch: &str) -> String {
        if !self.shown {
            String::new()
        } else if self.directories == 0 {
            format!(
                "; what it holds was never read, so listings end with an error (canopy forget {pool} {branch} ends that)"
            )
        } else {
            format!(
                "; canopy lost {pool} {branch} lists its names, which stay until it is back or canopy forget {pool} {branch}"
            )
        }
    }
}

/// Why a pool does not rely on a branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IllnessReport {
    /// `read-only`, `failing`, `gone` or `hung`.
    pub health: String,
    /// Seconds since the epoch.
    pub since: u64,
    /// The error that caused it.
    pub cause: String,
}

/// How a branch answers that operations have to wait for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaitReport {
    /// `lagging`: after more than a second; `asleep`: its disk most likely spins up; `hung`: not at all.
    pub answers: String,
    /// When it last answered, in seconds since the epoch.
    pub since: u64,
    /// How many requests wait for it.
    pub requests: usize,
    /// After how many seconds they fail and the branch is left out; `None`: never.
    #[serde(default)]
    pub deadline: Option<u64>,
    /// What the kernel's block layer says of its disks; empty for a branch without a disk.
    pub disks: Vec<DiskReport>,
}

/// What the kernel's block layer says of a disk (`/sys/block/*/inflight` and `stat`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskReport {
    /// The name in /dev.
    pub name: String,
    /// Requests that it has not answered; null if the disk is missing.
    pub reads_in_flight: Option<u64>,
    pub writes_in_flight: Option<u64>,
    /// For how many seconds it has completed no request.
    pub idle: u64,
    /// What its driver calls its state, such as `offline`; null if that is a good one.
    pub state: Option<String>,
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, idle) = (&self.name, self.idle);
        let (Some(reads), Some(writes)) = (self.reads_in_flight, self.writes_in_flight) else {
            return write!(f, "disk {name} is missing");
        };
        write!(f, "disk {name}")?;
        if let Some(state) = &self.state {
            write!(f, " is {state} and")?;
        }
        match reads + writes {
            0 => write!(f, " has no requests in flight"),
            _ => write!(
                f,
                " has {reads} reads and {writes} writes in flight, and has completed none for {idle} s"
            ),
        }
    }
}

impl fmt::Display for SecurityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.capabilities.as_slice() {
            [] => write!(f, "no capabilities")?,
            some => write!(f, "capabilities {}", some.join(", "))?,
        }
        let privileges = if self.no_new_privs { "; no new privileges" } else { "" };
        write!(f, "{privileges}; landlock {}", if self.landlock { "on" } else { "off" })
    }
}

/// A disk, or what else a branch's filesystem is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestReport {
    /// Its name in /dev.
    pub name: String,
    pub branches: Vec<OsText>,
    /// A disk that never sleeps, because nothing in it turns.
    pub solid: bool,
    /// The kernel has put it to sleep.
    pub suspended: bool,
    /// It has had nothing to do for so long that it may sleep.
    pub rests: bool,
    /// When it was last seen to do something, or else since when it is looked at, in seconds since the epoch.
    pub since: u64,
    /// How often it was woken, for how many seconds it had rested before that in all, and by whom the last times, the latest first.
    pub woken: u64,
    #[serde(default)]
    pub rested: u64,
    pub wakes: Vec<WakeReport>,
}

/// A disk that rested has done something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeReport {
    /// In seconds since the epoch.
    pub at: u64,
    /// For how many seconds it had done nothing.
    pub rested: u64,
    /// `client`: an operation of the pool that waited for the disk; `later`: one that changed or opened something shortly before;
    /// `pool`: the daemon of its own accord; `outside`: none of these, so a program past the pool, or one that has had a file open
    /// for long.
    pub by: String,
    /// The name of the process and its id, as far as the daemon could see them.
    pub program: Option<OsText>,
    pub pid: Option<u32>,
    /// The kernel's name in lower case, such as `lookup`; of the daemon, what it did.
    pub operation: Option<String>,
    /// In the pool. Only for who may learn the names of files.
    pub path: Option<OsText>,
}

/// How much is known of the branches without reading them (`catalogue`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogueReport {
    /// It is relied on now: all branches are watched.
    pub relied_on: bool,
    pub directories: u64,
    /// In its file, and the most there.
    pub bytes: u64,
    pub bound: u64,
    /// Of the questions that could be answered from it, so many were, and so many were put to the branches.
    pub answered: u64,
    pub asked: u64,
    /// What was known before, and is looked at again.
    #[serde(default)]
    pub verifying: Option<VerifyingReport>,
}

/// How far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyingReport {
    /// So many directories, of so many.
    pub done: u64,
    pub total: u64,
    /// It waits, because a disk may sleep.
    pub waits_for_disk: bool,
}

/// What a policy would choose, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainReport {
    pub func: String,
    /// `action`, `create` or `search`.
    pub category: String,
    pub policy: String,
    /// The path whose presence on the branches counts, relative to the root of the pool.
    pub looked_at: OsText,
    /// Rename and link keep a file on branches that hold the parent directory of its new name.
    pub preserves_paths: bool,
    /// The choice is random and can differ next time.
    pub by_chance: bool,
    /// The branches that the function would act on; empty if it would fail.
    pub chosen: Vec<OsText>,
    pub error: Option<ExplainError>,
    /// In branch order.
    pub branches: Vec<BranchVerdict>,
    /// What tiers and rules say of a new file; null if none concerns it.
    #[serde(default)]
    pub placement: Option<PlacementReport>,
}

/// The sets of branches among which the policy chooses, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlacementReport {
    /// The path of the rule that decided; null if it was the tiers alone.
    pub rule: Option<String>,
    /// How many copies the rule wants; null if it does not say.
    #[serde(default)]
    pub copies: Option<u8>,
    /// Empty if all branches are alike.
    pub sets: Vec<SetReport>,
}

impl PlacementReport {
    /// Says why a branch is not considered.
    pub fn why_not(&self, branch: &OsText) -> String {
        match self.sets.iter().rev().find(|set| set.branches.contains(branch)) {
            Some(set) => format!("not asked: it belongs to {}", set.name),
            None => "not among the branches of the rule".into(),
        }
    }
}

/// The sets in their order, and the rule that decided.
impl fmt::Display for PlacementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |set: &&SetReport| !set.branches.is_empty() || set.answer != "not-asked";
        for (index, set) in self.sets.iter().filter(told).enumerate() {
            write!(f, "{}{}", if index > 0 { ", then " } else { "" }, set.name)?;
            match set.answer.as_str() {
                _ if set.branches.is_empty() => f.write_str(" (there are none)")?,
                "passed-over" => f.write_str(" (passed over: none can be chosen)")?,
                "chosen" => f.write_str(" (chosen)")?,
                _ => {}
            }
        }
        if self.sets.is_empty() {
            f.write_str("all branches")?;
        }
        if let Some(rule) = &self.rule {
            write!(f, "; by the rule {}", canopy_base::text::one_line(rule))?;
        }
        match self.copies {
            Some(copies) if copies > 1 => write!(f, ", which wants {copies} copies"),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetReport {
    pub name: String,
    pub branches: Vec<OsText>,
    /// `passed-over`: no branch of it could be chosen; `chosen`; `not-asked`: one before it was chosen.
    pub answer: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainError {
    pub errno: i32,
    /// The name of the error, such as `ENOSPC`; the number if the name is not known here.
    pub name: String,
    pub why: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BranchVerdict {
    pub path: OsText,
    pub mode: String,
    pub verdict: Verdict,
    /// The probability between 0 and 1, if the choice is random.
    pub chance: Option<f64>,
    /// Whether the branch holds the path that is looked at.
    pub present: bool,
    /// Bytes.
    pub min_free: u64,
    /// Bytes; null if they could not be read.
    pub available: Option<u64>,
    pub used: Option<u64>,
    /// The filesystem is mounted read-only.
    pub read_only: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The branch is not in the set that tiers or a rule let the policy choose from.
    Outside,
    /// The policy chooses the branch.
    Chosen,
    /// The policy may choose the branch at random.
    Candidate,
    /// The branch is eligible, but the policy prefers another.
    Lost,
    /// The mode of the branch forbids it; for RW, the branch lacks the symlink that is followed here.
    Mode,
    /// The branch has failed, has become read-only, or does not answer.
    Unwell,
    /// The branch does not hold the path.
    Absent,
    /// The free space of the branch could not be read.
    SpaceUnknown,
    /// The filesystem of the branch is mounted read-only.
    ReadOnly,
    /// The branch has less free space than its minfreespace.
    BelowMinFree,
    /// The filesystem of the branch has no free inode.
    NoInodes,
    /// The disk of the branch may sleep, and that of another one is awake (`prefer-awake`).
    Asleep,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_in_the_worst_state_that_is_reported() {
        let branch = |health: Option<&str>, answers: Option<&str>, awaited: bool| {
            let illness =
                health.map(|health| IllnessReport { health: health.into(), since: 0, cause: String::new() });
            let waits = answers.map(|answers| WaitReport {
                answers: answers.into(),
                since: 0,
                requests: 1,
                deadline: None,
                disks: Vec::new(),
            });
            let report = BranchReport { illness, waits, awaited, ..BranchReport::default() };
            report.state()
        };
        for (health, answers, awaited, expected) in [
            (None, None, false, "ok"),
            (None, Some("lagging"), false, "lagging"),
            (None, Some("asleep"), false, "asleep"),
            (None, Some("hung"), false, "hung"),
            (Some("hung"), None, false, "hung"),
            (Some("read-only"), Some("lagging"), false, "read-only"),
            (Some("failing"), None, false, "failing"),
            (Some("read-only"), Some("asleep"), false, "asleep"),
            (Some("gone"), None, false, "gone"),
            (Some("gone"), Some("hung"), false, "gone"),
            // A word of another version.
            (Some("unheard-of"), None, false, "failing"),
            (None, Some("unheard-of"), false, "lagging"),
            (None, None, true, "awaited"),
        ] {
            assert_eq!(branch(health, answers, awaited).word(), expected);
        }
    }
}
