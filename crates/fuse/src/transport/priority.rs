//! The priority of workers, which follows how busy their processors are.
//!
//! An answer wakes its client while the worker still runs on the client's processor. So the scheduler looks for an idle
//! processor, moves the client there, and the next request wakes a worker there: each request then pays for two processors
//! that leave their sleep. A processor that runs only `SCHED_IDLE` threads counts as idle (kernel/sched/fair.c,
//! `sched_idle_cpu`), so the client of such a worker stays, and takes the processor at once.
//!
//! Such a worker gets next to nothing of a processor that others keep busy. So it has this priority only after its
//! processor was idle for a while, and loses it once the processor is busy with something else than its requests. To change
//! it for each request would cost more than it saves.
//!
//! A busy processor alone is no reason: a client computes between its requests. The worker must be seen waiting for it.
//! But once all processors are full there is none to which a client could be moved. Then the low priority gains nothing, and
//! each client that wakes takes the processor from a worker that has more to answer.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use canopy_sys::thread::sched;

use super::workers::{GroupSample, Workers};

/// Which priority the workers have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WorkerPriority {
    /// `SCHED_IDLE` while their processors have room, if the process may take it back.
    #[default]
    Auto,
    /// That of the process.
    Normal,
}

/// How many workers have the low priority at present.
#[derive(Clone, Debug, Default)]
pub struct LowWorkers(Arc<AtomicUsize>);

impl LowWorkers {
    /// Returns the number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }
}

/// A group gets the low priority if its processors were idle for this share of one processor's time.
const ROOM: f64 = 0.25;
/// It keeps it while they are idle for this share, while it serves this many requests in a period, or while none of its
/// workers waits for a processor.
const LITTLE_ROOM: f64 = 0.05;
const PROGRESS: u64 = 16;
/// It loses it after so many periods in a row in which all processors together had no more room than that.
const FULL_PERIODS: u32 = 5;
/// After it has lost it because its workers waited, it does not get it again for this time, and each time twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A group that has kept it for this time begins with the first pause again.
const CALM: Duration = Duration::from_secs(10);

/// The length of a period, in ticks.
const PERIOD: u64 = 2;
/// After this time without a decision, nothing flowed, and what the processors did meanwhile says nothing.
const STALE: Duration = Duration::from_millis(500);

/// The priorities of the workers of all groups.
pub(super) struct Priorities {
    processors: Processors,
    groups: Vec<Group>,
    low: LowWorkers,
    /// The tick of the last decision.
    decided: u64,
}

struct Group {
    chooser: Chooser,
    /// How many requests its workers had begun at the last decision.
    begun: u64,
}

impl Priorities {
    /// Returns `None` where the low priority cannot be used.
    pub(super) fn new(groups: usize, low: LowWorkers) -> Option<Priorities> {
        let processors = Processors::open();
        if processors.is_none() {
            tracing::debug!("workers keep their priority: the process could not take a low one back");
        }
        let now = Instant::now();
        let groups = (0..groups).map(|_| Group { chooser: Chooser::new(now), begun: 0 }).collect();
        Some(Priorities { processors: processors?, groups, low, decided: 0 })
    }

    /// Sets the priority of the workers, at the end of each period and at once if some are stuck. For each group, `samples`
    /// has its io_uring queue and its state.
    pub(super) fn adjust<'a>(
        &mut self,
        workers: &Workers,
        samples: impl Iterator<Item = (Option<u16>, &'a GroupSample)> + Clone,
        tick: u64,
        now: Instant,
    ) {
        let stuck = samples.clone().any(|(_, sample)| sample.stuck > 0);
        let due = tick.saturating_sub(self.decided) >= PERIOD || (stuck && self.low.count() > 0);
        if !due {
            return;
        }
        let fresh = now.saturating_duration_since(self.processors.read) < STALE;
        let Some(idle) = self.processors.read() else { return };
        self.decided = tick;
        let single = self.groups.len() == 1;
        let total: f64 = idle.iter().flatten().sum();
        let mut count = 0;
        for (index, (group, (queue, sample))) in self.groups.iter_mut().zip(samples).enumerate() {
            let idle = match queue {
                Some(queue) => idle.get(usize::from(queue)).copied().flatten(),
                // Its threads run on any processor.
                None if single => Some(total),
                // Over io_uring, it has nothing that a client waits for.
                None => None,
            };
            // Workers that have left take their count with them.
            let begun = sample.begun.saturating_sub(std::mem::replace(&mut group.begun, sample.begun));
            if let Some(idle) = idle.filter(|_| fresh) {
                // To look costs most, and matters only there.
                let starving = group.chooser.low && idle < LITTLE_ROOM && begun < PROGRESS;
                let ready = starving && workers.any_runnable(index);
                group.chooser.choose(Period { idle, total, begun, ready, stuck: sample.stuck > 0 }, now);
            }
            count += workers.set_low(index, group.chooser.low);
        }
        self.low.set(count);
    }
}

/// What has happened to a group in a period.
#[derive(Clone, Copy, Debug)]
struct Period {
    /// How long its processors were idle, as a multiple of the period.
    idle: f64,
    /// The same for all processors of the machine.
    total: f64,
    /// How many requests it has begun.
    begun: u64,
    /// Whether a worker was ready to run at its end.
    ready: bool,
    /// Whether one of its workers is stuck.
    stuck: bool,
}

/// Whether a group has the low priority.
#[derive(Debug)]
struct Chooser {
    low: bool,
    /// Since when it is as it is.
    since: Instant,
    /// For how many periods all processors have been full.
    full: u32,
    pause: Duration,
}

impl Chooser {
    fn new(now: Instant) -> Chooser {
        let since = now.checked_sub(FIRST_PAUSE).unwrap_or(now);
        Chooser { low: false, since, full: 0, pause: FIRST_PAUSE }
    }

    /// Returns whether the group is to have the low priority after this period.
    fn choose(&mut self, period: Period, now: Instant) -> bool {
        let Period { idle, total, begun, ready, stuck } = period;
        let held = now.saturating_duration_since(self.since);
        self.full = if total < LITTLE_ROOM { self.full + 1 } else { 0 };
        let waits = stuck || (idle < LITTLE_ROOM && begun < PROGRESS && ready);
        let low = if self.low {
            !waits && self.full < FULL_PERIODS
        } else {
            !stuck && begun > 0 && idle >= ROOM && held >= self.pause
        };
        if low != self.low {
            match (self.low, held >= CALM) {
                (true, true) => self.pause = FIRST_PAUSE,
                (true, false) if waits => self.pause = (self.pause * 2).min(LONGEST_PAUSE),
                _ => {}
            }
            (self.low, self.since) = (low, now);
        }
        low
    }
}

/// How long the processors were idle, from /proc/stat.
struct Processors {
    stat: File,
    buffer: Vec<u8>,
    /// The idle time of each processor at the last reading, in clock ticks. Processors that are offline have none.
    last: Vec<Option<u64>>,
    read: Instant,
    ticks_per_second: f64,
}

impl Processors {
    /// Opens /proc/stat; `None` where it cannot be read or where the process could not take the low priority back.
    fn open() -> Option<Processors> {
        if !sched::can_leave_idle_only() {
            return None;
        }
        let mut processors = Processors {
            stat: File::open("/proc/stat").ok()?,
            buffer: vec![0; 4096],
            last: Vec::new(),
            read: Instant::now(),
            ticks_per_second: rustix::param::clock_ticks_per_second() as f64,
        };
        processors.read().is_some().then_some(processors)
    }

    /// Returns for how much of the time since the last call each processor was idle.
    fn read(&mut self) -> Option<Vec<Option<f64>>> {
        let len = loop {
            let len = self.stat.read_at(&mut self.buffer, 0).ok()?;
            // The processors come first. What follows is not needed, unless they fill the buffer.
            if len < self.buffer.len() || find_end(&self.buffer[..len]).is_some() {
                break len;
            }
            self.buffer.resize(2 * len, 0);
        };
        let now = Instant::now();
        let idle = parse(std::str::from_utf8(&self.buffer[..len]).ok()?);
        let ticks = (now - self.read).as_secs_f64() * self.ticks_per_second;
        let share = |(number, idle): (usize, &Option<u64>)| {
            let before = self.last.get(number).copied().flatten()?;
            Some((idle.as_ref()?.saturating_sub(before) as f64 / ticks.max(f64::MIN_POSITIVE)).min(1.0))
        };
        let shares = idle.iter().enumerate().map(share).collect();
        (self.last, self.read) = (idle, now);
        Some(shares)
    }
}

/// Returns where the lines of the processors end.
fn find_end(text: &[u8]) -> Option<usize> {
    text.windows(2).position(|two| two[0] == b'\n' && two[1] != b'c')
}

/// Returns the idle time of each processor: the fourth and fifth figure of its line (proc_stat(5)).
fn parse(text: &str) -> Vec<Option<u64>> {
    let mut all = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("cpu") else { break };
        let mut words = rest.split(' ');
        let Some(number) = words.next().and_then(|number| number.parse::<usize>().ok()) else { continue };
        let mut figures = words.skip(3).map(|figure| figure.parse::<u64>().ok());
        let idle = figures.next().flatten().zip(figures.next().flatten()).map(|(idle, iowait)| idle + iowait);
        all.resize(all.len().max(number + 1), None);
        all[number] = idle;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Period = Period { idle: 1.0, total: 2.0, begun: 1, ready: false, stuck: false };
    const FULL: Period = Period { idle: 0.0, total: 1.0, begun: 3, ready: true, stuck: false };

    #[test]
    fn the_priority_is_low_while_there_is_room_or_progress() {
        let start = Instant::now();
        let mut chooser = Chooser::new(start);
        assert!(!chooser.choose(FULL, start), "a busy processor");
        assert!(!chooser.choose(Period { begun: 0, ..QUIET }, start), "no requests");
        assert!(!chooser.choose(Period { stuck: true, ..QUIET }, start), "stuck");
        assert!(chooser.choose(QUIET, start));
        assert!(chooser.choose(Period { begun: 0, ..QUIET }, start), "it stays");
        assert!(chooser.choose(Period { begun: PROGRESS, ..FULL }, start), "busy with its requests");
        assert!(
            chooser.choose(Period { ready: false, ..FULL }, start),
            "busy with other things, but not needed"
        );
        assert!(!chooser.choose(Period { stuck: true, ..QUIET }, start), "stuck");
    }

    #[test]
    fn full_processors_end_it_even_if_requests_flow() {
        let start = Instant::now();
        let mut chooser = Chooser::new(start);
        let full = Period { total: 0.0, begun: PROGRESS, ..FULL };
        assert!(chooser.choose(QUIET, start));
        for _ in 1..FULL_PERIODS {
            assert!(chooser.choose(full, start));
        }
        assert!(chooser.choose(Period { total: 1.0, ..full }, start), "a moment of room");
        for _ in 1..FULL_PERIODS {
            assert!(chooser.choose(full, start));
        }
        assert!(!chooser.choose(full, start));
        // Nobody waited, so the pause does not grow.
        assert!(chooser.choose(QUIET, start + FIRST_PAUSE));
    }

    #[test]
    fn it_returns_after_pauses_that_grow() {
        let start = Instant::now();
        let mut chooser = Chooser::new(start);
        let mut now = start;
        for pause in [1, 2, 4, 8].map(|times| FIRST_PAUSE * times) {
            assert!(chooser.choose(QUIET, now), "{pause:?}");
            assert!(!chooser.choose(FULL, now));
            // It grows with each loss.
            let pause = pause * 2;
            assert!(!chooser.choose(QUIET, now + pause - Duration::from_millis(1)), "{pause:?}");
            now += pause;
        }
        assert!(chooser.choose(QUIET, now));
        // After a calm time, the first pause holds again.
        now += CALM;
        assert!(!chooser.choose(FULL, now));
        assert!(!chooser.choose(QUIET, now + FIRST_PAUSE / 2));
        assert!(chooser.choose(QUIET, now + FIRST_PAUSE));
    }

    #[test]
    fn the_idle_time_of_each_processor_is_read() {
        let text = "cpu  9 9 9 9 9 9 0 0 0 0\ncpu0 1 2 3 40 5 6 0 0 0 0\ncpu2 1 2 3 70 1 6\nintr 5\n";
        assert_eq!(parse(text), [Some(45), None, Some(71)]);
        assert_eq!(parse("cpu0 1 2 3 x 5\ncpu1 1\n"), [None, None]);
        assert!(find_end(text.as_bytes()).is_some() && find_end(b"cpu0 1\ncpu1 2").is_none());
        let mut processors = Processors::open().expect("/proc/stat");
        std::thread::sleep(Duration::from_millis(30));
        let shares = processors.read().expect("/proc/stat");
        assert!(shares.iter().flatten().next().is_some(), "{shares:?}");
        assert!(shares.iter().flatten().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
    }
}
