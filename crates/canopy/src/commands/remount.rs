//! `mount -o remount`, which mount(8) passes to its helper: changes the flags of a mounted pool.
//!
//! Flags that are not given stay. mount(8) adds the options from fstab or the mount table, so the list may have options
//! of the pool that the user does not want to change. Those that differ are reported, with the command to change them.

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::terminal::eprint_line;
use canopy_config::error::OptionError;
use canopy_config::options::{self, Changes};
use canopy_config::program_name::Name;
use canopy_config::source::command_line::split_group;
use canopy_config::{Config, resolve};
use canopy_fuse::mount::{ATIME_FLAGS, MountFlags, remount};
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The arguments of a remount.
#[derive(Debug, Default)]
pub struct RemountArgs {
    pub mountpoint: PathBuf,
    /// As in `-o`.
    pub options: OsString,
    /// The list is complete: mount(8) removes `noexec` for `exec`, and leaves both out.
    pub complete: bool,
    pub sloppy: bool,
    /// Do everything except the remount.
    pub fake: bool,
}

pub fn run(args: &RemountArgs) -> Result<(), Error> {
    let path =
        mountinfo::listed_path(&args.mountpoint).map_err(|_| Error::NoPool(args.mountpoint.clone()))?;
    let mounted = pool_at(&path)?;
    let before = flags(&mounted);
    let mut wanted = Config::default();
    wanted.mount.flags = initial_flags(args, &mounted, before);
    for pair in split_group(&args.options) {
        // An option of the kernel, from the mount table.
        if mounted.super_options.split(',').any(|word| pair == *word && !is_flag(word)) {
            continue;
        }
        match canopy_config::source::set_pair(&mut wanted, &pair) {
            Err(error @ OptionError::Unknown { .. }) if args.sloppy => {
                eprint_line(&format!("{error}: ignored"))
            }
            result => result?,
        }
    }
    let others = other_values(&path, &mut wanted);
    let after = wanted.mount.flags;
    if args.fake {
        return Ok(());
    }
    if after == before && !others.is_empty() {
        return Err(Error::RemountOptions { path, others });
    }
    remount(&path, after).map_err(|errno| Error::Remount { path: path.clone(), why: errno })?;
    let missed = flags(&pool_at(&path)?).symmetric_difference(after);
    if !missed.is_empty() {
        eprint_line(&format!(
            "{} cannot be changed by a remount: unmount {}, and mount it again",
            missed.option_words(),
            path.shown()
        ));
    }
    if !others.is_empty() {
        eprint_line(&Error::RemountOptions { path, others }.line());
    }
    Ok(())
}

/// Returns the flags to start from.
fn initial_flags(args: &RemountArgs, mounted: &MountEntry, before: MountFlags) -> MountFlags {
    if !args.complete {
        return before;
    }
    // The kernel keeps these even with a complete list, unless it names others (mount(2)).
    let kept = before & (ATIME_FLAGS | MountFlags::DIRSYNC);
    let words = split_group(&args.options);
    // A list from the mount table, which includes the kernel's own options, has all flags. A list from fstab lacks the
    // defaults of a mount.
    let from_table = words
        .iter()
        .any(|word| mounted.super_options.split(',').any(|listed| word == listed && !is_flag(listed)));
    match Name::from_fstype(&mounted.fstype) {
        Some(Name::Canopy) if !from_table => kept | Config::default().mount.flags,
        _ => kept,
    }
}

fn pool_at(path: &Path) -> Result<MountEntry, Error> {
    let mounted = mountinfo::at(path).map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    mounted.filter(MountEntry::is_pool).ok_or_else(|| Error::NoPool(path.to_owned()))
}

fn flags(mounted: &MountEntry) -> MountFlags {
    MountFlags::from_mountinfo(&format!("{},{}", mounted.options, mounted.super_options))
}

/// Returns whether an option is a mount flag.
fn is_flag(word: &str) -> bool {
    options::find(word).is_some_and(options::Spec::is_flag)
}

/// Returns the options whose values differ in the running pool, each with the command that changes it. Does not query the
/// pool if there are no such options.
fn other_values(path: &Path, wanted: &mut Config) -> Vec<String> {
    // These only matter for the mount.
    const NOT_COMPARED: [&str; 4] = ["config", "mountpoint", "fsname", "allow-missing-branches"];
    let named: Vec<&options::Spec> = options::table()
        .iter()
        .filter(|spec| wanted.is_given(&spec.name) && !NOT_COMPARED.contains(&spec.name.as_ref()))
        .filter(|spec| spec.render(wanted).is_some())
        .collect();
    if named.is_empty() {
        return Vec::new();
    }
    let Ok(report) = ControlClient::at(path).and_then(|pool| pool.status()) else { return Vec::new() };
    let before = report.options;
    // Conflicts between options are resolved as in a mount.
    resolve::resolve_conflicts(wanted);
    let differs = |spec: &&&options::Spec| {
        before.get(spec.name.as_ref()).is_some_and(|before| Some(before) != spec.render(wanted).as_ref())
    };
    let as_command = |spec: &&options::Spec| {
        let pair = format!("{}={}", spec.name, spec.render(wanted).unwrap_or_default());
        match spec.changes {
            Changes::Live => format!("canopy set {} {pair}", path.shown()),
            Changes::AtMount => format!("{pair} at the next mount"),
        }
    };
    named.iter().filter(differs).map(as_command).collect()
}
