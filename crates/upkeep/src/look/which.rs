//! `canopy which`: the copies of files, and how they differ.

use super::lost::missing_path;
use super::{Failures, differences, kind_word, seconds};
use crate::columns::{Side, columns};
use crate::error::{Error, Result};
use crate::output::{print, print_json, report_missing, shown};
use crate::pool_link::PoolLink;
use crate::survey::{FileCopy, current, judge, look};
use canopy_base::text::bytes;
use canopy_control::{BASEPATH, OsText, attribute};
use clap::Args;
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Show which branches hold a file, and how its copies differ
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct WhichArgs {
    /// Files and directories on a pool
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
* is the copy that the pool reads, old a stale copy (shown only where a rule
sets copies). USED is what a copy takes on its disk. Copies are compared by
type, size, time, mode and owner; canopy fsck can make them alike.
Exit status: 0 found, 1 a path could not be looked at.

Example:
  canopy which /mnt/pool/film.mkv";

#[derive(Serialize)]
struct PathReport {
    path: OsText,
    #[serde(rename = "type")]
    kind: &'static str,
    copies: Vec<CopyReport>,
    /// Empty if there is one copy, or if they are alike.
    differ: Vec<&'static str>,
    /// The branches that held it and are missing.
    missing: Vec<OsText>,
}

#[derive(Serialize)]
struct CopyReport {
    branch: OsText,
    path: OsText,
    /// The pool reads this copy. Null where the pool cannot be asked, as of symlinks.
    shown: Option<bool>,
    /// It is out of date: the pool shows another one (rules with copies).
    old: bool,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    used: u64,
    /// Seconds since 1970.
    mtime: i64,
    mtime_nsec: i64,
    mode: u32,
    uid: u32,
    gid: u32,
    links: usize,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'r> {
    paths: &'r [PathReport],
}

/// Runs the command.
pub fn which(args: &WhichArgs) -> Result<()> {
    let (mut reports, mut failures) = (Vec::new(), Failures::default());
    let mut warned = Vec::new();
    for path in &args.paths {
        let (pool, inside) = PoolLink::holding(path)?;
        if !warned.contains(&pool.mountpoint) {
            report_missing(&pool);
            warned.push(pool.mountpoint.clone());
        }
        let (copies, failed) = look(&pool, &inside);
        failed.iter().for_each(|(path, errno)| failures.add(path, *errno));
        if let Err((branch, errno)) = judge(&pool, &inside, &copies) {
            let at = branch.map_or(&pool.mountpoint, |branch| &pool.branches[branch].path);
            failures.add(&at.join(&inside), errno);
        }
        let known = missing_path(&pool, &inside);
        let kind = copies.first().map(FileCopy::kind);
        let kind = kind.or_else(|| Some(FileType::from_raw_mode(known.as_ref()?.1.attr.mode)));
        let missing = known.map_or_else(Vec::new, |(branches, _)| branches);
        match kind {
            None if failed.is_empty() => failures.add(path, Errno::NOENT),
            None => {}
            Some(kind) => reports.push(PathReport {
                path: OsText::from(path.as_path()),
                kind: kind_word(kind),
                differ: differences(&copies),
                copies: copy_reports(&pool, &inside, &copies),
                missing: missing.iter().map(|at| OsText::from(pool.branches[*at].path.as_path())).collect(),
            }),
        }
    }
    if args.json {
        print_json(&Report { paths: &reports });
    } else {
        let texts: Vec<String> = reports.iter().map(render).collect();
        print(&texts.join("\n"));
    }
    match failures.0 {
        0 => Ok(()),
        failed => Err(Error::Incomplete { failed, all: args.paths.len() as u64 }),
    }
}

fn copy_reports(pool: &PoolLink, inside: &Path, copies: &[FileCopy]) -> Vec<CopyReport> {
    // The kernel allows no user attributes of symlinks and devices, and reading one would follow a symlink.
    let asked =
        copies.first().is_some_and(|copy| matches!(copy.kind(), FileType::RegularFile | FileType::Directory));
    let shown = asked.then(|| pool.daemon.mount().getxattr(inside, &attribute(BASEPATH)).ok()).flatten();
    let shown = shown.map(|path| PathBuf::from(OsString::from_vec(path)));
    let current = current(pool, inside, copies);
    let report = |copy: &FileCopy| {
        let branch = &pool.branches[copy.branch].path;
        let path = if inside.as_os_str().is_empty() { branch.clone() } else { branch.join(inside) };
        CopyReport {
            branch: OsText::from(branch.as_path()),
            path: OsText::from(path.as_path()),
            shown: shown.as_ref().map(|shown| shown == branch),
            old: !current.contains(&copy.branch),
            kind: kind_word(copy.kind()),
            size: copy.size(),
            used: copy.used(),
            mtime: copy.stat.st_mtime,
            mtime_nsec: copy.stat.st_mtime_nsec as i64,
            mode: copy.stat.st_mode & 0o7777,
            uid: copy.stat.st_uid,
            gid: copy.stat.st_gid,
            links: copy.stat.st_nlink as usize,
        }
    };
    copies.iter().map(report).collect()
}

fn render(report: &PathReport) -> String {
    let count = match report.copies.len() {
        0 => "no copy that can be used".to_owned(),
        1 => "1 copy".to_owned(),
        count => format!("{count} copies"),
    };
    let differ = match (report.copies.len(), report.differ.as_slice()) {
        (0 | 1, _) => String::new(),
        (_, []) => ", alike".into(),
        (_, words) => format!(", which differ in {}", words.join(", ")),
    };
    let path = shown(&report.path.to_path());
    let mut text = format!("{path}: {}, {count}{differ}\n", report.kind);
    for branch in &report.missing {
        text += &format!("on {}, which is missing\n", shown(&branch.to_path()));
    }
    if report.copies.is_empty() {
        return text;
    }
    let mut rows = vec![row(["", "SIZE", "USED", "MODE", "OWNER", "LINKS", "MODIFIED", "BRANCH"])];
    for copy in &report.copies {
        let mark = match copy.shown {
            Some(true) => "*",
            _ if copy.old => "old",
            _ => "",
        };
        let (size, used) = match copy.kind {
            "directory" => ("-".to_owned(), "-".to_owned()),
            _ => (bytes(copy.size), bytes(copy.used)),
        };
        rows.push(vec![
            mark.into(),
            size,
            used,
            format!("{:04o}", copy.mode),
            format!("{}:{}", copy.uid, copy.gid),
            copy.links.to_string(),
            seconds(copy.mtime),
            shown(&copy.branch.to_path()),
        ]);
    }
    use Side::{Left, Right};
    text += &columns(&[Left, Right, Right, Left, Left, Right, Left, Left], &rows);
    text
}

fn row(cells: [&str; 8]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}
