//! `canopy fsck`, also as `fsck.mergerfs`: finds files whose copies on several branches differ in owner, mode or size, and
//! repairs them.
//!
//! The tree is walked through the pool. The key `allpaths` of each directory says where its copies are, and the entries
//! are compared there. Keys of the entries themselves would not work for symlinks and devices.

mod leftovers;
mod repair;
mod report;

use crate::consent::{Alone, Consent, ConsentArgs, says_yes};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::manners::ThrottleArgs;
use crate::output::{complain, print, print_json, shown};
use crate::pace::Pace;
use crate::progress::Progress;
use crate::stop::Stop;
use canopy_control::{ALLPATHS, COPIES, CopiesReport, OsText, STATUS, control_file};
use canopy_sys::mountinfo::{self, MountEntry};
use clap::Args;
use report::{CopyReport, Finding, Leftover, Totals, report, summary};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Find and repair files whose copies differ in owner, mode or size
#[derive(Args, Debug, Default)]
#[command(after_help = NOTES)]
pub struct FsckArgs {
    /// A directory on a pool, checked with everything below
    #[arg(required = true)]
    pub path: Option<PathBuf>,
    /// Give the others the owner and mode of this copy
    #[arg(short, long, value_name = "COPY", value_enum, default_value_t)]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub keep: FixSource,
    /// The same, without a question, as older scripts have it.
    #[arg(short, long, value_name = "COPY", value_enum, hide = true, conflicts_with_all = ["keep", "dry_run"])]
    pub fix: Option<FixSource>,
    /// Compare sizes as well
    #[arg(short = 's', long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = yes_or_no,
          action = clap::ArgAction::Set, hide_default_value = true)]
    pub check_size: bool,
    /// With --keep: copy data and attributes as well
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value = "false", default_missing_value = "true", value_parser = yes_or_no,
          action = clap::ArgAction::Set, hide_default_value = true)]
    pub copy_file: bool,
    /// Print each path that is checked
    #[arg(short, long, conflicts_with_all = ["quiet", "json"])]
    pub verbose: bool,
    /// Remove what crashes of other programs have left
    #[arg(long)]
    pub remove_leftovers: bool,
    #[command(flatten)]
    pub consent: ConsentArgs,
    #[command(flatten)]
    pub manners: ThrottleArgs,
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

impl FsckArgs {
    /// The copy that the others are changed to match.
    fn source(&self) -> FixSource {
        self.fix.unwrap_or(self.keep)
    }

    /// Returns whether copies may be changed, and leftovers removed.
    fn consents(&self) -> [Consent; 2] {
        let is_given = self.consent.yes || self.fix.is_some() || self.as_mergerfs;
        let given = ConsentArgs { yes: is_given && !self.consent.dry_run, ..self.consent };
        let repair = match self.source() {
            FixSource::None => Consent::Refused,
            // It asks for each file.
            FixSource::Manual if !self.consent.dry_run => Consent::Given,
            _ => Consent::of(given, Alone::Shows, &self.manners),
        };
        let remove = if self.remove_leftovers {
            Consent::of(given, Alone::Acts, &self.manners)
        } else {
            Consent::Refused
        };
        [repair, remove]
    }
}

fn yes_or_no(text: &str) -> std::result::Result<bool, String> {
    <bool as canopy_config::values::Value>::parse(text.as_ref()).map_err(|_| "must be true or false".into())
}

const NOTES: &str = "\
COPY is newest (by mtime), largest, nonroot (the first whose owner is not root,
else the newest), manual (asks for each file), or none (the default).

Exit status: 0 no differences, 1 all repaired, 4 differences left, 8 failed,
32 stopped.
Example: canopy fsck --keep newest /pool/films";

/// Exit statuses of fsck(8).
const REPAIRED: u8 = 1;
const DIFFERENCES_LEFT: u8 = 4;
const FAILED: u8 = 8;
const STOPPED: u8 = 32;

/// One copy of a file, held open so that the same file is compared and repaired.
pub(super) struct FileCopy {
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
}

impl FileCopy {
    /// Opens a copy without following symlinks anywhere in the path, because users could change them meanwhile.
    fn at(path: PathBuf) -> std::result::Result<FileCopy, Errno> {
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

/// Leaves those copies of a path of the pool that are up to date, as far as rules with copies know: the mover replaces the others.
///
/// Errors: why that cannot be told.
fn leave_current(path: &Path, copies: &mut Vec<FileCopy>) -> std::result::Result<(), Errno> {
    let are_files = copies.iter().all(|copy| copy.kind() == FileType::RegularFile);
    if copies.len() < 2 || !are_files {
        return Ok(());
    }
    let report: CopiesReport = match canopy_control::read(path, COPIES) {
        Ok(json) => serde_json::from_slice(&json).map_err(|_| Errno::BADMSG)?,
        // Whoever may not read it cannot repair its contents either.
        Err(Errno::ACCESS) => return Ok(()),
        // Of mergerfs. A daemon of an older version may know of copies, and not say so.
        Err(Errno::NODATA) if !is_of_canopy(path) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    if let Some((number, _)) = report.failed {
        return Err(canopy_sys::errno::from_raw(number));
    }
    // A branch may lie within another one.
    let is_old = |copy: &FileCopy| {
        let on = report.copies.iter().filter(|it| copy.path.starts_with(it.branch.to_path()));
        let nearest = on.max_by_key(|it| it.branch.to_path().components().count());
        nearest.is_some_and(|it| !it.current)
    };
    copies.retain(|copy| !is_old(copy));
    Ok(())
}

fn is_of_canopy(path: &Path) -> bool {
    let mounted = mount_of(path).ok().flatten();
    mounted.is_some_and(|it| canopy_control::read(&control_file(&it.mountpoint), STATUS).is_ok())
}

/// Opens a file without following symlinks, if the kernel has openat2 (Linux 5.6).
pub(super) fn open(path: &Path, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(Errno::NOSYS) => rustix::fs::open(path, flags, Mode::empty()),
        other => other,
    }
}

/// Runs the command. Errors are told.
pub fn fsck(args: &FsckArgs) -> ExitCode {
    match check(args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(count)) => {
            if args.manners.json {
                print_json(&count);
            } else if !args.as_mergerfs && !args.manners.quiet {
                print(&summary(&count));
            }
            status(args, &count)
        }
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(FAILED)
        }
    }
}

fn status(args: &FsckArgs, count: &Totals) -> ExitCode {
    if count.stopped {
        complain(&Error::Stopped.to_string());
        return ExitCode::from(STOPPED);
    }
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

/// Walks the tree. Returns `None` if there is nothing to check, as may happen for fsck(8) at boot.
fn check(args: &FsckArgs) -> Result<Option<Totals>> {
    let Some(path) = args.path.as_deref() else { return Ok(None) };
    if args.manners.json && args.source() == FixSource::Manual {
        return Err(Error::AskInJson);
    }
    let filter = Filter::new(&args.manners.filter)?;
    let failed = |why: io::Error| lookup_error(path, why);
    let start = match path.canonicalize().and_then(|start| Ok((fs::metadata(&start)?.is_dir(), start))) {
        Ok((true, start)) => start,
        _ if args.by_fsck => return Ok(None),
        Ok(_) => return Err(failed(io::ErrorKind::NotADirectory.into())),
        Err(why) => return Err(failed(why)),
    };
    let copies = match all_paths(&start) {
        Ok(copies) => copies,
        Err(_) if args.by_fsck => return Ok(None),
        Err(errno) => match mount_of(&start)? {
            Some(mounted) if mounted.is_pool() => return Err(failed(errno.into())),
            _ => return Err(Error::OnNoPool(start)),
        },
    };
    let [repair, remove] = args.consents();
    if repair != Consent::Refused && !rustix::process::geteuid().is_root() {
        complain("only root can repair everything");
    }
    let mountpoint = if filter.is_open() {
        PathBuf::new()
    } else {
        mount_of(&start)?.map(|mounted| mounted.mountpoint).unwrap_or_default()
    };
    let device = fs::metadata(&start).map_err(failed)?.dev();
    // The old programs gave way to no other program.
    let manners = ThrottleArgs { eager: args.manners.eager || args.as_mergerfs, ..args.manners.clone() };
    let (stop, pace) = (Stop::on_signals()?, Pace::of(&manners));
    let progress = Progress::counting(manners.quiet || manners.json || args.verbose);
    let mut walk = Walk {
        args,
        repairs: repair.is_given(),
        removes: remove.is_given(),
        asks: [repair, remove].contains(&Consent::Asked),
        later: Vec::new(),
        filter,
        mountpoint,
        device,
        count: Totals::default(),
        stop,
        pace,
        progress,
    };
    walk.check_entry(&start, copies.clone());
    walk.walk_dir(&start, &copies);
    walk.progress.finish();
    if walk.asks && !walk.stop.is_set() {
        walk.ask(repair == Consent::Asked, remove == Consent::Asked)?;
    }
    walk.count.stopped = walk.stop.is_set();
    Ok(Some(walk.count))
}

/// Returns the mount that a path is on. The path must have no symlinks.
fn mount_of(path: &Path) -> Result<Option<MountEntry>> {
    let failed = |why| Error::System { what: "cannot read /proc/self/mountinfo", why };
    Ok(mountinfo::holding_in(&mountinfo::list().map_err(failed)?, path).cloned())
}

/// Returns the error for a path that cannot be looked up. A pool whose server has ended gets its own error.
fn lookup_error(path: &Path, why: io::Error) -> Error {
    let ended =
        matches!(Errno::from_io_error(&why), Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED));
    // Paths on a dead mount cannot be resolved, so use the path as given.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match mount_of(&path).ok().flatten().filter(|mounted| ended && mounted.is_pool()) {
        Some(pool) => Error::PoolDead(pool.mountpoint),
        None => Error::Path { path, why },
    }
}

/// Asks the pool for the paths of a directory on the branches.
fn all_paths(dir: &Path) -> std::result::Result<Vec<PathBuf>, Errno> {
    let answer = canopy_control::read(dir, ALLPATHS)?;
    let paths = answer.split(|&byte| byte == 0).filter(|path| !path.is_empty());
    Ok(paths.map(|path| PathBuf::from(OsString::from_vec(path.to_vec()))).collect())
}

/// Returns whether an error is no fault of the pool: what it was met at has been removed since it was listed, or is no directory
/// any more.
fn has_gone(path: &Path, why: &io::Error) -> bool {
    match why.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => true,
        io::ErrorKind::StaleNetworkFileHandle => {
            fs::symlink_metadata(path).is_err_and(|now| now.kind() == io::ErrorKind::NotFound)
        }
        _ => false,
    }
}

struct Walk<'a> {
    args: &'a FsckArgs,
    repairs: bool,
    removes: bool,
    /// Whether what is found is asked for in the end.
    asks: bool,
    /// What is asked for: paths of the pool with the places of their copies.
    later: Vec<(PathBuf, Vec<PathBuf>)>,
    filter: Filter,
    /// Where the pool is mounted, if there are filters.
    mountpoint: PathBuf,
    /// The device of the pool. Other mounts below it are skipped.
    device: u64,
    count: Totals,
    stop: Stop,
    pace: Pace,
    progress: Progress,
}

impl Walk<'_> {
    fn walk_dir(&mut self, dir: &Path, copies: &[PathBuf]) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            // Such as a directory of another user. Nothing is known about its contents.
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                return self.error(dir, "not checked, because you may not read it (root may)");
            }
            Err(why) if has_gone(dir, &why) => return,
            Err(why) => return self.error(dir, &why.to_string()),
        };
        for entry in entries {
            if self.stop.is_set() {
                return;
            }
            let found = match entry {
                Ok(entry) => {
                    entry.metadata().map(|meta| (entry.path(), meta)).map_err(|why| (entry.path(), why))
                }
                Err(why) => Err((dir.to_owned(), why)),
            };
            let (path, meta) = match found {
                Ok(found) => found,
                Err((path, why)) => {
                    if !has_gone(&path, &why) {
                        self.error(dir, &why.to_string());
                    }
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
        self.progress.around(|| complain(&format!("{}: {why}", shown(path))));
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
        let (before, again) = (self.found(), places.clone());
        let mut copies = Vec::new();
        for place in places {
            match FileCopy::at(place.clone()) {
                Ok(copy) => copies.push(copy),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => self.error(&place, &io::Error::from(errno).to_string()),
            }
        }
        let paths = copies.iter().map(|copy| copy.path.clone()).collect();
        if let Err(errno) = leave_current(path, &mut copies) {
            if errno != Errno::NOENT {
                self.error(
                    path,
                    &format!("not checked, because it cannot be told which copy is old: {errno}"),
                );
            }
            return paths;
        }
        if self.admits(path, &copies) {
            self.compare(path, &copies);
        }
        if self.asks && self.found() > before {
            self.later.push((path.to_owned(), again));
        }
        paths
    }

    fn found(&self) -> u64 {
        self.count.differ + self.count.left.files
    }

    /// Asks whether what was found is repaired and removed, and does so.
    fn ask(&mut self, repair: bool, remove: bool) -> Result<()> {
        let repair = repair && self.count.differ > 0;
        let remove = remove && self.count.left.files > 0;
        let question = match (repair, remove) {
            (true, true) => {
                format!("Repair {}, and remove what is left of {}?", self.count.differ, self.count.left.files)
            }
            (true, false) => format!("Repair them ({})?", self.count.differ),
            (false, true) => format!("Remove what is left ({})?", self.count.left.files),
            (false, false) => return Ok(()),
        };
        if !says_yes(&question, &self.stop)? {
            return Ok(());
        }
        (self.repairs, self.removes, self.asks) = (self.repairs || repair, self.removes || remove, false);
        // They are looked at once more, because they may have changed meanwhile.
        let checked = self.count.checked;
        self.count = Totals { checked, errors: self.count.errors, ..Totals::default() };
        for (path, places) in std::mem::take(&mut self.later) {
            if self.stop.is_set() {
                break;
            }
            self.check_entry(&path, places);
        }
        self.count.checked = checked;
        self.progress.finish();
        Ok(())
    }

    fn compare(&mut self, path: &Path, copies: &[FileCopy]) {
        self.count.checked += 1;
        self.progress.show(path);
        self.progress.inc(1);
        if self.args.verbose {
            print(&format!("{}\n", shown(path)));
        }
        self.look_for_leftover(path, copies);
        if !differ(copies, self.args.check_size) || (self.args.same_size && sizes_differ(copies)) {
            return;
        }
        self.count.differ += 1;
        self.say(&report(path, copies));
        let repaired = match self.args.source() {
            _ if !self.repairs => Ok(None),
            FixSource::Manual => {
                // Nothing may be drawn over the question.
                self.progress.finish();
                repair::repair(self.args, copies, &self.stop, &mut self.pace)
            }
            _ => repair::repair(self.args, copies, &self.stop, &mut self.pace),
        };
        match &repaired {
            Ok(None) => {}
            Ok(Some(from)) => {
                self.count.repaired += 1;
                self.say(&format!("  repaired from {from}\n"));
            }
            Err(why) => self.say(&format!("  not repaired: {why}\n")),
        }
        if self.args.manners.json {
            let copies = copies.iter().map(CopyReport::of).collect();
            let (repaired_from, why) = match repaired {
                Ok(from) => (from, None),
                Err(why) => (None, Some(why)),
            };
            self.count.findings.push(Finding { path: path.into(), copies, repaired_from, why });
        }
    }

    /// Tells what another program has left, and removes it if that was asked.
    fn look_for_leftover(&mut self, path: &Path, copies: &[FileCopy]) {
        let Some(of) = leftovers::whose(path, copies) else { return };
        // Scripts for mergerfs do not expect it.
        if self.args.as_mergerfs {
            return;
        }
        let bytes = copies.iter().map(|copy| u64::try_from(copy.stat.st_blocks).unwrap_or(0) * 512).sum();
        let removed = self.removes.then(|| leftovers::remove(of, copies));
        self.count.left.add(bytes);
        let (word, why) = match &removed {
            Some(Ok(())) => {
                self.count.removed.add(bytes);
                ("removed, left by", String::new())
            }
            Some(Err(why)) => ("left by", format!("; not removed: {why}")),
            None => ("left by", String::new()),
        };
        let line =
            format!("{word} {}: {} ({}{why})\n", of.word(), shown(path), canopy_base::text::bytes(bytes));
        self.say(&line);
        if self.args.manners.json {
            self.count.leftovers.push(Leftover {
                path: path.into(),
                of: of.word(),
                copies: copies.iter().map(|copy| OsText::from(copy.path.as_path())).collect(),
                bytes,
                removed: matches!(removed, Some(Ok(()))),
                why: removed.and_then(std::result::Result::err),
            });
        }
    }

    fn say(&self, text: &str) {
        if !self.args.manners.quiet && !self.args.manners.json {
            self.progress.around(|| print(text));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients remove and replace directories that have just been listed.
    #[test]
    fn what_has_gone_meanwhile_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let args = FsckArgs::default();
        let mut walk = Walk {
            repairs: false,
            removes: false,
            asks: false,
            later: Vec::new(),
            args: &args,
            filter: Filter::new(&args.manners.filter).unwrap(),
            mountpoint: PathBuf::new(),
            device: 0,
            count: Totals::default(),
            stop: Stop::on_signals().unwrap(),
            pace: Pace::of(&args.manners),
            progress: Progress::counting(true),
        };
        walk.walk_dir(&dir.path().join("gone"), &[]);
        walk.walk_dir(&file, &[]);
        assert_eq!(walk.count.errors, 0);
        walk.walk_dir(&dir.path().join("n".repeat(256)), &[]);
        assert_eq!(walk.count.errors, 1);
        // A name that is replaced all the time is there.
        let stale = io::Error::from(Errno::STALE);
        assert!(has_gone(&dir.path().join("gone"), &stale) && !has_gone(&file, &stale));
    }
}
