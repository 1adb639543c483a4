//! The text of the option `branches`.

use canopy_base::size::{self, SizeError};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What policies may do on a branch. Open files are not affected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Create, change and search.
    Rw,
    /// Search only.
    Ro,
    /// Change and search; create nothing.
    Nc,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Rw => "RW",
            Mode::Ro => "RO",
            Mode::Nc => "NC",
        })
    }
}

/// The text is not `RW`, `RO` or `NC` (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a branch mode: expected RW, RO or NC")]
pub struct UnknownMode;

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "RW" => Ok(Mode::Rw),
            "RO" => Ok(Mode::Ro),
            "NC" => Ok(Mode::Nc),
            _ => Err(UnknownMode),
        }
    }
}

/// Why a branch list was refused. The current list stays as it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BranchError {
    #[error("{0:?} is not a branch instruction: expected one of + +< +> - -< -> =")]
    Instruction(String),
    #[error("branch list {0:?} has an empty entry: remove the stray ':' or write the path before '='")]
    EmptyEntry(String),
    #[error(
        "branch {entry:?}: {mode:?} is not a mode: expected RW, RO or NC (after a path with '=', write the mode)"
    )]
    Mode { entry: String, mode: String },
    #[error("branch {entry:?}: {source}")]
    Size { entry: String, source: SizeError },
    #[error("branch {0:?} has more than a mode and a minfreespace after its '='")]
    TooManyItems(String),
    #[error("the branch list is empty already: there is none to remove")]
    NothingToRemove,
    #[error("branch {path:?} cannot be opened ({errno}): {}", match *.errno {
        Errno::MFILE | Errno::NFILE => "each takes a descriptor: raise the limit of open files (ulimit -n)",
        _ => "make or mount the directory, or take it out of branches",
    })]
    Open { path: PathBuf, errno: Errno },
}

impl BranchError {
    /// Returns the errno that the client who set the option sees.
    pub fn errno(&self) -> Errno {
        match self {
            BranchError::Instruction(_)
            | BranchError::EmptyEntry(_)
            | BranchError::Mode { .. }
            | BranchError::Size { source: SizeError::Invalid, .. }
            | BranchError::TooManyItems(_) => Errno::INVAL,
            BranchError::Size { source: SizeError::Overflow, .. } => Errno::OVERFLOW,
            BranchError::NothingToRemove => Errno::NOENT,
            BranchError::Open { errno, .. } => *errno,
        }
    }
}

/// One entry of a branch list, after expansion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BranchSpec {
    pub path: PathBuf,
    pub mode: Mode,
    /// The branch's own minfreespace in bytes; `None` for the pool's.
    pub min_free: Option<u64>,
}

impl BranchSpec {
    fn render(&self, out: &mut OsString) {
        out.push(&self.path);
        out.push(format!("={}", self.mode));
        if let Some(bytes) = self.min_free {
            out.push(",");
            out.push(size::format_size(bytes));
        }
    }
}

/// Expands the pattern of an entry into branch paths.
pub trait Expand {
    /// Returns absolute paths in order; none if the entry is to be skipped.
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf>;
}

/// Expansion by the filesystem when the option is set: wildcards and braces (glob(3)), then symlinks and dots
/// (realpath(3)).
///
/// A pattern that matches nothing is taken literally. A path that exists and is not a directory is skipped. A path
/// that does not exist is kept and made absolute, so that it does not depend on the daemon's working directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl Expand for FileSystem {
    fn expand(&self, pattern: &OsStr) -> Vec<PathBuf> {
        let mut found = canopy_sys::glob::directories(pattern).unwrap_or_else(|error| {
            tracing::warn!(?pattern, %error, "branch pattern not expanded: taken literally");
            Vec::new()
        });
        if found.is_empty() {
            found.push(PathBuf::from(pattern));
        }
        found.retain_mut(|path| match std::fs::canonicalize(&path) {
            Ok(real) if real.is_dir() => {
                *path = real;
                true
            }
            Ok(_) => {
                tracing::warn!(?path, "branch is not a directory: skipped");
                false
            }
            Err(error) => {
                tracing::info!(?path, %error, "branch path not resolved");
                if let Ok(absolute) = std::path::absolute(&path) {
                    // Components leave out a trailing slash.
                    *path = absolute.components().collect();
                }
                true
            }
        });
        found
    }
}

/// A branch list: what the option `branches` says, in order. Duplicates are allowed, and so is the empty list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BranchList(Vec<BranchSpec>);

impl BranchList {
    /// Parses a whole value, as given at mount.
    pub fn parse(value: impl AsRef<OsStr>, fs: &dyn Expand) -> Result<BranchList, BranchError> {
        BranchList::default().apply(value, fs)
    }

    /// Applies `value` to this list and returns the new list. `value` is a list that replaces this one, or an
    /// instruction (`+ +< +> - -< -> =`) and a list. All of it is parsed before anything changes.
    ///
    /// An entry is `PATTERN[=MODE[,SIZE]]`, split at its last `=`. Colons separate entries and cannot be escaped.
    pub fn apply(&self, value: impl AsRef<OsStr>, fs: &dyn Expand) -> Result<BranchList, BranchError> {
        let value = value.as_ref().as_bytes();
        let (instruction, list) = split_instruction(value);
        let old = self.0.as_slice();
        let specs = match instruction {
            b"" | b"=" => entries(list, fs)?,
            b"+" | b"+>" => [old, &entries(list, fs)?].concat(),
            b"+<" => [&entries(list, fs)?, old].concat(),
            b"-" => {
                let patterns: Vec<&[u8]> = list.split(|&byte| byte == b':').collect();
                let matched = |spec: &&BranchSpec| {
                    patterns.iter().any(|pattern| {
                        canopy_sys::glob::matches(OsStr::from_bytes(pattern), spec.path.as_os_str())
                    })
                };
                old.iter().filter(|spec| !matched(spec)).cloned().collect()
            }
            b"-<" => old.split_first().ok_or(BranchError::NothingToRemove)?.1.to_vec(),
            b"->" => old.split_last().ok_or(BranchError::NothingToRemove)?.1.to_vec(),
            other => return Err(BranchError::Instruction(text(other))),
        };
        Ok(BranchList(specs))
    }

    pub fn as_slice(&self) -> &[BranchSpec] {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, BranchSpec> {
        self.0.iter()
    }

    /// Returns the value that [`parse`](Self::parse) reads back: `PATH=MODE[,SIZE]` joined by colons. Unlike the
    /// `Display` form it is exact for paths that are not UTF-8.
    pub fn to_os_string(&self) -> OsString {
        let mut out = OsString::new();
        for (index, spec) in self.0.iter().enumerate() {
            if index != 0 {
                out.push(":");
            }
            spec.render(&mut out);
        }
        out
    }
}

impl FromIterator<BranchSpec> for BranchList {
    fn from_iter<T: IntoIterator<Item = BranchSpec>>(specs: T) -> Self {
        BranchList(specs.into_iter().collect())
    }
}

/// As option text, exact but for what is not UTF-8.
impl fmt::Display for BranchList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_os_string().to_string_lossy())
    }
}

/// Splits off the instruction: at most two of the characters at the start of the value, even if more follow.
fn split_instruction(value: &[u8]) -> (&[u8], &[u8]) {
    let run = value.iter().position(|byte| !b"+<>-=".contains(byte));
    match run {
        Some(length) => value.split_at(length.min(2)),
        // An instruction without a list, however many such characters there are.
        None => (&value[..value.len().min(2)], &[]),
    }
}

fn entries(list: &[u8], fs: &dyn Expand) -> Result<Vec<BranchSpec>, BranchError> {
    let mut specs = Vec::new();
    if list.is_empty() {
        return Ok(specs);
    }
    for entry in list.split(|&byte| byte == b':') {
        let (pattern, mode, min_free) = parse_entry(entry)?;
        if pattern.is_empty() {
            return Err(BranchError::EmptyEntry(text(list)));
        }
        let paths = fs.expand(OsStr::from_bytes(pattern));
        specs.extend(paths.into_iter().map(|path| BranchSpec { path, mode, min_free }));
    }
    Ok(specs)
}

fn parse_entry(entry: &[u8]) -> Result<(&[u8], Mode, Option<u64>), BranchError> {
    let Some(equals) = entry.iter().rposition(|&byte| byte == b'=') else {
        return Ok((entry, Mode::Rw, None));
    };
    let (pattern, options) = (&entry[..equals], text(&entry[equals + 1..]));
    let mut items = options.split(',');
    let (mode, size, more) = (items.next().unwrap_or_default(), items.next(), items.next());
    if more.is_some() {
        return Err(BranchError::TooManyItems(text(entry)));
    }
    let mode = mode
        .parse()
        .map_err(|UnknownMode| BranchError::Mode { entry: text(entry), mode: mode.to_owned() })?;
    let min_free = size.map(size::parse_size).transpose();
    let min_free = min_free.map_err(|source| BranchError::Size { entry: text(entry), source })?;
    Ok((pattern, mode, min_free))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// In bytes: `PATH_MAX` less the NUL, `...`, and room for a prefix that a mount helper may add.
const LONGEST_FSNAME: usize = 4000;

/// Returns the mount source for a pool without `fsname`: the branch paths joined by colons, without their common
/// prefix.
///
/// The common prefix is counted in characters, not in path components: `/mnt/disk1` and `/mnt/disk2` give `1:2`. It
/// is kept if the first path would become empty, as with a single branch. If the result were longer than mount(2)
/// accepts (`PATH_MAX`), `...` replaces the last branches.
pub fn default_fsname(paths: &[PathBuf]) -> OsString {
    let bytes: Vec<&[u8]> = paths.iter().map(|path: &PathBuf| Path::as_os_str(path).as_bytes()).collect();
    let Some(first) = bytes.first() else { return OsString::new() };
    let shared = |path: &&[u8]| path.iter().zip(first.iter()).take_while(|(a, b)| a == b).count();
    let mut common = bytes.iter().map(shared).min().unwrap_or(0);
    if common == first.len() {
        common = 0;
    }
    // Do not cut into a UTF-8 character: continuation bytes are 10xxxxxx.
    while common > 0 && first[common] & 0xC0 == 0x80 {
        common -= 1;
    }
    let mut rest: Vec<&[u8]> = bytes.iter().map(|path| &path[common..]).collect();
    let mut length = 0;
    let fits = |path: &&&[u8]| {
        length += path.len() + 1;
        length <= LONGEST_FSNAME
    };
    let fitting = rest.iter().take_while(fits).count();
    if fitting < rest.len() {
        rest.splice(fitting.., [b"...".as_slice()]);
    }
    OsString::from_vec(rest.join(&b':'))
}
