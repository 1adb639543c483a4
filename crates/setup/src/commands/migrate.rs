//! `canopy migrate`: shows what mergerfs's configuration becomes, and writes it beside the old.
//!
//! The change is shown, and made after a question or with `--yes`. In two steps, `--write` writes FILE.canopy, the new form of
//! FILE, which may be edited by hand, and `--switch` puts it in the place of FILE, if nothing else in FILE has changed since;
//! `--undo` takes those lines back, and only those. Each keeps what FILE was. A file of options gets a new name, so nothing
//! is replaced.

use super::ask::confirm;
use crate::error::Error;
use crate::migrate::{self, Change, FOR_BETTER, FOR_WORSE, Migration};
use crate::program;
use crate::system_file::{self, Edit, cannot};
use canopy_sys::shown::Show as _;
use canopy_terminal::{BOLD, paragraph, print, print_json, print_styled, styled};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Convert a configuration of mergerfs to Canopy
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct MigrateArgs {
    /// An fstab, units, option files [default: this machine's]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Show what would be changed, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Only write FILE.canopy beside each file, to be edited
    #[arg(long, conflicts_with_all = ["dry_run", "yes"])]
    pub write: bool,
    /// Put FILE.canopy in the place of FILE
    #[arg(long, conflicts_with_all = ["write", "dry_run"])]
    pub switch: bool,
    /// Take back the lines that were changed
    #[arg(long, conflicts_with_all = ["write", "switch", "dry_run"])]
    pub undo: bool,
    /// Print JSON, for programs
    #[arg(long, conflicts_with_all = ["write", "switch", "undo", "yes"])]
    pub json: bool,
}

const NOTES: &str = "\
Shows the new lines, and what becomes of each option that does not stay as it
is. Nothing is mounted or unmounted. A copy of each file that is changed is
kept, with the date in its name. Exits with 1 if something has to be changed by
hand.

Examples:
  canopy migrate                 # shows the changes, and asks
  canopy migrate --undo          # takes these lines back
  canopy migrate --write         # writes /etc/fstab.canopy and the like
  canopy migrate --switch        # puts them in place";

const NEW: &str = ".canopy";
const UNITS: &str = "/etc/systemd/system";

pub fn run(args: &MigrateArgs) -> Result<(), Error> {
    let files = if args.files.is_empty() { files_of_machine() } else { args.files.clone() };
    if args.switch || args.undo {
        return exchange(args.switch, &files);
    }
    let found = look(files)?;
    let by_hand: usize = found.iter().map(|one| one.migration.by_hand.len()).sum();
    if args.json {
        print_json(&Report::of(&found));
        return told(by_hand);
    }
    if found.is_empty() {
        print("no mergerfs mount found\n");
        return Ok(());
    }
    for one in &found {
        print_styled(&shown(&one.path, &one.target, &one.migration));
    }
    if found.iter().any(|one| one.migration.mounts) && found.len() > by_hand {
        print_styled(&format!("{}\n", styled(BOLD, "For every pool")));
        print(&paragraph("  better: ", FOR_BETTER));
        print(&paragraph("  worse:  ", FOR_WORSE));
    }
    let changed: Vec<&MountFile> = found.iter().filter(|one| !one.migration.lines.is_empty()).collect();
    if changed.is_empty() {
        return told(by_hand);
    }
    let can_ask = io::stdin().is_terminal() && io::stdout().is_terminal();
    let goes = args.yes
        || !args.dry_run
            && !args.write
            && can_ask
            && confirm("\nChange these files? A copy with the date is kept beside each.")?;
    if !goes && !args.write {
        print("\nNothing was written.\n");
        return match (args.dry_run, by_hand) {
            (false, 0) => {
                Err(Error::NotAgreed("changed", "--yes does it without asking; --dry-run only shows it"))
            }
            _ => told(by_hand),
        };
    }
    for one in &changed {
        write_new(&one.target, &one.migration.text, &one.path)?;
    }
    if args.write {
        let list: String = changed.iter().map(|one| format!("  {}\n", one.target.shown())).collect();
        print(&format!(
            "\nWritten:\n{list}canopy migrate --switch puts them in place; --undo takes these lines back.\n"
        ));
        return told(by_hand);
    }
    print("\n");
    // A file of options has got a new name, so nothing takes its place.
    let replaced = changed.iter().filter(|one| one.target.to_string_lossy().ends_with(NEW));
    let replaced: Vec<PathBuf> = replaced.map(|one| one.path.clone()).collect();
    if !replaced.is_empty() {
        exchange(true, &replaced)?;
    }
    told(by_hand)
}

/// A file that mounts with mergerfs, and what becomes of it.
struct MountFile {
    path: PathBuf,
    /// Where its new form is written.
    target: PathBuf,
    migration: Migration,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'f> {
    files: Vec<FileReport<'f>>,
}

#[derive(Serialize)]
struct FileReport<'f> {
    path: String,
    /// Where --write writes the new form; null if no line changes.
    target: Option<String>,
    lines: Vec<LineReport<'f>>,
    changes: &'f [Change],
    by_hand: &'f [String],
}

#[derive(Serialize)]
struct LineReport<'f> {
    old: &'f str,
    new: &'f str,
}

impl<'f> Report<'f> {
    fn of(found: &'f [MountFile]) -> Report<'f> {
        let file = |MountFile { path, target, migration }: &'f MountFile| FileReport {
            path: path.shown().to_string(),
            target: (!migration.lines.is_empty()).then(|| target.shown().to_string()),
            lines: migration.lines.iter().map(|(old, new)| LineReport { old, new }).collect(),
            changes: &migration.changes,
            by_hand: &migration.by_hand,
        };
        Report { files: found.iter().map(file).collect() }
    }
}

/// Looks through files, and the files of options that they name.
fn look(files: Vec<PathBuf>) -> Result<Vec<MountFile>, Error> {
    let program = program::installed();
    let (mut queue, mut seen, mut found) = (files, BTreeSet::new(), Vec::new());
    while let Some(path) = (!queue.is_empty()).then(|| queue.remove(0)) {
        if !seen.insert(path.clone()) {
            continue;
        }
        let text = system_file::read(&path)?;
        let Some((migration, target)) = migration(&path, &text, &program) else { continue };
        // Files of options are named by other lines.
        let named = migration.changes.iter().filter_map(|change| change.old.strip_prefix("config="));
        queue.extend(named.map(PathBuf::from).filter(|file| file.is_file()));
        found.push(MountFile { path, target, migration });
    }
    Ok(found)
}

/// # Errors
/// If something has to be changed by hand.
fn told(by_hand: usize) -> Result<(), Error> {
    match by_hand {
        0 => Ok(()),
        1 => Err(Error::Refused("one thing has to be changed by hand (see above)".into())),
        _ => Err(Error::Refused(format!("{by_hand} things have to be changed by hand (see above)"))),
    }
}

/// Returns the fstab of this machine and the units that an administrator has written.
fn files_of_machine() -> Vec<PathBuf> {
    let within = |dir: &Path| -> Vec<PathBuf> {
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    // Drop-ins of a unit are in a directory of its own.
    let units = within(Path::new(UNITS)).into_iter();
    let units = units.flat_map(|path| if path.is_dir() { within(&path) } else { vec![path] });
    let mut units: Vec<PathBuf> = units.filter(|path| is_unit(path) && path.is_file()).collect();
    units.sort();
    let fstab = PathBuf::from("/etc/fstab");
    fstab.is_file().then_some(fstab).into_iter().chain(units).collect()
}

fn is_unit(path: &Path) -> bool {
    let ends = |path: &Path, ending: &str| path.extension().is_some_and(|found| found == ending);
    let drop_in = || {
        path.parent().is_some_and(|dir| {
            let unit = dir.file_stem().map(Path::new);
            ends(dir, "d") && unit.is_some_and(|unit| ends(unit, "service") || ends(unit, "mount"))
        })
    };
    ends(path, "service") || ends(path, "mount") || ends(path, "conf") && drop_in()
}

/// Returns the new form of a file and its path; `None` if there is nothing to change.
fn migration(path: &Path, text: &str, program: &str) -> Option<(Migration, PathBuf)> {
    if is_unit(path) {
        return Some((migrate::unit(text, program)?, with_ending(path, NEW)));
    }
    let is_fstab = path.file_name().is_some_and(|name| name.to_string_lossy().contains("fstab"));
    match (is_fstab, migrate::toml_path(path)) {
        (true, _) => Some((migrate::fstab(text)?, with_ending(path, NEW))),
        (false, Some(toml)) => Some((migrate::options_file(text), toml)),
        (false, None) => None,
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::new(ending));
    name.into()
}

fn shown(path: &Path, target: &Path, migration: &Migration) -> String {
    let title = if migration.lines.is_empty() {
        path.shown().to_string()
    } else {
        format!("{} -> {}", path.shown(), target.shown())
    };
    let mut shown = format!("{}\n", styled(BOLD, &title));
    for (old, new) in &migration.lines {
        // Such lines are copied, so they are not wrapped.
        shown.push_str(&format!("- {old}\n+ {new}\n"));
    }
    let mut told = BTreeSet::new();
    for change in &migration.changes {
        let what = match (&change.new, change.old.is_empty()) {
            (Some(new), true) => format!("{new} is added: {}", change.why),
            (Some(new), false) if *new == change.old => format!("{new} stays: {}", change.why),
            (Some(new), false) => format!("{} becomes {new}: {}", change.old, change.why),
            (None, _) => format!("{} is left out: {}", change.old, change.why),
        };
        // Several lines may have the same.
        if told.insert(what.clone()) {
            shown.push_str(&paragraph("  ", &what));
        }
    }
    for what in &migration.by_hand {
        shown.push_str(&paragraph("  ", what));
    }
    shown + "\n"
}

/// Writes a new file with the permissions of the old one. An earlier one is replaced, unless it has another name than
/// this command gives.
fn write_new(target: &Path, text: &str, like: &Path) -> Result<(), Error> {
    let is_ours = target.to_string_lossy().ends_with(NEW);
    if !is_ours && fs::read_to_string(target).is_ok_and(|there| there != text) {
        return Err(Error::Refused(format!("{} exists already (move it away)", target.shown())));
    }
    let permissions = fs::metadata(like).map_err(|why| cannot("be read", like, &why))?.permissions();
    let mut options = File::options();
    // Nobody else may read it before it has the permissions of the old one.
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(target);
    opened
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.set_permissions(permissions)
        })
        .map_err(|why| cannot("be written", target, &why))
}

/// Puts new lines in place, or the old ones back.
fn exchange(switches: bool, files: &[PathBuf]) -> Result<(), Error> {
    let mut exchanged = 0;
    for path in files {
        let Some(edit) = (if switches { switch(path)? } else { undo(path)? }) else { continue };
        print(&edit.shown());
        let kept = edit.apply()?;
        if switches {
            // It is in place now.
            let new = with_ending(path, NEW);
            fs::remove_file(&new).map_err(|why| cannot("be removed", &new, &why))?;
        }
        print(&format!("{} was changed; its old version is {}\n\n", path.shown(), kept.shown()));
        exchanged += 1;
    }
    if exchanged == 0 {
        return Err(Error::Refused(if switches {
            "there is nothing to put in place (canopy migrate --write writes new files first)".into()
        } else {
            "there is nothing to take back (nothing was switched)".into()
        }));
    }
    print("systemd reads them after: systemctl daemon-reload\n");
    Ok(())
}

/// Returns the change that puts FILE.canopy in the place of FILE; `None` if there is no FILE.canopy.
fn switch(path: &Path) -> Result<Option<Edit>, Error> {
    let new = with_ending(path, NEW);
    if !new.is_file() {
        return Ok(None);
    }
    let (before, after) = (system_file::read(path)?, system_file::read(&new)?);
    // The new lines may have been edited by hand. All others must be those of FILE. The last may have had no end.
    let text = |text: &str| text.trim_end_matches('\n').to_owned();
    if text(&migrate::undo(&after)) != text(&before) {
        let (path, new) = (path.shown(), new.shown());
        return Err(Error::Refused(format!(
            "{path} and {new} differ in more than mergerfs's lines, so {path} was changed later (canopy migrate --write writes {new} anew)"
        )));
    }
    Ok(Some(Edit { path: path.to_owned(), before, after }))
}

/// Returns the change that takes back what --switch did to FILE, and writes FILE.canopy for a later --switch; `None` if there
/// is nothing to take back.
fn undo(path: &Path) -> Result<Option<Edit>, Error> {
    let before = system_file::read(path)?;
    let after = migrate::undo(&before);
    if after == before {
        return Ok(None);
    }
    write_new(&with_ending(path, NEW), &before, path)?;
    Ok(Some(Edit { path: path.to_owned(), before, after }))
}
