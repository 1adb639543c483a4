//! What a job that is due may have to wait for.

use crate::table::Job;
use canopy_config::source::named::NamedPool;
use canopy_control::calm;
use canopy_control::daemon::Daemon;
use canopy_sys::mountinfo::{self, MountEntry};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the requests of a pool are counted at least.
const COUNT: Duration = Duration::from_secs(1);
/// What was counted so long ago says nothing of now.
const LONG: Duration = Duration::from_secs(600);

/// What a look at a pool and its disks gives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Branches whose disks say that they fail.
    pub failing: Vec<String>,
    /// Disks that sleep, by their names in /dev.
    pub asleep: Vec<String>,
}

/// Looks at the pool that is mounted here, without waking a disk.
pub type Eyes<'e> = &'e dyn Fn(&Path) -> Result<Look, String>;

/// Returns where a pool is mounted.
pub(crate) fn mounted(pool: &NamedPool) -> Option<MountEntry> {
    let place = pool.mountpoint().and_then(|place| mountinfo::listed_path(&place).ok());
    let mut mounts = mountinfo::list().unwrap_or_default();
    mounts.retain(MountEntry::is_pool);
    let here = mounts.iter().rposition(|mounted| Some(&mounted.mountpoint) == place.as_ref());
    let named = || mounts.iter().rposition(|mounted| mounted.source == *OsStr::new(&pool.name));
    here.or_else(named).map(|at| mounts.swap_remove(at))
}

/// Returns whether the trash of a pool keeps something until SnapRAID does not need it any more.
pub(crate) fn trash_waits_for_sync(pool: &MountEntry) -> bool {
    let Ok(rules) = Daemon::of(pool).get("trash") else { return false };
    canopy_config::trash::parse(&rules.to_string_lossy()).is_ok_and(|rules| rules.any_waits_for_sync())
}

/// Counts the requests of pools from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    counts: HashMap<PathBuf, (Instant, u64)>,
}

impl Gates {
    /// Returns why a job should not begin now.
    pub(crate) fn disturbance(&mut self, job: &Job, pool: &MountEntry, eyes: Eyes<'_>) -> Option<String> {
        if job.idle
            && let Some(why) = self.noise(pool)
        {
            return Some(why);
        }
        if !job.awake_only {
            return None;
        }
        match eyes(&pool.mountpoint) {
            Err(why) => Some(why),
            Ok(Look { asleep, .. }) if asleep.is_empty() => None,
            Ok(Look { asleep, .. }) => Some(match &asleep[..] {
                [one] => format!("the disk {one} sleeps"),
                _ => format!("the disks {} sleep", asleep.join(", ")),
            }),
        }
    }

    /// Forgets what was counted of a pool: its own jobs make requests, too.
    pub(crate) fn begins(&mut self, pool: &MountEntry) {
        self.counts.remove(&pool.mountpoint);
    }

    fn noise(&mut self, pool: &MountEntry) -> Option<String> {
        let Some(answered) = calm::answered(&Daemon::of(pool)) else {
            return Some("the pool does not answer".into());
        };
        let now = Instant::now();
        let counted = self.counts.get(&pool.mountpoint).copied();
        let Some((since, before)) = counted.filter(|(since, _)| now.duration_since(*since) < LONG) else {
            self.counts.insert(pool.mountpoint.clone(), (now, answered));
            return Some("the pool is looked at first".into());
        };
        let time = now.duration_since(since);
        if time < COUNT {
            return Some("the pool is looked at first".into());
        }
        self.counts.insert(pool.mountpoint.clone(), (now, answered));
        calm::disturbance(answered.saturating_sub(before), time).map(str::to_owned)
    }
}
