//! Errors in a configuration. Each message is one line that names the culprit and, in parentheses, the remedy.

use crate::program_name::Name;
use crate::values::ValueError;
use canopy_base::text::one_line;
use canopy_branch::branch::BranchError;
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("no branch given: {}", .0.usage())]
    NoBranch(Name),
    #[error("no mountpoint given: {}", .0.usage())]
    NoMountpoint(Name),
    #[error("no pool is called '{name}': {file} does not exist{}", instead(.name, .nearest.as_deref(), .known), file = .file.shown())]
    NoSuchPool { name: String, file: PathBuf, nearest: Option<String>, known: Vec<String> },
    #[error("the branches of pool {name} are in {}: give only its name, and a mountpoint if it differs", .file.shown())]
    NamedBranches { name: String, file: PathBuf },
    #[error(
        "branch {path}: nothing is mounted at {}, where its disk was (mount it; or mount the pool without it: -o \
         allow-missing-branches=true; or, if the directory is meant: touch {path}/.mergerfs.branch)",
        .mountpoint.shown(), path = .path.shown()
    )]
    BranchAway { path: PathBuf, mountpoint: PathBuf },
    #[error("branch {} is the mountpoint itself (mount the pool somewhere else)", .0.shown())]
    BranchIsMountpoint(PathBuf),
    #[error(
        "mountpoint {} lies inside branch {}, so the pool would contain itself (choose a mountpoint outside every branch)",
        .mountpoint.shown(), .branch.shown()
    )]
    MountpointInBranch { mountpoint: PathBuf, branch: PathBuf },
    #[error(
        "branch {} lies inside mountpoint {}, so the pool would hide it (choose another mountpoint)",
        .branch.shown(), .mountpoint.shown()
    )]
    BranchInMountpoint { branch: PathBuf, mountpoint: PathBuf },
    #[error(
        "branch {branch} is on pool {pool}, whose branch {inner} leads to {mountpoint}: the pools would contain each other (leave out {branch}, or remove {inner} from {pool})",
        branch = .branch.shown(), pool = .pool.shown(), inner = .inner.shown(), mountpoint = .mountpoint.shown()
    )]
    PoolLoop { branch: PathBuf, pool: PathBuf, inner: PathBuf, mountpoint: PathBuf },
    #[error(
        "branch {branch} is a bind mount of pool {} itself (name a directory outside the pool)",
        .mountpoint.shown(), branch = .branch.shown()
    )]
    BranchIsOwnPool { branch: PathBuf, mountpoint: PathBuf },
    #[error("{key} in {file} would have no effect: the command line of the mount, or another key of the file, overrides it (change it there; nothing was changed)", file = .file.shown())]
    Overridden { key: String, file: PathBuf },
    #[error("{file} cannot be written: {why} (nothing was changed; without --persist a change lasts until the pool is unmounted)", file = .file.shown())]
    Persist { file: PathBuf, why: String },
    #[error("mountpoint {} cannot be used: {why}", .path.shown())]
    Mountpoint { path: PathBuf, why: io::Error },
}

/// Returns what a name that stands for no pool may have meant.
fn instead(name: &str, nearest: Option<&str>, known: &[String]) -> String {
    match (nearest, known) {
        (Some(nearest), _) => format!(" (did you mean '{nearest}'?)"),
        (None, []) => format!(" (for a directory, write ./{name})"),
        (None, known) => format!(" (there are: {}; for a directory, write ./{name})", known.join(", ")),
    }
}

impl Error {
    /// Returns each mistake as a line. A config file can have several.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Error::Option(error) => error.lines().iter().map(|line| one_line(line)).collect(),
            other => vec![other.line()],
        }
    }

    /// Returns the message as one line, whatever bytes a path or a value contains.
    pub fn line(&self) -> String {
        one_line(&self.to_string())
    }
}

/// Why an option was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionError {
    #[error("unknown option '{key}'{}", remedy(.nearest, "'canopy options' lists them all"))]
    Unknown { key: String, nearest: Option<String> },
    #[error("option {key}: '{value}' is {why}: must be {accepted}{}", remedy(.nearest, ""))]
    Value { key: String, value: String, why: ValueError, accepted: String, nearest: Option<String> },
    #[error("option {key}: {error}")]
    Branches { key: String, error: BranchError },
    #[error("option {key}: {what}")]
    Placement { key: String, what: String },
    #[error("option {key} takes no value: write '{key}', not '{key}={value}'")]
    Valueless { key: String, value: String },
    #[error("option {key} can only be set at the mount")]
    AtMount { key: String },
    #[error(transparent)]
    File(#[from] FileError),
}

impl OptionError {
    /// Returns the message of each mistake.
    pub fn lines(&self) -> Vec<String> {
        match self {
            OptionError::File(FileError::Lines(mistakes)) => {
                mistakes.iter().map(ToString::to_string).collect()
            }
            other => vec![other.to_string()],
        }
    }
}

fn remedy(nearest: &Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(name) => format!(" (did you mean '{name}'?)"),
        None if otherwise.is_empty() => String::new(),
        None => format!(" ({otherwise})"),
    }
}

/// Why a file was not applied, or only in part.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    #[error("config file {path} cannot be read: {why}", path = .path.shown())]
    Unreadable { path: PathBuf, errno: i32, why: String },
    #[error("config file {}: too many levels of config (files can be nested {levels} deep)", .path.shown())]
    TooDeep { path: PathBuf, levels: u32 },
    #[error("config file {} is in the pool that reads it (move it out of the pool)", .0.shown())]
    InPool(PathBuf),
    #[error("option config: no file was loaded yet, so none can be reloaded (name a file)")]
    NothingLoaded,
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Lines(Vec<Mistake>),
}

/// A line that was not applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}:{line}: {what}", .file.shown())]
pub struct Mistake {
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
}

impl FileError {
    /// Returns the error number for the control interface.
    pub fn errno(&self) -> Errno {
        match self {
            FileError::Unreadable { errno, .. } => canopy_sys::errno::from_raw(*errno),
            FileError::TooDeep { .. } => Errno::LOOP,
            FileError::InPool(_) | FileError::NothingLoaded | FileError::Lines(_) => Errno::INVAL,
        }
    }
}
