//! `canopy mount`: from the command line to a pool that serves, and on to its end.

use crate::control_client::ControlClient;
use crate::daemon::background::{self, StartupReporter};
use crate::daemon::signals::{PoolMount, SignalWatch};
use crate::daemon::{process, systemd};
use crate::error::Error;
use crate::mount::{preflight, unmount, wait_for_branches};
use canopy_config::Config;
use canopy_config::program_name::Name;
use canopy_config::resolve::{self, Plan};
use canopy_config::source::command_line::{self, Arg};
use canopy_config::source::{self, named};
use canopy_fuse::mount::{MountError, Placement};
use canopy_server::Error as StartError;
use canopy_server::{log, negotiate};
use canopy_sys::mountinfo;
use clap::Args;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Mount directories as one pool
#[derive(Args, Debug, Default)]
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
    /// Options and paths in the order in which they were given.
    #[arg(skip)]
    pub in_order: Vec<Arg>,
    /// What the pool is to be known as.
    #[arg(skip)]
    pub name: Name,
    /// Options that are not known are told and left out.
    #[arg(skip)]
    pub sloppy: bool,
    /// The user to serve as, when another is meant than the one who mounts.
    #[arg(skip)]
    pub user: Option<OsString>,
    /// Everything but the mount.
    #[arg(skip)]
    pub fake: bool,
    /// mount(8) asks, which comes again with each `mount -a`.
    #[arg(skip)]
    pub by_mount: bool,
    /// What was said and has no effect, each to be told.
    #[arg(skip)]
    pub warnings: Vec<String>,
}

const NOTES: &str = "\
A branch is a directory or a pattern ('/mnt/disk*'), followed by =RW, =RO (never
written) or =NC (no new files), and by a minimum of free space if need be:
/mnt/a=RW,10G:/mnt/b=NC
NAME: what /etc/canopy/NAME.toml says; also the path of such a file.

Returns when the pool can be used; canopy umount MOUNTPOINT ends it, or SIGTERM.
Environment: CANOPY_LOG=debug logs more; CANOPY_CONFIG_DIR for /etc/canopy.

Examples:
  canopy mount /mnt/disk1:/mnt/disk2 /pool
  canopy mount -o category.create=mfs,minfreespace=20G '/mnt/disk*' /pool";

pub fn run(args: MountArgs) -> Result<(), Error> {
    if let Some(user) = &args.user {
        // Before anything is looked at: branches and mountpoint are that user's to reach.
        process::become_user(user)?;
    }
    // Words are checked on both sides of the background: here, so that a mistake in them costs no
    // second process; there, because only that process knows what to do with them.
    let foreground = args.foreground;
    let (fake, by_mount) = (args.fake, args.by_mount);
    let plan = plan(args)?;
    negotiate::limits()?;
    if fake || (by_mount && !background::is_child() && is_mounted_by_same_command(&plan)) {
        return Ok(());
    }
    if foreground {
        log::start(log::Destination::Stderr)?;
        return serve(plan, &mut Some(StartupReporter::foreground()));
    }
    if !background::is_child() {
        return background::start();
    }
    let mut reporter = Some(StartupReporter::background()?);
    let served =
        log::start(log::Destination::System).map_err(Error::from).and_then(|()| serve(plan, &mut reporter));
    if let (Err(error), Some(reporter)) = (&served, &mut reporter) {
        reporter.fail(error);
    }
    served
}

fn plan(args: MountArgs) -> Result<Plan, Error> {
    let mut config = Config {
        name: args.name,
        sloppy: args.sloppy,
        warnings: args.warnings,
        // Setups in use rely on it: a disk that stays away at boot costs them no pool.
        allow_missing: args.name == Name::Mergerfs,
        ..Config::default()
    };
    let line = named::parse(args.in_order, args.by_mount)?;
    if let Some(pool) = line.pool {
        // Before all options, wherever they stand: what is typed wins over what is written down.
        source::set(&mut config, "config", pool.file.as_os_str())?;
        config.fsname.get_or_insert(pool.name.into());
    }
    let typed = line.rest.iter().filter(|arg| matches!(arg, command_line::Arg::Path(_))).count();
    command_line::apply(&mut config, line.rest)?;
    // A lone path may be the mountpoint of branches that an option names.
    // Nor is it one where options replace what stands in the place of the branches, as `none` does in fstab.
    let is_branch = |name: &str| {
        let path = std::path::absolute(name).unwrap_or_default();
        config.branches.is_empty() || typed == 2 && config.branches.iter().any(|spec| spec.path == path)
    };
    if let Some(unknown) = line.unknown.filter(|unknown| is_branch(&unknown.name)) {
        return Err(unknown.not_found().into());
    }
    if let Some(mountpoint) = line.mountpoint {
        config.mountpoint = Some(mountpoint.into());
    }
    Ok(resolve::resolve(config)?)
}

/// Mounts, says so, and serves until the pool is unmounted. The reporter is taken when the pool is usable.
fn serve(mut plan: Plan, reporter: &mut Option<StartupReporter>) -> Result<(), Error> {
    let branches: Vec<PathBuf> = plan.config.branches.iter().map(|spec| spec.path.clone()).collect();
    if let Some(reporter) = reporter.as_ref() {
        reporter.extend_timeout(plan.config.branches_wait.timeout);
    }
    let missing = wait_for_branches::wait(&plan.config.branches_wait, &branches, &plan.mountpoint)?;
    plan.warnings.extend(missing);
    let findings = preflight::check(&mut plan)?;
    for text in findings.details.iter().chain(&ignored(&plan)) {
        tracing::debug!("{text}");
    }
    if let Some(reporter) = reporter.as_mut() {
        for text in findings.warnings.iter().chain(&plan.warnings) {
            reporter.warn(text);
        }
    }
    process::prepare(plan.config.priority);
    // No path is relative from here on, and no mount but our own is kept busy.
    std::env::set_current_dir("/").map_err(Error::system("cannot change to /"))?;
    let watch = SignalWatch::new()?;
    let before = plan.replaces.then(|| pool_to_replace(&plan));
    let session = canopy_server::start(&plan).map_err(|why| Error::Serve {
        mountpoint: plan.mountpoint.clone(),
        why: start_error_message(&why),
    })?;
    if let (Some((source, root)), Some(shown)) = (before, session.placement) {
        // What the kernel still holds of the other pool's files reaches the branches that both have.
        root.map(rustix::fs::syncfs);
        let place = plan.mountpoint.display();
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
    negotiate::read_ahead(&plan, device);
    watch.run(PoolMount { mountpoint: plan.mountpoint.clone(), device })?;
    tracing::info!(
        "{} is on {}: {}",
        plan.config.branches,
        plan.mountpoint.display(),
        resolve::summary(&plan)
    );
    let status = format!("{} is on {}", plan.fsname.to_string_lossy(), plan.mountpoint.display());
    if reporter.take().is_some_and(|reporter| reporter.ready(&status).is_err()) {
        // Whoever asked for the pool was ended before it came, and would not know of it.
        tracing::warn!("the command that mounts was ended: unmounting again");
        unmount::unmount(&plan.mountpoint, true)?;
    }
    session.join();
    systemd::notify(&["STOPPING=1"]);
    tracing::info!("{} has ended", plan.mountpoint.display());
    Ok(())
}

/// Was the pool at the mountpoint mounted by these very words? mount(8) knows a mount by its source, and ours is not
/// what fstab says; so it is for us to see that `mount -a` has nothing to do.
fn is_mounted_by_same_command(plan: &Plan) -> bool {
    let Ok(pool) = ControlClient::at(&plan.mountpoint) else { return false };
    let words: Vec<u8> = std::env::args_os().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    pool.server_cmdline().is_ok_and(|running| running == words)
}

/// The pool that is about to be replaced: its source, and its root.
fn pool_to_replace(plan: &Plan) -> (String, Option<OwnedFd>) {
    let there = mountinfo::at(&plan.mountpoint).ok().flatten();
    let source = there.map_or_else(String::new, |mounted| mounted.source.to_string_lossy().into_owned());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    (source, rustix::fs::open(&plan.mountpoint, flags, Mode::empty()).ok())
}

/// Words that were accepted and do nothing, as one line.
fn ignored(plan: &Plan) -> Option<String> {
    let words: Vec<&str> = plan.config.ignored.iter().map(String::as_str).collect();
    (!words.is_empty()).then(|| format!("options without effect: {}", words.join(", ")))
}

/// Why nothing could be mounted, and the mend where it is known. Which mountpoint is meant is said already.
fn start_error_message(why: &StartError) -> String {
    match why {
        // The one refusal whose reason the kernel keeps to itself: paths and device have been looked at.
        StartError::Mount(MountError::Mount { error, .. }) if error.kind() == io::ErrorKind::InvalidInput => {
            format!(
                "{error} (the kernel takes context options with SELinux alone, and fsname up to 4095 bytes)"
            )
        }
        StartError::Mount(MountError::Mount { error, .. }) => error.to_string(),
        StartError::Mount(MountError::Helper { message, .. }) => {
            let mend = if message.contains("/dev/fuse: Permission denied") {
                " (as root: chmod 666 /dev/fuse)"
            } else if ["no write access to mountpoint", "chdir to mountpoint", "not owned by user"]
                .iter()
                .any(|refusal| message.contains(refusal))
            {
                " (choose a mountpoint of your own, or mount as root)"
            } else {
                ""
            };
            format!("{why}{mend}")
        }
        _ => why.to_string(),
    }
}
