//! What was seen of a disk: when it has done something, and who has woken it.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// How many wakes are remembered of each disk.
const WAKES: usize = 8;
/// How long what was changed or opened may take to reach the disk: what filesystems keep back, and a look.
const REACHES_WITHIN: Duration = Duration::from_secs(120);
/// How long nobody else is suspected.
const SUSPECTED: Duration = Duration::from_secs(40);
/// How long a disk is remembered that is no branch's.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// Somebody who has got onto a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    pub at: SystemTime,
    /// Its number, by which its path is told.
    pub(super) number: u64,
    /// The name of the process; empty where it is not known: it is in another pid namespace, or the kernel itself.
    pub program: Vec<u8>,
    /// 0 where it is not known.
    pub pid: u32,
    pub operation: &'static str,
    /// In the pool; `None` where it is not known, or the daemon itself was it.
    pub path: Option<Vec<u8>>,
    /// It has waited for the disk. Otherwise it has only changed or opened what may reach the disk later.
    pub waited: bool,
    /// The daemon has done it of its own accord.
    pub own: bool,
}

/// A disk that rested has done something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wake {
    pub at: SystemTime,
    /// For how long it had done nothing.
    pub rested: Duration,
    /// `None`: nobody who came by the pool in time.
    pub by: Option<Touch>,
}

pub(super) struct History {
    /// When it was last seen to have done something.
    used: Instant,
    since: SystemTime,
    seen: Instant,
    suspect: Option<(Instant, Touch)>,
    wakes: VecDeque<Wake>,
    woken: u64,
    /// In all, before it was woken.
    rested: Duration,
}

impl History {
    pub(super) fn new(now: Instant) -> History {
        History {
            used: now,
            since: SystemTime::now(),
            seen: now,
            suspect: None,
            wakes: VecDeque::new(),
            woken: 0,
            rested: Duration::ZERO,
        }
    }

    pub(super) fn since(&self) -> SystemTime {
        self.since
    }

    /// Returns how often it was woken.
    pub(super) fn woken(&self) -> u64 {
        self.woken
    }

    /// Returns for how long it had rested when it was woken, in all.
    pub(super) fn rested(&self) -> Duration {
        self.rested
    }

    pub(super) fn wakes(&self) -> Vec<Wake> {
        self.wakes.iter().cloned().collect()
    }

    /// It was looked at, and has done nothing. Returns for how long.
    pub(super) fn looked(&mut self, now: Instant) -> Duration {
        self.seen = now;
        now.saturating_duration_since(self.used)
    }

    pub(super) fn used(&mut self, now: Instant) {
        (self.used, self.seen, self.since, self.suspect) = (now, now, SystemTime::now(), None);
    }

    /// It has been woken: by this one, or by the one who is suspected.
    pub(super) fn wake(&mut self, now: Instant, by: Option<Touch>) {
        let recent = |(at, touch): (Instant, Touch)| {
            (now.saturating_duration_since(at) < REACHES_WITHIN).then_some(touch)
        };
        let by = by.or_else(|| self.suspect.take().and_then(recent));
        let rested = now.saturating_duration_since(self.used);
        let at = by.as_ref().map_or_else(SystemTime::now, |touch| touch.at);
        self.wakes.push_front(Wake { at, rested, by });
        self.wakes.truncate(WAKES);
        self.woken += 1;
        self.rested = self.rested.saturating_add(rested);
        self.used(now);
    }

    pub(super) fn wants_suspect(&self, now: Instant) -> bool {
        self.suspect.as_ref().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= SUSPECTED)
    }

    pub(super) fn suspect(&mut self, now: Instant, touch: Touch) {
        if self.wants_suspect(now) {
            self.suspect = Some((now, touch));
        }
    }

    /// Sets the path of a touch.
    pub(super) fn set_path(&mut self, number: u64, path: &[u8]) {
        let woke = self.wakes.iter_mut().filter_map(|wake| wake.by.as_mut());
        let suspect = self.suspect.as_mut().map(|(_, touch)| touch);
        for touch in woke.chain(suspect).filter(|touch| touch.number == number) {
            touch.path = Some(path.to_vec());
        }
    }

    pub(super) fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.seen) >= REMEMBERED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(number: u64, program: &str) -> Touch {
        Touch {
            at: SystemTime::now(),
            number,
            program: program.into(),
            pid: 7,
            operation: "open",
            path: None,
            waited: false,
            own: false,
        }
    }

    #[test]
    fn who_was_first_to_change_something_has_woken_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut history = History::new(start);
        assert_eq!(history.looked(at(400)), Duration::from_secs(400));
        history.suspect(at(405), touch(1, "long ago"));
        history.suspect(at(600), touch(2, "first"));
        assert!(!history.wants_suspect(at(610)));
        history.suspect(at(610), touch(3, "second"));
        history.set_path(2, b"a/b");
        history.set_path(3, b"never");
        history.wake(at(620), None);
        let woke = history.wakes();
        let by = woke[0].by.as_ref().unwrap();
        assert_eq!((&*by.program, by.path.as_deref()), (&b"first"[..], Some(&b"a/b"[..])));
        assert_eq!(
            (woke.len(), woke[0].rested, history.rested()),
            (1, Duration::from_secs(620), at(620) - start)
        );
        // Its path may come later.
        history.set_path(2, b"c");
        assert_eq!(history.wakes()[0].by.as_ref().unwrap().path.as_deref(), Some(&b"c"[..]));
        assert_eq!(history.looked(at(630)), Duration::from_secs(10));
    }

    #[test]
    fn who_has_come_too_long_ago_has_not() {
        let start = Instant::now();
        let mut history = History::new(start);
        history.suspect(start, touch(1, "long ago"));
        history.wake(start + REACHES_WITHIN, None);
        assert_eq!(history.wakes()[0].by, None);
        // Nor has anybody who came before the disk had done something.
        history.suspect(start, touch(2, "before"));
        history.used(start);
        history.wake(start, None);
        assert_eq!(history.wakes()[0].by, None);
    }

    #[test]
    fn a_few_are_remembered() {
        let mut history = History::new(Instant::now());
        for number in 0..100 {
            history.wake(Instant::now(), Some(touch(number, "")));
        }
        let numbers: Vec<u64> = history.wakes().iter().map(|wake| wake.by.as_ref().unwrap().number).collect();
        assert_eq!(numbers, (92..100).rev().collect::<Vec<_>>());
    }
}
