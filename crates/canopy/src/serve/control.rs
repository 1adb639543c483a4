//! The runtime interface: the control file `.mergerfs` in the root of the pool, and the keys that any file
//! answers to. All of it travels as extended attributes `user.mergerfs.KEY`.
//!
//! The control file is a node of its own that no branch holds. It is never listed.

use super::convert::Terms;
use super::dispatch::Dispatch;
use crate::config::options::{self, Changes, OptionError};
use crate::config::{Config, check};
use canopy_fuse::abi::{self, AttrOut, EntryOut, StatxOut};
use canopy_fuse::{NodeId, Op, Replied, Reply, Request};
use canopy_pool::{Error, Located, Pool};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Its name in the root.
pub(super) const NAME: &[u8] = b".mergerfs";
/// Its node: one that the pool, which counts upwards, never comes to.
pub(super) const NODE: NodeId = NodeId(u64::MAX - 1);

const PREFIX: &[u8] = b"user.mergerfs.";
const COMMAND: &[u8] = b"cmd.";
const XATTR_CREATE: u32 = 1;
const STATX_BASIC_STATS: u32 = 0x7ff;
const ENTRY_MODE: u32 = 0o100_664;

/// The configuration that a running pool works by, as its users see and change it.
pub(super) struct Control {
    /// Held over a change: changes come one after the other.
    now: Mutex<Config>,
    mountpoint: PathBuf,
    since: u64,
}

impl Control {
    pub(super) fn new(config: Config, mountpoint: PathBuf) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        Control { now: Mutex::new(config), mountpoint, since }
    }

    pub(super) fn entry(&self, terms: &Terms) -> EntryOut {
        EntryOut::new(NODE.0, terms.generation, self.attr(), terms.entry, terms.attr)
    }

    fn attr(&self) -> abi::Attr {
        abi::Attr {
            mode: ENTRY_MODE,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            blksize: 512,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            ..abi::Attr::default()
        }
    }

    /// Answers a request about the control file.
    pub(super) fn answer(&self, serving: &Dispatch, request: &Request<'_>, reply: Reply<'_>) -> Replied {
        let terms = serving.terms.load();
        let done = |reply: Reply<'_>, result: Result<(), Errno>| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.raw_os_error()),
        };
        match request.op {
            Op::Forget { .. } => reply.none(),
            Op::Getattr { .. } => reply.attr(&AttrOut::new(self.attr(), terms.attr)),
            Op::Statx { .. } => {
                let attr = self.attr();
                let time = abi::SxTime { sec: self.since.cast_signed(), ..abi::SxTime::default() };
                let stat = abi::Statx {
                    mask: STATX_BASIC_STATS,
                    atime: time,
                    mtime: time,
                    ctime: time,
                    mode: ENTRY_MODE as u16,
                    nlink: attr.nlink,
                    uid: attr.uid,
                    gid: attr.gid,
                    blksize: attr.blksize,
                    ..abi::Statx::default()
                };
                reply.statx(&StatxOut::new(stat, terms.attr))
            }
            Op::Getxattr { name, .. } => match self.get(&serving.pool, name.to_bytes()) {
                Ok(value) => reply.xattr(&value),
                Err(errno) => reply.error(errno.raw_os_error()),
            },
            Op::Listxattr { .. } => reply.xattr(&self.list()),
            Op::Setxattr { name, value, flags, .. } => {
                done(reply, self.set(serving, name.to_bytes(), value, flags))
            }
            Op::Removexattr { .. } => reply.error(Errno::NODATA.raw_os_error()),
            Op::Access { .. } => reply.ok(),
            // There is nothing to open, to remove or to change but by attributes.
            _ => reply.error(Errno::NOENT.raw_os_error()),
        }
    }

    /// The value of a key, shown or hidden; `_` and `-` are the same.
    fn get(&self, pool: &Pool, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let key =
            name.strip_prefix(PREFIX).and_then(|key| std::str::from_utf8(key).ok()).ok_or(Errno::NODATA)?;
        match key.replace('_', "-").as_str() {
            "version" => return Ok(env!("CARGO_PKG_VERSION").into()),
            "pid" => return Ok(std::process::id().to_string().into()),
            "srcmounts" => return Ok(pool.branches().srcmounts().as_bytes().to_vec()),
            _ => {}
        }
        let spec = options::find(key).filter(|spec| spec.key).ok_or(Errno::NODATA)?;
        if spec.hidden {
            return Ok(Vec::new());
        }
        spec.render(&self.now.lock()).map(String::into_bytes).ok_or(Errno::NODATA)
    }

    /// Every shown key, each with its terminating NUL, in the order of its bytes.
    fn list(&self) -> Vec<u8> {
        let shown = options::table().iter().filter(|spec| spec.key && !spec.hidden);
        let mut keys: Vec<&str> = shown.map(|spec| spec.name.as_ref()).chain(["version", "pid"]).collect();
        keys.sort_unstable();
        keys.iter().flat_map(|key| [PREFIX, key.as_bytes(), b"\0"].concat()).collect()
    }

    fn set(&self, serving: &Dispatch, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let key = name.strip_prefix(PREFIX).ok_or(Errno::NODATA)?;
        if let Some(command) = key.strip_prefix(COMMAND) {
            return command_named(serving, command);
        }
        let key = std::str::from_utf8(key).map_err(|_| Errno::NODATA)?;
        if matches!(key, "version" | "pid") {
            return Err(Errno::ROFS);
        }
        // Here a key must be written as it is listed.
        let spec = options::table().iter().find(|spec| spec.key && spec.name == key).ok_or(Errno::NODATA)?;
        if flags & XATTR_CREATE != 0 {
            return Err(Errno::EXIST);
        }
        if spec.changes != Changes::Live {
            return Err(Errno::ROFS);
        }
        let mut now = self.now.lock();
        let mut next = now.clone();
        options::set(&mut next, key, OsStr::from_bytes(value)).map_err(|error| {
            tracing::warn!("{error}");
            number(&error)
        })?;
        self.apply(serving, &now, &next)?;
        tracing::info!("{key} is now {}", spec.render(&next).unwrap_or_default());
        *now = next;
        Ok(())
    }

    fn apply(&self, serving: &Dispatch, now: &Config, next: &Config) -> Result<(), Errno> {
        if now.branches != next.branches {
            for branch in next.branches.iter() {
                check::not_around(&branch.path, &self.mountpoint).map_err(|error| {
                    tracing::warn!("{error}");
                    Errno::INVAL
                })?;
            }
            let branches = serving.pool.branches().update(&next.branches).map_err(|error| {
                tracing::warn!("{error}");
                error.errno()
            })?;
            serving.pool.set_branches(branches);
        }
        serving.pool.reconfigure(next.pool.clone());
        serving.terms.store(std::sync::Arc::new(Terms::new(next, serving.terms.load().generation)));
        if now.branches != next.branches || now.pool.follow_symlinks != next.pool.follow_symlinks {
            // Names may lead elsewhere now. After the change: until it is made they are found as before.
            forget_names(serving);
        }
        Ok(())
    }
}

/// Makes the kernel look every name up again.
fn forget_names(serving: &Dispatch) {
    if serving.notifier.increment_epoch().is_ok() {
        return;
    }
    // Before Linux 6.16: what lies below a name that is forgotten is looked up again as well.
    for name in serving.pool.top_level_names() {
        if let Ok(name) = CString::new(name) {
            let _ = serving.notifier.inval_entry(NodeId(canopy_pool::NodeId::ROOT.0), &name);
        }
    }
}

fn command_named(serving: &Dispatch, command: &[u8]) -> Result<(), Errno> {
    match command {
        // Nothing is kept that could be given back: memory is freed as nodes and buffers go.
        b"gc" | b"gc1" => {}
        b"invalidate-all-nodes" => forget_names(serving),
        _ => return Err(Errno::NODATA),
    }
    tracing::info!("command {}", String::from_utf8_lossy(command));
    Ok(())
}

fn number(error: &OptionError) -> Errno {
    match error {
        OptionError::Unknown { .. } => Errno::NODATA,
        OptionError::Branches { error, .. } => error.errno(),
        OptionError::Value { why: "too large", .. } => Errno::OVERFLOW,
        OptionError::Value { .. } | OptionError::Valueless { .. } => Errno::INVAL,
    }
}

/// The keys that every file and directory answers to; `None` for a name that is not among them.
pub(super) fn file_key(pool: &Pool, id: canopy_pool::NodeId, name: &[u8]) -> Option<Result<Vec<u8>, Error>> {
    let key = name.strip_prefix(PREFIX)?;
    Some(pool.locate(id).and_then(|at: Located| match key {
        b"basepath" => Ok(at.branch),
        b"relpath" => Ok(at.path),
        b"fullpath" => Ok(at.on(&at.branch)),
        b"allpaths" => {
            let paths: Vec<Vec<u8>> = at.branches.iter().map(|branch| at.on(branch)).collect();
            Ok(paths.join(&0))
        }
        _ => Err(Error::NoAttribute),
    }))
}
