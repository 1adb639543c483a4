//! `canopy set`: changes an option of a running pool and, with `--persist`, its config file.

use super::mount::MountArgs;
use crate::control_client::ControlClient;
use crate::error::Error;
use crate::terminal::{eprint_line, print};
use canopy_base::difference::difference;
use canopy_base::text::one_line;
use canopy_branch::branch::BranchList;
use canopy_config::Config;
use canopy_config::options::{self, Changes, Spec};
use canopy_config::resolve::idle;
use canopy_config::source::branch_lists;
use canopy_config::source::named::restore_names;
use canopy_config::source::persist::{Origin, Rewrite};
use canopy_control::COMMAND;
use canopy_sys::shown::Show as _;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Change an option of a running pool
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct SetArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub mount: PathBuf,
    /// An option and its new value, or a command
    #[arg(value_name = "KEY=VALUE")]
    pub pair: OsString,
    /// Change the config file of the pool as well
    #[arg(short, long)]
    pub persist: bool,
    /// Accept a list of branches that lacks some of the present ones
    #[arg(short, long)]
    pub yes: bool,
    /// Show what would change and move, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

const NOTES: &str = "\
canopy list POOL marks the options that can be changed. Running operations
finish with the old value. Open files stay usable, even on a removed branch.
A change lasts until the unmount. --persist changes both pool and file, or none.

To change branches: canopy add, remove, replace and mode.
branches=LIST replaces all branches, and needs --yes if one would go. As for
mergerfs, +PATH appends one, +<PATH prepends one, -PATTERN removes those that
match, -< the first and -> the last.
Commands: cmd.gc, cmd.gc1, cmd.invalidate-all-nodes.

Examples:
  canopy set /pool category.create=mfs
  canopy set media cache.files=off --persist
  canopy set media 'rules=photos/**=/mnt/ssd' --dry-run";

/// `parse_cmdline` reads the command line of the process that serves the pool, as /proc has it.
pub fn run(args: &SetArgs, parse_cmdline: fn(&[u8]) -> Option<MountArgs>) -> Result<(), Error> {
    let pool = ControlClient::at(&args.mount)?;
    let pair = args.pair.as_bytes();
    let equals = pair.iter().position(|&byte| byte == b'=');
    let (key, value) = pair.split_at(equals.unwrap_or(pair.len()));
    let key = String::from_utf8_lossy(key.trim_ascii()).into_owned();
    // An option without a value is complete. The pool reports whether it can be set.
    let is_word = options::find(&key).is_some_and(|spec| spec.accepted().is_none());
    if equals.is_none() && !is_word && !key.starts_with(COMMAND) {
        return Err(Error::NoValue { key, path: args.mount.clone() });
    }
    let value = OsStr::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
    if key == BRANCHES && !args.yes {
        refuse_removal(&pool, value)?;
    }
    if args.dry_run {
        return plan(&pool, args, &key, value, parse_cmdline);
    }
    if args.persist {
        persist(&pool, &args.mount, &key, value, parse_cmdline)?;
    } else {
        pool.set(&key, value)?;
    }
    tell_idle(&pool, &key, value);
    Ok(())
}

/// Says what of the new value has no effect yet.
fn tell_idle(pool: &ControlClient, key: &str, value: &OsStr) {
    let known = |config: &mut Config| {
        canopy_config::source::set(config, BRANCHES, &pool.get(BRANCHES).ok()?).ok()?;
        canopy_config::source::set(config, key, value).ok()
    };
    let mut config = Config::default();
    if matches!(key, "tiers" | "rules" | "read-cache") && known(&mut config).is_some() {
        idle(&config).iter().for_each(|line| eprint_line(&one_line(line)));
    }
}

/// Where a change is kept.
pub enum Persistence {
    InFile(PathBuf),
    UntilUnmount,
}

/// Sets the whole list of branches and, if so asked, also in the config file, if the pool has one.
pub fn branches(
    mount: &Path,
    list: &OsStr,
    in_file: bool,
    parse_cmdline: fn(&[u8]) -> Option<MountArgs>,
) -> Result<Persistence, Error> {
    let pool = ControlClient::at(mount)?;
    let file = PathBuf::from(if in_file { pool.get("config")? } else { OsString::new() });
    if file.as_os_str().is_empty() {
        return pool.set(BRANCHES, list).map(|()| Persistence::UntilUnmount);
    }
    persist(&pool, mount, BRANCHES, list, parse_cmdline).map(|()| Persistence::InFile(file))
}

const BRANCHES: &str = "branches";

/// Refuses a whole list that lacks branches which the pool has: most likely the instruction before it was forgotten.
fn refuse_removal(pool: &ControlClient, value: &OsStr) -> Result<(), Error> {
    let mut config = Config::default();
    canopy_config::source::set(&mut config, BRANCHES, &pool.get(BRANCHES)?)?;
    let before = config.branches.clone();
    // The mistakes of a value are those that the pool finds.
    if value.as_bytes().starts_with(b"-") || canopy_config::source::set(&mut config, BRANCHES, value).is_err()
    {
        return Ok(());
    }
    let has = |list: &BranchList, path: &Path| list.iter().any(|spec| spec.path == path);
    let going: Vec<PathBuf> =
        before.iter().map(|spec| spec.path.clone()).filter(|path| !has(&config.branches, path)).collect();
    let added = config.branches.iter().map(|spec| &spec.path).filter(|path| !has(&before, path));
    let added: Vec<&PathBuf> = added.collect();
    // A directory that does not exist is a mistake of another kind.
    if going.is_empty() || added.iter().any(|path| matches!(path.try_exists(), Ok(false))) {
        return Ok(());
    }
    let words: Vec<String> = added.iter().map(|path| path.shown().to_string()).collect();
    let added = if words.is_empty() { "BRANCH".to_owned() } else { words.join(" ") };
    Err(Error::WouldRemove { going, added, pool: pool.mountpoint().to_owned() })
}

/// Returns the value of an option for people.
fn readable(config: &Config, key: &str) -> Option<String> {
    options::find(key).and_then(|spec| spec.readable(config))
}

/// Shows what a change would be, and does nothing.
fn plan(
    pool: &ControlClient,
    args: &SetArgs,
    key: &str,
    value: &OsStr,
    parse_cmdline: fn(&[u8]) -> Option<MountArgs>,
) -> Result<(), Error> {
    let place = pool.mountpoint().shown();
    if key.starts_with(COMMAND) {
        // The pool knows its commands.
        print(&format!("{place}: {key} changes no option, so there is nothing to show\n"));
        return Ok(());
    }
    pool.check(key, value)?;
    let before = pool.get(key)?;
    let mut config = Config::default();
    let is_known = canopy_config::source::set(&mut config, key, &before).is_ok();
    let old = readable(&config, key).filter(|_| is_known);
    let branches = config.branches.clone();
    canopy_config::source::set(&mut config, key, value)?;
    let new = readable(&config, key);
    let mut text = if key == BRANCHES {
        branch_lists::difference(&place.to_string(), &branches, &config.branches)
    } else {
        let line = |shown: Option<String>, value: &OsStr| {
            format!("{key} = {}\n", one_line(&shown.unwrap_or_else(|| value.to_string_lossy().into_owned())))
        };
        difference(&line(old, &before), &line(new, value))
    };
    if text.is_empty() {
        let _ = writeln!(text, "{place}: nothing changes");
    }
    if args.persist {
        let edited = Edited::of(pool, &args.mount, key, value, parse_cmdline)?;
        let [old, new] = [&edited.before, &edited.after].map(|text| String::from_utf8_lossy(text));
        let _ = write!(text, "{}:\n{}", edited.file.shown(), difference(&old, &new));
    }
    print(&text);
    if matches!(key, "tiers" | "rules") {
        Ok(canopy_upkeep::preview(&args.mount, &args.pair)?)
    } else {
        Ok(())
    }
}

/// A change of the config file that is ready to be made. The file is locked meanwhile.
struct Edited {
    file: PathBuf,
    rewrite: Rewrite,
    before: Vec<u8>,
    after: Vec<u8>,
    spec: &'static Spec,
    value: OsString,
}

impl Edited {
    fn of(
        pool: &ControlClient,
        mount: &Path,
        key: &str,
        value: &OsStr,
        parse_cmdline: fn(&[u8]) -> Option<MountArgs>,
    ) -> Result<Edited, Error> {
        let spec = options::find(key).filter(|spec| spec.key);
        let kept = spec.filter(|spec| spec.changes == Changes::Live && !spec.hidden && spec.name != "config");
        let spec = kept.ok_or_else(|| Error::NotPersistent { key: key.to_owned() })?;
        let file = PathBuf::from(pool.get("config")?);
        if file.as_os_str().is_empty() {
            return Err(Error::NoConfigFile(mount.to_owned()));
        }
        let origin = parse_cmdline(&pool.server_cmdline()?).and_then(|mut mount| {
            if mount.by_mount {
                // At boot, the current directory is the root.
                restore_names(&mut mount.in_order, Path::new("/"), |word| file.file_stem() == Some(word));
            }
            Origin::of(mount.in_order, mount.sloppy, file.clone())
        });
        let origin = origin.ok_or_else(|| Error::OtherConfigFile {
            key: spec.name.to_string(),
            file: file.clone(),
            path: mount.to_owned(),
        })?;
        let (rewrite, before) = Rewrite::begin(&file).map_err(|why| not_kept(&file, &why))?;
        let value = if spec.name == "branches" {
            let none = || not_kept(&file, &io::Error::other("no branch would be left"));
            whole_list(pool, value)?.ok_or_else(none)?
        } else {
            value.to_owned()
        };
        let after = origin.edited(&before, spec, &value)?;
        Ok(Edited { file, rewrite, before, after, spec, value })
    }
}

fn not_kept(file: &Path, why: &io::Error) -> canopy_config::Error {
    canopy_config::Error::Persist { file: file.to_owned(), why: why.to_string() }
}

fn persist(
    pool: &ControlClient,
    mount: &Path,
    key: &str,
    value: &OsStr,
    parse_cmdline: fn(&[u8]) -> Option<MountArgs>,
) -> Result<(), Error> {
    let spec = options::find(key).filter(|spec| spec.key);
    if spec.is_none_or(|spec| spec.changes != Changes::Live) && !key.starts_with(COMMAND) {
        // Returns the error for a key that cannot be set at all.
        return pool.set(key, value);
    }
    let Edited { file, mut rewrite, after, spec, value, .. } =
        Edited::of(pool, mount, key, value, parse_cmdline)?;
    rewrite.write_new(&after).map_err(|why| not_kept(&file, &why))?;
    // After this, only the rename of the file can fail.
    let before = values(pool)?;
    pool.set(&spec.name, &value)?;
    rewrite.commit().map_err(|why| match set_back(pool, &before) {
        Ok(()) => not_kept(&file, &why).into(),
        Err(kept) => Error::HalfPersisted { file: file.clone(), why: why.to_string(), kept: kept.line() },
    })
}

/// Returns the list of branches after an instruction, so that pool and file get the same list. Returns `None` if no
/// branch is left, because the next mount would fail.
fn whole_list(pool: &ControlClient, value: &OsStr) -> Result<Option<OsString>, Error> {
    let mut config = Config::default();
    canopy_config::source::set(&mut config, "branches", &pool.get("branches")?)?;
    canopy_config::source::set(&mut config, "branches", value)?;
    Ok((!config.branches.is_empty()).then(|| config.branches.to_os_string()))
}

/// Returns the current values of all options that can be changed.
fn values(pool: &ControlClient) -> Result<Vec<(&'static Spec, OsString)>, Error> {
    let changeable = |spec: &&Spec| {
        spec.key && !spec.hidden && spec.changes == Changes::Live && spec.name != "config" && !is_group(spec)
    };
    options::table().iter().filter(changeable).map(|spec| Ok((spec, pool.get(&spec.name)?))).collect()
}

/// Returns whether an option stands for several others.
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
