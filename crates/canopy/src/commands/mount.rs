//! `canopy mount`: mounts a pool, and serves it until it is unmounted.

use crate::control_client::ControlClient;
use crate::daemon::background::{self, StartupReporter};
use crate::daemon::handover::Handover;
use crate::daemon::signals::{PoolMount, SignalWatch};
use crate::daemon::{keeper, process};
use crate::error::Error;
use crate::mount::preflight::{self, Over};
use crate::mount::{unmount, wait_for_branches};
use canopy_config::Config;
use canopy_config::program_name::{self, Name};
use canopy_config::resolve::{self, Plan};
use canopy_config::source::command_line::{self, Arg};
use canopy_config::source::{self, named};
use canopy_fuse::mount::{MountError, Placement};
use canopy_server::Error as StartError;
use canopy_server::survival::{self, Refusal, Survival};
use canopy_server::{log, systemd, takeover, test_switches};
use canopy_sys::glob::is_pattern;
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use clap::Args;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Mount directories as one pool
#[derive(Args, Clone, Debug, Default)]
#[command(override_usage = "canopy mount [-f] [-o OPTIONS]... BRANCH[:BRANCH...]... MOUNTPOINT\n       \
    canopy mount [-f] [-o OPTIONS]... NAME [MOUNTPOINT]")]
#[command(after_help = NOTES)]
pub struct MountArgs {
    /// Stay in the foreground, and log to stderr
    #[arg(short, long)]
    pub foreground: bool,
    /// KEY=VALUE[,...]; canopy options lists them, later ones win
    #[arg(short = 'o', value_name = "OPTIONS", action = clap::ArgAction::Append)]
    pub(crate) options: Vec<OsString>,
    /// Directories that make up the pool, then the mountpoint; or a NAME
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Hide the files of a mountpoint that is not empty
    #[arg(long)]
    pub over: bool,
    /// Options and paths in their order on the command line.
    #[arg(skip)]
    pub in_order: Vec<Arg>,
    /// The name under which the pool is mounted.
    #[arg(skip)]
    pub name: Name,
    /// Unknown options cause warnings instead of errors.
    #[arg(skip)]
    pub sloppy: bool,
    /// The user to switch to before mounting.
    #[arg(skip)]
    pub user: Option<OsString>,
    /// Do everything except the mount.
    #[arg(skip)]
    pub fake: bool,
    /// Called by mount(8), which repeats the call with each `mount -a`.
    #[arg(skip)]
    pub by_mount: bool,
    /// Warnings about arguments without effect.
    #[arg(skip)]
    pub warnings: Vec<String>,
}

const NOTES: &str = "\
A branch is a directory or a pattern ('/mnt/disk*'). It may be followed by =RW,
=RO (never written) or =NC (no new files), and by the free space to keep:
/mnt/a=RW,10G:/mnt/b=NC
NAME stands for the pool in /etc/canopy/NAME.toml; it can also be a file's path.

Returns when the pool is usable; canopy umount MOUNTPOINT or SIGTERM ends it.
Environment: CANOPY_LOG=debug logs more; CANOPY_CONFIG_DIR replaces /etc/canopy.

Examples:
  canopy mount /mnt/disk1:/mnt/disk2 /pool
  canopy mount -o category.create=mfs,minfreespace=20G '/mnt/disk*' /pool";

pub fn run(args: MountArgs) -> Result<(), Error> {
    if let Some(handover) = Handover::received() {
        return go_on(args, handover);
    }
    if let Some(user) = &args.user {
        // First of all, so that branches and mountpoint are accessed as that user.
        process::become_user(user)?;
    }
    // Parent and child both parse the options: the parent to report mistakes without a second process, the child to use
    // them.
    let foreground = args.foreground;
    let (fake, by_mount) = (args.fake, args.by_mount);
    let over = over(&args);
    let plan = plan(args)?;
    test_switches::kernel_limits()?;
    if fake || (by_mount && !background::is_child() && is_mounted_by_same_command(&plan)) {
        return Ok(());
    }
    if foreground {
        log::start(log::Destination::Stderr)?;
        return serve(plan, over, &mut Some(StartupReporter::foreground()));
    }
    if !background::is_child() {
        return background::start();
    }
    let mut reporter = Some(StartupReporter::background()?);
    let served = log::start(log::Destination::System)
        .map_err(Error::from)
        .and_then(|()| serve(plan, over, &mut reporter));
    if let (Err(error), Some(reporter)) = (&served, &mut reporter) {
        reporter.fail(error);
    }
    served
}

/// Returns whether the pool may hide what its mountpoint holds.
fn over(args: &MountArgs) -> Over {
    // A unit of systemd runs at boot, as a line of fstab does, and mergerfs hides files without a word.
    let unasked = args.by_mount || args.name == Name::Mergerfs || std::env::var_os("NOTIFY_SOCKET").is_some();
    match (args.over, unasked) {
        (true, _) => Over::Allowed,
        (false, true) => Over::Directories,
        (false, false) => Over::Refused,
    }
}

fn plan(args: MountArgs) -> Result<Plan, Error> {
    let mut config = Config {
        name: args.name,
        sloppy: args.sloppy,
        warnings: args.warnings,
        // Existing setups rely on a pool that mounts without a disk that is missing at boot.
        allow_missing: args.name == Name::Mergerfs,
        ..Config::default()
    };
    let line = named::parse(args.in_order, args.by_mount)?;
    if let Some(pool) = line.pool {
        // Before all other options, wherever they are, so that the command line wins over the file.
        source::set(&mut config, "config", pool.file.as_os_str())?;
        config.fsname.get_or_insert(pool.name.into());
    }
    let typed = line.rest.iter().filter(|arg| matches!(arg, command_line::Arg::Path(_))).count();
    command_line::apply(&mut config, line.rest)?;
    // A single path may be the mountpoint, with the branches in an option. Options may also replace a placeholder for the
    // branches, such as `none` in fstab.
    let is_branch = |name: &str| {
        let path = std::path::absolute(name).unwrap_or_default();
        config.branches.is_empty() || typed == 2 && config.branches.iter().any(|spec| spec.path == path)
    };
    if let (Some(only), true) = (&config.mountpoint, typed == 1 && config.branches.is_empty())
        && (only.as_os_str().as_bytes().contains(&b':') || is_pattern(only.as_os_str()))
    {
        return Err(Error::OnlyBranches { name: config.name, branches: only.clone() });
    }
    if let Some(unknown) = line.unknown.filter(|unknown| is_branch(&unknown.name)) {
        return Err(unknown.not_found().into());
    }
    if let Some(mountpoint) = line.mountpoint {
        config.mountpoint = Some(mountpoint.into());
    }
    Ok(resolve::resolve(config)?)
}

/// Mounts, reports that, and serves until the pool is unmounted. Takes the reporter when the pool is usable.
fn serve(mut plan: Plan, over: Over, reporter: &mut Option<StartupReporter>) -> Result<(), Error> {
    let branches: Vec<PathBuf> = plan.config.branches.iter().map(|spec| spec.path.clone()).collect();
    if let Some(reporter) = reporter.as_ref() {
        reporter.extend_timeout(plan.config.branches_wait.timeout);
    }
    let missing = wait_for_branches::wait(&plan.config.branches_wait, &branches, &plan.mountpoint)?;
    plan.warnings.extend(missing);
    let findings = preflight::check(&mut plan, over)?;
    for text in findings.details.iter().chain(&ignored(&plan)) {
        tracing::debug!("{text}");
    }
    if let Some(reporter) = reporter.as_mut() {
        for text in findings.warnings.iter().chain(&plan.warnings) {
            reporter.warn(text);
        }
    }
    let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
    // All paths are absolute now, and the current directory must not keep a mount busy.
    std::env::set_current_dir("/").map_err(Error::system("cannot change to /"))?;
    if !takeover::is_wanted(&mut plan.config) {
        return serve_once(&plan, reporter, None);
    }
    log::before_fork();
    // Clients wait for the keeper when a process dies.
    process::take_priority(plan.config.priority);
    let (args, mountpoint) = (MountArgs::default(), plan.mountpoint.clone());
    let server = Survivor { plan: Some(plan), args, directory: directory.clone(), is_last: true, reporter };
    keeper::keep(server, &mountpoint, directory)
}

/// Goes on with a pool that another program has kept in this process. It has passed on the command line, which is read
/// again. Whatever fails before this program serves has the one before serve again.
fn go_on(args: MountArgs, handover: Handover) -> Result<(), Error> {
    let destination = if args.foreground { log::Destination::Stderr } else { log::Destination::System };
    let resume = || -> Result<Survival, Refusal> {
        log::start(destination).map_err(|_| Refusal::Ended)?;
        log::before_fork();
        Survival::resume(handover.records, handover.before).map_err(|_| Refusal::Form)
    };
    let survival = match resume() {
        Ok(survival) => survival,
        Err(why) => return Err(Error::Handover(handover.go_back(why).to_string())),
    };
    // The name of a program that was executed by its descriptor is the number of that.
    let _ = rustix::thread::set_name(program_name::current().as_c_str());
    let (directory, is_last) = (handover.directory.clone(), handover.before.is_none());
    let server = Survivor { plan: None, args, directory, is_last, reporter: &mut None };
    keeper::keep_on(server, survival, handover)
}

/// The server of a pool that outlives it.
struct Survivor<'a> {
    /// `None` while this program has not read the command line yet. Nobody serves then, and patterns and files in it may
    /// be in the pool.
    plan: Option<Plan>,
    args: MountArgs,
    /// Where relative paths start.
    directory: PathBuf,
    /// There is no other program that could serve the pool.
    is_last: bool,
    reporter: &'a mut Option<StartupReporter>,
}

/// How often a command line is read again that leads to a file with mistakes.
const BETWEEN_READS: Duration = Duration::from_secs(1);

impl keeper::Server for Survivor<'_> {
    fn serve(&mut self, survival: &Survival) -> Result<(), Error> {
        systemd::speak_for_parent();
        survival::remember_keeper();
        if !survival.ledger.is_serving() {
            let Survivor { plan: Some(plan), reporter, .. } = self else { return Ok(()) };
            return serve_once(plan, reporter, Some(survival));
        }
        // The process before has reported, and closed what it reported through.
        std::mem::forget(self.reporter.take());
        let served = takeover::begin(survival)
            .map_err(Error::from)
            .and_then(|()| serve_once(self.plan(survival)?, &mut None, Some(survival)));
        // Nobody else reports it.
        served.inspect_err(|error| tracing::error!("{}", error.line()))
    }

    fn settle(&mut self, survival: &Survival) -> Result<(), Error> {
        self.plan(survival).map(drop)
    }
}

impl Survivor<'_> {
    fn plan(&mut self, survival: &Survival) -> Result<&Plan, Error> {
        let plan = match self.plan.take() {
            Some(plan) => plan,
            None => {
                let mut plan = self.read_again()?;
                if let Some(place) = survival.ledger.place() {
                    plan.mountpoint = place;
                }
                plan
            }
        };
        Ok(self.plan.insert(plan))
    }

    fn read_again(&self) -> Result<Plan, Error> {
        loop {
            match read_again(self.args.clone(), &self.directory) {
                // Clients wait until the file is put right, rather than lose the pool.
                Err(error) if self.is_last => tracing::error!("nobody serves the pool: {}", error.line()),
                other => return other,
            }
            sleep(BETWEEN_READS);
        }
    }
}

/// Reads the command line of a pool that is mounted again. Relative paths start at `directory`.
pub fn read_again(args: MountArgs, directory: &Path) -> Result<Plan, Error> {
    // If it is gone, the branches that the pool has are in the ledger.
    let _ = std::env::set_current_dir(directory);
    let plan = plan(args);
    std::env::set_current_dir("/").map_err(Error::system("cannot change to /"))?;
    let mut plan = plan?;
    preflight::enforce_permission_checks(&mut plan.config.mount);
    Ok(plan)
}

/// Serves the pool until it is unmounted. If another process has served it before, takes over from that.
fn serve_once(
    plan: &Plan,
    reporter: &mut Option<StartupReporter>,
    survival: Option<&Survival>,
) -> Result<(), Error> {
    process::prepare(plan.config.priority);
    let watch = SignalWatch::new()?;
    let takes_over = survival.is_some_and(|survival| survival.ledger.is_serving());
    let before = (plan.replaces && !takes_over).then(|| pool_to_replace(plan));
    let session = canopy_server::start(plan, survival).map_err(|why| Error::Serve {
        mountpoint: plan.mountpoint.clone(),
        why: start_error_message(&why),
    })?;
    if let (Some((source, root)), Some(shown)) = (before, session.placement) {
        // Writes the dirty pages of the old pool to the branches.
        root.map(rustix::fs::syncfs);
        let place = plan.mountpoint.shown();
        let text = match shown {
            Placement::OnTop => Some(preflight::hidden_pool_warning(&plan.mountpoint)),
            Placement::Replaced if plan.config.detach_mountpoint => None,
            Placement::Replaced => Some(format!(
                "replaced pool {source} on {place}; it ends when the files that are open in it are closed"
            )),
        };
        if let (Some(text), Some(reporter)) = (text, reporter.as_mut()) {
            reporter.warn(&text);
        }
    }
    let device = mountinfo::at(&plan.mountpoint).ok().flatten().map(|mounted| mounted.device);
    let ledger = survival.map(|survival| survival.ledger.clone());
    let ending = watch.run(PoolMount { mountpoint: plan.mountpoint.clone(), device, ledger })?;
    // Whoever sees the line in the log may rely on it.
    if let Some(survival) = survival {
        survival.ledger.record_serving();
    }
    tracing::info!(
        "{} is on {}: {}",
        plan.config.branches.to_os_string().shown(),
        plan.mountpoint.shown(),
        resolve::summary(plan)
    );
    let status = format!("{} is on {}", plan.fsname.shown(), plan.mountpoint.shown());
    if reporter.take().is_some_and(|reporter| reporter.ready(&status).is_err()) {
        // Nobody would know of a pool whose mount command has been killed.
        tracing::warn!("the mount command was killed: unmounting again");
        unmount::unmount_own(&plan.mountpoint, true)?;
    }
    if let Err(why) = systemd::answer_watchdog(
        {
            let mut progress = session.progress();
            move || progress.look()
        },
        background::starter(),
    ) {
        tracing::error!("the watchdog of systemd will get no answer: {why}");
    }
    session.join();
    if let Some(survival) = survival {
        survival.ledger.record_end();
    }
    ending.wait_for_unmount();
    systemd::notify(&["STOPPING=1"]);
    tracing::info!("{} has ended", plan.mountpoint.shown());
    Ok(())
}

/// Returns whether the pool at the mountpoint was mounted by the same command line. mount(8) recognizes mounts by their
/// source, which for a pool differs from fstab, so `mount -a` would mount it again.
fn is_mounted_by_same_command(plan: &Plan) -> bool {
    let Ok(pool) = ControlClient::at(&plan.mountpoint) else { return false };
    let words: Vec<u8> = std::env::args_os().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    pool.server_cmdline().is_ok_and(|running| running == words)
}

/// Returns the source and the root of the pool that is about to be replaced.
fn pool_to_replace(plan: &Plan) -> (String, Option<OwnedFd>) {
    let there = mountinfo::at(&plan.mountpoint).ok().flatten();
    let source = there.map_or_else(String::new, |mounted| mounted.source.to_string_lossy().into_owned());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    (source, rustix::fs::open(&plan.mountpoint, flags, Mode::empty()).ok())
}

/// Lists accepted options without effect in one line.
fn ignored(plan: &Plan) -> Option<String> {
    let words: Vec<&str> = plan.config.ignored.iter().map(String::as_str).collect();
    (!words.is_empty()).then(|| format!("options without effect: {}", words.join(", ")))
}

/// Returns why the mount failed, and a fix if one is known. The caller adds the mountpoint.
fn start_error_message(why: &StartError) -> String {
    match why {
        // For EINVAL the kernel gives no reason. Paths and device have been checked.
        StartError::Mount(MountError::Mount { error, .. }) if error.kind() == io::ErrorKind::InvalidInput => {
            format!(
                "{error} (the kernel takes context options with SELinux alone, and fsname up to 4095 bytes)"
            )
        }
        StartError::Mount(MountError::Mount { error, .. }) => error.to_string(),
        StartError::Mount(MountError::Helper { message, .. }) => {
            let fix = if message.contains("/dev/fuse: Permission denied") {
                " (as root: chmod 666 /dev/fuse)"
            } else if ["no write access to mountpoint", "chdir to mountpoint", "not owned by user"]
                .iter()
                .any(|refusal| message.contains(refusal))
            {
                " (choose a mountpoint of your own, or mount as root)"
            } else {
                ""
            };
            format!("{why}{fix}")
        }
        _ => why.to_string(),
    }
}
