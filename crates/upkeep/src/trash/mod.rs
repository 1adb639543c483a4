//! `canopy trash`: what clients have removed, and how it comes back.

mod find;
mod report;
mod restore;
mod sync;

use crate::consent::{Alone, Consent, ConsentArgs};
use crate::error::{Error, Result};
use crate::manners::ThrottleArgs;
use crate::output::{complain, print, print_json, report_missing, shown};
use crate::pool_link::{BranchLink, PoolLink};
use crate::stop::Stop;
use canopy_base::text::{bytes, os_error};
use canopy_branch::trash::sweep::{Verdict, sweep};
use canopy_control::COMMAND;
use clap::{Args, ValueEnum};
use find::{Chosen, Item};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// List, restore or remove what the trash of a pool keeps
#[derive(Args, Clone, Debug)]
#[command(after_help = NOTES)]
pub struct TrashArgs {
    /// list, restore, empty, du, thaw or sync
    #[arg(value_enum, hide_possible_values = true)]
    pub action: Action,
    /// The pool's mountpoint or name; or the directory of a branch
    pub pool: PathBuf,
    /// Only these: paths of the pool, or globs
    #[arg(value_name = "PATH")]
    pub paths: Vec<String>,
    /// Only what was removed since then
    #[arg(long, value_name = "TIME", value_parser = find::time)]
    pub since: Option<i64>,
    /// Only what was removed before
    #[arg(long, value_name = "TIME", value_parser = find::time)]
    pub before: Option<i64>,
    /// Only what this user has removed (a name or number)
    #[arg(long, value_name = "USER", value_parser = crate::filter::user)]
    pub user: Option<u32>,
    /// Only what was removed with this program
    #[arg(long, value_name = "NAME")]
    pub program: Option<String>,
    /// Restore below this directory of the pool
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
    #[command(flatten)]
    pub consent: ConsentArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    List,
    Restore,
    Empty,
    Du,
    Thaw,
    Sync,
}

const NOTES: &str = "\
A TIME is an age (2h, 3d), a time of the last 24 hours (14:00), or a date in
UTC (2026-11-27, 2026-11-27T14:00). A PATH also stands for all below it.
Restoring overwrites nothing: what has its name in the pool by now stays there.
Of several files of one path, the one that was removed last comes back. empty
removes for good, du shows the bytes on each branch, and thaw lets programs go
on that an alarm has stopped: all, or those of --program and --user. sync runs
snapraid sync, with the options after --, and removes what waited for it. Only
root may look into the trash.

Examples:
  canopy trash list /mnt/pool
  canopy trash list /mnt/pool --program smbd --since 14:00
  canopy trash restore /mnt/pool 'photos/**' --user 1000
  canopy trash restore /mnt/pool films/a.mkv --into /mnt/pool/rescued
  canopy trash empty /mnt/pool --before 7d
  canopy trash sync /mnt/pool -- -c /etc/snapraid.conf";

/// Runs the command.
pub fn trash(args: &TrashArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::TrashIsRoots);
    }
    if args.into.is_some() && args.action != Action::Restore {
        return Err(Error::OnlyRestoring("--into"));
    }
    let home = Home::of(&args.pool)?;
    match args.action {
        Action::Thaw => return thaw(args, &home),
        Action::Sync => return sync::sync(args, &home),
        _ => {}
    }
    if let Some(pool) = &home.pool {
        report_missing(pool);
    }
    let chosen = Chosen::of(args, home.pool.as_ref().map(|pool| pool.mountpoint.as_path()))?;
    let (items, failed) = home.gather(&chosen);
    match args.action {
        Action::List => report::list(&home, &items, (args.json, chosen.is_all())),
        Action::Du => report::du(&home, &items, args.json),
        Action::Empty => empty(args, &home, &items)?,
        Action::Thaw | Action::Sync => {}
        Action::Restore => match &home.pool {
            Some(_) if items.is_empty() && failed == 0 && !chosen.is_all() => {
                return Err(Error::NotInTrash(args.pool.clone()));
            }
            Some(pool) => restore::restore(args, &home, pool, items)?,
            None => return Err(Error::NotWithoutPool(args.pool.clone())),
        },
    }
    match failed {
        0 => Ok(()),
        failed => Err(Error::Incomplete { failed, all: home.branches().len() as u64 }),
    }
}

/// Lets programs go on that were stopped for what they have removed.
fn thaw(args: &TrashArgs, home: &Home) -> Result<()> {
    let pool = home.pool.as_ref().ok_or_else(|| Error::NotWithoutPool(args.pool.clone()))?;
    if !args.paths.is_empty() || args.since.or(args.before).is_some() {
        return Err(Error::OnlyFiltering("thaw"));
    }
    let user = args.user.map_or_else(String::new, |user| user.to_string());
    let program = args.program.as_deref().unwrap_or_default();
    let is_all = args.user.is_none() && program.is_empty();
    let who = if is_all { String::new() } else { format!(":{user}/{program}") };
    let told = pool.daemon.set(&format!("{COMMAND}trash-thaw{who}"), OsStr::new(""));
    told.map_err(|why| match why {
        Errno::NOENT => {
            Error::NotThawed { pool: args.pool.clone(), why: "no alarm is about that (canopy status)".into() }
        }
        why => Error::NotThawed { pool: args.pool.clone(), why: os_error(why) },
    })
}

/// Where the trash is: the branches of a pool, or one branch of a pool that need not be mounted.
struct Home {
    pool: Option<PoolLink>,
    sole: Vec<BranchLink>,
}

impl Home {
    fn of(word: &Path) -> Result<Home> {
        match PoolLink::named(word) {
            Ok(pool) => Ok(Home { pool: Some(pool), sole: Vec::new() }),
            Err(why) => {
                let branch = word.canonicalize().ok().filter(|path| find::is_branch(path));
                let branch = branch.and_then(|path| BranchLink::alone(&path).ok()).ok_or(why)?;
                Ok(Home { pool: None, sole: vec![branch] })
            }
        }
    }

    fn branches(&self) -> &[BranchLink] {
        self.pool.as_ref().map_or(&self.sole, |pool| &pool.branches)
    }

    /// Returns what is there, the oldest first, and how many branches could not be looked at.
    fn gather(&self, chosen: &Chosen) -> (Vec<Item>, u64) {
        let (mut items, mut failed) = (Vec::new(), 0);
        for (index, branch) in self.branches().iter().enumerate() {
            let Ok(root) = branch.root() else { continue };
            let swept = sweep(root, &mut |found| {
                items.extend(Item::of(index, found).filter(|item| chosen.admits(item)));
                Verdict::Stays
            });
            if let Err(errno) = swept {
                complain(&format!("{}: {}", shown(&branch.path), os_error(errno)));
                failed += 1;
            }
        }
        items.sort_by(|a, b| {
            (a.removed, a.nanoseconds, &a.path, &a.kept_in).cmp(&(
                b.removed,
                b.nanoseconds,
                &b.path,
                &b.kept_in,
            ))
        });
        (items, failed)
    }

    /// Calls `act` with each of these items that is still there; what it takes or removes is gone then. Returns why it failed on
    /// a branch.
    fn each<'i>(
        &self,
        items: &'i [Item],
        stop: &Stop,
        mut act: impl FnMut(&'i Item, &canopy_branch::trash::sweep::Trashed<'_>) -> Verdict,
    ) -> Vec<(PathBuf, Errno)> {
        let mut failed = Vec::new();
        for (index, branch) in self.branches().iter().enumerate() {
            let of_branch: HashSet<&Item> = items.iter().filter(|item| item.branch == index).collect();
            let Ok(root) = branch.root() else { continue };
            if of_branch.is_empty() {
                continue;
            }
            let swept = sweep(root, &mut |found| {
                if stop.is_set() {
                    return Verdict::Ends;
                }
                let item = Item::of(index, found);
                match item.as_ref().and_then(|item| of_branch.get(item)) {
                    Some(item) => act(item, found),
                    None => Verdict::Stays,
                }
            });
            failed.extend(swept.err().map(|errno| (branch.path.clone(), errno)));
        }
        // The pool counts the trash as free room. If it cannot be told, it looks within the hour.
        if let Some(pool) = &self.pool {
            let _ = pool.daemon.set(&format!("{COMMAND}gc"), OsStr::new(""));
        }
        failed
    }
}

/// How the command asks: a list for programs asks nobody.
fn consent(args: &TrashArgs, alone: Alone) -> Consent {
    let manners = ThrottleArgs { json: args.json, ..ThrottleArgs::default() };
    Consent::of(args.consent, alone, &manners)
}

fn empty(args: &TrashArgs, home: &Home, items: &[Item]) -> Result<()> {
    let consent = consent(args, Alone::Shows);
    let stop = Stop::on_signals()?;
    let all: u64 = items.iter().map(|item| item.used).sum();
    if !args.json {
        print(&format!("To be removed for good: {} files, {}\n", items.len(), bytes(all)));
    }
    let acts = consent.agrees("Remove them?", items.is_empty(), &stop)?;
    let mut gone: Vec<&Item> = Vec::new();
    let mut failed = Vec::new();
    if acts {
        failed = home.each(items, &stop, |item, _| {
            gone.push(item);
            Verdict::Goes
        });
        // The last one of a branch that fails is still there.
        for (path, _) in &failed {
            let at = gone.iter().rposition(|item| home.branches()[item.branch].path == *path);
            at.map(|at| gone.remove(at));
        }
    }
    let (files, freed) = (gone.len(), gone.iter().map(|item| item.used).sum());
    if args.json {
        print_json(&serde_json::json!({ "acts": acts, "found": { "files": items.len(), "bytes": all },
            "removed": { "files": files, "bytes": freed } }));
    } else if acts {
        print(&format!("Removed: {files} files, {}\n", bytes(freed)));
    }
    report::failures(&failed)?;
    stop.check()?;
    consent.only_shown(items.is_empty())
}
