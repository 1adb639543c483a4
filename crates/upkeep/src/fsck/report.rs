//! What `canopy fsck` tells: findings, leftovers and totals.

use super::FileCopy;
use crate::output::shown;
use crate::relocate::Sum;
use canopy_base::text::{bytes, date};
use canopy_control::OsText;
use rustix::fs::FileType;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Default, Serialize)]
pub(super) struct Totals {
    pub(super) checked: u64,
    pub(super) differ: u64,
    pub(super) repaired: u64,
    /// Directories and copies that could not be checked.
    pub(super) errors: u64,
    /// A signal has ended the command.
    pub(super) stopped: bool,
    /// What crashes of other programs have left, and what of that was removed.
    pub(super) left: Sum,
    pub(super) removed: Sum,
    /// For `--json`.
    pub(super) findings: Vec<Finding>,
    pub(super) leftovers: Vec<Leftover>,
}

/// What a crash of another program has left.
#[derive(Serialize)]
pub(super) struct Leftover {
    pub(super) path: OsText,
    /// Whose it seems to be.
    pub(super) of: &'static str,
    pub(super) copies: Vec<OsText>,
    pub(super) bytes: u64,
    pub(super) removed: bool,
    /// Why it was not removed, if that was asked.
    pub(super) why: Option<String>,
}

/// A path whose copies differ.
#[derive(Serialize)]
pub(super) struct Finding {
    pub(super) path: OsText,
    pub(super) copies: Vec<CopyReport>,
    /// The number of the copy that the others have been changed to match.
    pub(super) repaired_from: Option<usize>,
    /// Why it was not repaired, if that was asked.
    pub(super) why: Option<String>,
}

#[derive(Serialize)]
pub(super) struct CopyReport {
    pub(super) path: OsText,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// In octal digits.
    pub(super) mode: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) size: i64,
    pub(super) mtime: String,
}

pub(super) fn summary(count: &Totals) -> String {
    let mut text = format!("{} checked, {} with copies that differ", count.checked, count.differ);
    if count.repaired > 0 {
        let _ = write!(text, ", {} repaired", count.repaired);
    }
    if count.errors > 0 {
        let _ = write!(text, ", {} could not be checked", count.errors);
    }
    text.push('\n');
    if count.left.files > 0 {
        let files = |sum: Sum| format!("{} ({})", sum.files, bytes(sum.bytes));
        let _ = write!(text, "left by crashes of other programs: {}", files(count.left));
        let _ = match count.removed.files {
            0 => writeln!(text),
            _ => writeln!(text, ", of which {} were removed", files(count.removed)),
        };
    }
    text
}

impl CopyReport {
    pub(super) fn of(copy: &FileCopy) -> CopyReport {
        CopyReport {
            path: OsText::from(copy.path.as_path()),
            uid: copy.stat.st_uid,
            gid: copy.stat.st_gid,
            mode: format!("{:05o}", copy.stat.st_mode & 0o7777),
            kind: kind_word(copy.kind()),
            size: copy.stat.st_size,
            mtime: date(copy.stat.st_mtime),
        }
    }
}

/// Formats a finding: the path, and two lines for each copy.
pub(super) fn report(path: &Path, copies: &[FileCopy]) -> String {
    let mut text = format!("* {}\n", shown(path));
    for (index, copy) in copies.iter().enumerate() {
        let stat = &copy.stat;
        let _ = writeln!(text, "  {index}: {}", shown(&copy.path));
        let _ = writeln!(
            text,
            "     uid: {}; gid: {}; mode: {:05o}; type: {}; size: {}; mtime: {}",
            stat.st_uid,
            stat.st_gid,
            stat.st_mode & 0o7777,
            kind_word(copy.kind()),
            stat.st_size,
            date(stat.st_mtime)
        );
    }
    text
}

fn kind_word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "regular",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "char dev",
        FileType::BlockDevice => "block dev",
        _ => "unknown",
    }
}
