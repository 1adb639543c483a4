//! `canopy init`: asks what a pool should be, and writes its description.
//!
//! Nothing is written that was not shown before. `--undo` takes that back, whatever was edited since.

mod disks;
mod place;
mod plan;

use self::plan::Plan;
use super::ask::{ask, ask_which, confirm};
use crate::error::Error;
use crate::machine::{self, Filesystem};
use crate::pool_file::{PoolFile, WAYS, Way};
use crate::{proposal, unit};
use canopy_base::text::os_error;
use canopy_config::fstab::{self, Line};
use canopy_config::source::named::NamedPool;
use canopy_sys::shown::Show as _;
use canopy_terminal::{BOLD, WARNING, paragraph, print, print_json, print_styled, styled};
use clap::Args;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Set up a new pool, step by step
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct InitArgs {
    /// The pool's name
    #[arg(default_value = "pool")]
    pub name: String,
    /// A branch; repeat it [default: each data disk]
    #[arg(short, long = "branch", value_name = "DIR")]
    pub branches: Vec<PathBuf>,
    /// Where the pool appears [default: /mnt/NAME]
    #[arg(short, long, value_name = "DIR")]
    pub mountpoint: Option<PathBuf>,
    /// New files go: spread, most-free, together or fill
    #[arg(long, value_name = "WAY", value_parser = parse_way, hide_possible_values = true)]
    pub way: Option<Way>,
    /// Mounted at boot by: fstab, unit or nothing
    #[arg(long, value_name = "BY", value_enum, hide_possible_values = true)]
    pub boot: Option<Boot>,
    /// Show what would be written, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Do not ask; use defaults for whatever is not given
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Print JSON: what is written (--yes) or would be
    #[arg(long, conflicts_with = "undo")]
    pub json: bool,
    /// Take back what init wrote for this pool
    #[arg(long, conflicts_with_all = ["branches", "mountpoint", "way", "boot"])]
    pub undo: bool,
    /// The file for --boot fstab
    #[arg(long, value_name = "FILE", default_value = FSTAB)]
    pub fstab_file: PathBuf,
    /// The directory for --boot unit
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system", hide = true)]
    pub unit_dir: PathBuf,
}

const FSTAB: &str = "/etc/fstab";

const NOTES: &str = "\
Shows what it writes, and asks. At boot, the pool is mounted by a line of fstab
if this machine has one; it waits for its disks, but not for one that is dead.

Examples:
  canopy init media                 # asks
  canopy init media -b /mnt/disk1 -b /mnt/disk2 --way fill --yes
  canopy init media --undo          # files on the disks stay";

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Boot {
    Fstab,
    Unit,
    Nothing,
}

impl Boot {
    /// The word for it on the command line.
    fn word(self) -> &'static str {
        match self {
            Boot::Fstab => "fstab",
            Boot::Unit => "unit",
            Boot::Nothing => "nothing",
        }
    }
}

fn parse_way(word: &str) -> Result<Way, String> {
    let words: Vec<&str> = WAYS.iter().map(|way| way.word).collect();
    WAYS.into_iter().find(|way| way.word == word).ok_or_else(|| format!("one of {}", words.join(", ")))
}

pub fn run(args: &InitArgs) -> Result<(), Error> {
    let named = named(&args.name)?;
    let asks = !args.yes && !args.json && io::stdin().is_terminal();
    if args.undo {
        return plan::undo(args, &named, asks);
    }
    if named.file.exists() {
        let (file, name) = (named.file.shown(), &args.name);
        return Err(Error::Refused(format!(
            "{file} exists already (canopy mount {name} mounts it; edit it, or take another name)"
        )));
    }
    // Whoever wants a line in it is told by the plan if it cannot be read.
    let lines = fs::read_to_string(&args.fstab_file).map(|text| fstab::parse(&text)).unwrap_or_default();
    let branches = choose_branches(args, &lines, asks)?;
    let min_free = proposal::min_free(&branches);
    let warnings = proposal::warnings(&branches, &lines, min_free);
    for warning in warnings.iter().filter(|_| !args.json) {
        print_styled(&paragraph(&styled(WARNING, "warning: "), warning));
    }
    let mountpoint = choose_mountpoint(args, &branches, &lines, asks)?;
    let way = choose_way(args, asks)?;
    let boot = choose_boot(args, &named, asks)?;
    let paths = branches.iter().map(|branch| branch.path.clone()).collect();
    let pool = PoolFile { branches: paths, mountpoint: mountpoint.clone(), way, min_free };
    let text = pool.render().map_err(|refused| {
        Error::Refused(format!(
            "{} cannot be written in a list of branches (rename it, or make a link to it)",
            refused.0.shown()
        ))
    })?;
    let plan = Plan::new(args, named, text, mountpoint, boot, &branches, &lines)?;
    if args.json {
        if args.yes {
            plan.write()?;
        }
        print_json(&plan.report(args.yes, &branches, &pool, &warnings));
        return told(args);
    }
    print_styled(&plan.shown());
    if args.dry_run {
        return Ok(());
    }
    if asks && !confirm("Write this?")? || !asks && !args.yes {
        return Err(NOT_WRITTEN);
    }
    if let Some(kept) = plan.write()? {
        print(&format!("the old fstab was kept as {}\n", kept.shown()));
    }
    print_styled(&format!("\n{}\n{}", styled(BOLD, "Next"), plan.next_steps()));
    Ok(())
}

const NOT_WRITTEN: Error = Error::NotAgreed("written", "--yes writes it without asking");

/// # Errors
/// If nothing was written although that was asked.
fn told(args: &InitArgs) -> Result<(), Error> {
    if args.yes || args.dry_run { Ok(()) } else { Err(NOT_WRITTEN) }
}

/// Returns the pool of a name that is the same word everywhere: in a shell, a path, a unit and fstab.
fn named(name: &str) -> Result<NamedPool, Error> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let named =
        NamedPool::by_name(OsStr::new(name)).filter(|_| !name.starts_with('-') && name.chars().all(fits));
    named.ok_or_else(|| {
        Error::Refused(format!(
            "'{name}' cannot be the name of a pool (letters, digits, - and _; --mountpoint may be any path)"
        ))
    })
}

fn choose_branches(args: &InitArgs, lines: &[Line], asks: bool) -> Result<Vec<Filesystem>, Error> {
    if !args.branches.is_empty() {
        return look_at_all(&args.branches);
    }
    let found = machine::filesystems().map_err(Error::Mounts)?;
    let candidates = proposal::candidates(found);
    if !args.json {
        print_styled(&disks::overview(&candidates, lines).map_err(Error::Mounts)?);
    }
    let proposed: Vec<Filesystem> =
        candidates.into_iter().filter(|one| one.left_out.is_none()).map(|one| one.filesystem).collect();
    if !asks {
        return if proposed.is_empty() {
            Err(Error::Refused(
                "no disk is proposed (mount the disks first, or name directories with --branch)".into(),
            ))
        } else {
            Ok(proposed)
        };
    }
    let paths: Vec<String> = proposed.iter().map(|one| one.path.shown().to_string()).collect();
    loop {
        let answer = ask(&format!("\nBranches, separated by blanks [{}]:", paths.join(" ")), "")?;
        if answer.is_empty() && !proposed.is_empty() {
            return Ok(proposed);
        }
        // A path with a blank is written in quotes.
        let words = unit::words(&answer).unwrap_or_default();
        let paths: Vec<PathBuf> = words.into_iter().map(|word| word.value.into()).collect();
        match look_at_all(&paths) {
            Ok(chosen) if !chosen.is_empty() => return Ok(chosen),
            Ok(_) => print("Name at least one branch.\n"),
            Err(error) => print(&format!("{}\n", error)),
        }
    }
}

fn look_at_all(paths: &[PathBuf]) -> Result<Vec<Filesystem>, Error> {
    let found: Vec<Filesystem> = paths.iter().map(|path| look_at(path)).collect::<Result<_, _>>()?;
    match proposal::refuse_branches(&found) {
        Some(why) => Err(Error::Refused(why)),
        None => Ok(found),
    }
}

fn look_at(path: &Path) -> Result<Filesystem, Error> {
    machine::directory(path)
        .map_err(|why| Error::Refused(format!("branch {} cannot be used: {}", path.shown(), os_error(&why))))
}

fn choose_mountpoint(
    args: &InitArgs,
    branches: &[Filesystem],
    lines: &[Line],
    asks: bool,
) -> Result<PathBuf, Error> {
    let default = format!("/mnt/{}", args.name);
    if let (Some(path), _) | (None, (false, path)) =
        (args.mountpoint.clone(), (asks, PathBuf::from(&default)))
    {
        return match place::refused(&path, branches, lines)? {
            Some(why) => Err(Error::Refused(format!("{why} (--mountpoint DIR names another)"))),
            None => Ok(path),
        };
    }
    loop {
        let path = PathBuf::from(ask(&format!("\nWhere should the pool appear? [{default}]:"), &default)?);
        match place::refused(&path, branches, lines)? {
            Some(why) => print(&format!("{why}\n")),
            None => return Ok(path),
        }
    }
}

fn choose_way(args: &InitArgs, asks: bool) -> Result<Way, Error> {
    match (args.way, asks) {
        (Some(way), _) => Ok(way),
        (None, true) => {
            let choices: Vec<_> = WAYS.iter().map(|way| (way.word, way.meaning)).collect();
            Ok(WAYS[ask_which("Where should a new file go?", &choices)?])
        }
        (None, false) => Ok(WAYS[0]),
    }
}

fn choose_boot(args: &InitArgs, named: &NamedPool, asks: bool) -> Result<Boot, Error> {
    let default = default_boot(args, named);
    match (args.boot, asks) {
        (Some(boot), _) => Ok(boot),
        (None, true) => {
            let mut choices = [
                (Boot::Fstab, "fstab", "by a line of fstab"),
                (Boot::Unit, "unit", "by systemd's unit canopy@NAME"),
                (Boot::Nothing, "nothing", "only when you mount it"),
            ];
            // Enter takes the first.
            choices.sort_by_key(|(boot, ..)| *boot != default);
            let words = choices.map(|(_, word, meaning)| (word, meaning));
            Ok(choices[ask_which("How should it be mounted at boot?", &words)?].0)
        }
        (None, false) => Ok(default),
    }
}

/// Returns what mounts a pool if nobody says. A pool that is described elsewhere than in /etc/canopy is one to try things out
/// with.
fn default_boot(args: &InitArgs, named: &NamedPool) -> Boot {
    let elsewhere = named.file.parent() != Some(Path::new("/etc/canopy"));
    if args.fstab_file.as_path() == Path::new(FSTAB) && (elsewhere || !args.fstab_file.exists()) {
        Boot::Nothing
    } else {
        Boot::Fstab
    }
}
