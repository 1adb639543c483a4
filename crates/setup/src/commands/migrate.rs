//! `canopy migrate`: shows what mergerfs's configuration becomes, and writes it beside the old.
//!
//! FILE.canopy is the new form of FILE. `--switch` puts it in the place of FILE, which becomes FILE.before-canopy; `--undo`
//! goes back. A file of options gets a new name, so nothing is replaced.

use crate::error::Error;
use crate::migrate::{self, FOR_BETTER, FOR_WORSE, Migration};
use canopy_config::text::os_error;
use canopy_sys::shown::Show as _;
use canopy_terminal::{BOLD, paragraph, print, print_styled, styled};
use clap::Args;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Turn what mergerfs is configured with into Canopy's
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct MigrateArgs {
    /// An fstab, units, option files [default: this machine's]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write FILE.canopy beside each file
    #[arg(long)]
    pub write: bool,
    /// Put FILE.canopy in the place of FILE
    #[arg(long, conflicts_with = "write")]
    pub switch: bool,
    /// Put back what --switch has replaced
    #[arg(long, conflicts_with_all = ["write", "switch"])]
    pub undo: bool,
}

const NOTES: &str = "\
Shows the new lines, and what becomes of each option that does not stay as it
is. Nothing is mounted or unmounted. The disks do not change.

Examples:
  canopy migrate                 # looks only
  canopy migrate --write         # writes /etc/fstab.canopy and the like
  canopy migrate --switch        # takes them; --undo takes that back";

const NEW: &str = ".canopy";
const OLD: &str = ".before-canopy";
const UNITS: &str = "/etc/systemd/system";

pub fn run(args: &MigrateArgs) -> Result<(), Error> {
    let files = if args.files.is_empty() { files_of_machine() } else { args.files.clone() };
    if args.switch || args.undo {
        return exchange(args, &files);
    }
    let mut queue = files;
    let (mut seen, mut written, mut mounts) = (BTreeSet::new(), Vec::new(), false);
    let mut found = 0;
    while let Some(path) = (!queue.is_empty()).then(|| queue.remove(0)) {
        if !seen.insert(path.clone()) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|why| cannot("be read", &path, &why))?;
        let Some((migration, target)) = migration(&path, &text) else { continue };
        found += 1;
        mounts |= migration.mounts;
        // Files of options are named by other lines.
        let named = migration.changes.iter().filter_map(|change| change.old.strip_prefix("config="));
        queue.extend(named.map(PathBuf::from).filter(|file| file.is_file()));
        print_styled(&shown(&path, &target, &migration));
        if args.write {
            write_new(&target, &migration.text, &path)?;
            written.push(target);
        }
    }
    if found == 0 {
        print("nothing here mounts with mergerfs\n");
        return Ok(());
    }
    if mounts {
        print_styled(&format!("{}\n", styled(BOLD, "For every pool")));
        print(&paragraph("  better: ", FOR_BETTER));
        print(&paragraph("  worse:  ", FOR_WORSE));
    }
    print(&match args.write {
        true => {
            let list: String = written.iter().map(|path| format!("  {}\n", path.shown())).collect();
            format!("\nWritten:\n{list}canopy migrate --switch puts them in place; --undo takes that back.\n")
        }
        false => "\nNothing was written (canopy migrate --write writes new files beside these).\n".into(),
    });
    Ok(())
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> Error {
    Error::Refused(format!("{} cannot {what}: {}", path.shown(), os_error(why)))
}

/// Returns the fstab of this machine and the units that an administrator has written.
fn files_of_machine() -> Vec<PathBuf> {
    let units = fs::read_dir(UNITS).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut units: Vec<PathBuf> = units.filter(|path| is_unit(path) && path.is_file()).collect();
    units.sort();
    let fstab = PathBuf::from("/etc/fstab");
    fstab.is_file().then_some(fstab).into_iter().chain(units).collect()
}

fn is_unit(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "service" || ending == "mount")
}

/// Returns the new form of a file and its path; `None` if there is nothing to change.
fn migration(path: &Path, text: &str) -> Option<(Migration, PathBuf)> {
    if is_unit(path) {
        return Some((migrate::unit(text)?, with_ending(path, NEW)));
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
    let mut shown = format!("{}\n", styled(BOLD, &format!("{} -> {}", path.shown(), target.shown())));
    for (old, new) in &migration.lines {
        // Such lines are copied, so they are not wrapped.
        shown.push_str(&format!("- {old}\n+ {new}\n"));
    }
    for change in &migration.changes {
        let what = match (&change.new, change.old.is_empty()) {
            (Some(new), true) => format!("{new} is added: {}", change.why),
            (Some(new), false) => format!("{} becomes {new}: {}", change.old, change.why),
            (None, _) => format!("{} is left out: {}", change.old, change.why),
        };
        shown.push_str(&paragraph("  ", &what));
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
    fs::write(target, text)
        .and_then(|()| fs::set_permissions(target, permissions))
        .map_err(|why| cannot("be written", target, &why))
}

/// Puts new files in place, or the old ones back. What is in place becomes the other, so nothing is lost.
fn exchange(args: &MigrateArgs, files: &[PathBuf]) -> Result<(), Error> {
    let (from, to) = if args.switch { (NEW, OLD) } else { (OLD, NEW) };
    let mut exchanged = 0;
    for path in files {
        let (incoming, outgoing) = (with_ending(path, from), with_ending(path, to));
        if !incoming.is_file() {
            continue;
        }
        if args.switch && outgoing.exists() {
            return Err(Error::Refused(format!(
                "{} exists already (canopy migrate --undo, or move it away)",
                outgoing.shown()
            )));
        }
        // A copy and then a rename, so that there is a file at every moment.
        fs::copy(path, &outgoing).map_err(|why| cannot("be kept", path, &why))?;
        fs::rename(&incoming, path).map_err(|why| cannot("be replaced", path, &why))?;
        print(&format!("{} is in place; what was there is {}\n", path.shown(), outgoing.shown()));
        exchanged += 1;
    }
    if exchanged == 0 {
        let how = if args.switch {
            "canopy migrate --write writes new files first"
        } else {
            "nothing was switched"
        };
        return Err(Error::Refused(format!("there is nothing to exchange ({how})")));
    }
    print("systemd reads them after: systemctl daemon-reload\n");
    Ok(())
}
