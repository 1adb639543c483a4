//! `canopy trash sync`: what waits for SnapRAID goes once its parity needs it no more.
//!
//! Only who starts the sync knows what it has seen. The time of a content file does not tell: it is written before the parity is,
//! and again while that is being written, and what is removed after the disks were looked at is still in it. Nor does the exit code: a
//! sync that was interrupted ends with 0.

use super::find::{Chosen, Item};
use super::{Home, TrashArgs, report};
use crate::error::{Error, Result};
use crate::output::{print, print_json};
use crate::stop::Stop;
use canopy_base::text::{bytes, os_error};
use canopy_branch::trash::sweep::Verdict;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// What `snapraid status` says of parity that fits the content files.
const COMPLETE: &str = "No sync is in progress";

/// Runs `snapraid sync`, with the options that were given. If parity is complete then, removes what had been removed before and is kept
/// until that.
pub(super) fn sync(args: &TrashArgs, home: &Home) -> Result<()> {
    let pool = home.pool.as_ref().ok_or_else(|| Error::NotWithoutPool(args.pool.clone()))?;
    let all = TrashArgs { paths: Vec::new(), ..args.clone() };
    let chosen = Chosen::of(&all, None)?;
    if !chosen.is_all() {
        return Err(Error::OnlyFiltering("sync"));
    }
    let rules = pool.daemon.get("trash").map_err(|why| Error::NotSynced(os_error(why)))?;
    let rules = canopy_config::trash::parse(&rules.to_string_lossy()).map_err(Error::NotSynced)?;
    let snapraid = |command: &str, output: Stdio| {
        let run = Command::new("snapraid").args(&args.paths).arg(command).stdout(output).spawn();
        let done = run.and_then(std::process::Child::wait_with_output);
        done.map_err(|why| Error::NotSynced(format!("snapraid cannot be run: {why}")))
    };
    // What is removed from now on may be missed.
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let began = i64::try_from(began).unwrap_or(0);
    // The output for programs is the JSON alone.
    let told = if args.json { Stdio::null() } else { Stdio::inherit() };
    if !snapraid("sync", told)?.status.success() {
        return Err(Error::NotSynced("snapraid sync has failed".to_owned()));
    }
    let status = snapraid("status", Stdio::piped())?;
    if !(status.status.success() && String::from_utf8_lossy(&status.stdout).contains(COMPLETE)) {
        return Err(Error::NotSynced("snapraid status does not say that the sync is complete".to_owned()));
    }
    let (items, failed) = home.gather(&chosen);
    let over: Vec<Item> = items
        .into_iter()
        .filter(|item| item.removed < began)
        .filter(|item| rules.waits_for_sync(item.path.as_os_str().as_bytes()))
        .collect();
    let stop = Stop::on_signals()?;
    let (mut files, mut freed) = (0_u64, 0);
    let unfinished = home.each(&over, &stop, |item, _| {
        files += 1;
        freed += item.used;
        Verdict::Goes
    });
    if args.json {
        print_json(&serde_json::json!({ "removed": { "files": files, "bytes": freed } }));
    } else {
        print(&format!("Removed from the trash: {files} files, {}\n", bytes(freed)));
    }
    report::failures(&unfinished)?;
    stop.check()?;
    match failed {
        0 => Ok(()),
        failed => Err(Error::Incomplete { failed, all: home.branches().len() as u64 }),
    }
}
