//! From a plan to a pool that answers.

use crate::affinity::Affinity;
use crate::badge::Badge;
use crate::branches::liveness::Liveness;
use crate::branches::monitor;
use crate::branches::pending::PendingBranches;
use crate::branches::topology::Topology;
use crate::coherence::{CacheTtl, Coherence};
use crate::confine::{self, Ground};
use crate::control::{Carrier, Connection, Control};
use crate::deadline::Deadline;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::interrupts::Interrupts;
use crate::kernel_link::KernelLink;
use crate::log;
use crate::negotiate;
use crate::settings::Settings;
use crate::watch::{Watch, Watching};
use canopy_config::Config;
use canopy_config::resolve::Plan;
use canopy_config::values::{IoUring, PosixAcl};
use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::{self, Mounted, Placement};
use canopy_fuse::session::Running;
use canopy_fuse::{Agreed, Session, SessionOptions, Transport};
use canopy_pool::branch::{BranchSpec, Branches};
use canopy_pool::config::{PassthroughIo, XattrMode};
use canopy_pool::{PermissionCheck, Pool};
use std::sync::{Arc, OnceLock};

/// A pool that is mounted and answers.
pub struct Serving {
    running: Running,
    mounted: Mounted,
    watching: Watching,
    pool: Arc<Pool>,
    /// Others find the server of the mount by it.
    _badge: Option<Badge>,
    /// How it came to where another pool was, if one was there.
    pub shown: Option<Placement>,
}

impl Serving {
    /// What carries the requests, and why nothing better.
    pub fn transport(&self) -> &Transport {
        self.running.transport()
    }

    /// Returns when the pool has been unmounted, by whomever.
    pub fn join(self) {
        let result = self.running.join();
        drop(self.watching);
        if self.pool.patience().is_some() {
            // Closing what is open on a branch that hangs would hold the end up. The end of the process closes it.
            std::mem::forget(self.pool);
        }
        if let Err(why) = result {
            tracing::error!("the session ended badly: {why}");
            // Dropping the guard takes the mount away, if it is still there.
            return;
        }
        // The kernel has ended the connection: the mount is gone, or another has its place.
        self.mounted.release();
    }
}

/// Opens the branches, mounts, agrees with the kernel, and starts to answer. When it returns the pool is
/// usable.
pub fn start(plan: &Plan) -> Result<Serving, Error> {
    let mut config = plan.config.clone();
    let is_there = |spec: &&BranchSpec| !plan.missing.contains(&spec.path);
    let branches = Branches::open(&config.branches.iter().filter(is_there).cloned().collect())?;
    let limits = negotiate::limits()?;
    let trace =
        log::open(&config.log_file).map_err(|why| Error::LogFile { path: config.log_file.clone(), why })?;
    log::trace(config.debug, trace);
    negotiate::offer_uring(plan);
    let (device, mut mounted) = mount::mount(&negotiate::mount_spec(plan))?;
    // The mount is made, and there is no other thread yet.
    let mut security = confine::give_up();
    let ground = Ground::new(&config, &branches);
    security.landlock = ground.is_some();
    config.pool.names_only = ground.is_some();
    tracing::info!("{security}");
    let session = Session::negotiate(device, &session_options(plan, &branches), limits)?;
    let agreed = *session.agreed();
    let planned = session.transport();
    tracing::info!("{planned}; {agreed}");
    adapt(&mut config, &agreed);
    let passthrough = agreed.has(InitFlags::PASSTHROUGH);
    let threads = workers(&config);
    let affinity = Affinity::new(&config.threads);
    if !config.pool.symlinkify {
        // Should it be turned on later without a word about the time, it works at once.
        config.pool.symlinkify_timeout = -1;
    }
    config.pool.mountpoint.clone_from(&plan.mountpoint);
    let pool = Arc::new(Pool::new(config.pool.clone(), branches));
    pool.set_permission_check(judge(&config, &agreed));
    pool.recover();
    // As it was derived, and as it was resolved.
    config.fsname = Some(plan.fsname.clone());
    config.mountpoint = Some(plan.mountpoint.clone());
    let within = ground.as_ref().map(|ground| ground.branches().to_vec());
    let settings = Arc::new(Settings::new(config.clone(), plan.mountpoint.clone(), within));
    let ttl = CacheTtl::new(&config, None);
    let coherence = Coherence::start(Arc::clone(&pool), Arc::clone(&settings), session.notifier(), ttl)
        .map_err(Error::Watching)?;
    let forgets_all = session.notifier().can_increment_epoch();
    let watch = Arc::new(Watch::start(&config, Arc::clone(&pool), Arc::clone(&coherence), forgets_all));
    let interrupts = Arc::new(Interrupts::default());
    let link = KernelLink {
        backing: session.backing(),
        notifier: session.notifier(),
        waiting: watch.waiting(),
        watch: Arc::downgrade(&watch),
        interrupts: Arc::clone(&interrupts),
    };
    pool.connect(Arc::new(link), passthrough);
    let topology = Arc::new(Topology::new(
        Arc::clone(&pool),
        Arc::clone(&settings),
        Arc::clone(&coherence),
        Arc::clone(&watch),
    ));
    let liveness = Liveness::start(&pool).map_err(Error::Watching)?;
    let watching = Watching::start(Arc::clone(&watch)).map_err(Error::Watching)?;
    topology.begin_access_times(&plan.config);
    monitor::start(&topology).map_err(Error::Watching)?;
    let pending = PendingBranches::new(Arc::clone(&topology));
    pending.look_for(&plan.config.branches);
    let planned_carrier = Carrier::new(&planned, threads);
    let connection = Connection { agreed, planned: planned_carrier, instead: OnceLock::new(), security };
    let control = Control::new(topology, pending, connection);
    let notifier = session.notifier();
    let dispatch =
        Arc::new(Dispatch { pool: Arc::clone(&pool), coherence, watch, control, affinity, interrupts });
    let handler = Arc::new(Deadline::new(Arc::clone(&dispatch), Arc::clone(&pool), liveness, notifier));
    // Before anybody is answered, unless the mount has no place yet.
    let badge = wear_badge(&mounted);
    let running =
        confine::apart(ground.as_ref(), || session.serve(handler, threads)).map_err(Error::Confine)??;
    if *running.transport() != planned {
        dispatch.control.carried_by(Carrier::new(running.transport(), threads));
        tracing::info!("{}", running.transport());
    }
    if let (IoUring::On, Transport::Device(why)) = (plan.config.kernel.io_uring, running.transport()) {
        tracing::warn!("io-uring=on comes to nothing: {why}");
    }
    let shown = plan.replaces.then(|| mounted.attach()).transpose()?;
    settings.shown();
    let badge = badge.or_else(|| wear_badge(&mounted));
    Ok(Serving { running, mounted, watching, pool, _badge: badge, shown })
}

fn wear_badge(mounted: &Mounted) -> Option<Badge> {
    let badge = mounted.unique_id().map(Badge::wear)?;
    badge.inspect_err(|errno| tracing::warn!("canopy umount will not wait for this pool: {errno}")).ok()
}

/// Is the kernel to enforce ACLs, though nobody has said so?
fn heeds_acls(config: &Config, branches: &Branches) -> bool {
    // With neither would they hold: attributes that are not told, modes that are made up.
    let can = config.pool.xattr == XattrMode::Passthrough && config.overrides.umask.0.is_none();
    let may = config.kernel.posix_acl == PosixAcl::Auto && config.mount.permissions_check;
    may && can && branches.have_acls()
}

/// Who decides what a caller may do?
fn judge(config: &Config, agreed: &Agreed) -> PermissionCheck {
    match (config.mount.permissions_check, agreed.has(InitFlags::POSIX_ACL)) {
        (false, _) => PermissionCheck::Branch,
        (true, false) => PermissionCheck::Mode,
        (true, true) => PermissionCheck::Acl,
    }
}

/// What to ask of the kernel.
fn session_options(plan: &Plan, branches: &Branches) -> SessionOptions {
    // Not ATOMIC_O_TRUNC: with it the kernel sends O_TRUNC along before it has checked that nobody executes
    // the file, and O_RDONLY|O_TRUNC empties a running program instead of failing with ETXTBSY (fs/namei.c
    // do_open calls vfs_open before handle_truncate).
    let mut flags = InitFlags::ASYNC_DIO
        | InitFlags::BIG_WRITES
        // The branch applies the umask, for only it knows whether a default ACL takes its place.
        | InitFlags::DONT_MASK
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::MAX_PAGES
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::SETXATTR_EXT;
    flags |= negotiate::optional_flags(plan);
    flags.set(
        InitFlags::POSIX_ACL,
        flags.contains(InitFlags::POSIX_ACL) || heeds_acls(&plan.config, branches),
    );
    SessionOptions {
        flags,
        max_write: negotiate::max_write(plan),
        queue_workers: negotiate::queue_workers(plan),
        max_stack_depth: plan.config.kernel.max_stack_depth.0,
        ..SessionOptions::default()
    }
}

/// Lets go of what the kernel does not have.
fn adapt(config: &mut Config, agreed: &Agreed) {
    if config.pool.passthrough != PassthroughIo::Off && !agreed.has(InitFlags::PASSTHROUGH) {
        tracing::warn!("passthrough is off: the kernel does not offer it (it needs Linux 6.9)");
        config.pool.passthrough = PassthroughIo::Off;
    }
    if config.kernel.posix_acl == PosixAcl::On && !agreed.has(InitFlags::POSIX_ACL) {
        if config.mount.permissions_check {
            tracing::warn!("posix-acl is false: the kernel does not offer it");
        }
        config.kernel.posix_acl = PosixAcl::Off;
    }
    if config.pool.writeback && !agreed.has(InitFlags::WRITEBACK_CACHE) {
        tracing::warn!("cache.writeback is off: the kernel does not offer it");
        config.pool.writeback = false;
    }
}

/// At least four, however few processors: one that waits for a sleeping disk must not stop the others. And two
/// whatever is asked for: while one takes on new branches, their pattern may lead through the pool itself, and
/// names it wants forgotten may be held by who waits for an answer.
fn workers(config: &Config) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = config.threads.workers(cpus);
    if config.is_given("read-thread-count") || config.is_given("process-thread-count") {
        workers.max(2)
    } else {
        workers.max(4)
    }
}
