//! Asking the daemon of a pool: over its socket, which does not wait for a branch, else through its control file.

use crate::messages::{Answer, PlacementReport, Query};
use crate::metrics::MetricsReport;
use crate::mount::{Mount, Mounted};
use crate::{CLOSED, COMMAND, CONTROL_FILE, COPIES, CopiesReport, METRICS, OsText, PREFIX, PoolReport};
use crate::{STATUS, attribute, socket};
use canopy_sys::mountinfo::MountEntry;
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

/// The daemon of a pool.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// By whose device the socket is found, if there may be one.
    mounted: Option<MountEntry>,
    mount: Arc<dyn Mount>,
}

impl Daemon {
    #[must_use]
    pub fn of(mounted: &MountEntry) -> Daemon {
        Daemon { mounted: Some(mounted.clone()), mount: Arc::new(Mounted(mounted.mountpoint.clone())) }
    }

    /// One that is reached through its pool alone.
    #[must_use]
    pub fn behind(mount: Arc<dyn Mount>) -> Daemon {
        Daemon { mounted: None, mount }
    }

    /// The mount of its pool.
    #[must_use]
    pub fn mount(&self) -> &dyn Mount {
        &*self.mount
    }

    /// # Errors
    /// Those of the control file: `NODATA` for a key that the daemon does not know, or an answer that is not understood.
    pub fn ask(&self, query: &Query) -> Result<Answer, Errno> {
        let answer = self.mounted.as_ref().and_then(|mounted| socket::ask(mounted, query));
        answer.unwrap_or_else(|| self.ask_by_file(query))
    }

    /// # Errors
    /// As for [`Daemon::ask`].
    pub fn status(&self) -> Result<PoolReport, Errno> {
        match self.ask(&Query::Status)? {
            Answer::Status(report) => Ok(*report),
            _ => Err(Errno::NODATA),
        }
    }

    /// Asks through the pool itself, which tells at the same time whether that answers those who use it.
    ///
    /// # Errors
    /// As for [`Daemon::ask`].
    pub fn status_through_pool(&self) -> Result<PoolReport, Errno> {
        match self.ask_by_file(&Query::Status)? {
            Answer::Status(report) => Ok(*report),
            _ => Err(Errno::NODATA),
        }
    }

    /// # Errors
    /// As for [`Daemon::ask`].
    pub fn metrics(&self) -> Result<MetricsReport, Errno> {
        match self.ask(&Query::Metrics)? {
            Answer::Metrics(report) => Ok(*report),
            _ => Err(Errno::NODATA),
        }
    }

    /// # Errors
    /// As for [`Daemon::ask`].
    pub fn get(&self, key: &str) -> Result<OsString, Errno> {
        match self.ask(&Query::Get(key.to_owned()))? {
            Answer::Value(value) => Ok(value.to_os_string()),
            _ => Err(Errno::NODATA),
        }
    }

    /// # Errors
    /// As for [`Daemon::ask`].
    pub fn keys(&self) -> Result<Vec<String>, Errno> {
        match self.ask(&Query::Keys)? {
            Answer::Keys(keys) => Ok(keys),
            _ => Err(Errno::NODATA),
        }
    }

    /// Returns the tiers and rules; `None` of a daemon that has them only as text, as the values of these options.
    #[must_use]
    pub fn placement(&self) -> Option<PlacementReport> {
        match socket::ask(self.mounted.as_ref()?, &Query::Placement)? {
            Ok(Answer::Placement(report)) => Some(report),
            _ => None,
        }
    }

    /// Returns what the branches hold under a path of the pool, and which copies are up to date.
    ///
    /// # Errors
    /// As for [`Daemon::ask`]; `ACCESS` for those who may not read the file.
    pub fn copies(&self, path: &OsStr) -> Result<CopiesReport, Errno> {
        let query = Query::Copies(vec![OsText::from(path)]);
        let answer = match self.ask(&query) {
            // Over the socket, only administrators may ask for any file.
            Err(Errno::ACCESS) => self.ask_by_file(&query),
            other => other,
        };
        match answer? {
            Answer::Copies(mut reports) => reports.pop().ok_or(Errno::NODATA),
            _ => Err(Errno::NODATA),
        }
    }

    /// Sets an option, or runs a command (`cmd.NAME`).
    ///
    /// # Errors
    /// As for [`Daemon::ask`]; `NOTCONN` if the daemon has ended before it could answer, and may have done it or not.
    pub fn set(&self, key: &str, value: &OsStr) -> Result<(), Errno> {
        let query = match key.strip_prefix(COMMAND) {
            Some(command) => Query::Command(command.to_owned()),
            None => Query::Set { key: key.to_owned(), value: OsText::from(value) },
        };
        self.ask(&query).map(drop)
    }

    fn ask_by_file(&self, query: &Query) -> Result<Answer, Errno> {
        let file = Path::new(CONTROL_FILE);
        let set = |key: &str, value: &[u8]| {
            self.mount.setxattr(file, &attribute(key), value).map(|()| Answer::Done)
        };
        let value = |key: &str| self.mount.getxattr(file, &attribute(key));
        Ok(match query {
            Query::Status => Answer::Status(parsed(&value(STATUS)?)?),
            Query::Metrics => Answer::Metrics(parsed(&value(METRICS)?)?),
            Query::Closed(after) => Answer::Closed(parsed(&value(&format!("{CLOSED}{after}"))?)?),
            // As any file has them, so that whoever may read the file may know.
            Query::Copies(paths) => {
                let ask = |path: &OsText| parsed(&self.mount.getxattr(&path.to_path(), &attribute(COPIES))?);
                Answer::Copies(paths.iter().map(ask).collect::<Result<_, _>>()?)
            }
            Query::Keys => {
                let list = self.mount.listxattr(file)?;
                let names = list.split(|&byte| byte == 0);
                let names = names.filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix(PREFIX));
                Answer::Keys(names.map(str::to_owned).collect())
            }
            Query::Get(key) => Answer::Value(OsText::from(&*OsString::from_vec(value(key)?))),
            Query::Placement
            | Query::Forget(_)
            | Query::Cached
            | Query::CacheAdd(_)
            | Query::CacheDrop(_) => return Err(Errno::NODATA),
            Query::Set { key, value } => set(key, value.to_os_string().as_bytes())?,
            Query::Command(name) => set(&format!("{COMMAND}{name}"), b"")?,
        })
    }
}

fn parsed<T: DeserializeOwned>(json: &[u8]) -> Result<T, Errno> {
    serde_json::from_slice(json).map_err(|_| Errno::NODATA)
}
