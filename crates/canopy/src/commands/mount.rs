//! `canopy mount`: from the command line to a pool that serves, and on to its end.

use crate::cli::MountArgs;
use crate::config::resolve::{self, Plan};
use crate::config::{Config, check, kernel, line, named, options};
use crate::daemon::{self, Reporter};
use crate::error::Error;
use crate::stop::{Target, Watch};
use crate::{log, mounts, process, waiting};
use std::path::PathBuf;

pub fn run(args: MountArgs) -> Result<(), Error> {
    if let Some(user) = &args.user {
        // Before anything is looked at: branches and mountpoint are that user's to reach.
        process::become_user(user)?;
    }
    // Words are checked on both sides of the background: here, so that a mistake in them costs no
    // second process; there, because only that process knows what to do with them.
    let foreground = args.foreground;
    let fake = args.fake;
    let plan = plan(args)?;
    kernel::limits()?;
    if fake {
        return Ok(());
    }
    if foreground {
        log::start(log::Place::Stderr)?;
        return serve(plan, &mut Some(Reporter::foreground()));
    }
    if !daemon::is_child() {
        return daemon::start();
    }
    let mut reporter = Some(Reporter::background()?);
    let served = log::start(log::Place::System).and_then(|()| serve(plan, &mut reporter));
    if let (Err(error), Some(reporter)) = (&served, &mut reporter) {
        reporter.fail(error);
    }
    served
}

fn plan(args: MountArgs) -> Result<Plan, Error> {
    let mut config =
        Config { name: args.name, sloppy: args.sloppy, notes: args.warnings, ..Config::default() };
    let words = named::take(args.in_order)?;
    if let Some(pool) = words.pool {
        // Before all options, wherever they stand: what is typed wins over what is written down.
        options::set(&mut config, "config", pool.file.as_os_str())?;
        config.fsname.get_or_insert(pool.name.into());
    }
    let typed = words.others.iter().filter(|arg| matches!(arg, line::Arg::Path(_))).count();
    line::apply(&mut config, words.others)?;
    // A lone path may be the mountpoint of branches that an option names.
    if let Some(nobody) = words.nobody.filter(|_| typed == 2 || config.branches.is_empty()) {
        return Err(nobody.missing());
    }
    if let Some(mountpoint) = words.mountpoint {
        config.mountpoint = Some(mountpoint.into());
    }
    resolve::resolve(config)
}

/// Mounts, says so, and serves until the pool is unmounted. The reporter is taken when the pool is usable.
fn serve(mut plan: Plan, reporter: &mut Option<Reporter>) -> Result<(), Error> {
    let branches: Vec<PathBuf> = plan.config.branches.iter().map(|spec| spec.path.clone()).collect();
    let missing = waiting::for_branches(&plan.config.branches_wait, &branches, &plan.mountpoint)?;
    plan.notes.extend(missing);
    let findings = check::check(&mut plan)?;
    for text in findings.details.iter().chain(&ignored(&plan)) {
        tracing::debug!("{text}");
    }
    if let Some(reporter) = reporter.as_mut() {
        for text in findings.warnings.iter().chain(&plan.notes) {
            reporter.warn(text);
        }
    }
    process::prepare(plan.config.priority);
    // No path is relative from here on, and no mount but our own is kept busy.
    std::env::set_current_dir("/").map_err(Error::system("cannot change to /"))?;
    let watch = Watch::new()?;
    let session = crate::serve::start(&plan)
        .map_err(|why| Error::Serve { mountpoint: plan.mountpoint.clone(), why: why.to_string() })?;
    let device = mounts::at(&plan.mountpoint).ok().flatten().map(|mounted| mounted.device);
    kernel::read_ahead(&plan, device);
    watch.run(Target { mountpoint: plan.mountpoint.clone(), device })?;
    tracing::info!(
        "{} is on {}: {}",
        plan.config.branches,
        plan.mountpoint.display(),
        resolve::summary(&plan)
    );
    if reporter.take().is_some_and(|reporter| reporter.ready().is_err()) {
        // Whoever asked for the pool was ended before it came, and would not know of it.
        tracing::warn!("the command that mounts was ended: unmounting again");
        mounts::end(&plan.mountpoint, true)?;
    }
    session.join();
    tracing::info!("{} has ended", plan.mountpoint.display());
    Ok(())
}

/// Words that were accepted and do nothing, as one line.
fn ignored(plan: &Plan) -> Option<String> {
    let words: Vec<&str> = plan.config.ignored.iter().map(String::as_str).collect();
    (!words.is_empty()).then(|| format!("options without effect: {}", words.join(", ")))
}
