//! The runtime interface: the pool's [`socket`], the control file `.mergerfs` in its root, and keys that every file has. The
//! latter two are extended attributes, named `user.mergerfs.KEY`. Socket and control file ask the same ([`Control::ask`]).
//!
//! The control file is a node of its own, which exists on no branch and in no listing.

mod file_keys;
mod hidden_name;
mod metrics;
mod read_cache;
mod rest;
mod socket;
mod status;

use canopy_pool::ops;
pub(crate) use file_keys::file_key;
pub(crate) use hidden_name::{is_control_file, refusal};
pub(crate) use socket::Socket;
pub(crate) use status::{Connection, TransportInfo};

use crate::branches::liveness::Liveness;
use crate::branches::topology::Topology;
use crate::coherence::{CacheTtl, Coherence};
use crate::log;
use crate::negotiate;
use crate::settings::Settings;
use crate::survival::{self, Ledger};
use crate::translate::convert;
use crate::watch::Watch;
use crate::watch::keeper::Keeper;
use canopy_base::text::one_line;
use canopy_branch::relocate::closed::ClosedSince;
use canopy_branch::tend;
use canopy_config::error::{FileError, OptionError};
use canopy_config::options::{self, Changes};
use canopy_config::values::ValueError;
use canopy_config::{Config, placement_report, resolve};
use canopy_control::messages::{Answer, Query};
use canopy_control::metrics::MetricsReport;
use canopy_control::{
    CLOSED, COMMAND, ClosedReport, METRICS, OsText, PID, PoolReport, READ_ONLY, SRCMOUNTS, STATUS, VERSION,
    attribute, key_of,
};
use canopy_fuse::abi::{self, AttrOut, EntryOut, StatxOut};
use canopy_fuse::flags::InitFlags;
use canopy_fuse::transport::Served;
use canopy_fuse::{NodeId, Op, Replied, Reply, Request};
use canopy_pool::Pool;
use canopy_pool::config::{Func, PassthroughIo};
use canopy_pool::door::Act;
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The node id of the control file. The pool counts its ids upwards and never reaches it.
pub(crate) const NODE: NodeId = NodeId(u64::MAX - 1);

const XATTR_CREATE: u32 = 1;
const STATX_BASIC_STATS: u32 = 0x7ff;
/// The owner may write because the kernel asks the mode as well, if the pool has it check permissions. Who may change an
/// option does not follow from it ([`canopy_pool::door`]).
const ENTRY_MODE: u32 = 0o100_644;

/// The control file, by which users query and change a running pool.
pub(crate) struct Control {
    pool: Arc<Pool>,
    settings: Arc<Settings>,
    coherence: Arc<Coherence>,
    watch: Arc<Watch>,
    topology: Arc<Topology>,
    liveness: Arc<Liveness>,
    connection: Connection,
    /// Keeps what is known for the next process.
    keeper: OnceLock<Arc<Keeper>>,
    /// Another program is about to take over.
    hands_over: Arc<AtomicBool>,
    /// When the pool was started, in seconds since 1970.
    started_at: u64,
}

impl Control {
    pub(crate) fn new(topology: Arc<Topology>, liveness: Arc<Liveness>, connection: Connection) -> Control {
        let started_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let (pool, settings) = (Arc::clone(&topology.pool), Arc::clone(&topology.settings));
        let (coherence, watch) = (Arc::clone(&topology.coherence), Arc::clone(&topology.watch));
        let (keeper, hands_over) = (OnceLock::new(), Arc::default());
        Control {
            pool,
            settings,
            coherence,
            watch,
            topology,
            liveness,
            connection,
            keeper,
            hands_over,
            started_at,
        }
    }

    /// Records that requests are not carried as planned, because the kernel refused that.
    pub(crate) fn set_actual_transport(&self, transport: TransportInfo) {
        let _ = self.connection.actual.set(transport);
    }

    /// Has what is known kept for the next process.
    pub(crate) fn set_keeper(&self, keeper: Keeper) {
        let _ = self.keeper.set(Arc::new(keeper));
    }

    /// Saves what is known, because this process is about to end.
    pub(crate) fn save_known(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.save();
        }
        self.topology.keep_records();
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
            atime: self.started_at,
            mtime: self.started_at,
            ctime: self.started_at,
            ..abi::Attr::default()
        }
    }

    /// Answers a request for the control file.
    pub(crate) fn answer(&self, request: &Request<'_>, reply: Reply<'_>) -> Replied {
        let ttl = self.coherence.ttl();
        let done = |reply: Reply<'_>, result: Result<(), Errno>| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.raw_os_error()),
        };
        let admits = |act: Act| self.pool.admits(&convert::caller(&request.header, 0), act);
        match request.op {
            Op::Forget { .. } => reply.none(),
            Op::Getattr { .. } => reply.attr(&AttrOut::new(self.attr(), ttl.attr)),
            Op::Statx { .. } => {
                let attr = self.attr();
                let time = abi::SxTime { sec: self.started_at.cast_signed(), ..abi::SxTime::default() };
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
            Op::Getxattr { name, .. } => match self.attribute(name.to_bytes(), &admits) {
                Ok(value) => reply.xattr(&value),
                Err(errno) => reply.error(errno.raw_os_error()),
            },
            Op::Listxattr { .. } => {
                let keys = self.keys();
                let names = keys.iter().flat_map(|key| [attribute(key).as_bytes(), b"\0"].concat());
                reply.xattr(&names.collect::<Vec<u8>>())
            }
            Op::Setxattr { name, value, flags, .. } => {
                done(reply, self.set_attribute((name.to_bytes(), value, flags), &admits))
            }
            Op::Removexattr { .. } => reply.error(Errno::NODATA.raw_os_error()),
            Op::Access { .. } => reply.ok(),
            // The file cannot be opened or removed, and has nothing but its attributes.
            _ => reply.error(Errno::NOENT.raw_os_error()),
        }
    }

    /// Answers a question. `admits` says what whoever asks may do.
    ///
    /// Errors: those of the control file.
    pub(super) fn ask(
        &self,
        query: &Query,
        admits: &dyn Fn(Act) -> Result<(), Errno>,
    ) -> Result<Answer, Errno> {
        Ok(match query {
            Query::Status => {
                let mut report = self.status();
                if admits(Act::LearnNames).is_ok() {
                    report.disks = rest::disks(&ops::settings::branches(&self.pool));
                }
                Answer::Status(Box::new(report))
            }
            Query::Metrics => Answer::Metrics(Box::new(self.metrics())),
            Query::Closed(after) => {
                // It names files.
                admits(Act::LearnNames)?;
                Answer::Closed(self.closed(*after))
            }
            Query::Copies(paths) => {
                admits(Act::LearnNames)?;
                let copies = |path: &OsText| file_keys::copies(&self.pool, path.to_os_string().as_bytes());
                Answer::Copies(paths.iter().map(copies).collect())
            }
            Query::Keys => Answer::Keys(self.keys()),
            Query::Get(key) => Answer::Value(OsText::from(OsStr::from_bytes(&self.value(key)?))),
            Query::Placement => {
                Answer::Placement(placement_report::of_placement(&self.settings.config().pool.placement))
            }
            Query::Set { key, value } => {
                admits(Act::Configure)?;
                self.set(key, value.to_os_string().as_bytes())?;
                Answer::Done
            }
            Query::Command(name) => {
                admits(Act::Configure)?;
                let _changing = self.settings.lock_changes();
                self.command(name.as_bytes())?;
                Answer::Done
            }
            Query::Forget(branch) => {
                admits(Act::Configure)?;
                let _changing = self.settings.lock_changes();
                self.topology.forget_names(&branch.to_path())?;
                Answer::Done
            }
            Query::Cached => {
                admits(Act::LearnNames)?;
                read_cache::list(&self.pool)
            }
            Query::CacheAdd(paths) => {
                admits(Act::Configure)?;
                read_cache::add(&self.pool, paths)
            }
            Query::CacheDrop(paths) => {
                admits(Act::Configure)?;
                read_cache::drop_copies(&self.pool, paths.as_ref())
            }
        })
    }

    /// Returns the value of an attribute, listed or not. `_` and `-` are interchangeable.
    fn attribute(&self, name: &[u8], admits: &dyn Fn(Act) -> Result<(), Errno>) -> Result<Vec<u8>, Errno> {
        let key = key_of(name).and_then(|key| std::str::from_utf8(key).ok()).ok_or(Errno::NODATA)?;
        let key = key.replace('_', "-");
        let query = match key.as_str() {
            STATUS => Query::Status,
            METRICS => Query::Metrics,
            key => match key.strip_prefix(CLOSED) {
                Some(after) => Query::Closed(after.parse().map_err(|_| Errno::NODATA)?),
                None => Query::Get(key.to_owned()),
            },
        };
        Ok(match self.ask(&query, admits)? {
            Answer::Status(report) => status::json(&report),
            Answer::Metrics(report) => status::json(&report),
            Answer::Closed(report) => status::json(&report),
            Answer::Value(value) => value.to_os_string().into_vec(),
            Answer::Copies(_)
            | Answer::Keys(_)
            | Answer::Placement(_)
            | Answer::Cached(_)
            | Answer::CacheAdded(_)
            | Answer::CacheDropped(..)
            | Answer::Done => return Err(Errno::NODATA),
        })
    }

    /// Sets an attribute.
    fn set_attribute(
        &self,
        (name, value, flags): (&[u8], &[u8], u32),
        admits: &dyn Fn(Act) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        admits(Act::Configure)?;
        let key = key_of(name).and_then(|key| std::str::from_utf8(key).ok()).ok_or(Errno::NODATA)?;
        let query = match key.strip_prefix(COMMAND) {
            Some(command) => Query::Command(command.to_owned()),
            None if flags & XATTR_CREATE != 0 => {
                return Err(if is_key(key) { Errno::EXIST } else { Errno::NODATA });
            }
            None => Query::Set { key: key.to_owned(), value: OsText::from(OsStr::from_bytes(value)) },
        };
        self.ask(&query, admits).map(drop)
    }

    /// Returns the value of a key. `_` and `-` are interchangeable.
    fn value(&self, key: &str) -> Result<Vec<u8>, Errno> {
        let key = key.replace('_', "-");
        match key.as_str() {
            VERSION => return Ok(env!("CARGO_PKG_VERSION").into()),
            PID => return Ok(std::process::id().to_string().into()),
            SRCMOUNTS => {
                let now = self.settings.config();
                let paths: Vec<&[u8]> =
                    now.branches.iter().map(|spec| spec.path.as_os_str().as_bytes()).collect();
                return Ok(paths.join(&b':'));
            }
            // Paths are bytes and need not be UTF-8.
            "branches" => return Ok(self.settings.config().branches.to_os_string().into_vec()),
            _ => {}
        }
        let spec = options::find(&key).filter(|spec| spec.key).ok_or(Errno::NODATA)?;
        if spec.is_ignored() {
            return Ok(Vec::new());
        }
        spec.render(&self.settings.config()).map(String::into_bytes).ok_or(Errno::NODATA)
    }

    /// Returns what the workers have answered, and what they do.
    pub(crate) fn served(&self) -> Served {
        self.connection.served.read()
    }

    pub(crate) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Returns what the pool says of itself to everybody. Does not touch any branch.
    pub(crate) fn status(&self) -> PoolReport {
        let config = self.settings.config();
        let (topology, liveness) = (&self.topology, &self.liveness);
        let mut report =
            status::status(&self.connection, &config, &self.pool, topology, liveness, &self.watch);
        if let Some(catalogue) = &mut report.catalogue {
            let progress = self.keeper.get().and_then(|keeper| keeper.progress());
            catalogue.verifying = progress.map(rest::verifying);
        }
        report
    }

    /// Returns the files that were closed since a report.
    fn closed(&self, after: u64) -> ClosedReport {
        let ClosedSince { upto, lost, paths } = ops::resolve::generations::closed_since(&self.pool, after);
        let paths = paths.iter().map(|path| OsText::from(OsStr::from_bytes(path))).collect();
        ClosedReport { upto, lost, paths }
    }

    /// Returns what is counted. Does not touch any branch.
    fn metrics(&self) -> MetricsReport {
        let (served, low) = (self.served(), self.connection.low_workers.count());
        metrics::metrics(&self.pool, served, low, self.started_at)
    }

    /// Returns all listed keys, in byte order.
    fn keys(&self) -> Vec<String> {
        let listed = options::table().iter().filter(|spec| spec.key && !spec.hidden && !spec.unlisted);
        let mut keys: Vec<&str> = listed.map(|spec| spec.name.as_ref()).chain([VERSION, PID]).collect();
        keys.sort_unstable();
        keys.into_iter().map(str::to_owned).collect()
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), Errno> {
        if !is_key(key) {
            return Err(Errno::NODATA);
        }
        let spec = settable(key).filter(|spec| spec.changes == Changes::Live).ok_or(Errno::ROFS)?;
        let _changing = self.settings.lock_changes();
        let now = self.settings.config();
        let mut next = Config::clone(&now);
        if key == "branches" {
            self.check_not_in_pool(value)?;
        }
        let outcome = canopy_config::source::set(&mut next, key, OsStr::from_bytes(value));
        if let Err(error) = &outcome {
            error.lines().iter().for_each(|line| tracing::warn!("{}", one_line(line)));
            // The valid lines of a file are applied.
            if !matches!(error, OptionError::File(FileError::Lines(_))) {
                return Err(errno_of(error));
            }
        }
        resolve::check(&next).map_err(|error| {
            tracing::warn!("{}", one_line(&error.to_string()));
            errno_of(&error)
        })?;
        if next.pool.placement != now.pool.placement {
            resolve::idle_globs(&next).iter().for_each(|line| tracing::warn!("{line}"));
        }
        self.enforce_option_rules(&now, &mut next)?;
        // Setting the same file again opens it again, because it may have been moved away.
        let traces = key == "log.file" || (now.debug, &now.log_file) != (next.debug, &next.log_file);
        let trace = if traces { self.trace_file(&next.log_file)? } else { None };
        self.apply(&now, &next)?;
        if traces {
            log::trace(next.debug, trace);
        }
        tracing::info!("{key} is now {}", spec.render(&next).unwrap_or_default());
        // With + and - the value says what to change, and must not be applied twice.
        if key == "branches" {
            self.settings.record(key, next.branches.to_os_string().as_bytes())
        } else {
            self.settings.record(key, value)
        }
        self.settings.store(next);
        outcome.map_err(|error| errno_of(&error))
    }

    /// Refuses paths below the mountpoint, as written: expanding them would need answers from this pool itself.
    fn check_not_in_pool(&self, value: &[u8]) -> Result<(), Errno> {
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

    /// Opens `log.file`. It must not be in the pool, where each line would cause a request that causes another line.
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
            tracing::warn!("log.file {}: {why}", path.shown());
            Errno::from_io_error(&why).unwrap_or(Errno::IO)
        })?;
        if within || file.as_ref().is_some_and(|file| in_pool(file.metadata())) {
            tracing::warn!("log.file must not lie within the pool");
            return Err(Errno::INVAL);
        }
        Ok(file)
    }

    /// Enforces the rules between options that hold at mount, as far as the kernel has agreed to them then.
    fn enforce_option_rules(&self, now: &Config, next: &mut Config) -> Result<(), Errno> {
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
            self.topology.apply_list(next)?;
        } else {
            self.watch.reconfigure(next, &ops::settings::branches(&self.pool));
        }
        ops::settings::reconfigure(&self.pool, next.pool.clone());
        if now.branches != next.branches || now.kernel.readahead != next.kernel.readahead {
            negotiate::set_readahead(next, self.settings.device());
        }
        // Names may resolve differently now, or may have been given a longer TTL than they should have. Only after
        // the change, because until then they resolve as before.
        let visible = |config: &Config| {
            let pool = &config.pool;
            let getattr = pool.policies.get(Func::Getattr);
            let symlinks = (pool.follow_symlinks, pool.symlinkify, pool.symlinkify_timeout);
            (symlinks, config.overrides, getattr, pool.inode)
        };
        let caching = |config: &Config| (config.timeouts, config.coherence);
        let listings = |config: &Config| (config.is_given("cache.readdir"), config.kernel.cache_readdir);
        if now.branches != next.branches || caching(now) != caching(next) || visible(now) != visible(next) {
            self.coherence.invalidate_names();
        } else if listings(now) != listings(next) {
            self.coherence.drop_listings();
        }
        Ok(())
    }

    fn command(&self, command: &[u8]) -> Result<(), Errno> {
        match command {
            // There are no caches to trim: memory is freed as nodes and buffers go.
            b"gc" | b"gc1" => ops::trash::recount(&self.pool),
            b"trash-thaw" => ops::names::brake::thaw(&self.pool, b"")?,
            command if command.starts_with(THAW) => {
                ops::names::brake::thaw(&self.pool, &command[THAW.len()..])?;
            }
            b"invalidate-all-nodes" => self.coherence.invalidate_names(),
            b"upgrade" => self.hand_over()?,
            _ => return Err(Errno::NODATA),
        }
        tracing::info!("command {}", command.shown());
        Ok(())
    }

    /// Has another program take over, as soon as no request is under way.
    ///
    /// Errors: `EOPNOTSUPP` if the pool is not to outlive this process, `EALREADY` if it is about to happen.
    fn hand_over(&self) -> Result<(), Errno> {
        let ledger = self.connection.ledger.clone().filter(Ledger::is_servable).ok_or(Errno::OPNOTSUPP)?;
        if self.hands_over.swap(true, Ordering::Relaxed) {
            return Err(Errno::ALREADY);
        }
        // Patterns may match other directories when the command line is read again.
        self.settings.record("branches", self.settings.config().branches.to_os_string().as_bytes());
        let (pause, hands_over) = (Arc::clone(&self.connection.pause), Arc::clone(&self.hands_over));
        let settings = Arc::clone(&self.settings);
        let (keeper, topology) = (self.keeper.get().cloned(), Arc::clone(&self.topology));
        let wait = move || {
            // Before requests wait.
            keeper.iter().for_each(|keeper| keeper.save());
            topology.keep_records();
            // A change over the socket is no request: it ends before the process does.
            drop(settings.lock_changes());
            survival::hand_over(&pause, &ledger);
            hands_over.store(false, Ordering::Relaxed);
        };
        tend::apart((c"handover", tend::of(&self.settings)), wait);
        Ok(())
    }
}

/// Before the user and the program that a command lets go.
const THAW: &[u8] = b"trash-thaw:";

/// Returns the option of a key. Setting it requires the spelling of the list.
fn settable(key: &str) -> Option<&'static options::Spec> {
    options::table().iter().find(|spec| spec.key && spec.has_name(key))
}

fn is_key(key: &str) -> bool {
    settable(key).is_some() || READ_ONLY.contains(&key)
}

fn errno_of(error: &OptionError) -> Errno {
    match error {
        OptionError::Unknown { .. } => Errno::NODATA,
        OptionError::Branches { error, .. } => error.errno(),
        OptionError::File(error) => error.errno(),
        OptionError::AtMount { .. } => Errno::ROFS,
        OptionError::Value { why: ValueError::TooLarge, .. } => Errno::OVERFLOW,
        OptionError::Value { .. } | OptionError::Valueless { .. } | OptionError::Placement { .. } => {
            Errno::INVAL
        }
    }
}
