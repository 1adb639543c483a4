//! Taking over a pool from the process that served it before and has died.

use crate::coherence::Coherence;
use crate::error::Error;
use crate::survival::in_flight::InFlight;
use crate::survival::{Death, Ledger, Survival};
use canopy_branch::tend;
use canopy_config::Config;
use canopy_config::fstab;
use canopy_config::resolve::Plan;
use canopy_config::source;
use canopy_config::values::{Choice, IoUring};
use canopy_fuse::backing::Backing;
use canopy_fuse::flags::InitFlags;
use canopy_fuse::notify;
use canopy_fuse::transport::uring::requests_expire;
use canopy_fuse::{Agreed, Session, SessionOptions, Transport};
use canopy_pool::Pool;
use canopy_pool::ops;
use canopy_sys::process::Ended;
use canopy_sys::{fd, mountinfo};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Returns whether other processes are to take over from the one that will serve, and has requests come as that needs. A user
/// has no privileges to pass on, and a process that is confined could not reach branches that have come meanwhile.
pub fn is_wanted(config: &mut Config) -> bool {
    match config.survive {
        Choice::Off => false,
        Choice::Auto => geteuid().is_root() && !config.landlock && linux() >= (6, 9),
        Choice::On => {
            if config.kernel.io_uring == IoUring::On {
                tracing::warn!(
                    "io-uring=on has no effect with survive=true: over io_uring the requests of a process that dies are lost"
                );
            }
            config.kernel.io_uring = IoUring::Off;
            true
        }
    }
}

/// Tells that a process has ended which nobody can take over from.
pub fn report_lost(ended: Ended) {
    let death = Death { ended, pause: Duration::ZERO };
    tracing::error!(
        "the process that serves the pool has died ({death}): the mount is dead, because requests over io_uring are lost \
         with it (canopy umount, then mount it again; survive=true outlives this)"
    );
}

/// Returns the version of the running kernel.
#[must_use]
pub fn linux() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Returns where requests are noted that must not be done twice. Over io_uring a process leaves none.
pub(crate) fn notes(ledger: Option<&Ledger>, transport: &Transport) -> Option<InFlight> {
    ledger.filter(|_| matches!(transport, Transport::Device(_))).cloned().map(InFlight::new)
}

/// Returns the records of a pool that another process can take over.
pub(crate) fn ledger(
    survival: Option<&Survival>,
    agreed: &Agreed,
    transport: &Transport,
    survive: Choice,
) -> Option<Ledger> {
    survival.filter(|_| is_possible(agreed, transport, survive)).map(|survival| survival.ledger.clone())
}

/// Returns whether another process can take over this connection: at any time over `/dev/fuse`. Over io_uring the kernel drops
/// what it gives to a process that is dying, so that its workers have to leave before (docs/decisions/transport.md#115).
fn is_possible(agreed: &Agreed, transport: &Transport, survive: Choice) -> bool {
    let why_not = match transport {
        Transport::Uring { .. } if requests_expire() => {
            "the machine ends requests over io_uring that are kept (sysctl fs.fuse)"
        }
        Transport::Uring { .. } => return true,
        Transport::Device(_) if !agreed.offered.contains(InitFlags::HAS_RESEND) => {
            "the kernel cannot send requests again (it needs Linux 6.9)"
        }
        Transport::Device(_) => return true,
    };
    match survive {
        Choice::On => tracing::warn!("survive=true has no effect: {why_not}"),
        _ => tracing::info!("no other process can take over: {why_not}"),
    }
    false
}

/// Returns the plan with the settings that were changed since the pool was mounted, and the branches whose mounts are not there
/// any more, with their mountpoints. What is at their paths now is another filesystem's.
pub(crate) fn plan_now(plan: &Plan, ledger: &Ledger) -> (Plan, Vec<(PathBuf, PathBuf)>) {
    let mut plan = plan.clone();
    for (key, value) in ledger.settings() {
        if let Err(error) = source::set(&mut plan.config, &key, OsStr::from_bytes(&value)) {
            error.lines().iter().for_each(|line| tracing::warn!("{line}"));
        }
    }
    let (gone, mounted) = (gone_branches(ledger, &plan.config), ledger.mountpoints());
    let is_missing = |path: &PathBuf| {
        gone.iter().any(|(gone, _)| gone == path)
            || matches!(rustix::fs::stat(path), Err(Errno::NOENT))
            // What was in force stays, whatever fstab says of it by now.
            || mounted.iter().all(|(mounted, _)| mounted != path) && fstab::away(path).is_some()
    };
    plan.missing = plan.config.branches.iter().map(|spec| spec.path.clone()).filter(is_missing).collect();
    plan.replaces = false;
    (plan, gone)
}

fn gone_branches(ledger: &Ledger, config: &Config) -> Vec<(PathBuf, PathBuf)> {
    let Ok(listed) = mountinfo::list() else { return Vec::new() };
    let is_gone = |(branch, mountpoint): &(PathBuf, PathBuf)| {
        mountinfo::holding_in(&listed, branch).is_none_or(|holding| holding.mountpoint != *mountpoint)
    };
    let is_branch = |(path, _): &(PathBuf, PathBuf)| config.branches.iter().any(|spec| spec.path == *path);
    ledger.mountpoints().into_iter().filter(is_branch).filter(is_gone).collect()
}

/// Has the kernel send again what was not answered, and closes what the process before had open and nobody takes over. To
/// be called before this process opens anything.
pub fn begin(before: &Survival) -> Result<(), Error> {
    resend(&before.ledger)?;
    before.close_strays().map_err(Error::Takeover)?;
    match before.ledger.last_death().filter(|_| !before.ledger.is_handed_over()) {
        Some(death) => {
            tracing::error!("the process that served the pool has ended ({death}): another takes over");
        }
        None => tracing::info!("canopy {} takes over", env!("CARGO_PKG_VERSION")),
    }
    Ok(())
}

/// Does what could wait until this process serves.
pub(crate) fn complete(before: &Survival, coherence: &Coherence) {
    before.ledger.record_recovery();
    // What happened on the branches while nobody served was not seen.
    coherence.invalidate_everything();
    coherence.expire_left_dirs();
    before.close_groups();
}

/// Prepares this process, in which nobody serves the pool, to execute a program that takes over.
///
/// # Errors
/// [`Error::Takeover`].
pub fn before_exec(survival: &Survival) -> Result<(), Error> {
    resend(&survival.ledger)?;
    survival.close_strays().map_err(Error::Takeover)?;
    survival.pass_on().map_err(|errno| Error::Takeover(errno.into()))
}

/// Has the kernel send again what was not answered. Over io_uring nothing is left: the process before has answered all.
fn resend(ledger: &Ledger) -> Result<(), Error> {
    if ledger.is_over_uring() {
        return Ok(());
    }
    let device = take_device(ledger)?;
    notify::resend_now(&device).map_err(|errno| Error::Takeover(errno.into()))?;
    // It is taken once more later.
    let _ = device.into_raw_fd();
    Ok(())
}

pub(crate) fn take_device(ledger: &Ledger) -> Result<OwnedFd, Error> {
    fd::take_over(ledger.session().0).ok_or_else(|| Error::Takeover(Errno::BADF.into()))
}

/// Has the pool's handles, and the inode numbers of directories, recorded from now on, and takes over those that are.
pub(crate) fn adopt_records(pool: &Pool, ledger: &Ledger, backing: &Backing) {
    let adopted = ops::adopt::adopt_handles(pool, ledger.handles(), ledger.starts());
    end_registrations(ledger, backing);
    let numbers = ops::adopt::adopt_numbers(pool, ledger.dir_numbers());
    tracing::debug!("{adopted} open files and {numbers} inode numbers of directories were taken over");
}

/// How many backing files the process before may have registered, one in a thread, without having recorded that.
const UNRECORDED: u32 = 1024;

/// Ends the registrations of backing files that no handle uses. Registered files are open in the kernel, whoever has closed
/// them here: as long as one that is written is registered, its file cannot move.
fn end_registrations(ledger: &Ledger, backing: &Backing) {
    let highest = ledger.backing_ids();
    if highest == 0 {
        return;
    }
    let used = ledger.handles().backing_ids();
    let unused = move |id: &u32| used.binary_search(id).is_err();
    // The kernel counts on from the last id that it has given, so these may be given again as soon as files are opened.
    (highest..highest.saturating_add(UNRECORDED)).filter(&unused).for_each(|id| backing.end(id));
    let rest = backing.clone();
    let close = move || (1..highest).filter(&unused).for_each(|id| rest.end(id));
    tend::apart((c"canopy-close", 1), close);
}

/// Continues the session of the process before.
pub(crate) fn adopt_session(
    device: OwnedFd,
    ledger: &Ledger,
    options: &SessionOptions,
) -> Result<Session, Error> {
    let (_, agreed) = ledger.session();
    Ok(Session::adopt(device, agreed, options, (ledger.starts(), ledger.is_over_uring()))?)
}
