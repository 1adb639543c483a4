//! `canopy add`, `remove`, `replace` and `mode`: change the branches of a running pool, and of its config file.
//!
//! Each computes the whole new list, shows what changes, asks if files would go out of sight, and hands the list to
//! [`set::branches`].

use super::mount::MountArgs;
use super::set::{self, Persistence};
use crate::control_client::ControlClient;
use crate::error::Error;
use crate::terminal::{print, print_json, print_styled};
use canopy_base::text::{bytes, one_line};
use canopy_branch::branch::{BranchList, BranchSpec, Mode};
use canopy_config::Config;
use canopy_config::source;
use canopy_config::source::branch_lists::difference;
use canopy_control::OsText;
use canopy_setup::commands::ask::confirm;
use canopy_sys::shown::Show as _;
use canopy_upkeep::OnlyThere;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

type ParseCmdline = fn(&[u8]) -> Option<MountArgs>;

/// What policies may do on a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum ModeWord {
    /// Read, change and create
    #[value(alias = "rw")]
    Rw,
    /// Read only
    #[value(alias = "ro")]
    Ro,
    /// Read and change, but create nothing
    #[value(alias = "nc")]
    Nc,
}

impl From<ModeWord> for Mode {
    fn from(word: ModeWord) -> Mode {
        match word {
            ModeWord::Rw => Mode::Rw,
            ModeWord::Ro => Mode::Ro,
            ModeWord::Nc => Mode::Nc,
        }
    }
}

/// How a change of the branches is made.
#[derive(Args, Clone, Copy, Debug)]
pub struct ChangeArgs {
    /// Change the running pool only, not its config file
    #[arg(long)]
    pub no_persist: bool,
    /// Show what would change, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Do not ask, even if files disappear from the pool
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Print JSON, for programs; asks nothing
    #[arg(long)]
    pub json: bool,
}

/// Add branches to a running pool
#[derive(Args, Debug)]
#[command(after_help = ADD_NOTES)]
pub struct AddArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Directories, or patterns of them
    #[arg(required = true, value_name = "BRANCH")]
    pub branches: Vec<OsString>,
    /// Their mode
    #[arg(long, value_name = "MODE", ignore_case = true)]
    pub mode: Option<ModeWord>,
    /// Put them in front of the others, not at the end
    #[arg(long)]
    pub first: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
}

const ADD_NOTES: &str = "\
The config file of the pool changes as well, if it has one. A branch may be
followed by its mode and minfreespace: /mnt/disk3=NC,20G.

Examples:
  canopy add media /mnt/disk3
  canopy add /pool /mnt/archive --mode RO";

/// Remove branches from a running pool
#[derive(Args, Debug)]
#[command(after_help = REMOVE_NOTES)]
pub struct RemoveArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// The branches
    #[arg(required = true, value_name = "BRANCH")]
    pub branches: Vec<PathBuf>,
    #[command(flatten)]
    pub change: ChangeArgs,
}

const REMOVE_NOTES: &str = "\
Files that only these branches hold disappear from the pool, and stay on their
disk. canopy drain moves them to the other branches first. The config file of
the pool changes as well, if it has one.

Example:
  canopy remove media /mnt/disk1";

/// Replace a branch of a running pool by another directory
#[derive(Args, Debug)]
#[command(after_help = REPLACE_NOTES)]
pub struct ReplaceArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// The branch
    pub old: PathBuf,
    /// The directory that takes its position, mode and minfreespace
    pub new: PathBuf,
    #[command(flatten)]
    pub change: ChangeArgs,
}

const REPLACE_NOTES: &str = "\
Copies nothing: copy the files first (rsync -aHAX OLD/ NEW/), or add NEW and
drain OLD instead. The config file of the pool changes as well, if it has one.

Example:
  canopy replace media /mnt/disk1 /mnt/disk4";

/// Change the mode of a branch: RW, RO or NC
#[derive(Args, Debug)]
#[command(after_help = MODE_NOTES)]
pub struct ModeArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// The branch
    pub branch: PathBuf,
    /// The new mode
    #[arg(ignore_case = true)]
    pub mode: ModeWord,
    #[command(flatten)]
    pub change: ChangeArgs,
}

const MODE_NOTES: &str = "\
The config file of the pool changes as well, if it has one.

Example:
  canopy mode media /mnt/disk1 NC";

pub fn add(args: &AddArgs, parse_cmdline: ParseCmdline) -> Result<(), Error> {
    let change = Change::of(&args.pool, args.change)?;
    let mut config = change.before.clone();
    // Given together, so that they keep their order in front as well.
    let mut value = OsString::from(if args.first { "+<" } else { "+>" });
    for (index, branch) in args.branches.iter().enumerate() {
        value.push(if index == 0 { "" } else { ":" });
        value.push(branch);
        let has_mode = [b"=RW".as_slice(), b"=RO", b"=NC"]
            .iter()
            .any(|mode| branch.as_bytes().windows(mode.len()).any(|part| part == *mode));
        if let Some(mode) = args.mode.filter(|_| !has_mode) {
            value.push(format!("={}", Mode::from(mode)));
        }
    }
    source::set(&mut config, "branches", &value)?;
    change.make(config.branches, parse_cmdline)
}

pub fn remove(args: &RemoveArgs, parse_cmdline: ParseCmdline) -> Result<(), Error> {
    let change = Change::of(&args.pool, args.change)?;
    let going = args.branches.iter().map(|branch| change.find(branch)).collect::<Result<Vec<_>, _>>()?;
    let list: Vec<BranchSpec> = change.before.branches.iter().cloned().collect();
    let rest = list.into_iter().enumerate().filter(|(index, _)| !going.contains(index));
    change.make(rest.map(|(_, spec)| spec).collect(), parse_cmdline)
}

pub fn replace(args: &ReplaceArgs, parse_cmdline: ParseCmdline) -> Result<(), Error> {
    let change = Change::of(&args.pool, args.change)?;
    let index = change.find(&args.old)?;
    let new = args.new.canonicalize().map_err(|_| Error::NewBranchMissing(args.new.clone()))?;
    let mut list: Vec<BranchSpec> = change.before.branches.iter().cloned().collect();
    list[index].path = new;
    change.make(list.into_iter().collect(), parse_cmdline)
}

pub fn mode(args: &ModeArgs, parse_cmdline: ParseCmdline) -> Result<(), Error> {
    let change = Change::of(&args.pool, args.change)?;
    let index = change.find(&args.branch)?;
    let mut list: Vec<BranchSpec> = change.before.branches.iter().cloned().collect();
    list[index].mode = args.mode.into();
    change.make(list.into_iter().collect(), parse_cmdline)
}

/// A change of the branches of a pool.
struct Change<'c> {
    pool: &'c Path,
    args: ChangeArgs,
    client: ControlClient,
    before: Config,
}

impl<'c> Change<'c> {
    fn of(pool: &'c Path, args: ChangeArgs) -> Result<Change<'c>, Error> {
        let client = ControlClient::at(pool)?;
        let mut before = Config::default();
        source::set(&mut before, "branches", &client.get("branches")?)?;
        Ok(Change { pool, args, client, before })
    }

    /// Finds a branch by its path, in any spelling.
    fn find(&self, word: &Path) -> Result<usize, Error> {
        let is = |path: &Path| self.before.branches.iter().position(|spec| spec.path == path);
        let plain: PathBuf = std::path::absolute(word).unwrap_or_default().components().collect();
        let found =
            is(word).or_else(|| is(&plain)).or_else(|| word.canonicalize().ok().and_then(|real| is(&real)));
        found.ok_or_else(|| {
            let branches = self.before.branches.iter().map(|spec| spec.path.shown().to_string());
            let branches = branches.collect::<Vec<_>>().join(", ");
            Error::NoBranch { branch: word.to_owned(), pool: self.client.mountpoint().to_owned(), branches }
        })
    }

    /// Shows the change, asks if need be, and makes it.
    fn make(&self, after: BranchList, parse_cmdline: ParseCmdline) -> Result<(), Error> {
        let place = one_line(&self.client.mountpoint().to_string_lossy());
        let before = &self.before.branches;
        let mut report = self.args.json.then(|| Report::of(self.client.mountpoint(), before, &after));
        if *before == after {
            match report {
                Some(report) => print_json(&report),
                None => print(&format!("{place}: nothing changes\n")),
            }
            return Ok(());
        }
        if after.is_empty() {
            return Err(Error::LastBranch(self.client.mountpoint().to_owned()));
        }
        self.client.check_branches(&after.to_os_string())?;
        if report.is_none() {
            print_styled(&difference(&place, before, &after));
        }
        let stays = |path: &Path| after.iter().any(|spec| spec.path == path);
        let going: Vec<PathBuf> =
            before.iter().map(|spec| spec.path.clone()).filter(|path| !stays(path)).collect();
        let out_of_sight = if going.is_empty() {
            OnlyThere { is_all: true, ..OnlyThere::default() }
        } else {
            canopy_upkeep::only_there(self.client.mountpoint(), &going)?
        };
        let hides = out_of_sight.files > 0;
        match &mut report {
            Some(report) => {
                report.out_of_sight = OutOfSight {
                    files: out_of_sight.files,
                    bytes: out_of_sight.bytes,
                    all: out_of_sight.is_all,
                };
            }
            None if hides => print(&warning(&place, &going, &out_of_sight)),
            None => {}
        }
        if self.args.dry_run || hides && !self.args.yes && report.is_some() {
            report.iter().for_each(print_json);
            return if self.args.dry_run { Ok(()) } else { Err(Error::NotAsked) };
        }
        if hides && !self.args.yes {
            agree()?;
        }
        let done = set::branches(self.pool, &after.to_os_string(), !self.args.no_persist, parse_cmdline)?;
        if let Some(mut report) = report {
            report.changed = true;
            report.file = match &done {
                Persistence::InFile(file) => Some(file.as_path().into()),
                Persistence::UntilUnmount => None,
            };
            print_json(&report);
            return Ok(());
        }
        match done {
            Persistence::InFile(file) => {
                print(&format!("changed, also in {}\n", one_line(&file.to_string_lossy())))
            }
            Persistence::UntilUnmount if self.args.no_persist => {
                print("changed until the pool is unmounted\n")
            }
            Persistence::UntilUnmount => print(
                "changed until the pool is unmounted: it has no config file. To keep the change, edit \
                 the branches where they are configured (/etc/fstab or the mount command)\n",
            ),
        }
        Ok(())
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    pool: OsText,
    before: Vec<OsText>,
    after: Vec<OsText>,
    out_of_sight: OutOfSight,
    /// Whether the change was made.
    changed: bool,
    /// The config file that was changed as well.
    file: Option<OsText>,
}

/// Files that only branches hold which go.
#[derive(Serialize)]
struct OutOfSight {
    files: u64,
    bytes: u64,
    /// Counting was not cut short.
    all: bool,
}

impl Report {
    fn of(pool: &Path, before: &BranchList, after: &BranchList) -> Report {
        let each = |list: &BranchList| {
            let alone =
                list.iter().map(|spec| [spec.clone()].into_iter().collect::<BranchList>().to_os_string());
            alone.map(|spec| OsText::from(Path::new(&spec))).collect()
        };
        Report {
            pool: pool.into(),
            before: each(before),
            after: each(after),
            out_of_sight: OutOfSight { files: 0, bytes: 0, all: true },
            changed: false,
            file: None,
        }
    }
}

fn warning(place: &str, going: &[PathBuf], only: &OnlyThere) -> String {
    let names: Vec<String> = going.iter().map(|path| one_line(&path.to_string_lossy())).collect();
    let (files, stays) = match only.files {
        1 if only.is_all => ("1 file".to_owned(), "it stays"),
        1 => ("1 file".to_owned(), "they stay"),
        files => (format!("{files} files"), "they stay"),
    };
    let least = if only.is_all { "" } else { "at least " };
    let disk = if going.len() == 1 { "disk" } else { "disks" };
    let hold = if going.len() == 1 { "holds" } else { "hold" };
    let (names, first) = (names.join(" and "), names.first().map_or("", String::as_str));
    format!(
        "{least}{files} ({}) that only {names} {hold} would disappear from {place}; {stays} on the {disk}.\n\
         To move them to the other branches first: canopy drain {place} {first}\n",
        bytes(only.bytes)
    )
}

/// Asks at a terminal.
///
/// # Errors
/// If there is none, or the answer is not yes.
fn agree() -> Result<(), Error> {
    let can_ask = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if can_ask && confirm("Go on?")? { Ok(()) } else { Err(Error::NotAsked) }
}
