//! `canopy upgrade`: has the program that was installed since serve a pool, without unmounting it.

use super::mount::{self, MountArgs};
use crate::control_client::ControlClient;
use crate::daemon::handover;
use crate::error::Error;
use crate::terminal::print;
use canopy_control::{COMMAND, OsText, PoolReport, SurvivalReport};
use canopy_server::survival::FORM;
use canopy_sys::shown::Show as _;
use clap::Args;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Serve a pool with the program that is installed now
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct UpgradeArgs {
    /// The pool's mountpoint or name
    #[arg(value_name = "POOL")]
    pub mount: PathBuf,
    /// Upgrade even if that program already serves the pool
    #[arg(long)]
    pub force: bool,
}

const NOTES: &str = "\
Programs that use the pool do not notice: open files stay open, and operations
wait for a moment. If the installed program does not serve within a second, the
old one keeps serving. Pools of users, and with survive=false, cannot do this.
The command line and the config file of the pool are read again.

Examples:
  canopy upgrade /pool";

/// How long the pool may take to find a moment without requests, and another program to start.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// `parse_cmdline` reads the command line of the process that serves the pool, as /proc has it.
pub fn run(args: &UpgradeArgs, parse_cmdline: fn(&[u8]) -> Option<MountArgs>) -> Result<(), Error> {
    let pool = ControlClient::at(&args.mount)?;
    let refused = |why: String| Error::NotUpgraded { path: args.mount.clone(), why };
    let (report, before) = status(&pool, &args.mount)?;
    let program = handover::installed(&report.pid.to_string()).map_err(Error::system(
        "cannot read which program serves the pool (as root: sudo canopy upgrade ...)",
    ))?;
    let installed = identity(&program)
        .map_err(|why| refused(format!("{} is not there any more: {why}", program.shown())))?;
    if identity(Path::new("/proc/self/exe")).ok() != Some(installed) {
        let other = "is another program than this one";
        return Err(refused(format!("{} {other} (use its own command upgrade)", program.shown())));
    }
    let serves = identity(Path::new(&format!("/proc/{}/exe", report.pid))).ok();
    if serves == Some(installed) && !args.force {
        print(&format!("canopy {} serves {} already\n", report.version, args.mount.shown()));
        return Ok(());
    }
    if before.form != FORM {
        let why = "this program cannot read its records (canopy umount, and mount it again)";
        return Err(refused(why.into()));
    }
    let line = parse_cmdline(&pool.server_cmdline()?).ok_or_else(|| {
        refused("this program does not know all of its options (canopy umount, and mount it again)".into())
    })?;
    let directory = before.directory.as_ref().map_or_else(|| "/".into(), OsText::to_path);
    mount::read_again(line, &directory).map_err(|error| refused(error.line()))?;
    pool.set(&format!("{COMMAND}upgrade"), OsStr::from_bytes(b""))?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let (report, now) = status(&pool, &args.mount)?;
        if now.upgrades > before.upgrades {
            let (version, path, pause) = (report.version, args.mount.shown(), now.upgrade_pause_ms);
            print(&format!("canopy {version} serves {path} now, after {pause:.0} ms without answers\n"));
            return Ok(());
        }
        if now.refused_upgrades > before.refused_upgrades {
            return Err(refused(now.last_refusal.unwrap_or_default()));
        }
        sleep(LOOK);
    }
    Err(refused("it does not answer".into()))
}

fn status(pool: &ControlClient, mount: &Path) -> Result<(PoolReport, SurvivalReport), Error> {
    let report = pool.status()?;
    let survival = report.survival.clone().ok_or_else(|| Error::NotSurviving(mount.to_owned()))?;
    Ok((report, survival))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}
