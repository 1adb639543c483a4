//! Why an option or a config file was refused.

use canopy_pool::branch::BranchError;
use rustix::io::Errno;
use std::path::PathBuf;

/// How deep files may name each other, the first included.
pub(crate) const LEVELS: u32 = 6;

/// Why an option was refused; one line each, with its mend.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionError {
    #[error("unknown option '{key}'{}", mend(.nearest, "'canopy options' lists them all"))]
    Unknown { key: String, nearest: Option<String> },
    #[error("option {key}: '{value}' is {why}: must be {accepted}{}", mend(.nearest, ""))]
    Value { key: String, value: String, why: &'static str, accepted: String, nearest: Option<String> },
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
    #[error("config file {}: too many levels of config (files may name each other down to {LEVELS})", .0.display())]
    TooDeep(PathBuf),
    #[error("config file {} lies in the pool that reads it", .0.display())]
    InPool(PathBuf),
    #[error("option config: no file was loaded that could be loaded again (name one)")]
    None,
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Lines(Vec<Mistake>),
}

/// One line that was not applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}:{line}: {what}", .file.display())]
pub struct Mistake {
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl FileError {
    /// As the runtime interface tells it.
    pub fn errno(&self) -> Errno {
        match self {
            FileError::Unreadable { errno, .. } => Errno::from_raw_os_error(*errno),
            FileError::TooDeep(_) => Errno::LOOP,
            FileError::InPool(_) | FileError::None | FileError::Lines(_) => Errno::INVAL,
        }
    }
}
