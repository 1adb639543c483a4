//! `canopy lost`: what a branch held that is missing; `canopy forget`: the pool misses it no more.

use super::{kind_word, seconds};
use crate::columns::{Side, columns};
use crate::error::{Error, Result};
use crate::output::{print, print_json, shown};
use crate::pool_link::PoolLink;
use canopy_base::path::join;
use canopy_base::text::bytes;
use canopy_branch::remember::{Listing, Record, Row};
use canopy_control::OsText;
use canopy_control::messages::Query;
use clap::Args;
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// List what was on a branch that is missing
#[derive(Args, Debug)]
#[command(after_help = LOST_NOTES)]
pub struct LostArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// The branch
    pub branch: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const LOST_NOTES: &str = "\
Works for a branch that is there, too: it lists what would be lost. Files of
which a copy is on another branch are listed as well, with that branch. The
names come from what the pool remembers (missing=remember).

Example:
  canopy lost media /mnt/disk2";

/// Stop showing what was on a branch that is missing
#[derive(Args, Debug)]
#[command(after_help = FORGET_NOTES)]
pub struct ForgetArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub pool: PathBuf,
    /// The branch, which must be missing
    pub branch: PathBuf,
}

const FORGET_NOTES: &str = "\
For a disk that is dead for good. From then on, programs that mirror the pool
delete what was on it: save the list first (canopy lost). If the disk returns
all the same, its files do, too.

Example:
  canopy forget media /mnt/disk2";

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'r> {
    pool: OsText,
    branch: OsText,
    /// All that the branch held was read.
    whole: bool,
    files: &'r [Lost],
    /// Directories of which it is not known what they held.
    unknown: Vec<OsText>,
}

#[derive(Serialize)]
struct Lost {
    path: OsText,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    mtime: i64,
    /// The checksum that `canopy verify` has stored; null without one that fits.
    blake3: Option<String>,
    /// Other branches that hold the path now.
    elsewhere: Vec<OsText>,
}

/// Runs `canopy forget`.
///
/// # Errors
/// If there is no such pool, or branch, or if the branch is not missing.
pub fn forget(args: &ForgetArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let branch = &pool.branches[pool.branch(&args.branch)?].path;
    let failed = |errno: Errno| match errno {
        Errno::BUSY => Error::NotMissing(branch.clone()),
        errno => Error::Forget { branch: branch.clone(), why: errno.into() },
    };
    pool.daemon.ask(&Query::Forget(OsText::from(branch.as_path()))).map_err(failed)?;
    print(&format!("{} is not missed any more\n", shown(branch)));
    Ok(())
}

/// Runs `canopy lost`.
///
/// # Errors
/// If there is no such pool or branch, or nothing is remembered of it.
pub fn lost(args: &LostArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?;
    let index = pool.branch(&args.branch)?;
    let branch = &pool.branches[index];
    let record = branch.record.as_deref().and_then(|file| Record::load(file, &branch.path));
    let record = record.ok_or_else(|| Error::NothingRemembered(branch.path.clone()))?;
    let (mut files, mut unknown) = (Vec::new(), Vec::new());
    record.each(|dir, listing| match listing {
        None => unknown.push(text(dir)),
        Some(listing) => files.extend(of_dir(&pool, index, dir, listing)),
    });
    if args.json {
        let (at, branch) = (OsText::from(pool.mountpoint.as_path()), OsText::from(branch.path.as_path()));
        print_json(&Report { pool: at, branch, whole: record.extent().whole, files: &files, unknown });
    } else {
        print(&render(&files, &unknown));
    }
    Ok(())
}

fn text(path: &[u8]) -> OsText {
    OsText::from(OsStr::from_bytes(path))
}

/// Returns what a directory held, but for directories.
fn of_dir(pool: &PoolLink, branch: usize, dir: &[u8], listing: &Listing) -> Vec<Lost> {
    let files = listing.rows.iter().filter(|row| !row.attr.is_dir());
    let report = |row: &Row| {
        let path = join(dir, &row.name);
        let there = Path::new(OsStr::from_bytes(&path));
        let others = pool.branches.iter().enumerate().filter(|(index, _)| *index != branch);
        let has = others.filter(|(_, link)| link.stat(there).is_ok());
        Lost {
            path: text(&path),
            kind: kind_word(FileType::from_raw_mode(row.attr.mode)),
            size: row.attr.size,
            mtime: row.attr.mtime.sec,
            blake3: checksum(row),
            elsewhere: has.map(|(_, link)| OsText::from(link.path.as_path())).collect(),
        }
    };
    files.map(report).collect()
}

/// Returns the digest of a checksum that was taken of the file as it was remembered.
fn checksum(row: &Row) -> Option<String> {
    let modified = i128::from(row.attr.mtime.sec) * 1_000_000_000 + i128::from(row.attr.mtime.nsec);
    crate::held::digest(row.checksum.as_deref()?, row.attr.size, modified)
}

fn render(files: &[Lost], unknown: &[OsText]) -> String {
    let mut rows = vec![["SIZE", "MODIFIED", "BLAKE3", "PATH"].map(str::to_owned).to_vec()];
    for file in files {
        let elsewhere: Vec<String> = file.elsewhere.iter().map(|branch| shown(&branch.to_path())).collect();
        let also = match elsewhere.join(", ") {
            none if none.is_empty() => String::new(),
            branches => format!(" (also on {branches})"),
        };
        rows.push(vec![
            bytes(file.size),
            seconds(file.mtime),
            file.blake3.clone().unwrap_or_else(|| "-".into()),
            shown(&file.path.to_path()) + &also,
        ]);
    }
    let all: u64 = files.iter().map(|file| file.size).sum();
    let mut text = columns(&[Side::Right, Side::Left, Side::Left, Side::Left], &rows);
    text += &format!("{} files, {}\n", files.len(), bytes(all));
    for dir in unknown {
        text += &format!("/{}: not known\n", shown(&dir.to_path()));
    }
    text
}

/// Returns the names that missing branches held in a directory, with the indices of these branches, and in all below it if
/// `recursive`. Paths are relative to the root of the pool.
pub(super) fn missing_names(
    pool: &PoolLink,
    dir: &Path,
    recursive: bool,
) -> BTreeMap<PathBuf, (Vec<usize>, Row)> {
    let mut found = BTreeMap::new();
    for (index, link) in pool.branches.iter().enumerate().filter(|(_, link)| link.is_missing) {
        let Some(record) = link.record.as_deref().and_then(|file| Record::load(file, &link.path)) else {
            continue;
        };
        let at = dir.as_os_str().as_bytes();
        record.each(|path, listing| {
            let below =
                path.strip_prefix(at).is_some_and(|rest| at.is_empty() || rest.first() == Some(&b'/'));
            let wanted = path == at || recursive && below;
            for row in listing.filter(|_| wanted).iter().flat_map(|listing| &listing.rows) {
                let path = join(path, &row.name);
                let entry = found.entry(PathBuf::from(OsStr::from_bytes(&path)));
                let (branches, _) = entry.or_insert_with(|| (Vec::new(), row.clone()));
                branches.push(index);
            }
        });
    }
    found
}

/// Returns the missing branches that held a path, and what that was.
pub(super) fn missing_path(pool: &PoolLink, path: &Path) -> Option<(Vec<usize>, Row)> {
    missing_names(pool, path.parent()?, false).remove(path)
}
