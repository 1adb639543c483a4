//! What is wrong with what a mount was told. One line each: the culprit, and the mend.

use crate::program_name::Name;
use crate::text::one_line;
use crate::values::ValueError;
use canopy_pool::branch::BranchError;
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
    #[error("no pool is called '{name}': {file} does not exist{}", .nearest.as_ref().map_or_else(|| format!(" (a directory is written with a slash: ./{name})"), |name| format!(" (did you mean '{name}'?)")), file = .file.display())]
    NoSuchPool { name: String, file: PathBuf, nearest: Option<String> },
    #[error("the branches of pool {name} are in {}: give its name, and a mountpoint if that is another", .file.display())]
    NamedBranches { name: String, file: PathBuf },
    #[error("branch {} is the mountpoint itself (mount the pool somewhere else)", .0.display())]
    BranchIsMountpoint(PathBuf),
    #[error(
        "mountpoint {} lies inside branch {}, so the pool would contain itself (choose a mountpoint outside every branch)",
        .mountpoint.display(), .branch.display()
    )]
    MountpointInBranch { mountpoint: PathBuf, branch: PathBuf },
    #[error(
        "branch {} lies inside mountpoint {}, so the pool would hide it (choose another mountpoint)",
        .branch.display(), .mountpoint.display()
    )]
    BranchInMountpoint { branch: PathBuf, mountpoint: PathBuf },
    #[error(
        "branch {branch} lies in pool {pool}, of which branch {inner} leads to {mountpoint}: they would lie over each other (leave out {branch}, or take {inner} from {pool})",
        branch = .branch.display(), pool = .pool.display(), inner = .inner.display(), mountpoint = .mountpoint.display()
    )]
    PoolLoop { branch: PathBuf, pool: PathBuf, inner: PathBuf, mountpoint: PathBuf },
    #[error(
        "branch {branch} is a bind mount of pool {} itself (name the directory that is meant, outside of the pool)",
        .mountpoint.display(), branch = .branch.display()
    )]
    BranchIsOwnPool { branch: PathBuf, mountpoint: PathBuf },
    #[error("{key} in {file} would not hold: the command line of the mount, or another key of the file, wins over it (change it there; nothing was changed)", file = .file.display())]
    Overridden { key: String, file: PathBuf },
    #[error("{file} cannot be written: {why} (nothing was changed; without --persist a change holds until the pool is unmounted)", file = .file.display())]
    Persist { file: PathBuf, why: String },
    #[error("mountpoint {} cannot be used: {why}", .path.display())]
    Mountpoint { path: PathBuf, why: io::Error },
}

impl Error {
    /// Every mistake as a line of its own: a config file may hold several.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Error::Option(error) => error.lines().iter().map(|line| one_line(line)).collect(),
            other => vec![other.line()],
        }
    }

    /// The message as one line, whatever bytes a path or a value holds.
    pub fn line(&self) -> String {
        one_line(&self.to_string())
    }
}

/// Why an option was refused; one line each, with its mend.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionError {
    #[error("unknown option '{key}'{}", mend(.nearest, "'canopy options' lists them all"))]
    Unknown { key: String, nearest: Option<String> },
    #[error("option {key}: '{value}' is {why}: must be {accepted}{}", mend(.nearest, ""))]
    Value { key: String, value: String, why: ValueError, accepted: String, nearest: Option<String> },
    #[error("option {key}: {error}")]
    Branches { key: String, error: BranchError },
    #[error("option {key} takes no value: write '{key}', not '{key}={value}'")]
    Valueless { key: String, value: String },
    #[error("option {key} can only be set at the mount")]
    AtMount { key: String },
    #[error(transparent)]
    File(#[from] FileError),
}

impl OptionError {
    /// Each mistake as a text of its own.
    pub fn lines(&self) -> Vec<String> {
        match self {
            OptionError::File(FileError::Lines(mistakes)) => {
                mistakes.iter().map(ToString::to_string).collect()
            }
            other => vec![other.to_string()],
        }
    }
}

fn mend(nearest: &Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(name) => format!(" (did you mean '{name}'?)"),
        None if otherwise.is_empty() => String::new(),
        None => format!(" ({otherwise})"),
    }
}

/// Why a file was not, or not wholly, applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    #[error("config file {path} cannot be read: {why}", path = .path.display())]
    Unreadable { path: PathBuf, errno: i32, why: String },
    #[error("config file {}: too many levels of config (files may name each other down to {levels})", .path.display())]
    TooDeep { path: PathBuf, levels: u32 },
    #[error("config file {} lies in the pool that reads it", .0.display())]
    InPool(PathBuf),
    #[error("option config: no file was loaded that could be loaded again (name one)")]
    NothingLoaded,
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Lines(Vec<Mistake>),
}

/// One line that was not applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}:{line}: {what}", .file.display())]
pub struct Mistake {
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
}

impl FileError {
    /// As the runtime interface tells it.
    pub fn errno(&self) -> Errno {
        match self {
            FileError::Unreadable { errno, .. } => Errno::from_raw_os_error(*errno),
            FileError::TooDeep { .. } => Errno::LOOP,
            FileError::InPool(_) | FileError::NothingLoaded | FileError::Lines(_) => Errno::INVAL,
        }
    }
}
