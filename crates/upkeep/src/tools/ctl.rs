//! `mergerfs.ctl`: shows and changes options of running pools.

use crate::error::{Error, Result};
use crate::output::{print, shown};
use canopy_control::{self, LARGEST_VALUE, PID, PREFIX, SRCMOUNTS, VERSION, attribute, control_file};
use canopy_sys::mountinfo;
use clap::{Parser, Subcommand, ValueEnum};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Show and change options of running pools (canopy get, canopy set)
#[derive(Parser, Debug)]
#[command(name = "mergerfs.ctl")]
pub struct Ctl {
    /// The pool to act on, instead of all
    #[arg(short, long)]
    mount: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Add a branch
    Add { kind: Kind, path: PathBuf },
    /// Remove a branch
    Remove { kind: Kind, path: PathBuf },
    /// List options
    List { what: What },
    /// Show options
    Get {
        #[arg(required = true)]
        option: Vec<String>,
    },
    /// Change an option
    Set { option: String, value: OsString },
    /// Show version, process and branches
    Info,
}

/// Whether a branch is named by its path, or by the device that is mounted on it.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Path,
    Device,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Options,
    Values,
}

pub(super) fn run(args: &Ctl) -> Result<()> {
    let failed = |why| Error::System { what: "cannot read /proc/self/mountinfo", why };
    let mounts = mountinfo::list().map_err(failed)?;
    let mut pools: Vec<&Path> = mounts
        .iter()
        .filter(|mounted| mounted.is_pool())
        .map(|mounted| mounted.mountpoint.as_path())
        .collect();
    if let Some(mount) = &args.mount {
        let real = mount.canonicalize().unwrap_or_else(|_| mount.clone());
        pools.retain(|pool| *pool == real);
        if pools.is_empty() {
            return Err(Error::NoPool(mount.clone()));
        }
    }
    if pools.is_empty() {
        return Err(Error::NoPools);
    }
    pools.into_iter().try_for_each(|pool| act(pool, &args.action))
}

fn act(pool: &Path, action: &Action) -> Result<()> {
    let mut text = format!("- mount: {}\n", shown(pool));
    match action {
        Action::Add { kind, path } => return change(pool, "branches", &instruction(b"+", *kind, path)?),
        Action::Remove { kind, path } => return change(pool, "branches", &instruction(b"-", *kind, path)?),
        Action::Set { option, value } => {
            return change(pool, option.strip_prefix(PREFIX).unwrap_or(option), value);
        }
        Action::List { what } => {
            text.push_str("  options:\n");
            for key in keys(pool)? {
                let _ = match what {
                    What::Options => writeln!(text, "    - {PREFIX}{key}"),
                    What::Values => writeln!(text, "    {PREFIX}{key}: {}", get(pool, &key)?),
                };
            }
        }
        Action::Get { option } => {
            for key in option {
                let key = key.strip_prefix(PREFIX).unwrap_or(key);
                let _ = writeln!(text, "    {PREFIX}{key}: {}", get(pool, key)?);
            }
        }
        Action::Info => {
            let _ = writeln!(text, "  version: {}\n  pid: {}", get(pool, VERSION)?, get(pool, PID)?);
            text.push_str("  srcmounts:\n");
            for branch in get(pool, SRCMOUNTS)?.split(':') {
                let _ = writeln!(text, "    - {branch}");
            }
        }
    }
    print(&text);
    Ok(())
}

/// Returns the value of `branches` that adds or removes a branch.
fn instruction(sign: &[u8], kind: Kind, path: &Path) -> Result<OsString> {
    let branch = match kind {
        Kind::Path => path.to_owned(),
        Kind::Device => mountpoint_of(path)?,
    };
    Ok(OsStr::from_bytes(&[sign, branch.as_os_str().as_bytes()].concat()).to_owned())
}

fn mountpoint_of(device: &Path) -> Result<PathBuf> {
    let failed = |why| Error::System { what: "cannot read /proc/self/mountinfo", why };
    let real = device.canonicalize().unwrap_or_else(|_| device.to_owned());
    let is = |source: &OsStr| source == device.as_os_str() || source == real.as_os_str();
    let mounts = mountinfo::list().map_err(failed)?;
    let found = mounts.into_iter().find(|mounted| is(&mounted.source));
    let found = found.map(|mounted| mounted.mountpoint).or_else(|| in_fstab(device));
    found.ok_or_else(|| Error::NotMounted(device.to_owned()))
}

/// Returns where fstab wants a device, by the same word.
fn in_fstab(device: &Path) -> Option<PathBuf> {
    let fstab = std::fs::read_to_string("/etc/fstab").ok()?;
    let line = fstab.lines().map(str::split_whitespace).find_map(|mut words| {
        let is_it = words.next().is_some_and(|word| Path::new(word) == device);
        is_it.then(|| words.next()).flatten().filter(|path| path.starts_with('/'))
    })?;
    // A blank in a path, as fstab(5) writes it.
    Some(PathBuf::from(line.replace("\\040", " ")))
}

fn failed(pool: &Path, key: &str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Key { key: key.to_owned(), pool: pool.to_owned(), why: errno.into() }
}

fn get(pool: &Path, key: &str) -> Result<String> {
    let value = canopy_control::read(&control_file(pool), key).map_err(failed(pool, key))?;
    Ok(canopy_base::text::one_line(&String::from_utf8_lossy(&value)))
}

fn keys(pool: &Path) -> Result<Vec<String>> {
    let mut buffer = vec![0; LARGEST_VALUE];
    let length = rustix::fs::listxattr(control_file(pool), buffer.as_mut_slice())
        .map_err(failed(pool, "the list of keys"))?;
    let names = buffer[..length].split(|&byte| byte == 0);
    Ok(names
        .filter_map(|name| Some(std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?.to_owned()))
        .collect())
}

fn change(pool: &Path, key: &str, value: &OsStr) -> Result<()> {
    rustix::fs::setxattr(control_file(pool), attribute(key), value.as_bytes(), XattrFlags::empty())
        .map_err(failed(pool, key))
}
