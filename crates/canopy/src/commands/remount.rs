//! `mount -o remount`, which mount(8) leaves to its helper: other flags for a pool that is mounted.
//!
//! What is not named stays. mount(8) names what fstab or the mount table says, too; so options of the pool come along
//! which nobody wants to change. Those that differ are told, with what changes them.

use crate::control_client::ControlClient;
use crate::error::Error;
use crate::terminal::eprint_line;
use canopy_config::control_api::{PoolReport, STATUS};
use canopy_config::error::OptionError;
use canopy_config::options::{self, Changes};
use canopy_config::program_name::Name;
use canopy_config::source::command_line::split_group;
use canopy_config::{Config, resolve};
use canopy_fuse::mount::{ATIME_FLAGS, MountFlags, remount};
use canopy_sys::mountinfo::{self, MountEntry};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Other flags for a pool that is mounted.
#[derive(Debug, Default)]
pub struct RemountArgs {
    pub mountpoint: PathBuf,
    /// As they follow a `-o`.
    pub options: OsString,
    /// They are all that is to hold: mount(8) leaves out words such as `exec`, having taken away `noexec` for it.
    pub complete: bool,
    pub sloppy: bool,
    /// Everything but the change.
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
        // What the kernel was told at the mount, and lists.
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
            path.display()
        ));
    }
    if !others.is_empty() {
        eprint_line(&Error::RemountOptions { path, others }.line());
    }
    Ok(())
}

/// The flags that those which are named are added to.
fn initial_flags(args: &RemountArgs, mounted: &MountEntry, before: MountFlags) -> MountFlags {
    if !args.complete {
        return before;
    }
    // Of a complete list the kernel keeps these all the same, where no other is named (mount(2)).
    let kept = before & (ATIME_FLAGS | MountFlags::DIRSYNC);
    let words = split_group(&args.options);
    // Taken from the mount table, with what the kernel lists there for itself, it says all that was to stay. From fstab,
    // it says what a mount would be told.
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

/// Is this word one for a flag of the mount?
fn is_flag(word: &str) -> bool {
    options::find(word).is_some_and(options::Spec::is_flag)
}

/// The options of a running pool that have other values than these, each as the command that changes it, or as itself.
/// Nothing is asked when none was named.
fn other_values(path: &Path, wanted: &mut Config) -> Vec<String> {
    // What was said once, and is no matter of the pool that runs.
    const NOT_COMPARED: [&str; 4] = ["config", "mountpoint", "fsname", "allow-missing-branches"];
    let named: Vec<&options::Spec> = options::table()
        .iter()
        .filter(|spec| wanted.is_given(&spec.name) && !NOT_COMPARED.contains(&spec.name.as_ref()))
        .filter(|spec| spec.render(wanted).is_some())
        .collect();
    if named.is_empty() {
        return Vec::new();
    }
    let told = ControlClient::at(path).and_then(|live| live.get(STATUS));
    let Some(told) =
        told.ok().and_then(|told| serde_json::from_slice::<PoolReport>(told.as_encoded_bytes()).ok())
    else {
        return Vec::new();
    };
    let before = told.options;
    // Values that give way to others do so as at the mount.
    resolve::resolve_conflicts(wanted);
    let differs = |spec: &&&options::Spec| {
        before.get(spec.name.as_ref()).is_some_and(|before| Some(before) != spec.render(wanted).as_ref())
    };
    let as_command = |spec: &&options::Spec| {
        let pair = format!("{}={}", spec.name, spec.render(wanted).unwrap_or_default());
        match spec.changes {
            Changes::Live => format!("canopy set {} {pair}", path.display()),
            Changes::AtMount => format!("{pair} at the next mount"),
        }
    };
    named.iter().filter(differs).map(as_command).collect()
}
