//! Starts more workers while the others wait, and has those leave that are not needed any more.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use canopy_sys::sched;

use super::serve::Handler;
use super::workers::{GroupSample, WorkerEnd, WorkerSlot, Workers};
use crate::notify;

/// After so long without a request the watchdog sleeps until the next one.
const QUIET: Duration = Duration::from_secs(1);
/// Starts one more worker of a group, with this number.
pub(crate) type Spawn = Box<dyn FnMut(usize, WorkerSlot) -> io::Result<Spawned> + Send>;

pub(crate) struct Spawned {
    pub(crate) thread: JoinHandle<WorkerEnd>,
    /// What waits in its group has to be pointed out to it.
    pub(crate) needs_poke: bool,
}

/// A group as the watchdog knows it.
pub(crate) struct GroupSpawner {
    pub(crate) spawn: Spawn,
    /// The queue of io_uring that it serves.
    pub(crate) queue: Option<u16>,
    /// Whether its workers can leave.
    pub(crate) can_leave: bool,
}

/// Looks after the workers.
pub(crate) struct Watchdog<H> {
    workers: Arc<Workers>,
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    groups: Vec<WatchedGroup>,
    started: Vec<JoinHandle<WorkerEnd>>,
    number: usize,
    /// Notifications sent.
    pokes: u64,
    /// It has been said that there are too few.
    scarce: bool,
}

struct WatchedGroup {
    spawner: GroupSpawner,
    /// Workers that it began with.
    fixed: usize,
    /// The last tick at which all were needed.
    needed: u64,
    /// Workers that have joined, and were not shown what waits.
    unshown: usize,
}

/// How many workers a group needs that began with `fixed`, and of which so many are stuck: as many others.
fn needed(fixed: usize, stuck: usize) -> usize {
    stuck + fixed.max(stuck)
}

impl<H: Handler> Watchdog<H> {
    /// Starts it, over all workers that there are now. `number` is that of the next one.
    pub(crate) fn start(
        workers: &Arc<Workers>,
        device: &Arc<OwnedFd>,
        handler: &Arc<H>,
        spawners: Vec<GroupSpawner>,
        number: usize,
    ) -> io::Result<JoinHandle<Vec<JoinHandle<WorkerEnd>>>> {
        let watched = |(group, spawner): (usize, GroupSpawner)| WatchedGroup {
            spawner,
            fixed: workers.count(group),
            needed: 0,
            unshown: 0,
        };
        let watchdog = Watchdog {
            workers: Arc::clone(workers),
            device: Arc::clone(device),
            handler: Arc::clone(handler),
            groups: spawners.into_iter().enumerate().map(watched).collect(),
            started: Vec::new(),
            number,
            pokes: 0,
            scarce: false,
        };
        let thread = thread::Builder::new().name("canopy-watchdog".into()).spawn(move || watchdog.run())?;
        workers.set_watchdog(thread.thread().clone());
        Ok(thread)
    }

    /// Gives back the workers that it has started, which end with the connection.
    fn run(mut self) -> Vec<JoinHandle<WorkerEnd>> {
        sched::unpin();
        let workers = Arc::clone(&self.workers);
        while !workers.has_ended() {
            let now = workers.now();
            let (flows, leaving) = self.look(now);
            if flows {
                thread::park_timeout(workers.growth().tick);
                workers.set_now(now + 1);
                continue;
            }
            workers.set_asleep(true);
            // What began meanwhile may have found it awake.
            if !self.look(now).0 && !workers.has_ended() {
                match leaving {
                    true => thread::park_timeout(QUIET),
                    false => thread::park(),
                }
            }
            workers.set_asleep(false);
            // No request has waited in this time.
            workers.set_now(now + workers.growth().ticks(QUIET));
        }
        self.started
    }

    /// Sees to each group. Tells whether requests flow, and whether workers are to leave.
    fn look(&mut self, now: u64) -> (bool, bool) {
        let workers = Arc::clone(&self.workers);
        let samples: Vec<GroupSample> = (0..self.groups.len()).map(|group| workers.sample(group)).collect();
        let fixed: usize = self.groups.iter().map(|group| group.fixed).sum();
        let alive: usize = samples.iter().map(|sample| sample.alive).sum();
        let mut room = (fixed + workers.growth().most).saturating_sub(alive);
        for (index, sample) in samples.iter().enumerate() {
            self.tend(index, now, sample, &mut room);
        }
        self.started.retain(|thread| !thread.is_finished());
        if alive <= fixed {
            self.scarce = false;
        }
        let quiet = workers.growth().ticks(QUIET);
        let flows = samples.iter().any(|sample| sample.busy || now.saturating_sub(sample.latest) < quiet);
        let leaving = |(group, sample): (&WatchedGroup, &GroupSample)| {
            group.spawner.can_leave && sample.alive > group.fixed
        };
        (flows, self.groups.iter().zip(&samples).any(leaving))
    }

    /// Adds workers to a group that needs more, `room` at most, and takes them away from one that has needed less for a while.
    fn tend(&mut self, index: usize, now: u64, sample: &GroupSample, room: &mut usize) {
        let workers = Arc::clone(&self.workers);
        let group = &mut self.groups[index];
        let needed = needed(group.fixed, sample.stuck);
        if sample.alive > needed {
            let over = sample.alive - needed;
            if group.spawner.can_leave && now.saturating_sub(group.needed) >= workers.growth().idle {
                workers.shrink(index, needed);
                // Those that are left will be asked again after some time.
                group.needed = now.saturating_sub(workers.growth().idle - workers.growth().idle.div_ceil(10));
                for _ in 0..over {
                    if !self.poke(index) {
                        break;
                    }
                }
            }
        } else {
            group.needed = now;
            workers.keep_all(index);
            let missing = needed - sample.alive;
            if missing > *room {
                self.scarce(&format!("there are {} already", sample.alive));
            }
            for _ in 0..missing.min(*room) {
                self.number += 1;
                let slot = workers.slot(index);
                match (self.groups[index].spawner.spawn)(self.number, slot) {
                    Ok(Spawned { thread, needs_poke }) => {
                        self.started.push(thread);
                        self.groups[index].unshown += usize::from(needs_poke);
                        *room -= 1;
                    }
                    Err(why) => {
                        self.scarce(&why.to_string());
                        break;
                    }
                }
            }
        }
        // One request for each: what waits is then taken by all of them.
        while self.groups[index].unshown > 0 && self.poke(index) {
            self.groups[index].unshown -= 1;
        }
    }

    /// Has the kernel send a request to a group that nobody waits for. False if it does not.
    fn poke(&mut self, index: usize) -> bool {
        let queue = self.groups[index].spawner.queue;
        if let Some(queue) = queue
            && let Err(error) = sched::pin_to(usize::from(queue))
        {
            tracing::debug!(%error, cpu = queue, "cannot run on this processor");
            return false;
        }
        let sent = self.handler.known_files().into_iter().any(|file| {
            self.pokes += 1;
            notify::retrieve_nothing(&self.device, file, self.pokes).is_ok()
        });
        if queue.is_some() {
            sched::unpin();
        }
        sent
    }

    /// Says once that there are not as many workers as are needed.
    fn scarce(&mut self, why: &str) {
        if !std::mem::replace(&mut self.scarce, true) {
            tracing::warn!(
                "requests may have to wait for others that wait for a disk: no more workers, {why}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_others_as_are_stuck() {
        for (fixed, stuck, expected) in [(4, 0, 4), (4, 1, 5), (4, 4, 8), (4, 8, 16), (1, 0, 1), (1, 1, 2)] {
            assert_eq!(needed(fixed, stuck), expected, "{stuck} of {fixed}");
        }
    }
}
