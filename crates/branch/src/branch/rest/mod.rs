//! Disks that have had nothing to do for so long that they may sleep, and who wakes them.
//!
//! A disk that turns rests if the block layer has completed no request of it for a while, whoever made it: its counters are looked
//! at now and then ([`look`]), without touching the disk. While a branch is on a disk that rests, whoever gets onto the branch looks,
//! after calls that took long, whether the disk has done something meanwhile: then these calls have woken it. What was only changed,
//! opened, or read from memory (which sets a time), may reach the disk later, and is found with the next look. Where it finds nobody,
//! a program past the pool has woken the disk, or one that has had a file open for long.
//!
//! While no disk rests, all this costs one relaxed load.

mod client;
mod history;

pub use client::{Client, Serving, serve, set_path, wants_path};
pub use history::{Touch, Wake};

use super::{Branch, BranchId, Branches};
use crate::fs::disk::{Activity, Disk};
use arc_swap::ArcSwapOption;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use history::History;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A disk rests if it has had nothing to do for so long. Nobody has disks spin down sooner: it wears them out.
pub const RESTS_AFTER: Duration = Duration::from_secs(300);
/// Calls that are answered from memory take less.
const NOTICED: Duration = Duration::from_micros(20);

/// Whether any disk rests.
static ANY: AtomicBool = AtomicBool::new(false);
/// The disks of all branches.
static DISKS: ArcSwapOption<Vec<(BranchId, Disks)>> = ArcSwapOption::const_empty();
/// By the name in /dev, so that a disk which comes back goes on with what was seen of it.
static KNOWN: Mutex<BTreeMap<String, Arc<Watched>>, rank::Leaf> = Mutex::new(BTreeMap::new());

type Disks = SmallVec<[Arc<Watched>; 1]>;

/// A disk of a branch.
struct Watched {
    disk: Disk,
    solid: bool,
    rests: AtomicBool,
    /// How many requests it had completed at the last look, and how many reads.
    completed: AtomicU64,
    reads: AtomicU64,
    history: Mutex<History, rank::Leaf>,
}

/// What is known of a disk.
#[derive(Clone, Debug)]
pub struct DiskRest {
    pub disk: Disk,
    pub branches: Vec<BranchId>,
    /// It never sleeps, because nothing in it turns.
    pub solid: bool,
    /// It has had nothing to do for so long that it may sleep.
    pub rests: bool,
    /// The last time at which it was seen to have done something, or else since when it is looked at.
    pub since: SystemTime,
    /// How often it was woken, how long it had rested before that in all, and by whom the last times, the latest first.
    pub woken: u64,
    pub rested: Duration,
    pub wakes: Vec<Wake>,
}

/// Looks at the disks of all branches, which rest after this time. Takes no time of any disk.
pub fn look(branches: &Branches, after: Duration) {
    let now = Instant::now();
    let of_branch = |branch: &Branch| -> Disks {
        let whole = branch.disks().into_iter().flat_map(|part| part.whole());
        let mut disks: Disks = whole.map(|disk| Watched::of(&disk, now)).collect();
        disks.dedup_by(|one, other| Arc::ptr_eq(one, other));
        disks
    };
    let on: Vec<(BranchId, Disks)> = branches.iter().map(|branch| (branch.id, of_branch(branch))).collect();
    let known: Vec<Arc<Watched>> = KNOWN.lock().values().cloned().collect();
    known.iter().for_each(|disk| disk.look(after, now));
    let is_on = |disk: &Arc<Watched>| on.iter().any(|(_, disks)| contains(disks, disk));
    let old: Vec<Arc<Watched>> = known.into_iter().filter(|disk| !is_on(disk) && disk.is_old(now)).collect();
    KNOWN.lock().retain(|_, disk| !old.iter().any(|old| Arc::ptr_eq(old, disk)));
    DISKS.store(Some(Arc::new(on)));
    look_whether_any();
}

/// Returns what is known of the disks of all branches, in the order of their names. Touches no disk.
pub fn disks() -> Vec<DiskRest> {
    let on = DISKS.load_full().unwrap_or_default();
    let known: Vec<Arc<Watched>> = KNOWN.lock().values().cloned().collect();
    let report = |disk: Arc<Watched>| {
        let is_on = on.iter().filter(|(_, disks)| contains(disks, &disk));
        let branches: Vec<BranchId> = is_on.map(|(branch, _)| *branch).collect();
        let history = disk.history.lock();
        let (since, woken, rested) = (history.since(), history.woken(), history.rested());
        let wakes = history.wakes();
        let rests = disk.rests.load(Ordering::Relaxed);
        (!branches.is_empty()).then(|| DiskRest {
            disk: disk.disk.clone(),
            branches,
            solid: disk.solid,
            rests,
            since,
            woken,
            rested,
            wakes,
        })
    };
    known.into_iter().filter_map(report).collect()
}

/// Returns whether a branch is on a disk that rests.
pub fn may_sleep(branch: BranchId) -> bool {
    if !any_rests() {
        return false;
    }
    let on = DISKS.load();
    let disks = on.iter().flat_map(|on| on.iter()).find(|(id, _)| *id == branch).map(|(_, disks)| disks);
    disks.is_some_and(|disks| disks.iter().any(|disk| disk.rests.load(Ordering::Relaxed)))
}

/// Returns whether any disk rests.
#[inline]
pub fn any_rests() -> bool {
    ANY.load(Ordering::Relaxed)
}

fn look_whether_any() {
    let on = DISKS.load();
    let mut disks = on.iter().flat_map(|on| on.iter()).flat_map(|(_, disks)| disks);
    ANY.store(disks.any(|disk| disk.rests.load(Ordering::Relaxed)), Ordering::Relaxed);
}

fn contains(disks: &Disks, disk: &Arc<Watched>) -> bool {
    disks.iter().any(|one| Arc::ptr_eq(one, disk))
}

/// Calls on a branch whose disk rests.
pub(super) struct Arrival {
    at: Instant,
    disks: Disks,
}

/// Begins calls on a branch. `None` if its disks do not rest.
#[inline]
pub(super) fn arrive(branch: BranchId) -> Option<Arrival> {
    if any_rests() { Arrival::at(branch) } else { None }
}

impl Arrival {
    #[cold]
    fn at(branch: BranchId) -> Option<Arrival> {
        let on = DISKS.load();
        let (_, disks) = on.iter().flat_map(|on| on.iter()).find(|(id, _)| *id == branch)?;
        let rest = disks.iter().filter(|disk| disk.rests.load(Ordering::Relaxed));
        let disks: Disks = rest.cloned().collect();
        (!disks.is_empty()).then(|| Arrival { at: Instant::now(), disks })
    }

    /// The calls have returned.
    #[cold]
    pub(super) fn leave(self, changes: bool) {
        let waited = self.at.elapsed() >= NOTICED;
        for disk in &self.disks {
            let activity = if waited { disk.disk.activity() } else { None };
            // What is written meanwhile, others may have kept back.
            let has_waited_for = |activity: &Activity| {
                activity.reads != disk.reads.load(Ordering::Relaxed)
                    || changes && activity.completed != disk.completed.load(Ordering::Relaxed)
            };
            match activity.filter(has_waited_for) {
                Some(activity) => disk.wake(activity),
                None if changes || client::reaches_it_later() => disk.suspect(),
                None => {}
            }
        }
    }
}

impl Watched {
    /// Returns the one for a disk.
    fn of(disk: &Disk, now: Instant) -> Arc<Watched> {
        if let Some(known) = KNOWN.lock().get(&disk.name).filter(|known| known.disk == *disk) {
            return Arc::clone(known);
        }
        let activity = disk.activity().unwrap_or_default();
        let new = Arc::new(Watched {
            disk: disk.clone(),
            solid: disk.is_solid(),
            rests: AtomicBool::new(false),
            completed: AtomicU64::new(activity.completed),
            reads: AtomicU64::new(activity.reads),
            history: Mutex::new(History::new(now)),
        });
        KNOWN.lock().insert(disk.name.clone(), Arc::clone(&new));
        new
    }

    fn look(&self, after: Duration, now: Instant) {
        let Some(activity) = self.disk.activity() else { return };
        self.reads.store(activity.reads, Ordering::Relaxed);
        if self.completed.swap(activity.completed, Ordering::Relaxed) == activity.completed {
            let idle = self.history.lock().looked(now);
            self.rests.store(idle >= after && !self.solid, Ordering::Relaxed);
        } else if self.rests.swap(false, Ordering::Relaxed) {
            self.history.lock().wake(now, None);
        } else {
            self.history.lock().used(now);
        }
    }

    /// The calling thread's calls have woken the disk.
    fn wake(self: &Arc<Self>, activity: Activity) {
        // The first one has.
        if self.rests.swap(false, Ordering::Relaxed) {
            self.completed.store(activity.completed, Ordering::Relaxed);
            self.reads.store(activity.reads, Ordering::Relaxed);
            let touch = client::touch(self, true);
            self.history.lock().wake(Instant::now(), Some(touch));
            look_whether_any();
        }
    }

    /// What the calling thread has done may reach the disk later.
    fn suspect(self: &Arc<Self>) {
        let now = Instant::now();
        if self.history.lock().wants_suspect(now) {
            let touch = client::touch(self, false);
            self.history.lock().suspect(now, touch);
        }
    }

    /// Returns whether it has been missing for long.
    fn is_old(&self, now: Instant) -> bool {
        self.history.lock().is_old(now)
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.disk.name)
    }
}
