//! From a plan to a pool that serves requests.

use crate::affinity::Affinity;
use crate::badge::Badge;
use crate::branches::liveness::Liveness;
use crate::branches::monitor;
use crate::branches::topology::Topology;
use crate::coherence::{CacheTtl, Coherence};
use crate::confine::{self, Sandbox};
use crate::control::{Connection, Control, Socket, TransportInfo};
use crate::deadline::Deadline;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::interrupts::Interrupts;
use crate::kernel_link::KernelLink;
use crate::landmarks;
use crate::log;
use crate::negotiate;
use crate::probes::{self, Behaviour, Findings};
use crate::progress::Progress;
use crate::settings::Settings;
use crate::survival::{self, Ledger, Survival};
use crate::takeover;
use crate::test_switches;
use crate::watch::keeper::Keeper;
use crate::watch::{Watch, WatchThread, catalogue_file};
use canopy_branch::branch::{BranchSpec, Branches};
use canopy_branch::fs::acl::PermissionCheck;
use canopy_branch::journal;
use canopy_branch::relocate::Unfinished;
use canopy_branch::tend;
use canopy_config::Config;
use canopy_config::resolve::{self, Plan};
use canopy_config::values::{Choice, IoUring, WorkerPriority};
use canopy_control::SecurityReport;
use canopy_fuse::flags::InitFlags;
use canopy_fuse::mount::{self, Mounted, Placement};
use canopy_fuse::session::Running;
use canopy_fuse::transport::WorkerGrowth;
use canopy_fuse::{Agreed, KernelLimits, Session, SessionOptions, Transport};
use canopy_pool::Pool;
use canopy_pool::config::{PassthroughIo, XattrMode};
use canopy_pool::door::Look;
use canopy_pool::ops;
use canopy_sys::process::dump_core_again;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// A mounted pool that serves requests.
pub struct Serving {
    running: Running,
    /// `None` where it serves a device that something else holds.
    mounted: Option<Mounted>,
    watch_thread: WatchThread,
    pool: Arc<Pool>,
    /// Lets others find the server of the mount.
    _badge: Option<Arc<Badge>>,
    /// Where others ask it.
    _socket: Option<Socket>,
    dispatch: Arc<Dispatch>,
    /// How it took the place of the pool that was mounted there before, if one was.
    pub placement: Option<Placement>,
}

impl Serving {
    /// Returns the transport in use, and why it is not a better one.
    pub fn transport(&self) -> &Transport {
        self.running.transport()
    }

    /// Returns what tells whether requests make progress.
    pub fn progress(&self) -> Progress {
        Progress::new(&self.dispatch)
    }

    /// Returns when the pool has been unmounted.
    pub fn join(self) {
        let result = self.running.join();
        self.dispatch.control.save_known();
        drop(self.watch_thread);
        if ops::branch_deadlines::longest_deadline(&self.pool).is_some() {
            // Closing files on a branch that hangs would block. They are closed when the process ends.
            std::mem::forget(self.pool);
        }
        if let Err(why) = result {
            tracing::error!("the session has failed: {why}");
            // Dropping the guard unmounts the pool, if it is still mounted.
            return;
        }
        // The kernel has ended the connection: the mount is gone, or another has its place.
        if let Some(mounted) = self.mounted {
            mounted.release();
        }
    }
}

/// Opens the branches, mounts, negotiates with the kernel, and starts to serve. When it returns, the pool is usable. If
/// another process has served it before (`survival`), takes over from that instead of mounting.
pub fn start(plan: &Plan, survival: Option<&Survival>) -> Result<Serving, Error> {
    start_over(plan, survival, None)
}

/// Serves a device that is mounted nowhere, which `other` gives: the other side of a connection to a test. The process
/// keeps its privileges.
#[cfg(feature = "test-switches")]
pub fn serve_device(plan: &Plan, other: OwnedFd) -> Result<Serving, Error> {
    start_over(plan, None, Some(other))
}

fn start_over(
    plan: &Plan,
    survival: Option<&Survival>,
    unmounted: Option<OwnedFd>,
) -> Result<Serving, Error> {
    let before = survival.map(|survival| &survival.ledger).filter(|ledger| ledger.is_serving());
    let (plan, lost) =
        &before.map_or_else(|| (plan.clone(), plan.gone.clone()), |before| takeover::plan_now(plan, before));
    // Before anything else is opened.
    let device = before.map(takeover::take_device).transpose()?;
    let mut config = plan.config.clone();
    let (branches, unfinished) = open_branches(plan)?;
    let limits = test_switches::kernel_limits()?;
    start_trace(&config)?;
    let Host { device, mut mounted, mut security, witness } = match unmounted {
        Some(device) => Host { device, mounted: None, security: SecurityReport::default(), witness: None },
        None => mount_and_drop_privileges(plan, device)?,
    };
    // With the rights of this thread.
    tend::start().map_err(Error::Thread)?;
    let sandbox = Sandbox::new(&config, &branches);
    security.landlock = sandbox.is_some();
    config.pool.names_only = sandbox.is_some();
    tracing::info!("{security}");
    let options = session_options(plan, &branches, survival.is_some());
    let mut session = match before {
        Some(before) => takeover::adopt_session(device, before, &options)?,
        None => Session::negotiate(device, &options, limits)?,
    };
    let (agreed, planned) = (*session.agreed(), session.transport());
    let kernel = findings(before, mounted.is_some(), &options, limits);
    let ledger = takeover::ledger(survival, &agreed, &planned, plan.config.survive);
    tracing::info!("{planned}; {agreed}");
    complete(&mut config, plan, &agreed, kernel);
    let (threads, affinity) = (worker_count(&config), Affinity::new(&config.threads));
    session.on_thread_start(move |worker| affinity.bind(worker));
    let pool = make_pool(&config, (branches, unfinished), &agreed, witness);
    let reachable = sandbox.as_ref().map(|sandbox| sandbox.branches().to_vec());
    let settings = Settings::new(config.clone(), plan.mountpoint.clone(), reachable, ledger.clone());
    let (settings, ttl) = (Arc::new(settings), CacheTtl::new(&config, None));
    let coherence = Coherence::start(Arc::clone(&pool), Arc::clone(&settings), session.notifier(), ttl);
    let watch = Arc::new(Watch::start(&config, Arc::clone(&pool), Arc::clone(&coherence), kernel));
    let kernel_opens_dirs = let_kernel_open_directories(&coherence, &agreed, before);
    let interrupts = Arc::new(Interrupts::default());
    let link = KernelLink {
        backing: session.backing(),
        ledger: ledger.clone(),
        notifier: session.notifier(),
        events: watch.pending_events(),
        watch: Arc::downgrade(&watch),
        interrupts: Arc::clone(&interrupts),
    };
    ops::settings::connect(&pool, Arc::new(link), can_pass(&agreed, kernel));
    if let Some(ledger) = &ledger {
        takeover::adopt_records(&pool, ledger, &session.backing());
    }
    let topology = make_topology(&pool, &settings, &coherence, &watch);
    topology.remember_gone(lost);
    let liveness = Liveness::start(&pool, session.lines());
    let watch_thread = WatchThread::start(Arc::clone(&watch)).map_err(Error::Thread)?;
    topology.apply_access_times_at_start(&plan.config);
    monitor::start(&topology);
    let connection = Connection {
        agreed,
        planned: TransportInfo::new(&planned, threads),
        actual: OnceLock::new(),
        low_workers: session.low_workers(),
        served: session.served_requests(),
        security,
        kernel,
        ledger: ledger.clone(),
        pause: session.pause(),
    };
    let control = Arc::new(Control::new(topology, Arc::clone(&liveness), connection));
    let dispatch = Arc::new(Dispatch {
        pool: Arc::clone(&pool),
        coherence,
        watch,
        control,
        interrupts,
        selinux: negotiate::has_selinux(),
        in_flight: takeover::notes(ledger.as_ref(), &planned),
        takes_over: before.is_some(),
    });
    let known = Arc::clone(&pool);
    session.set_landmarks(move || landmarks::find(&known));
    let handler = Arc::new(Deadline::new(&dispatch, &pool, &liveness, session.notifier()));
    if !plan.replaces && mounted.is_some() {
        // Before the first client, who may change options at once.
        attached(&settings);
    }
    // Before the first answer, unless the mount is not attached yet.
    let badge = mounted.as_ref().and_then(create_badge);
    if let Some(ledger) = &ledger {
        record_session(ledger, &session, kernel, kernel_opens_dirs, &planned)?;
    }
    // Whoever finds the pool finds it, too, unless it takes the place of another one later.
    let mut socket = mounted.as_ref().and_then(|_| make_socket());
    publish_socket(&mut socket, &settings);
    let serve = || {
        socket.iter().for_each(|socket| serve_socket(socket, &dispatch));
        session.serve(handler, threads)
    };
    let running = confine::run_confined(sandbox.as_ref(), serve).map_err(Error::Confine)??;
    if *running.transport() != planned {
        dispatch.control.set_actual_transport(TransportInfo::new(running.transport(), threads));
        ledger.inspect(Ledger::record_unservable).inspect(|_| dump_core_again());
    }
    report_transport(plan, running.transport(), &planned);
    let replacing = mounted.as_mut().filter(|_| plan.replaces);
    let placement = replacing.map(Mounted::attach).transpose()?;
    placement.inspect(|_| attached(&settings));
    if let Some(survival) = survival.filter(|_| before.is_some()) {
        takeover::complete(survival, &dispatch.coherence);
    }
    publish_socket(&mut socket, &settings);
    let badge = badge.or_else(|| mounted.as_ref().and_then(create_badge));
    attend(&dispatch, &liveness, badge.as_ref(), &settings);
    Ok(Serving { running, mounted, watch_thread, pool, _badge: badge, _socket: socket, dispatch, placement })
}

/// Opens the branches, and completes what a crash has interrupted on them. A root may keep this waiting, so nothing is
/// mounted yet: nobody would serve it.
fn open_branches(plan: &Plan) -> Result<(Branches, Vec<Unfinished>), Error> {
    let is_there = |spec: &&BranchSpec| !plan.missing.contains(&spec.path);
    let branches = Branches::open(&plan.config.branches.iter().filter(is_there).cloned().collect())?;
    let unfinished = canopy_branch::relocate::recover_all(&branches);
    let branches = if plan.config.pool.placement.knows_copies() {
        journal::bring_all_up_to_date(branches)
    } else {
        branches
    };
    Ok((branches, unfinished))
}

/// The connection to the kernel, and what the process may do.
struct Host {
    device: OwnedFd,
    /// `None` where it is mounted nowhere.
    mounted: Option<Mounted>,
    security: SecurityReport,
    /// Looks at callers, where a worker may not.
    witness: Option<Box<Look>>,
}

/// Mounts the pool, unless another process has done it, whose device this is, and gives up the privileges that serving
/// does not need.
fn mount_and_drop_privileges(plan: &Plan, device: Option<OwnedFd>) -> Result<Host, Error> {
    let (device, mounted) = match device {
        Some(device) => (device, Mounted::adopt(&plan.mountpoint)),
        None => {
            negotiate::offer_uring(plan);
            mount::mount(&negotiate::mount_spec(plan))?
        }
    };
    // The mount is made, and there is only one thread yet.
    let (security, witness) = confine::drop_privileges().map_err(Error::Thread)?;
    Ok(Host { device, mounted: Some(mounted), security, witness: Some(witness) })
}

/// Returns what this kernel was seen to do: by the process before, or now.
fn findings(
    before: Option<&Ledger>,
    is_mounted: bool,
    options: &SessionOptions,
    limits: KernelLimits,
) -> Findings {
    #[cfg(feature = "test-switches")]
    if !is_mounted {
        return Findings::ALL;
    }
    debug_assert!(is_mounted, "only a test serves a device that is not mounted");
    let known = before.and_then(|before| Findings::from_word(before.findings()));
    known.unwrap_or_else(|| probes::run(options, limits))
}

/// Returns whether the kernel may read and write files without the daemon.
fn can_pass(agreed: &Agreed, kernel: Findings) -> bool {
    agreed.has(InitFlags::PASSTHROUGH) && !kernel.fails(Behaviour::PassedSizes)
}

/// Records what the next process needs to know of the kernel.
fn record_session(
    ledger: &Ledger,
    session: &Session,
    kernel: Findings,
    kernel_opens_dirs: bool,
    planned: &Transport,
) -> Result<(), Error> {
    ledger.record_findings(kernel.to_word());
    ledger.record_session(session.device().as_fd(), session.agreed(), kernel_opens_dirs);
    let over_uring = matches!(planned, Transport::Uring { .. });
    if over_uring {
        survival::watch_for_faults(session.pause(), ledger.clone()).map_err(Error::Thread)?;
    }
    let may_begin = ledger.record_transport(over_uring);
    if may_begin { Ok(()) } else { Err(Error::Takeover(Errno::CANCELED.into())) }
}

/// Makes the pool, which decides about callers as the kernel lets it.
fn make_pool(
    config: &Config,
    (branches, unfinished): (Branches, Vec<Unfinished>),
    agreed: &Agreed,
    witness: Option<Box<Look>>,
) -> Arc<Pool> {
    let pool = Pool::new(config.pool.clone(), branches);
    ops::settings::set_unfinished(&pool, unfinished);
    ops::owed::follow_rules(&pool);
    ops::resolve::acl::set_permission_check(&pool, judge(config, agreed));
    if let Some(file) = catalogue_file::open(config) {
        let rules = test_switches::catalogue_rules();
        ops::external_changes::catalogue(&pool).open(file, config.catalogue_size, rules);
    }
    if let Some(witness) = witness {
        pool.set_witness(witness);
    }
    Arc::new(pool)
}

fn make_topology(
    pool: &Arc<Pool>,
    settings: &Arc<Settings>,
    coherence: &Arc<Coherence>,
    watch: &Arc<Watch>,
) -> Arc<Topology> {
    let (pool, settings) = (Arc::clone(pool), Arc::clone(settings));
    Arc::new(Topology::new(pool, settings, Arc::clone(coherence), Arc::clone(watch)))
}

/// Opens what is logged of requests, if anything is.
fn start_trace(config: &Config) -> Result<(), Error> {
    let trace =
        log::open(&config.log_file).map_err(|why| Error::LogFile { path: config.log_file.clone(), why })?;
    log::trace(config.debug, trace);
    Ok(())
}

/// Decides whether the kernel opens directories by itself. It may not change its mind later.
fn let_kernel_open_directories(coherence: &Coherence, agreed: &Agreed, before: Option<&Ledger>) -> bool {
    let lets = match before {
        Some(before) => before.kernel_opens_dirs(),
        None => {
            agreed.offered.contains(InitFlags::NO_OPENDIR_SUPPORT) && coherence.ttl().may_cache_listings()
        }
    };
    if lets {
        coherence.let_kernel_open_directories();
        tracing::debug!("the kernel opens directories by itself and keeps their listings");
    }
    lets
}

fn report_transport(plan: &Plan, actual: &Transport, planned: &Transport) {
    if actual != planned {
        tracing::info!("{actual}");
    }
    if let (IoUring::On, Transport::Device(why)) = (plan.config.kernel.io_uring, actual) {
        tracing::warn!("io-uring=on has no effect: {why}");
    }
}

/// Finds the pool's device, now that the pool is attached at its mountpoint, and sets its readahead.
fn attached(settings: &Settings) {
    let _changes = settings.lock_changes();
    settings.set_attached();
    negotiate::set_readahead(&settings.config(), settings.device());
}

/// Begins what lasts as long as the pool is served.
fn attend(
    dispatch: &Arc<Dispatch>,
    liveness: &Liveness,
    badge: Option<&Arc<Badge>>,
    settings: &Arc<Settings>,
) {
    badge.into_iter().for_each(|badge| publish_status(liveness, badge, dispatch));
    if let Some(keeper) = Keeper::start(&dispatch.pool, &dispatch.watch, settings) {
        dispatch.control.set_keeper(keeper);
    }
}

/// Lets the badge hold the status of the pool while branches do not answer well.
fn publish_status(liveness: &Liveness, badge: &Arc<Badge>, dispatch: &Arc<Dispatch>) {
    let (badge, dispatch) = (Arc::downgrade(badge), Arc::downgrade(dispatch));
    liveness.set_publish(move |any| {
        let Some((badge, dispatch)) = badge.upgrade().zip(dispatch.upgrade()) else { return };
        let report = if any { serde_json::to_vec(&dispatch.control.status()) } else { Ok(Vec::new()) };
        let report = report.unwrap_or_default();
        if let Err(errno) = badge.publish(&report) {
            tracing::debug!("the status cannot be published: {errno}");
        }
    });
}

/// Makes the socket of the pool. Without one, as in a container without `/run`, the control file serves.
fn make_socket() -> Option<Socket> {
    let made = Socket::new();
    made.inspect_err(|why| tracing::info!("no socket in /run/canopy: {why}")).ok()
}

fn serve_socket(socket: &Socket, dispatch: &Dispatch) {
    if let Err(why) = socket.serve(&dispatch.control) {
        tracing::info!("nobody answers over the socket: {why}");
    }
}

fn publish_socket(socket: &mut Option<Socket>, settings: &Settings) {
    if let Some((socket, device)) = socket.as_mut().zip(settings.device())
        && let Err(why) = socket.publish(device)
    {
        tracing::info!("no socket in /run/canopy: {why}");
    }
}

fn create_badge(mounted: &Mounted) -> Option<Arc<Badge>> {
    let badge = mounted.unique_id().map(|id| Badge::new(id).map(Arc::new))?;
    badge
        .inspect_err(|errno| {
            tracing::warn!("canopy umount will not wait for this pool, which has no badge: {errno}")
        })
        .ok()
}

/// Returns whether the kernel is to enforce ACLs although that was not asked for.
fn should_enforce_acls(config: &Config, branches: &Branches) -> bool {
    // ACLs cannot hold if attributes are not passed through or modes are made up.
    let can = config.pool.xattr == XattrMode::Passthrough && config.overrides.umask.0.is_none();
    let may = config.kernel.posix_acl == Choice::Auto && config.mount.permissions_check;
    may && can && branches.have_acls()
}

/// Returns what decides whether a caller may do something.
fn judge(config: &Config, agreed: &Agreed) -> PermissionCheck {
    match (config.mount.permissions_check, agreed.has(InitFlags::POSIX_ACL)) {
        (false, _) => PermissionCheck::Branch,
        (true, false) => PermissionCheck::Mode,
        (true, true) => PermissionCheck::Acl,
    }
}

/// Returns what to ask of the kernel.
fn session_options(plan: &Plan, branches: &Branches, outlived: bool) -> SessionOptions {
    // Not ATOMIC_O_TRUNC: with it the kernel passes O_TRUNC on before it has checked that the file is not being
    // executed, and O_RDONLY|O_TRUNC empties a running program instead of failing with ETXTBSY (fs/namei.c do_open
    // calls vfs_open before handle_truncate).
    let mut flags = InitFlags::ASYNC_DIO
        | InitFlags::BIG_WRITES
        // The branch applies the umask, because only it knows whether a default ACL replaces it.
        | InitFlags::DONT_MASK
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::MAX_PAGES
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::SETXATTR_EXT;
    flags |= negotiate::optional_flags(plan);
    flags.set(
        InitFlags::POSIX_ACL,
        flags.contains(InitFlags::POSIX_ACL) || should_enforce_acls(&plan.config, branches),
    );
    let (queue_workers, waiting_queue) = negotiate::queue_workers(plan);
    SessionOptions {
        flags,
        max_write: negotiate::max_write(plan),
        queue_workers,
        growth: WorkerGrowth { waiting_queue, ..WorkerGrowth::default() },
        worker_priority: match plan.config.threads.worker_priority {
            WorkerPriority::Auto => canopy_fuse::transport::WorkerPriority::Auto,
            WorkerPriority::Normal => canopy_fuse::transport::WorkerPriority::Normal,
        },
        max_stack_depth: plan.config.kernel.max_stack_depth.0,
        resident: outlived,
        ..SessionOptions::default()
    }
}

/// Completes the configuration by what was derived and resolved in the plan, and agreed with the kernel.
fn complete(config: &mut Config, plan: &Plan, agreed: &Agreed, kernel: Findings) {
    disable_unsupported(config, agreed);
    if kernel.fails(Behaviour::PassedSizes) {
        config.pool.passthrough = PassthroughIo::Off;
    }
    resolve::settle_at_mount(config);
    config.pool.mountpoint.clone_from(&plan.mountpoint);
    config.fsname = Some(plan.fsname.clone());
    config.mountpoint = Some(plan.mountpoint.clone());
}

/// Turns off options that the kernel does not support.
fn disable_unsupported(config: &mut Config, agreed: &Agreed) {
    if config.pool.passthrough != PassthroughIo::Off && !agreed.has(InitFlags::PASSTHROUGH) {
        tracing::warn!("passthrough is off: the kernel does not offer it (it needs Linux 6.9)");
        config.pool.passthrough = PassthroughIo::Off;
    }
    if config.kernel.posix_acl == Choice::On && !agreed.has(InitFlags::POSIX_ACL) {
        if config.mount.permissions_check {
            tracing::warn!("posix-acl is false: the kernel does not offer it");
        }
        config.kernel.posix_acl = Choice::Off;
    }
    if config.pool.writeback && !agreed.has(InitFlags::WRITEBACK_CACHE) {
        tracing::warn!("cache.writeback is off: the kernel does not offer it");
        config.pool.writeback = false;
    }
}

/// Returns the number of workers. By default at least four, however few processors there are: a worker that waits for
/// a sleeping disk must not block the others. And never fewer than two: while one takes on new branches, their
/// pattern may lead through the pool itself, and the names it invalidates may be locked by a client that waits for an
/// answer.
fn worker_count(config: &Config) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = config.threads.workers(cpus);
    if config.is_given("read-thread-count") || config.is_given("process-thread-count") {
        workers.max(2)
    } else {
        workers.max(4)
    }
}
