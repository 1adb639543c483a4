//! `canopy fsck`, also as `fsck.mergerfs`: finds files whose copies on several branches differ in owner, mode or size, and
//! repairs them.
//!
//! The tree is walked through the pool. The key `allpaths` of each directory says where its copies are, and the entries
//! are compared there. Keys of the entries themselves would not work for symlinks and devices.

mod repair;

use crate::error::Error;
use crate::mount_lookup;
use crate::terminal;
use canopy_config::control_api::{self, ALLPATHS, OsText};
use canopy_config::text::{date, one_line};
use canopy_upkeep::{Filter, FilterArgs};
use clap::Args;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Find and repair files whose copies on several branches differ
#[derive(Args, Debug, Default)]
#[command(after_help = NOTES)]
pub struct FsckArgs {
    /// A directory on a pool, checked with everything below
    #[arg(required = true)]
    pub path: Option<PathBuf>,
    /// Give the others the owner and mode of this copy
    #[arg(
        short,
        long,
        value_name = "COPY",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub fix: FixSource,
    /// Compare sizes as well
    #[arg(short = 's', long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = yes_or_no,
          action = clap::ArgAction::Set, hide_default_value = true)]
    pub check_size: bool,
    /// With --fix: copy data and attributes as well
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = yes_or_no,
          action = clap::ArgAction::Set, hide_default_value = true)]
    pub copy_file: bool,
    /// Print each path that is checked
    #[arg(short, long)]
    pub verbose: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "verbose")]
    pub json: bool,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Called by fsck(8): a path that is not on a pool needs no check.
    #[arg(skip)]
    pub by_fsck: bool,
    /// Leave out files whose copies differ in size.
    #[arg(skip)]
    pub same_size: bool,
    /// Called as fsck.mergerfs, whose exit status does not depend on the findings.
    #[arg(skip)]
    pub as_mergerfs: bool,
}

/// The copy that the others are changed to match. If several qualify, the first.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FixSource {
    #[default]
    None,
    Manual,
    Newest,
    Largest,
    Nonroot,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    <bool as canopy_config::values::Value>::parse(text.as_ref()).map_err(|_| "must be true or false".into())
}

const NOTES: &str = "\
COPY is newest (by mtime), largest, nonroot (the first whose owner is not root,
else the newest), manual (asks for each file), or none (the default).

Exit status: 0 no differences, 1 all repaired, 4 differences left, 8 failed.
Filters: --include, --exclude GLOB, --min-size, --max-size SIZE, --older,
--newer AGE, --owner USER (man canopy-fsck).
Example: canopy fsck --fix newest /pool/films";

/// Exit statuses of fsck(8).
const REPAIRED: u8 = 1;
const DIFFERENCES_LEFT: u8 = 4;
const FAILED: u8 = 8;

/// One copy of a file, held open so that the same file is compared and repaired.
pub(super) struct FileCopy {
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
}

impl FileCopy {
    /// Opens a copy without following symlinks anywhere in the path, because users could change them meanwhile.
    fn at(path: PathBuf) -> Result<FileCopy, Errno> {
        let fd = open(&path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?;
        Ok(FileCopy { path, fd, stat })
    }

    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    fn owner_and_mode(&self) -> (u32, u32, u32) {
        (self.stat.st_uid, self.stat.st_gid, self.stat.st_mode)
    }
}

/// Opens a file without following symlinks, if the kernel has openat2 (Linux 5.6).
pub(super) fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(Errno::NOSYS) => rustix::fs::open(path, flags, Mode::empty()),
        other => other,
    }
}

#[derive(Default, Serialize)]
struct Totals {
    checked: u64,
    differ: u64,
    repaired: u64,
    /// Directories and copies that could not be checked.
    errors: u64,
    /// For `--json`.
    findings: Vec<Finding>,
}

/// A path whose copies differ.
#[derive(Serialize)]
struct Finding {
    path: OsText,
    copies: Vec<CopyReport>,
    /// The number of the copy that the others have been changed to match.
    repaired_from: Option<usize>,
    /// Why it was not repaired, if that was asked.
    why: Option<String>,
}

#[derive(Serialize)]
struct CopyReport {
    path: OsText,
    uid: u32,
    gid: u32,
    /// In octal digits.
    mode: String,
    #[serde(rename = "type")]
    kind: &'static str,
    size: i64,
    mtime: String,
}

pub fn run(args: &FsckArgs) -> ExitCode {
    match check(args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(count)) => {
            if args.json {
                terminal::print_json(&count);
            } else if !args.as_mergerfs && !args.quiet {
                terminal::print(&summary(&count));
            }
            status(args, &count)
        }
        Err(error) => {
            terminal::eprint_line(&error.line());
            ExitCode::from(FAILED)
        }
    }
}

fn status(args: &FsckArgs, count: &Totals) -> ExitCode {
    if count.errors > 0 {
        return ExitCode::from(FAILED);
    }
    match count.differ - count.repaired {
        // Scripts for mergerfs do not expect another status.
        _ if args.as_mergerfs => ExitCode::SUCCESS,
        0 if count.repaired == 0 => ExitCode::SUCCESS,
        0 => ExitCode::from(REPAIRED),
        _ => ExitCode::from(DIFFERENCES_LEFT),
    }
}

fn summary(count: &Totals) -> String {
    let mut text = format!("{} checked, {} with copies that differ", count.checked, count.differ);
    if count.repaired > 0 {
        let _ = write!(text, ", {} repaired", count.repaired);
    }
    if count.errors > 0 {
        let _ = write!(text, ", {} could not be checked", count.errors);
    }
    text + "\n"
}

/// Walks the tree. Returns `None` if there is nothing to check, as may happen for fsck(8) at boot.
fn check(args: &FsckArgs) -> Result<Option<Totals>, Error> {
    let Some(path) = args.path.as_deref() else { return Ok(None) };
    if args.json && args.fix == FixSource::Manual {
        return Err(Error::AskInJson);
    }
    let filter = Filter::new(&args.filter)?;
    let failed = |why: io::Error| mount_lookup::lookup_error(path, why);
    let start = match path.canonicalize().and_then(|start| Ok((fs::metadata(&start)?.is_dir(), start))) {
        Ok((true, start)) => start,
        _ if args.by_fsck => return Ok(None),
        Ok(_) => return Err(failed(io::ErrorKind::NotADirectory.into())),
        Err(why) => return Err(failed(why)),
    };
    let copies = match all_paths(&start) {
        Ok(copies) => copies,
        Err(_) if args.by_fsck => return Ok(None),
        Err(errno) => match mount_lookup::mount_of(&start)? {
            Some(mounted) if mounted.is_pool() => return Err(failed(errno.into())),
            _ => return Err(Error::OnNoPool(start)),
        },
    };
    if args.fix != FixSource::None && !rustix::process::geteuid().is_root() {
        terminal::eprint_line("only root can repair everything");
    }
    let mountpoint = match filter.is_open() {
        true => PathBuf::new(),
        false => mount_lookup::mount_of(&start)?.map(|mounted| mounted.mountpoint).unwrap_or_default(),
    };
    let device = fs::metadata(&start).map_err(failed)?.dev();
    let mut walk = Walk { args, filter, mountpoint, device, count: Totals::default() };
    walk.check_entry(&start, copies.clone());
    walk.walk_dir(&start, &copies);
    Ok(Some(walk.count))
}

/// Asks the pool for the paths of a directory on the branches.
fn all_paths(dir: &Path) -> Result<Vec<PathBuf>, Errno> {
    let answer = control_api::read(dir, ALLPATHS)?;
    let paths = answer.split(|&byte| byte == 0).filter(|path| !path.is_empty());
    Ok(paths.map(|path| PathBuf::from(OsString::from_vec(path.to_vec()))).collect())
}

struct Walk<'a> {
    args: &'a FsckArgs,
    filter: Filter,
    /// Where the pool is mounted, if there are filters.
    mountpoint: PathBuf,
    /// The device of the pool. Other mounts below it are skipped.
    device: u64,
    count: Totals,
}

impl Walk<'_> {
    fn walk_dir(&mut self, dir: &Path, copies: &[PathBuf]) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            // Such as a directory of another user. Nothing is known about its contents.
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                return self.error(dir, "not checked, because you may not read it (root may)");
            }
            Err(why) => return self.error(dir, &why.to_string()),
        };
        for entry in entries {
            let (path, meta) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(found) => found,
                // It has been removed since the listing.
                Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
                Err(why) => {
                    self.error(dir, &why.to_string());
                    continue;
                }
            };
            if meta.dev() != self.device {
                continue;
            }
            let name = path.file_name().unwrap_or_default();
            let copies: Vec<PathBuf> = copies.iter().map(|copy| copy.join(name)).collect();
            let copies = self.check_entry(&path, copies);
            if meta.is_dir() {
                self.walk_dir(&path, &copies);
            }
        }
    }

    fn error(&mut self, path: &Path, why: &str) {
        self.count.errors += 1;
        terminal::eprint_line(&format!("{}: {why}", shown(path)));
    }

    /// Returns whether the filters admit a path. They choose files: with one, directories are not compared.
    fn admits(&self, path: &Path, copies: &[FileCopy]) -> bool {
        let admits = |first: &FileCopy| {
            let inside = path.strip_prefix(&self.mountpoint).unwrap_or(path);
            first.kind() != FileType::Directory && self.filter.admits_file(inside, first.stat)
        };
        self.filter.is_open() || copies.first().is_some_and(admits)
    }

    /// Compares the copies of one path, and returns the paths of the copies.
    fn check_entry(&mut self, path: &Path, places: Vec<PathBuf>) -> Vec<PathBuf> {
        let mut copies = Vec::new();
        for place in places {
            match FileCopy::at(place.clone()) {
                Ok(copy) => copies.push(copy),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => self.error(&place, &io::Error::from(errno).to_string()),
            }
        }
        if self.admits(path, &copies) {
            self.compare(path, &copies);
        }
        copies.into_iter().map(|copy| copy.path).collect()
    }

    fn compare(&mut self, path: &Path, copies: &[FileCopy]) {
        self.count.checked += 1;
        if self.args.verbose {
            terminal::print(&format!("{}\n", shown(path)));
        }
        if !differ(copies, self.args.check_size) || (self.args.same_size && sizes_differ(copies)) {
            return;
        }
        self.count.differ += 1;
        self.say(&report(path, copies));
        let repaired = repair::repair(self.args, copies);
        match &repaired {
            Ok(None) => {}
            Ok(Some(from)) => {
                self.count.repaired += 1;
                self.say(&format!("  repaired from {from}\n"));
            }
            Err(why) => self.say(&format!("  not repaired: {why}\n")),
        }
        if self.args.json {
            let copies = copies.iter().map(CopyReport::of).collect();
            let (repaired_from, why) = match repaired {
                Ok(from) => (from, None),
                Err(why) => (None, Some(why)),
            };
            self.count.findings.push(Finding { path: path.into(), copies, repaired_from, why });
        }
    }

    fn say(&self, text: &str) {
        if !self.args.quiet && !self.args.json {
            terminal::print(text);
        }
    }
}

fn differ(copies: &[FileCopy], check_size: bool) -> bool {
    let Some((first, others)) = copies.split_first() else { return false };
    let sizes = check_size && first.kind() == FileType::RegularFile;
    others.iter().any(|other| {
        first.owner_and_mode() != other.owner_and_mode()
            || (sizes && first.stat.st_size != other.stat.st_size)
    })
}

fn sizes_differ(copies: &[FileCopy]) -> bool {
    copies.iter().any(|copy| copy.stat.st_size != copies[0].stat.st_size)
}

impl CopyReport {
    fn of(copy: &FileCopy) -> CopyReport {
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
fn report(path: &Path, copies: &[FileCopy]) -> String {
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

fn shown(path: &Path) -> String {
    one_line(&OsStr::from_bytes(path.as_os_str().as_bytes()).to_string_lossy())
}
