//! What `canopy trash` prints.

use super::Home;
use super::find::Item;
use crate::columns::{Side, columns};
use crate::error::{Error, Result};
use crate::output::{complain, print, print_json, shown};
use canopy_base::text::{bytes, date, os_error};
use canopy_control::OsText;
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct ListReport {
    kept: Vec<TrashEntry>,
}

#[derive(Serialize)]
struct TrashEntry {
    branch: OsText,
    /// In the pool, relative to its root.
    path: OsText,
    /// Where it is.
    at: OsText,
    /// In seconds since 1970.
    removed: i64,
    user: Option<u32>,
    program: Option<String>,
    /// `file`, `symlink` or `directory`.
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    used: u64,
    mtime: i64,
    mode: u32,
    uid: u32,
    gid: u32,
}

#[derive(Serialize)]
struct DuReport {
    branches: Vec<BranchSum>,
}

#[derive(Serialize)]
struct BranchSum {
    branch: OsText,
    files: u64,
    bytes: u64,
    /// When the oldest was removed, in seconds since 1970.
    oldest: Option<i64>,
}

fn kind(item: &Item) -> &'static str {
    match item.kind {
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "file",
    }
}

fn user(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

pub(super) fn list(home: &Home, items: &[Item], (json, all): (bool, bool)) {
    if json {
        let kept = |item: &Item| TrashEntry {
            branch: OsText::from(home.branches()[item.branch].path.as_path()),
            path: OsText::from(item.path.as_path()),
            at: OsText::from(home.branches()[item.branch].path.join(item.kept()).as_path()),
            removed: item.removed,
            user: item.uid,
            program: Some(item.program.clone()).filter(|program| !program.is_empty()),
            kind: kind(item),
            size: item.size,
            used: item.used,
            mtime: item.mtime,
            mode: item.mode,
            uid: item.owner.0,
            gid: item.owner.1,
        };
        return print_json(&ListReport { kept: items.iter().map(kept).collect() });
    }
    if items.is_empty() {
        return print(if all { "Nothing is in the trash.\n" } else { "Nothing of that is in the trash.\n" });
    }
    print(&table(items));
}

/// Returns items as lines, each with its path at the end.
pub(super) fn table(items: &[Item]) -> String {
    let mut rows = vec![["REMOVED", "USER", "PROGRAM", "SIZE", "PATH"].map(str::to_owned).to_vec()];
    for item in items {
        let slash = if item.kind == FileType::Directory { "/" } else { "" };
        let size = if item.kind == FileType::Directory { String::new() } else { bytes(item.size) };
        let program = if item.program.is_empty() { "-" } else { &item.program };
        rows.push(vec![
            date(item.removed),
            item.uid.map_or_else(|| "-".to_owned(), user),
            program.to_owned(),
            size,
            format!("{}{slash}", shown(&item.path)),
        ]);
    }
    columns(&[Side::Left, Side::Left, Side::Left, Side::Right, Side::Left], &rows)
}

pub(super) fn du(home: &Home, items: &[Item], json: bool) {
    let sum = |(index, branch): (usize, &crate::pool_link::BranchLink)| {
        let own = items.iter().filter(move |item| item.branch == index);
        BranchSum {
            branch: OsText::from(branch.path.as_path()),
            files: own.clone().count() as u64,
            bytes: own.clone().map(|item| item.used).sum(),
            oldest: own.map(|item| item.removed).min(),
        }
    };
    let branches: Vec<BranchSum> = home.branches().iter().enumerate().map(sum).collect();
    if json {
        return print_json(&DuReport { branches });
    }
    let mut rows = vec![["BRANCH", "FILES", "BYTES", "OLDEST"].map(str::to_owned).to_vec()];
    for sum in &branches {
        rows.push(vec![
            shown(&sum.branch.to_path()),
            sum.files.to_string(),
            bytes(sum.bytes),
            sum.oldest.map_or_else(|| "-".to_owned(), date),
        ]);
    }
    print(&columns(&[Side::Left, Side::Right, Side::Right, Side::Left], &rows));
}

/// Tells of branches on which something failed.
pub(super) fn failures(failed: &[(PathBuf, Errno)]) -> Result<()> {
    for (path, errno) in failed {
        complain(&format!("{}: {}", shown(path), os_error(errno)));
    }
    match failed.len() {
        0 => Ok(()),
        count => Err(Error::NotRestored(count as u64)),
    }
}
