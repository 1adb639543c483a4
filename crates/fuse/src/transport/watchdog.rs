//! The watchdog, which starts more workers while others are blocked and dismisses those that are no longer needed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use canopy_sys::sched;

use super::serve::Handler;
use super::workers::{GroupSample, WorkerEnd, WorkerSlot, Workers};
use crate::notify;

/// After this time without a request the watchdog sleeps until the next one.
const QUIET: Duration = Duration::from_secs(1);
/// Starts another worker of a group, given its number.
pub(crate) type Spawn = Box<dyn FnMut(usize, WorkerSlot) -> io::Result<Spawned> + Send>;

/// A worker that was started.
pub(crate) struct Spawned {
    pub(crate) thread: JoinHandle<WorkerEnd>,
    /// Whether the kernel passes it waiting requests only after it has sent another one to the group.
    pub(crate) needs_poke: bool,
}

/// How the watchdog starts and dismisses workers of a group.
pub(crate) struct GroupSpawner {
    pub(crate) spawn: Spawn,
    /// The io_uring queue that the group serves.
    pub(crate) queue: Option<u16>,
    /// Whether its workers can leave.
    pub(crate) can_leave: bool,
}

/// The state of the watchdog thread.
pub(crate) struct Watchdog<H> {
    workers: Arc<Workers>,
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    groups: Vec<WatchedGroup>,
    started: Vec<JoinHandle<WorkerEnd>>,
    /// The number of the last worker.
    number: usize,
    /// How many notifications it has sent.
    pokes: u64,
    /// Whether it has warned that there are too few workers.
    scarce: bool,
}

struct WatchedGroup {
    spawner: GroupSpawner,
    /// How many workers it started with.
    fixed: usize,
    /// The last tick at which all its workers were needed.
    needed: u64,
    /// How many new workers still need a poke.
    unpoked: usize,
}

/// Returns how many workers a group needs that started with `fixed` of them, when `stuck` are stuck: as many that are not
/// stuck, and at least `fixed`.
fn needed(fixed: usize, stuck: usize) -> usize {
    stuck + fixed.max(stuck)
}

impl<H: Handler> Watchdog<H> {
    /// Starts the watchdog for all current workers. `number` is how many there are.
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
            unpoked: 0,
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

    /// Runs until the connection ends, and returns the workers that it has started.
    fn run(mut self) -> Vec<JoinHandle<WorkerEnd>> {
        sched::unpin();
        let workers = Arc::clone(&self.workers);
        while !workers.has_ended() {
            let now = workers.now();
            let (flows, leaving) = self.adjust(now);
            if flows {
                thread::park_timeout(workers.growth().tick);
                workers.set_now(now + 1);
                continue;
            }
            workers.set_asleep(true);
            // A request that has started in the meantime may have seen the watchdog awake.
            if !self.adjust(now).0 && !workers.has_ended() {
                match leaving {
                    true => thread::park_timeout(QUIET),
                    false => thread::park(),
                }
            }
            workers.set_asleep(false);
            // No request was in flight during this time.
            workers.set_now(now + workers.growth().ticks(QUIET));
        }
        self.started
    }

    /// Adjusts the number of workers of each group. Returns whether there were requests recently, and whether workers are
    /// to leave.
    fn adjust(&mut self, now: u64) -> (bool, bool) {
        let workers = Arc::clone(&self.workers);
        let samples: Vec<GroupSample> = (0..self.groups.len()).map(|group| workers.sample(group)).collect();
        let fixed: usize = self.groups.iter().map(|group| group.fixed).sum();
        let alive: usize = samples.iter().map(|sample| sample.alive).sum();
        let mut room = (fixed + workers.growth().max_extra).saturating_sub(alive);
        for (index, sample) in samples.iter().enumerate() {
            self.adjust_group(index, now, sample, &mut room);
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

    /// Adds workers to a group that needs more, at most `room`, and dismisses workers of a group that has needed fewer for
    /// a while.
    fn adjust_group(&mut self, index: usize, now: u64, sample: &GroupSample, room: &mut usize) {
        let workers = Arc::clone(&self.workers);
        let group = &mut self.groups[index];
        let needed = needed(group.fixed, sample.stuck);
        if sample.alive > needed {
            let over = sample.alive - needed;
            if group.spawner.can_leave && now.saturating_sub(group.needed) >= workers.growth().idle_ticks {
                workers.shrink(index, needed);
                // Workers that have not left are dismissed again after some time.
                group.needed = now
                    .saturating_sub(workers.growth().idle_ticks - workers.growth().idle_ticks.div_ceil(10));
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
                        self.groups[index].unpoked += usize::from(needs_poke);
                        *room -= 1;
                    }
                    Err(why) => {
                        self.scarce(&why.to_string());
                        break;
                    }
                }
            }
        }
        // One request for each new worker, so that all of them take waiting requests.
        while self.groups[index].unpoked > 0 && self.poke(index) {
            self.groups[index].unpoked -= 1;
        }
    }

    /// Makes the kernel send a request to a group for which no process waits. Returns false if it does not.
    fn poke(&mut self, index: usize) -> bool {
        let queue = self.groups[index].spawner.queue;
        if let Some(queue) = queue
            && let Err(error) = sched::pin_to(usize::from(queue))
        {
            tracing::debug!(%error, cpu = queue, "cannot run on the processor of this queue");
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

    /// Warns once that there are fewer workers than needed.
    fn scarce(&mut self, why: &str) {
        if !std::mem::replace(&mut self.scarce, true) {
            tracing::warn!(
                "requests may have to wait for others that wait for a disk: cannot start more workers: {why}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_needs_as_many_free_workers_as_stuck_ones() {
        for (fixed, stuck, expected) in [(4, 0, 4), (4, 1, 5), (4, 4, 8), (4, 8, 16), (1, 0, 1), (1, 1, 2)] {
            assert_eq!(needed(fixed, stuck), expected, "{stuck} of {fixed}");
        }
    }
}
