//! `canopy dup`: makes copies of files on other disks.

use crate::error::Result;
use crate::output::report_lossy;
use crate::pool_link::PoolLink;
use crate::relocate::{Action, Run, RunArgs, Stays, Task, apart, layout};
use crate::survey::{Entry, FileCopy, walk_all};
use canopy_base::text::os_error;
use canopy_policy::layout::{Layout, Takes, Twins};
use clap::Args;
use rustix::fs::FileType;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Make copies of files on other disks of a pool
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct DupArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Files and directories of the pool; the latter with all below
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// On how many disks each file is to be
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub copies: u16,
    #[command(flatten)]
    pub run: RunArgs,
}

const NOTES: &str = "\
The copies are not kept in sync: later writes change only one of them. Rules
with copies=N keep copies in sync (man canopy).
Example: canopy dup /mnt/pool /mnt/pool/photos --copies 2";

/// A file or symlink, with the copies that there are.
#[derive(Debug)]
struct Doubles {
    /// All names that were met.
    names: Vec<PathBuf>,
    copies: Vec<FileCopy>,
}

impl Doubles {
    /// The copy that the pool shows.
    fn first(&self) -> &FileCopy {
        &self.copies[0]
    }

    /// Returns why no more copies can be made.
    fn obstacle(&self) -> Option<&'static str> {
        let first = self.first();
        let differs = |copy: &FileCopy| {
            copy.kind() != first.kind() || copy.size() != first.size() || copy.modified() != first.modified()
        };
        self.copies.iter().any(differs).then_some("its copies differ in type, size or time")
    }
}

/// Runs the command.
pub fn dup(args: &DupArgs) -> Result<()> {
    let pool = PoolLink::named(&args.pool)?.accepting_losses(args.run.lossy);
    let run = Run::of(Action::Copy, &pool, &args.run)?;
    let starts = apart(&pool, &args.paths)?;
    let (found, mut stays) = collect(&pool, &starts, &run)?;
    let mut layout = layout(&pool, None)?;
    report_lossy(&pool, found.iter().map(Doubles::first));
    let mut tasks = Vec::new();
    for file in found {
        let planned = match file.obstacle() {
            Some(why) => Err(why),
            None => plan(&pool, &file, usize::from(args.copies), &mut layout, &mut tasks),
        };
        if let Err(why) = planned {
            stays.push(Stays { path: pool.mountpoint.join(&file.names[0]), why: why.into() });
        }
    }
    run.carry_out("dup", &tasks, &stays)
}

/// Adds what is to be done with one file.
fn plan(
    pool: &PoolLink,
    file: &Doubles,
    wanted: usize,
    layout: &mut Layout<'_>,
    tasks: &mut Vec<Task>,
) -> Result<(), &'static str> {
    let first = file.first();
    let current: Vec<usize> = file.copies.iter().map(|copy| copy.branch).collect();
    let other = pool.losing(&first.stat);
    let least = Takes::Sparingly;
    let twins = Twins { wanted, bytes: first.used(), current: &current, old: &[], other: &other, least };
    let spread = layout.spread(&twins, None);
    let copying = |to: &usize| Task::copying(file.names.clone(), first.branch, *to, first.used());
    tasks.extend(spread.to.iter().map(copying));
    if !spread.is_short {
        return Ok(());
    }
    Err(if other.is_empty() {
        "no other disk has room"
    } else {
        "no other disk has room that can store its owner and mode (--lossy)"
    })
}

/// Looks through some files and trees of a pool, none within another. Returns what can be copied, and what cannot.
fn collect(pool: &PoolLink, starts: &[PathBuf], run: &Run<'_>) -> Result<(Vec<Doubles>, Vec<Stays>)> {
    let mut survey = Survey::new(pool);
    let failed = walk_all(pool, starts, &mut |entry| !run.stop.is_set() && survey.add(entry))?;
    run.stop.check()?;
    let Survey { mut found, mut stays, .. } = survey;
    stays.extend(failed.into_iter().map(|(path, errno)| Stays { path, why: os_error(errno) }));
    found.retain(|file| {
        run.filter.admits(&pool.mountpoint, file.names.iter().map(PathBuf::as_path), file.first())
    });
    Ok((found, stays))
}

struct Survey<'p> {
    pool: &'p PoolLink,
    /// The filesystem of each branch.
    devices: Vec<Option<u64>>,
    found: Vec<Doubles>,
    stays: Vec<Stays>,
    /// Where in `found` a file with several names is.
    known: HashMap<(u64, u64), usize>,
}

impl Survey<'_> {
    fn new(pool: &PoolLink) -> Survey<'_> {
        let device = |stat: rustix::fs::Stat| stat.st_dev;
        let root = Path::new("");
        let devices = pool.branches.iter().map(|branch| branch.stat(root).ok().map(device)).collect();
        Survey { pool, devices, found: Vec::new(), stays: Vec::new(), known: HashMap::new() }
    }

    /// Records an entry. Returns whether to look at what is below it.
    fn add(&mut self, entry: &Entry) -> bool {
        if self.pool.keep.stays(&entry.path) || entry.is_dir() {
            return !self.pool.keep.stays(&entry.path);
        }
        if let Err(why) = self.add_file(entry) {
            self.stays.push(Stays { path: self.pool.mountpoint.join(&entry.path), why: why.into() });
        }
        false
    }

    fn add_file(&mut self, entry: &Entry) -> Result<(), &'static str> {
        let first = entry.first();
        if self.devices[first.branch] != Some(first.stat.st_dev) {
            return Err(crate::relocate::BELOW_ANOTHER);
        }
        if !matches!(first.kind(), FileType::RegularFile | FileType::Symlink) {
            return Err("sockets, fifos and devices are not copied");
        }
        let linked = first.stat.st_nlink > 1;
        if linked && let Some(index) = self.known.get(&first.key()) {
            let file = &mut self.found[*index];
            file.names.push(entry.path.clone());
            let branches = |copies: &[FileCopy]| copies.iter().map(|copy| copy.branch).collect::<Vec<_>>();
            return if branches(&file.copies) == branches(&entry.copies) {
                Ok(())
            } else {
                Err("its names have copies on different branches")
            };
        }
        if linked {
            self.known.insert(first.key(), self.found.len());
        }
        self.found.push(Doubles { names: vec![entry.path.clone()], copies: entry.copies.clone() });
        Ok(())
    }
}
