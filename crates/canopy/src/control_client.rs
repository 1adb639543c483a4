//! Access to a running pool through its socket or its control file.

use crate::error::Error;
use canopy_branch::branch::BranchList;
use canopy_config::options::{self, Changes, Spec, closest};
use canopy_config::overlap::refuse_overlap;
use canopy_config::source::{self, named};
use canopy_config::{Config, pool_loops, resolve};
use canopy_control::daemon::Daemon;
use canopy_control::metrics::MetricsReport;
use canopy_control::{self, ExplainReport, METRICS, PID, PoolReport, READ_ONLY, STATUS};
use canopy_sys::mountinfo::{self, MountEntry};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A running pool, found by its mountpoint.
pub struct ControlClient {
    mountpoint: PathBuf,
    daemon: Daemon,
}

impl ControlClient {
    pub fn at(path: &Path) -> Result<ControlClient, Error> {
        let path = named::mountpoint(path)?;
        let mountpoint = mountinfo::listed_path(&path).map_err(|why| match why.kind() {
            io::ErrorKind::NotConnected => Error::PoolDead(path.clone()),
            _ => Error::NoPool(path.clone()),
        })?;
        let mounted =
            mountinfo::at(&mountpoint).map_err(Error::system("cannot read /proc/self/mountinfo"))?;
        match mounted.filter(MountEntry::is_pool) {
            Some(mounted) => Ok(ControlClient { daemon: Daemon::of(&mounted), mountpoint }),
            None => Err(Error::NoPool(mountpoint)),
        }
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the listed keys, in alphabetical order.
    pub fn keys(&self) -> Result<Vec<String>, Error> {
        self.daemon.keys().map_err(|errno| self.control_error("the list of keys", errno))
    }

    pub fn get(&self, key: &str) -> Result<OsString, Error> {
        match self.daemon.get(key) {
            Ok(value) => Ok(value),
            Err(Errno::NODATA) => Err(self.unknown_key(key)),
            Err(errno) => Err(self.control_error(key, errno)),
        }
    }

    /// Returns what the daemon says of its pool.
    pub fn status(&self) -> Result<PoolReport, Error> {
        self.daemon.status().map_err(|errno| self.report_error(STATUS, errno))
    }

    /// The same, by which the pool shows that it answers.
    pub fn status_through_pool(&self) -> Result<PoolReport, Error> {
        self.daemon.status_through_pool().map_err(|errno| self.report_error(STATUS, errno))
    }

    /// Returns what the daemon has counted.
    pub fn metrics(&self) -> Result<MetricsReport, Error> {
        self.daemon.metrics().map_err(|errno| self.report_error(METRICS, errno))
    }

    fn report_error(&self, key: &str, errno: Errno) -> Error {
        match errno {
            Errno::NODATA => Error::NotCanopy(self.mountpoint.clone()),
            errno => self.control_error(key, errno),
        }
    }

    /// Returns the command line of the server, each argument followed by a NUL.
    pub fn server_cmdline(&self) -> Result<Vec<u8>, Error> {
        let pid = self.get(PID)?;
        fs::read(Path::new("/proc").join(pid).join("cmdline"))
            .map_err(Error::system("cannot read how the pool was mounted"))
    }

    /// Reads an explain key of a file or directory of the pool.
    pub fn explain(&self, path: &Path, key: &str) -> Result<ExplainReport, Error> {
        let answer = canopy_control::read(path, key).map_err(|errno| match errno {
            Errno::NODATA => Error::NotCanopy(self.mountpoint.clone()),
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::OPNOTSUPP | Errno::NOSYS => {
                self.control_error(key, errno)
            }
            errno => Error::Explain { path: path.to_owned(), why: errno.to_string() },
        })?;
        serde_json::from_slice(&answer).map_err(|_| Error::NotCanopy(self.mountpoint.clone()))
    }

    pub fn set(&self, key: &str, value: &OsStr) -> Result<(), Error> {
        // The pool accepts a key only in the spelling of the list.
        let spec = options::find(key).filter(|spec| spec.key);
        let name = spec.map_or(key, |spec| spec.name.as_ref());
        if name == "branches" {
            self.refuse_missing(value)?;
        }
        if let Some(flag) = options::find(key).filter(|spec| spec.is_flag()) {
            return Err(self.fixed_at_mount(flag, value));
        }
        self.daemon.set(name, value).map_err(|errno| match errno {
            Errno::NODATA if READ_ONLY.contains(&name) => Error::ReadOnlyKey { key: name.to_owned() },
            Errno::NODATA => options::find(key)
                .filter(|spec| spec.changes == Changes::AtMount && !spec.is_ignored())
                .map_or_else(|| self.unknown_key(key), |spec| self.fixed_at_mount(spec, value)),
            Errno::ROFS if READ_ONLY.contains(&name) => Error::ReadOnlyKey { key: name.to_owned() },
            Errno::ROFS if spec.is_some_and(|spec| spec.changes == Changes::Live) => {
                Error::PoolReadOnly(self.mountpoint.clone())
            }
            Errno::ROFS => {
                spec.map_or_else(|| self.unknown_key(key), |spec| self.fixed_at_mount(spec, value))
            }
            Errno::ACCESS | Errno::PERM => {
                Error::NotOwner { key: name.to_owned(), path: self.mountpoint.clone() }
            }
            errno => self.set_error(name, value, errno),
        })
    }

    /// Refuses a list or an instruction that adds a branch which does not exist. The pool would wait for it; on the command
    /// line it is probably a typing error.
    fn refuse_missing(&self, value: &OsStr) -> Result<(), Error> {
        let Some((before, after)) = self.changed_branches(value) else { return Ok(()) };
        let missing = |path: &&PathBuf| {
            !before.iter().any(|branch| branch.path == **path)
                && refuse_overlap(path, &self.mountpoint).is_ok()
                && matches!(path.try_exists(), Ok(false))
        };
        let missing = after.iter().map(|branch| &branch.path).find(missing);
        missing.map_or(Ok(()), |path| Err(Error::NewBranchMissing(path.clone())))
    }

    /// Returns the branches before and after an instruction, if it is valid.
    fn changed_branches(&self, value: &OsStr) -> Option<(BranchList, BranchList)> {
        let mut config = Config::default();
        source::set(&mut config, "branches", &self.get("branches").ok()?).ok()?;
        let before = config.branches.clone();
        source::set(&mut config, "branches", value).ok()?;
        Some((before, config.branches))
    }

    /// Refuses a list or an instruction that the pool would refuse, before anything of it is shown.
    pub fn check_branches(&self, value: &OsStr) -> Result<(), Error> {
        self.refuse_missing(value)?;
        let Some((before, after)) = self.changed_branches(value) else { return Ok(()) };
        let is_new = |path: &Path| !before.iter().any(|branch| branch.path == path);
        if let Some(around) = self.around(&after) {
            return Err(around);
        }
        if let Some(file) = after.iter().find(|spec| is_new(&spec.path) && spec.path.is_file()) {
            return Err(Error::BranchNotDirectory(file.path.clone()));
        }
        Self::twice(&after).map_or(Ok(()), |(branch, other)| {
            Err(Error::BranchTwice { branch, other, pool: self.mountpoint.clone() })
        })
    }

    /// Returns the error for a branch that contains the pool, or is in it.
    fn around(&self, list: &BranchList) -> Option<Error> {
        let own = mountinfo::at(&self.mountpoint).ok().flatten().map(|mounted| mounted.device);
        let refused = |branch: &PathBuf| {
            refuse_overlap(branch, &self.mountpoint)
                .and_then(|()| pool_loops::check(branch, &self.mountpoint, own))
                .err()
        };
        list.iter().map(|spec| &spec.path).find_map(refused).map(Error::from)
    }

    /// Refuses what [`ControlClient::set`] would refuse, as far as that is known before.
    pub fn check(&self, key: &str, value: &OsStr) -> Result<(), Error> {
        let spec = options::find(key).filter(|spec| spec.changes == Changes::Live && spec.key);
        let Some(spec) = spec else {
            let fixed = options::find(key).filter(|spec| !spec.is_ignored());
            return Err(match fixed {
                _ if READ_ONLY.contains(&key) => Error::ReadOnlyKey { key: key.to_owned() },
                Some(spec) => self.fixed_at_mount(spec, value),
                None => self.unknown_key(key),
            });
        };
        if spec.name == "branches" {
            self.check_branches(value)?;
        }
        let mut config = Config::default();
        // Policies that differ are shown as several, and are no value that can be set.
        let _ = source::set(&mut config, key, &self.get(&spec.name)?);
        source::set(&mut config, key, value)?;
        let get = |other: &str| self.get(other).unwrap_or_default();
        Ok(resolve::check_beside(&mut config, key, get)?)
    }

    /// Finds the message for an errno of the pool, by parsing the value again as the pool did.
    fn set_error(&self, key: &str, value: &OsStr, errno: Errno) -> Error {
        let mut config = Config::default();
        if key == "branches"
            && let Ok(now) = self.get(key)
        {
            let _ = source::set(&mut config, key, &now);
        }
        if let Err(error) = source::set(&mut config, key, value) {
            return error.into();
        }
        let get = |other: &str| self.get(other).unwrap_or_default();
        if let Err(error) = resolve::check_beside(&mut config, key, get) {
            return error.into();
        }
        if errno == Errno::EXIST {
            return self.duplicate_branch(&config.branches);
        }
        if errno == Errno::XDEV
            && let Ok(report) = self.status()
        {
            let inside =
                |path: &Path| report.branches.iter().any(|held| path.starts_with(held.path.to_path()));
            if let Some(spec) = config.branches.iter().find(|spec| !inside(&spec.path)) {
                let (branch, pool) = (spec.path.clone(), self.mountpoint.clone());
                return canopy_server::Error::OutsideOfLandlock { branch, pool }.into();
            }
        }
        self.around(&config.branches).unwrap_or_else(|| self.control_error(key, errno))
    }

    /// Returns the error for a list that has one directory more than once.
    fn duplicate_branch(&self, list: &BranchList) -> Error {
        let (branch, other) = Self::twice(list).unwrap_or_default();
        Error::BranchTwice { branch, other, pool: self.mountpoint.clone() }
    }

    /// Returns the paths of a directory that the list has more than once.
    fn twice(list: &BranchList) -> Option<(PathBuf, PathBuf)> {
        let paths: Vec<&PathBuf> = list.iter().map(|spec| &spec.path).collect();
        let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let same = |a: &Path, b: &Path| a == b || identity(a).is_some_and(|own| identity(b) == Some(own));
        // From the end, because the new branch is usually the last.
        let mut pairs =
            (0..paths.len()).rev().flat_map(|at| paths[..at].iter().map(move |other| (at, *other)));
        let found = pairs.find(|(at, other)| same(paths[*at], other));
        found.map(|(at, other)| (paths[at].clone(), other.clone()))
    }

    fn unknown_key(&self, key: &str) -> Error {
        let known = self.keys().unwrap_or_default().into_iter();
        let nearest = closest(&key.replace('_', "-"), known.chain(READ_ONLY.map(str::to_owned)));
        Error::UnknownKey { key: key.to_owned(), nearest }
    }

    /// Returns the error for an option that only a mount can set. It contains the option as the next mount would take it.
    fn fixed_at_mount(&self, spec: &Spec, value: &OsStr) -> Error {
        let key = spec.name.to_string();
        // A remount cannot change dirsync (mount(2)).
        if spec.is_flag() && key != "dirsync" {
            return Error::FlagKey { key, path: self.mountpoint.clone() };
        }
        let pair = match spec.accepted() {
            None => key.clone(),
            Some(_) => match source::set(&mut Config::default(), &key, value) {
                Ok(()) => format!("{key}={}", value.to_string_lossy()),
                Err(error) => return error.into(),
            },
        };
        Error::FixedKey { key, pair, path: self.mountpoint.clone() }
    }

    fn control_error(&self, key: &str, errno: Errno) -> Error {
        let path = self.mountpoint.clone();
        match errno {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => Error::PoolDead(path),
            Errno::OPNOTSUPP | Errno::NOSYS if key != "passthrough.io" => Error::PoolMute(path),
            errno => Error::Control { key: key.to_owned(), path, why: errno.to_string() },
        }
    }
}
