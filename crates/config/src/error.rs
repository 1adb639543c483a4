//! What is wrong with what a mount was told. One line each: the culprit, and the mend.

use crate::options::OptionError;
use crate::program_name::Name;
use crate::text::one_line;
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
    PoolsOverEachOther { branch: PathBuf, pool: PathBuf, inner: PathBuf, mountpoint: PathBuf },
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
