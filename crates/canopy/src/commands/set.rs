//! `canopy set`: changes an option of a running pool, and the config file it came from if that is wanted.

use super::mount::MountArgs;
use crate::control_client::ControlClient;
use crate::error::Error;
use canopy_config::Config;
use canopy_config::control_api::COMMAND;
use canopy_config::options::{self, Changes, Spec};
use canopy_config::source::named::restore_names;
use canopy_config::source::persist::{Origin, Rewrite};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Change an option of a running pool
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct SetArgs {
    /// The pool's mountpoint or name
    pub mount: PathBuf,
    /// An option and its new value, or a command
    #[arg(value_name = "KEY=VALUE")]
    pub pair: OsString,
    /// Write it into the config file of the pool as well
    #[arg(short, long)]
    pub persist: bool,
}

const NOTES: &str = "\
canopy list MOUNT marks what can be changed. Operations under way end as they
began; open files stay usable, also on a branch that is taken away. A change
ends with the mount; with --persist pool and file change both or neither.

Branches are replaced by a list, or changed: +PATH appends, +<PATH prepends,
-PATTERN removes, -< and -> remove the first and the last.
Commands: cmd.gc, cmd.gc1, cmd.invalidate-all-nodes.

Examples:
  canopy set /pool category.create=mfs
  canopy set /pool branches=+/mnt/disk3
  canopy set /pool 'branches=-/mnt/disk1'";

/// `parse_cmdline` reads the command line of the process that serves the pool, as /proc has it.
pub fn run(args: &SetArgs, parse_cmdline: fn(&[u8]) -> Option<MountArgs>) -> Result<(), Error> {
    let pool = ControlClient::at(&args.mount)?;
    let pair = args.pair.as_bytes();
    let equals = pair.iter().position(|&byte| byte == b'=');
    let (key, value) = pair.split_at(equals.unwrap_or(pair.len()));
    let key = String::from_utf8_lossy(key.trim_ascii()).into_owned();
    // A word that takes no value is complete, and the pool says what is to be said of it.
    let is_word = options::find(&key).is_some_and(|spec| spec.accepted().is_none());
    if equals.is_none() && !is_word && !key.starts_with(COMMAND) {
        return Err(Error::NoValue { key, path: args.mount.clone() });
    }
    let value = OsStr::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
    if args.persist { persist(&pool, &args.mount, &key, value, parse_cmdline) } else { pool.set(&key, value) }
}

fn persist(
    pool: &ControlClient,
    mount: &Path,
    key: &str,
    value: &OsStr,
    parse_cmdline: fn(&[u8]) -> Option<MountArgs>,
) -> Result<(), Error> {
    let spec = options::find(key).filter(|spec| spec.key);
    let kept = spec.filter(|spec| spec.changes == Changes::Live && !spec.hidden && spec.name != "config");
    let Some(spec) = kept else {
        // Whatever is to be said of a key that cannot be set at all.
        if spec.is_none_or(|spec| spec.changes != Changes::Live) && !key.starts_with(COMMAND) {
            return pool.set(key, value);
        }
        return Err(Error::NotPersistent { key: key.to_owned() });
    };
    let file = PathBuf::from(pool.get("config")?);
    if file.as_os_str().is_empty() {
        return Err(Error::NoConfigFile(mount.to_owned()));
    }
    let origin = parse_cmdline(&pool.server_cmdline()?).and_then(|mut said| {
        if said.by_mount {
            // At boot all is mounted from there.
            restore_names(&mut said.in_order, Path::new("/"), |word| file.file_stem() == Some(word));
        }
        Origin::of(said.in_order, said.sloppy, file.clone())
    });
    let origin = origin.ok_or_else(|| Error::OtherConfigFile {
        key: spec.name.to_string(),
        file: file.clone(),
        path: mount.to_owned(),
    })?;
    let failed = |why: io::Error| canopy_config::Error::Persist { file: file.clone(), why: why.to_string() };
    let (mut rewrite, text) = Rewrite::begin(&file).map_err(failed)?;
    let value = match spec.name == "branches" {
        true => {
            whole_list(pool, value)?.ok_or_else(|| failed(io::Error::other("no branch would be left")))?
        }
        false => value.to_owned(),
    };
    let edited = origin.edited(&text, spec, &value)?;
    rewrite.write_new(&edited).map_err(failed)?;
    // All that is left is to rename a file; what can go wrong before has gone wrong by now.
    let before = values(pool)?;
    pool.set(&spec.name, &value)?;
    rewrite.commit().map_err(|why| match set_back(pool, &before) {
        Ok(()) => failed(why).into(),
        Err(kept) => Error::HalfPersisted { file: file.clone(), why: why.to_string(), kept: kept.line() },
    })
}

/// What an instruction makes of the pool's branches, unless that is nothing: the next mount would have none. The file
/// and the pool are told the same.
fn whole_list(pool: &ControlClient, value: &OsStr) -> Result<Option<OsString>, Error> {
    let mut config = Config::default();
    canopy_config::source::set(&mut config, "branches", &pool.get("branches")?)?;
    canopy_config::source::set(&mut config, "branches", value)?;
    Ok((!config.branches.is_empty()).then(|| config.branches.to_os_string()))
}

/// Everything that can be changed, as it is now.
fn values(pool: &ControlClient) -> Result<Vec<(&'static Spec, OsString)>, Error> {
    let changeable = |spec: &&Spec| {
        spec.key && !spec.hidden && spec.changes == Changes::Live && spec.name != "config" && !is_group(spec)
    };
    options::table().iter().filter(changeable).map(|spec| Ok((spec, pool.get(&spec.name)?))).collect()
}

/// Shows several values at once, which are other options' own.
fn is_group(spec: &Spec) -> bool {
    spec.name.starts_with("category.")
}

fn set_back(pool: &ControlClient, before: &[(&'static Spec, OsString)]) -> Result<(), Error> {
    for (spec, value) in before {
        if pool.get(&spec.name)? != *value {
            pool.set(&spec.name, value)?;
        }
    }
    Ok(())
}
