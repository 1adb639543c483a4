//! The runtime interface: the control file `.mergerfs` in the root of the pool, and the keys that any file
//! answers to. All of it travels as extended attributes `user.mergerfs.KEY`.
//!
//! The control file is a node of its own that no branch holds. It is never listed.

mod file_keys;
mod hidden_name;
mod status;

pub(crate) use file_keys::file_key;
pub(crate) use hidden_name::{hides, refuses};
pub(crate) use status::{Carrier, Connection};

use crate::branches::pending::PendingBranches;
use crate::branches::topology::Topology;
use crate::coherence::{CacheTtl, Coherence};
use crate::log;
use crate::negotiate;
use crate::settings::Settings;
use crate::watch::Watch;
use canopy_config::control_api::{COMMAND, PID, READ_ONLY, SRCMOUNTS, STATUS, VERSION, attribute, key_of};
use canopy_config::error::{FileError, OptionError};
use canopy_config::options::{self, Changes};
use canopy_config::text::one_line;
use canopy_config::values::ValueError;
use canopy_config::{Config, resolve};
use canopy_fuse::abi::{self, AttrOut, EntryOut, StatxOut};
use canopy_fuse::flags::InitFlags;
use canopy_fuse::{NodeId, Op, Replied, Reply, Request};
use canopy_pool::Pool;
use canopy_pool::config::{Func, PassthroughIo};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The control file's node: one that the pool, which counts upwards, never comes to.
pub(crate) const NODE: NodeId = NodeId(u64::MAX - 1);

const XATTR_CREATE: u32 = 1;
const STATX_BASIC_STATS: u32 = 0x7ff;
const ENTRY_MODE: u32 = 0o100_664;

/// The control file: a running pool as its users see and change it.
pub(crate) struct Control {
    pool: Arc<Pool>,
    settings: Arc<Settings>,
    coherence: Arc<Coherence>,
    watch: Arc<Watch>,
    topology: Arc<Topology>,
    pending: Arc<PendingBranches>,
    connection: Connection,
    /// When the pool was started, in seconds since 1970.
    since: u64,
}

impl Control {
    pub(crate) fn new(
        topology: Arc<Topology>,
        pending: Arc<PendingBranches>,
        connection: Connection,
    ) -> Control {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let (pool, settings) = (Arc::clone(&topology.pool), Arc::clone(&topology.settings));
        let (coherence, watch) = (Arc::clone(&topology.coherence), Arc::clone(&topology.watch));
        Control { pool, settings, coherence, watch, topology, pending, connection, since }
    }

    /// What was planned to carry the requests was refused, and this does.
    pub(crate) fn carried_by(&self, carrier: Carrier) {
        let _ = self.connection.instead.set(carrier);
    }

    pub(crate) fn entry(&self, ttl: &CacheTtl) -> EntryOut {
        EntryOut::new(NODE.0, 0, self.attr(), ttl.entry, ttl.attr)
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
    pub(crate) fn answer(&self, request: &Request<'_>, reply: Reply<'_>) -> Replied {
        let ttl = self.coherence.ttl();
        let done = |reply: Reply<'_>, result: Result<(), Errno>| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.raw_os_error()),
        };
        match request.op {
            Op::Forget { .. } => reply.none(),
            Op::Getattr { .. } => reply.attr(&AttrOut::new(self.attr(), ttl.attr)),
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
                reply.statx(&StatxOut::new(stat, ttl.attr))
            }
            Op::Getxattr { name, .. } => match self.get(name.to_bytes()) {
                Ok(value) => reply.xattr(&value),
                Err(errno) => reply.error(errno.raw_os_error()),
            },
            Op::Listxattr { .. } => reply.xattr(&self.list()),
            // Where the kernel checks permissions this holds already, and those of the group may as well.
            Op::Setxattr { .. } if !self.may_change(request.header.uid) => {
                reply.error(Errno::ACCESS.raw_os_error())
            }
            Op::Setxattr { name, value, flags, .. } => done(reply, self.set(name.to_bytes(), value, flags)),
            Op::Removexattr { .. } => reply.error(Errno::NODATA.raw_os_error()),
            Op::Access { .. } => reply.ok(),
            // There is nothing to open, to remove or to change but by attributes.
            _ => reply.error(Errno::NOENT.raw_os_error()),
        }
    }

    fn may_change(&self, uid: u32) -> bool {
        self.settings.config().mount.permissions_check
            || uid == 0
            || uid == rustix::process::getuid().as_raw()
    }

    /// The value of a key, shown or hidden; `_` and `-` are the same.
    fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let key = key_of(name).and_then(|key| std::str::from_utf8(key).ok()).ok_or(Errno::NODATA)?;
        match key.replace('_', "-").as_str() {
            VERSION => return Ok(env!("CARGO_PKG_VERSION").into()),
            PID => return Ok(std::process::id().to_string().into()),
            SRCMOUNTS => {
                let now = self.settings.config();
                let paths: Vec<&[u8]> =
                    now.branches.iter().map(|spec| spec.path.as_os_str().as_bytes()).collect();
                return Ok(paths.join(&b':'));
            }
            // Paths are bytes, which need not be text.
            "branches" => return Ok(self.settings.config().branches.to_os_string().into_vec()),
            // Not listed, as none of these is.
            STATUS => {
                let unwatched = self.watch.unwatched();
                let config = self.settings.config();
                return Ok(status::status(&self.connection, &config, &self.pool, &self.topology, &unwatched));
            }
            _ => {}
        }
        let spec = options::find(key).filter(|spec| spec.key).ok_or(Errno::NODATA)?;
        if spec.is_ignored() {
            return Ok(Vec::new());
        }
        spec.render(&self.settings.config()).map(String::into_bytes).ok_or(Errno::NODATA)
    }

    /// Every shown key, each with its terminating NUL, in the order of its bytes.
    fn list(&self) -> Vec<u8> {
        let shown = options::table().iter().filter(|spec| spec.key && !spec.hidden && !spec.unlisted);
        let mut keys: Vec<&str> = shown.map(|spec| spec.name.as_ref()).chain([VERSION, PID]).collect();
        keys.sort_unstable();
        keys.iter().flat_map(|key| [attribute(key).as_bytes(), b"\0"].concat()).collect()
    }

    fn set(&self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        let key = key_of(name).ok_or(Errno::NODATA)?;
        if let Some(command) = key.strip_prefix(COMMAND.as_bytes()) {
            let _changing = self.settings.changing();
            return self.command(command);
        }
        let key = std::str::from_utf8(key).map_err(|_| Errno::NODATA)?;
        // Here a key must be written as it is listed.
        let spec = options::table().iter().find(|spec| spec.key && spec.has_name(key));
        if spec.is_none() && !READ_ONLY.contains(&key) {
            return Err(Errno::NODATA);
        }
        if flags & XATTR_CREATE != 0 {
            return Err(Errno::EXIST);
        }
        let spec = spec.filter(|spec| spec.changes == Changes::Live).ok_or(Errno::ROFS)?;
        let _changing = self.settings.changing();
        let now = self.settings.config();
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
        self.apply(&now, &next)?;
        if traces {
            log::trace(next.debug, trace);
        }
        tracing::info!("{key} is now {}", spec.render(&next).unwrap_or_default());
        self.settings.store(next);
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
            Path::new(OsStr::from_bytes(&entry[..end])).starts_with(self.settings.mountpoint())
        };
        if list.split(|&byte| byte == b':').any(within) {
            tracing::warn!("branches: a branch must not lie within the pool");
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Opens `log.file`. In the pool, each line would be a request that makes another line.
    fn trace_file(&self, path: &Path) -> Result<Option<Arc<File>>, Errno> {
        let pool = self.settings.device();
        let in_pool = |meta: std::io::Result<Metadata>| {
            let device = meta.ok().map(|meta| (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev())));
            device.is_some() && device == pool
        };
        let within = path.starts_with(self.settings.mountpoint())
            || path.parent().is_some_and(|dir| in_pool(dir.metadata()));
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
        for note in resolve::resolve_conflicts(next) {
            tracing::warn!("{note}");
        }
        Ok(())
    }

    fn apply(&self, now: &Config, next: &Config) -> Result<(), Errno> {
        if now.branches != next.branches {
            self.topology.take_branches(next)?;
            self.pending.look_for(&next.branches);
        } else {
            self.watch.settle(next, &self.pool.branches());
        }
        self.pool.reconfigure(next.pool.clone());
        if now.branches != next.branches || now.kernel.readahead != next.kernel.readahead {
            negotiate::set_read_ahead(next, self.settings.device());
        }
        // Names may lead elsewhere now, or have been promised to hold for longer than they shall. After the
        // change: until it is made they are found as before.
        let shown = |config: &Config| {
            let pool = &config.pool;
            let getattr = pool.policies.get(Func::Getattr);
            (pool.follow_symlinks, pool.symlinkify, pool.symlinkify_timeout, config.overrides, getattr)
        };
        let kept = |config: &Config| (config.timeouts, config.coherence);
        if now.branches != next.branches || kept(now) != kept(next) || shown(now) != shown(next) {
            self.coherence.invalidate_names();
        }
        Ok(())
    }

    fn command(&self, command: &[u8]) -> Result<(), Errno> {
        match command {
            // Nothing is kept that could be given back: memory is freed as nodes and buffers go.
            b"gc" | b"gc1" => {}
            b"invalidate-all-nodes" => self.coherence.invalidate_names(),
            _ => return Err(Errno::NODATA),
        }
        tracing::info!("command {}", String::from_utf8_lossy(command));
        Ok(())
    }
}

fn number(error: &OptionError) -> Errno {
    match error {
        OptionError::Unknown { .. } => Errno::NODATA,
        OptionError::Branches { error, .. } => error.errno(),
        OptionError::File(error) => error.errno(),
        OptionError::AtMount { .. } => Errno::ROFS,
        OptionError::Value { why: ValueError::TooLarge, .. } => Errno::OVERFLOW,
        OptionError::Value { .. } | OptionError::Valueless { .. } => Errno::INVAL,
    }
}
