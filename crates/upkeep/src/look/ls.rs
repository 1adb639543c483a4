//! `canopy ls`: the entries of a directory, and the branches of each.

use super::lost::missing_names;
use super::{Failures, differences, directory, kind_word, seconds};
use crate::columns::{Side, columns};
use crate::error::{Error, Result};
use crate::output::{legend, print, print_json, report_missing, shown};
use crate::pool_link::PoolLink;
use crate::survey::{Entry, list, walk};
use canopy_base::text::bytes;
use canopy_control::OsText;
use clap::Args;
use rustix::fs::FileType;
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// List a directory with the branches that hold each entry
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct LsArgs {
    /// A directory on a pool
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: PathBuf,
    /// List what is below it as well
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Search below it for names that contain TEXT
    #[arg(long, value_name = "TEXT")]
    pub named: Option<String>,
    /// Stop searching when so many are found
    #[arg(long, value_name = "NUMBER", requires = "named")]
    pub most: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
BRANCHES has the numbers of the branches, which are explained first. ! marks an
entry whose copies differ in type, size, time, mode or owner (canopy which);
missing is one that only branches hold which are missing.

Examples:
  canopy ls /mnt/pool/films
  canopy ls --named beach --most 50 /mnt/pool";

#[derive(Serialize)]
struct Listing {
    path: OsText,
    branches: Vec<OsText>,
    entries: Vec<EntryReport>,
    /// The search has ended before it has seen all.
    more: bool,
}

#[derive(Serialize)]
struct EntryReport {
    /// Relative to the directory that is listed.
    name: OsText,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    mtime: i64,
    /// Indices of the branches.
    branches: Vec<usize>,
    differ: Vec<&'static str>,
    /// It is on branches that are missing only.
    missing: bool,
}

/// Runs the command.
pub fn ls(args: &LsArgs) -> Result<()> {
    let (pool, dir) = directory(&args.path)?;
    report_missing(&pool);
    let (mut entries, mut failures, mut more) = (Vec::new(), Failures::default(), false);
    let most = args.most.unwrap_or(usize::MAX);
    let mut failed = |path: PathBuf, errno| failures.add(&path, errno);
    let sought = args.named.as_ref().map(|text| text.to_lowercase());
    if args.recursive || sought.is_some() {
        walk(&pool, &dir, &mut failed, &mut |entry| {
            more |= entries.len() >= most;
            if !more && has_name(&entry.path, sought.as_deref()) {
                entries.push(report(&dir, entry));
            }
            // Nothing more is read.
            !more
        });
    } else {
        entries = list(&pool, &dir, &mut failed).iter().map(|entry| report(&dir, entry)).collect();
    }
    add_missing(&pool, &dir, (args.recursive, sought.as_deref()), &mut entries);
    more |= entries.len() > most;
    entries.truncate(most);
    let all = entries.len() as u64 + failures.0;
    if args.json {
        let branches = pool.branches.iter().map(|branch| OsText::from(branch.path.as_path())).collect();
        print_json(&Listing { path: OsText::from(args.path.as_path()), branches, entries, more });
    } else {
        print(&render(&pool, &entries));
        if more {
            print(&format!("There is more: only {most} are shown (--most).\n"));
        }
    }
    if failures.0 == 0 { Ok(()) } else { Err(Error::Incomplete { failed: failures.0, all }) }
}

/// Returns whether the last component of a path contains what is sought, whatever the case.
fn has_name(path: &Path, sought: Option<&str>) -> bool {
    let name = || path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    sought.is_none_or(|sought| name().contains(sought))
}

fn report(dir: &Path, entry: &Entry) -> EntryReport {
    let first = entry.first();
    EntryReport {
        name: OsText::from(entry.path.strip_prefix(dir).unwrap_or(&entry.path)),
        kind: kind_word(first.kind()),
        size: first.size(),
        mtime: first.stat.st_mtime,
        branches: entry.copies.iter().map(|copy| copy.branch).collect(),
        differ: differences(&entry.copies),
        missing: false,
    }
}

/// Adds what missing branches held.
fn add_missing(
    pool: &PoolLink,
    dir: &Path,
    (recursive, sought): (bool, Option<&str>),
    entries: &mut Vec<EntryReport>,
) {
    let mut known = missing_names(pool, dir, recursive || sought.is_some());
    known.retain(|path, _| has_name(path, sought));
    if known.is_empty() {
        return;
    }
    let mut there: HashMap<PathBuf, usize> =
        entries.iter().enumerate().map(|(at, entry)| (entry.name.to_path(), at)).collect();
    for (path, (branches, row)) in known {
        let name = path.strip_prefix(dir).unwrap_or(&path);
        match there.remove(name) {
            Some(at) => entries[at].branches.extend(branches),
            None => entries.push(EntryReport {
                name: OsText::from(name),
                kind: kind_word(FileType::from_raw_mode(row.attr.mode)),
                size: row.attr.size,
                mtime: row.attr.mtime.sec,
                branches,
                differ: Vec::new(),
                missing: true,
            }),
        }
    }
    entries.sort_by_key(|entry| entry.name.to_path());
}

fn render(pool: &PoolLink, entries: &[EntryReport]) -> String {
    let mut rows = vec![["SIZE", "MODIFIED", "BRANCHES", "NAME"].map(str::to_owned).to_vec()];
    for entry in entries {
        let numbers: Vec<String> = entry.branches.iter().map(|index| (index + 1).to_string()).collect();
        let is_dir = entry.kind == "directory";
        rows.push(vec![
            if is_dir { "-".into() } else { bytes(entry.size) },
            seconds(entry.mtime),
            numbers.join(",")
                + if entry.missing { " missing" } else { "" }
                + if entry.differ.is_empty() { "" } else { " !" },
            shown(&entry.name.to_path()) + if is_dir { "/" } else { "" },
        ]);
    }
    legend(pool) + &columns(&[Side::Right, Side::Left, Side::Left, Side::Left], &rows)
}
