//! `canopy du`: how much of a tree is on each branch.

use super::{Failures, directory};
use crate::columns::{Side, columns};
use crate::error::{Error, Result};
use crate::output::{legend, print, print_json, report_missing, shown};
use crate::pool_link::PoolLink;
use crate::survey::{Entry, walk};
use canopy_base::text::bytes;
use canopy_control::OsText;
use clap::Args;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Show how much of a directory tree is on each branch
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct DuArgs {
    /// A directory on a pool
    #[arg(default_value = ".", value_name = "PATH")]
    pub path: PathBuf,
    /// How many levels to show below it
    #[arg(short, long, value_name = "LEVELS", default_value_t = 1)]
    pub depth: usize,
    /// Count sizes instead of what files take on their disks
    #[arg(long)]
    pub apparent_size: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
The columns have the numbers of the branches, which are explained first. A file
with several names counts once, where it is met first; copies count each.

Example:
  canopy du --depth 2 /mnt/pool";

/// How many branches fit beside each other into a line.
const IN_COLUMNS: usize = 7;

#[derive(Serialize)]
struct Report {
    path: OsText,
    branches: Vec<OsText>,
    /// The directory itself comes last.
    directories: Vec<DirReport>,
}

#[derive(Serialize)]
struct DirReport {
    path: OsText,
    /// Bytes, with everything below.
    total: u64,
    /// Bytes on each branch, in the order of `branches`.
    by_branch: Vec<u64>,
    /// Names of files and directories, without the directory itself.
    names: u64,
}

#[derive(Clone, Default)]
struct Sum {
    by_branch: Vec<u64>,
    names: u64,
}

/// Runs the command.
pub fn du(args: &DuArgs) -> Result<()> {
    let (pool, dir) = directory(&args.path)?;
    report_missing(&pool);
    let mut failures = Failures::default();
    let mut sums: BTreeMap<PathBuf, Sum> = BTreeMap::new();
    let none = || Sum { by_branch: vec![0; pool.branches.len()], names: 0 };
    sums.insert(PathBuf::new(), none());
    let (mut seen, mut all) = (HashSet::new(), 0);
    walk(&pool, &dir, &mut |path, errno| failures.add(&path, errno), &mut |entry| {
        all += 1;
        let below = entry.path.strip_prefix(&dir).unwrap_or(&entry.path);
        if entry.is_dir() && below.components().count() <= args.depth {
            sums.insert(below.to_owned(), none());
        }
        let parent = below.parent().unwrap_or(Path::new(""));
        let counted = count(entry, args.apparent_size, &mut seen);
        for shown in parent.ancestors().chain(entry.is_dir().then_some(below)) {
            let Some(sum) = sums.get_mut(shown) else { continue };
            sum.names += u64::from(shown != below);
            counted.iter().for_each(|(branch, bytes)| sum.by_branch[*branch] += bytes);
        }
        true
    });
    // The whole is last, as du(1) has it.
    let whole = sums.remove(Path::new("")).unwrap_or_else(none);
    let reports = sums.into_iter().chain([(PathBuf::new(), whole)]).map(|(path, sum)| DirReport {
        path: OsText::from(if path.as_os_str().is_empty() { Path::new(".") } else { &path }),
        total: sum.by_branch.iter().sum(),
        by_branch: sum.by_branch,
        names: sum.names,
    });
    let directories: Vec<DirReport> = reports.collect();
    if args.json {
        let branches = pool.branches.iter().map(|branch| OsText::from(branch.path.as_path())).collect();
        print_json(&Report { path: OsText::from(args.path.as_path()), branches, directories });
    } else {
        print(&render(&pool, &directories));
    }
    if failures.0 == 0 {
        Ok(())
    } else {
        Err(Error::Incomplete { failed: failures.0, all: all + failures.0 })
    }
}

/// Returns what an entry adds to each branch.
fn count(entry: &Entry, apparent: bool, seen: &mut HashSet<(u64, u64)>) -> Vec<(usize, u64)> {
    let linked =
        |copy: &&crate::survey::FileCopy| copy.is_dir() || copy.stat.st_nlink < 2 || seen.insert(copy.key());
    let bytes = |copy: &crate::survey::FileCopy| match (apparent, copy.is_dir()) {
        (true, true) => 0,
        (true, false) => copy.size(),
        (false, _) => copy.used(),
    };
    entry.copies.iter().filter(linked).map(|copy| (copy.branch, bytes(copy))).collect()
}

fn render(pool: &PoolLink, directories: &[DirReport]) -> String {
    let or_dash = |number: u64| if number == 0 { "-".to_owned() } else { bytes(number) };
    if pool.branches.len() > IN_COLUMNS {
        let mut rows = vec![["BYTES", "BRANCH", "DIRECTORY"].map(str::to_owned).to_vec()];
        for dir in directories {
            let path = shown(&dir.path.to_path());
            for (index, number) in dir.by_branch.iter().enumerate().filter(|(_, number)| **number > 0) {
                rows.push(vec![bytes(*number), (index + 1).to_string(), path.clone()]);
            }
            rows.push(vec![bytes(dir.total), "all".into(), path]);
        }
        return legend(pool) + &columns(&[Side::Right, Side::Right, Side::Left], &rows);
    }
    let numbers = (1..=pool.branches.len()).map(|number| number.to_string());
    let mut rows: Vec<Vec<String>> =
        vec![std::iter::once("TOTAL".to_owned()).chain(numbers).chain(["DIRECTORY".to_owned()]).collect()];
    for dir in directories {
        let cells = dir.by_branch.iter().map(|number| or_dash(*number));
        let cells = std::iter::once(bytes(dir.total)).chain(cells);
        rows.push(cells.chain([shown(&dir.path.to_path())]).collect());
    }
    let mut sides = vec![Side::Right; pool.branches.len() + 1];
    sides.push(Side::Left);
    legend(pool) + &columns(&sides, &rows)
}
