//! The brake: who removes or overwrites more files than a rule of the trash allows is told of, and stopped if the rule says so.
//!
//! A program is its name with its user: so a script that calls rm a thousand times is one, and so are the processes that Samba has
//! for a user. It is what the trash files by, so `canopy trash restore` brings back what one has removed.

use super::keep::remover;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::path::join;
use canopy_branch::branch::space::millis;
use canopy_branch::trash::Who;
use canopy_policy::brake::Outcome;
use rustix::io::Errno;
use std::time::{Duration, SystemTime};

/// A program that has removed or overwritten too much.
#[derive(Clone, Debug)]
pub struct Alarmed {
    pub who: Who,
    /// When it had.
    pub since: SystemTime,
    /// How many files it has removed or overwritten, and how often it was stopped.
    pub files: u64,
    pub refused: u64,
    /// The directory of the pool that is above all of them.
    pub path: Vec<u8>,
    pub frozen: bool,
}

/// Counts a file that is about to be removed or overwritten.
///
/// Errors: `EROFS` for a program that is to be stopped.
pub(crate) fn check(op: &Op<'_>, path: &[u8], name: &[u8]) -> Result<()> {
    let Some((rule, alarm)) = op.config.trash.alarm(|| join(path, name)) else { return Ok(()) };
    let key = (remover(op), rule);
    let outcome = op.brakes.lock().count(&key, alarm, millis(), path);
    if outcome == Outcome::Raises {
        let (program, user) = (String::from_utf8_lossy(&key.0.program), key.0.uid);
        tracing::warn!(
            "{program:?} of user {user:?} removes or overwrites more than {} files in {} s{}",
            alarm.count,
            alarm.within.as_secs(),
            if alarm.freeze { ", and is stopped" } else { "" }
        );
    }
    let is_stopped = outcome == Outcome::Refused || outcome == Outcome::Raises && alarm.freeze;
    if is_stopped { Err(Error::Branch(Errno::ROFS)) } else { Ok(()) }
}

/// Returns the programs that have removed or overwritten too much, for an hour after the last file, or until they are let go.
pub fn alarms(pool: &Pool) -> Vec<Alarmed> {
    if !pool.config().trash.has_alarms() {
        return Vec::new();
    }
    let (now, clock) = (millis(), SystemTime::now());
    let mut brakes = pool.brakes.lock();
    let raised = brakes.raised(now).iter().map(|raised| Alarmed {
        who: raised.who.0.clone(),
        since: clock - Duration::from_millis(now.saturating_sub(raised.since)),
        files: raised.files,
        refused: raised.refused,
        path: raised.path.clone(),
        frozen: raised.frozen,
    });
    raised.collect()
}

/// Lets programs go on that were stopped, and forgets their alarms: all, or those of `USER/PROGRAM`, of which one may be empty.
///
/// # Errors
/// `EINVAL` if that is not understood, `ENOENT` if no alarm is about it.
pub fn thaw(pool: &Pool, whose: &[u8]) -> std::result::Result<(), Errno> {
    let text = std::str::from_utf8(whose).map_err(|_| Errno::INVAL)?;
    let (user, program) = match text {
        "" => ("", ""),
        text => text.split_once('/').ok_or(Errno::INVAL)?,
    };
    let uid = if user.is_empty() { None } else { Some(user.parse::<u32>().map_err(|_| Errno::INVAL)?) };
    let is_meant = |who: &Who| {
        (uid.is_none() || who.uid == uid) && (program.is_empty() || who.program == program.as_bytes())
    };
    let count = pool.brakes.lock().let_go(|(who, _)| is_meant(who));
    if count == 0 && !text.is_empty() {
        return Err(Errno::NOENT);
    }
    tracing::info!("{count} programs may remove and overwrite again");
    Ok(())
}
