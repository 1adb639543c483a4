//! The runtime interface: the control file `.mergerfs` in the root of the pool, and the keys that any file
//! answers to. All of it travels as extended attributes `user.mergerfs.KEY`.
//!
//! The control file is a node of its own that no branch holds. It is never listed.

pub(crate) mod status;

use crate::branches::pending::{self, Watch};
use crate::coherence::invalidate::forget_names;
use crate::dispatch::Dispatch;
use crate::error;
use crate::log;
use crate::negotiate;
use crate::translate::convert::Terms;
use arc_swap::ArcSwap;
use canopy_config::options::FileError;
use canopy_config::options::{self, Changes, OptionError};
use canopy_config::text::one_line;
use canopy_config::{Config, resolve};
use canopy_fuse::abi::{self, AttrOut, EntryOut, StatxOut};
use canopy_fuse::flags::InitFlags;
use canopy_fuse::request::Name;
use canopy_fuse::{NodeId, Op, Replied, Reply, Request};
use canopy_pool::branch::BranchList;
use canopy_pool::config::{Func, PassthroughIo};
use canopy_pool::{Error, Located, Pool};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Its name in the root.
const NAME: &[u8] = b".mergerfs";
/// Its node: one that the pool, which counts upwards, never comes to.
pub(crate) const NODE: NodeId = NodeId(u64::MAX - 1);

const PREFIX: &[u8] = b"user.mergerfs.";
const COMMAND: &[u8] = b"cmd.";
const XATTR_CREATE: u32 = 1;
const STATX_BASIC_STATS: u32 = 0x7ff;
const ENTRY_MODE: u32 = 0o100_664;

/// Is this the control file's name? What a branch has under it is neither found nor listed.
pub(crate) fn hides(dir: canopy_pool::NodeId, name: &[u8]) -> bool {
    dir == canopy_pool::NodeId::ROOT && name == NAME
}

/// Why a change of the control file's name is refused: nothing can be made there, what is moved there would not be
/// seen again, and there is nothing to be taken away.
pub(crate) fn refuses(request: &Request<'_>) -> Option<Errno> {
    let hidden = |dir: NodeId, name: Name<'_>| dir == NodeId::ROOT && name.as_bytes() == NAME;
    let dir = request.header.node;
    match request.op {
        Op::Unlink { name } | Op::Rmdir { name } if hidden(dir, name) => Some(Errno::NOENT),
        Op::Rename { name, .. } if hidden(dir, name) => Some(Errno::NOENT),
        Op::Rename { newdir, newname, .. } if hidden(newdir, newname) => Some(Errno::PERM),
        Op::Mknod { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Symlink { name, .. }
        | Op::Link { name, .. }
            if hidden(dir, name) =>
        {
            Some(Errno::EXIST)
        }
        Op::Create(create) if hidden(dir, create.name) => Some(Errno::EXIST),
        _ => None,
    }
}

/// The configuration that a running pool works by, as its users see and change it.
pub(crate) struct Control {
    /// Read without waiting: a change may wait for a disk.
    now: ArcSwap<Config>,
    /// Held over a change: changes come one after the other.
    changing: Mutex<()>,
    connection: status::Connection,
    pub(crate) missing: Watch,
    mountpoint: PathBuf,
    since: u64,
}

impl Control {
    pub(crate) fn new(mut config: Config, mountpoint: PathBuf, connection: status::Connection) -> Self {
        config.file.pool = Some(mountpoint.clone());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let now = ArcSwap::from_pointee(config);
        Control { now, changing: Mutex::default(), connection, missing: Watch::default(), mountpoint, since }
    }

    /// The branches as they were told, also those that are not there.
    pub(crate) fn branches(&self) -> BranchList {
        self.now.load().branches.clone()
    }

    /// As it is in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.now.load_full()
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// What was planned to carry the requests was refused, and this does.
    pub(crate) fn carried_by(&self, carrier: status::Carrier) {
        let _ = self.connection.instead.set(carrier);
    }

    /// With `landlock`, workers reach nothing outside of the branches that the pool was mounted with.
    pub(crate) fn is_on_ground(&self, path: &Path) -> bool {
        self.connection.ground.as_ref().is_none_or(|ground| ground.iter().any(|root| path.starts_with(root)))
    }

    /// Errors: `EXDEV` for a branch that workers could not reach.
    pub(crate) fn on_ground(&self, list: &BranchList) -> Result<(), Errno> {
        match list.iter().find(|spec| !self.is_on_ground(&spec.path)) {
            None => Ok(()),
            Some(spec) => {
                tracing::warn!(
                    "{}",
                    error::Error::OutsideOfLandlock {
                        branch: spec.path.clone(),
                        pool: self.mountpoint.clone(),
                    }
                );
                Err(Errno::XDEV)
            }
        }
    }

    /// Nothing is changed while it is held.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    pub(crate) fn entry(&self, terms: &Terms) -> EntryOut {
        EntryOut::new(NODE.0, 0, self.attr(), terms.entry, terms.attr)
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
    pub(crate) fn answer(&self, serving: &Dispatch, request: &Request<'_>, reply: Reply<'_>) -> Replied {
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
            Op::Getxattr { name, .. } => match self.get(serving, name.to_bytes()) {
                Ok(value) => reply.xattr(&value),
                Err(errno) => reply.error(errno.raw_os_error()),
            },
            Op::Listxattr { .. } => reply.xattr(&self.list()),
            // Where the kernel checks permissions this holds already, and those of the group may as well.
            Op::Setxattr { .. } if !self.may_change(request.header.uid) => {
                reply.error(Errno::ACCESS.raw_os_error())
            }
            Op::Setxattr { name, value, flags, .. } => {
                done(reply, self.set(serving, name.to_bytes(), value, flags))
            }
            Op::Removexattr { .. } => reply.error(Errno::NODATA.raw_os_error()),
            Op::Access { .. } => reply.ok(),
            // There is nothing to open, to remove or to change but by attributes.
            _ => reply.error(Errno::NOENT.raw_os_error()),
        }
    }

    fn may_change(&self, uid: u32) -> bool {
        self.now.load().mount.permissions_check || uid == 0 || uid == rustix::process::getuid().as_raw()
    }

    /// The value of a key, shown or hidden; `_` and `-` are the same.
    fn get(&self, serving: &Dispatch, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let key =
            name.strip_prefix(PREFIX).and_then(|key| std::str::from_utf8(key).ok()).ok_or(Errno::NODATA)?;
        match key.replace('_', "-").as_str() {
            "version" => return Ok(env!("CARGO_PKG_VERSION").into()),
            "pid" => return Ok(std::process::id().to_string().into()),
            "srcmounts" => {
                let now = self.now.load();
                let paths: Vec<&[u8]> =
                    now.branches.iter().map(|spec| spec.path.as_os_str().as_bytes()).collect();
                return Ok(paths.join(&b':'));
            }
            // Paths are bytes, which need not be text.
            "branches" => return Ok(self.now.load().branches.to_os_string().into_vec()),
            // Not listed, as none of these is.
            canopy_config::control_api::STATUS => {
                let unwatched = serving.watch.unwatched();
                return Ok(status::status(
                    &self.connection,
                    &self.now.load(),
                    &serving.pool,
                    &serving.care,
                    &unwatched,
                ));
            }
            _ => {}
        }
        let spec = options::find(key).filter(|spec| spec.key).ok_or(Errno::NODATA)?;
        if spec.is_ignored() {
            return Ok(Vec::new());
        }
        spec.render(&self.now.load()).map(String::into_bytes).ok_or(Errno::NODATA)
    }

    /// Every shown key, each with its terminating NUL, in the order of its bytes.
    fn list(&self) -> Vec<u8> {
        let shown = options::table().iter().filter(|spec| spec.key && !spec.hidden && !spec.unlisted);
        let mut keys: Vec<&str> = shown.map(|spec| spec.name.as_ref()).chain(["version", "pid"]).collect();
        keys.sort_unstable();
        keys.iter().flat_map(|key| [PREFIX, key.as_bytes(), b"\0"].concat()).collect()
    }

    fn set(&self, serving: &Dispatch, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let key = name.strip_prefix(PREFIX).ok_or(Errno::NODATA)?;
        if let Some(command) = key.strip_prefix(COMMAND) {
            let _changing = self.changing.lock();
            return command_named(serving, command);
        }
        let key = std::str::from_utf8(key).map_err(|_| Errno::NODATA)?;
        // Here a key must be written as it is listed.
        let spec = options::table().iter().find(|spec| spec.key && spec.is_called(key));
        if spec.is_none() && !matches!(key, "version" | "pid" | "srcmounts") {
            return Err(Errno::NODATA);
        }
        if flags & XATTR_CREATE != 0 {
            return Err(Errno::EXIST);
        }
        let spec = spec.filter(|spec| spec.changes == Changes::Live).ok_or(Errno::ROFS)?;
        let _changing = self.changing.lock();
        let now = self.now.load_full();
        let mut next = Config::clone(&now);
        if key == "branches" {
            self.not_within(value)?;
        }
        let told = canopy_config::source::set(&mut next, key, OsStr::from_bytes(value));
        if let Err(error) = &told {
            error.lines().iter().for_each(|line| tracing::warn!("{}", one_line(line)));
            // The good lines of a file count.
            if !matches!(error, OptionError::File(FileError::Lines(_))) {
                return Err(number(error));
            }
        }
        self.settle(&now, &mut next)?;
        // Named again, it is opened again: the file may have been moved away.
        let traces = key == "log.file" || (now.debug, &now.log_file) != (next.debug, &next.log_file);
        let trace = if traces { self.trace_file(&next.log_file)? } else { None };
        self.apply(serving, &now, &next)?;
        if traces {
            log::trace(next.debug, trace);
        }
        tracing::info!("{key} is now {}", spec.render(&next).unwrap_or_default());
        self.now.store(Arc::new(next));
        told.map_err(|error| number(&error))
    }

    /// Refuses paths below the mountpoint as they are written: to expand them this pool would have to answer
    /// itself.
    fn not_within(&self, value: &[u8]) -> Result<(), Errno> {
        let list = value.trim_ascii_start();
        if list.starts_with(b"-") {
            return Ok(());
        }
        let list = &list[list.iter().take_while(|byte| b"+<>=".contains(byte)).count()..];
        let within = |entry: &[u8]| {
            let end = entry.iter().rposition(|&byte| byte == b'=').unwrap_or(entry.len());
            Path::new(OsStr::from_bytes(&entry[..end])).starts_with(&self.mountpoint)
        };
        if list.split(|&byte| byte == b':').any(within) {
            tracing::warn!("branches: a branch must not lie within the pool");
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// The pool's own, which nobody but the kernel is asked for.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        canopy_sys::mountinfo::at(&self.mountpoint).ok().flatten().map(|mounted| mounted.device)
    }

    /// Opens `log.file`. In the pool, each line would be a request that makes another line.
    fn trace_file(&self, path: &Path) -> Result<Option<Arc<File>>, Errno> {
        let pool = self.device();
        let in_pool = |meta: std::io::Result<Metadata>| {
            let device = meta.ok().map(|meta| (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev())));
            device.is_some() && device == pool
        };
        let within =
            path.starts_with(&self.mountpoint) || path.parent().is_some_and(|dir| in_pool(dir.metadata()));
        let opened = if within { Ok(None) } else { log::open(path) };
        let file = opened.map_err(|why| {
            tracing::warn!("log.file {}: {why}", path.display());
            Errno::from_io_error(&why).unwrap_or(Errno::IO)
        })?;
        if within || file.as_ref().is_some_and(|file| in_pool(file.metadata())) {
            tracing::warn!("log.file must not lie within the pool");
            return Err(Errno::INVAL);
        }
        Ok(file)
    }

    /// What holds among options at the mount holds afterwards, as far as the kernel has agreed to it then.
    fn settle(&self, now: &Config, next: &mut Config) -> Result<(), Errno> {
        if next.pool.passthrough == now.pool.passthrough && next.pool.cache_files == now.pool.cache_files {
            return Ok(());
        }
        if next.pool.passthrough != PassthroughIo::Off {
            if now.pool.writeback || now.pool.nullrw {
                tracing::warn!("passthrough.io stays off: cache.writeback and nullrw exclude it");
                return Err(Errno::INVAL);
            }
            if !self.connection.agreed.has(InitFlags::PASSTHROUGH) {
                tracing::warn!("passthrough.io stays off: the kernel does not offer it (it needs Linux 6.9)");
                return Err(Errno::OPNOTSUPP);
            }
        }
        for note in resolve::settle(next) {
            tracing::warn!("{note}");
        }
        Ok(())
    }

    fn apply(&self, serving: &Dispatch, now: &Config, next: &Config) -> Result<(), Errno> {
        if now.branches != next.branches {
            pending::take_branches(serving, next, &self.mountpoint)?;
            pending::watch(serving, &next.branches);
        } else {
            serving.watch.settle(serving, next, &serving.pool.branches());
        }
        serving.pool.reconfigure(next.pool.clone());
        if now.branches != next.branches || now.kernel.readahead != next.kernel.readahead {
            negotiate::set_read_ahead(next, self.device());
        }
        // Names may lead elsewhere now, or have been promised to hold for longer than they shall. After the
        // change: until it is made they are found as before.
        let shown = |config: &Config| {
            let pool = &config.pool;
            let getattr = pool.policies.get(Func::Getattr);
            (pool.follow_symlinks, pool.symlinkify, pool.symlinkify_timeout, config.shown, getattr)
        };
        let kept = |config: &Config| (config.timeouts, config.coherence);
        if now.branches != next.branches || kept(now) != kept(next) || shown(now) != shown(next) {
            forget_names(serving);
        }
        Ok(())
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
        OptionError::File(error) => error.errno(),
        OptionError::AtMount { .. } => Errno::ROFS,
        OptionError::Value { why: "too large", .. } => Errno::OVERFLOW,
        OptionError::Value { .. } | OptionError::Valueless { .. } => Errno::INVAL,
    }
}

/// The keys that every file and directory answers to; `None` for a name that is not among them.
pub(crate) fn file_key(pool: &Pool, id: canopy_pool::NodeId, name: &[u8]) -> Option<Result<Vec<u8>, Error>> {
    let key = name.strip_prefix(PREFIX)?;
    if let Some(explained) = status::explain(pool, id, key) {
        return Some(explained);
    }
    Some(pool.locate(id).and_then(|at: Located| match key {
        b"basepath" => Ok(at.branch),
        b"relpath" => Ok(at.path),
        b"fullpath" => Ok(at.on(&at.branch)),
        // For the preload library: the path, and which file must be found there.
        b"place" => at.file.ok_or(Error::NoAttribute).map(|(dev, ino)| {
            let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
            [format!("{major}:{minor} {ino} ").as_bytes(), &at.on(&at.branch)].concat()
        }),
        b"allpaths" => {
            let paths: Vec<Vec<u8>> = pool.holders(&at.path).iter().map(|branch| at.on(branch)).collect();
            Ok(paths.join(&0))
        }
        _ => Err(Error::NoAttribute),
    }))
}
