//! Who removes or overwrites more files within a time than a rule of the trash allows. Pure: the caller says what time it is.
//!
//! A window moves over slices of time: of each program, so many files count as it has removed within the last of them. Nothing grows
//! with what is removed: programs that have been calm for longest are forgotten first.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// More than so many files within a time are too many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alarm {
    pub count: u32,
    pub within: Duration,
    /// Who has removed them may remove no more.
    pub freeze: bool,
}

/// A window has so many parts.
const SLICES: u64 = 16;
/// So many programs are counted at once.
const MOST: usize = 1024;
/// So many alarms are remembered.
const MOST_RAISED: usize = 64;
/// After so many seconds without another file, an alarm is over, unless it has frozen the program.
const CALM: u64 = 3600;

/// An alarm that has been raised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Raised<K> {
    pub who: K,
    /// When it was raised, and when the last file went, in milliseconds.
    pub since: u64,
    pub last: u64,
    /// How many files the program has removed or overwritten, and how many it was not allowed to.
    pub files: u64,
    pub refused: u64,
    /// The directory that is above all of them.
    pub path: Vec<u8>,
    pub frozen: bool,
}

/// What becomes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Passes,
    /// It passes, unless the alarm freezes; and it is the first one that is too many.
    Raises,
    Refused,
}

struct Counter {
    slices: [u32; SLICES as usize],
    /// The slice that was counted in last, since time began.
    latest: u64,
    path: Vec<u8>,
}

/// What is known of all programs.
pub struct Brake<K> {
    counters: HashMap<K, Counter>,
    raised: Vec<Raised<K>>,
}

impl<K> Default for Brake<K> {
    fn default() -> Brake<K> {
        Brake { counters: HashMap::new(), raised: Vec::new() }
    }
}

impl<K: Clone + Eq + Hash> Brake<K> {
    /// Counts one file that `who` is about to remove or overwrite in a directory, `now` in milliseconds.
    pub fn count(&mut self, who: &K, alarm: &Alarm, now: u64, dir: &[u8]) -> Outcome {
        self.end_calm(now);
        if let Some(raised) = self.raised.iter_mut().find(|raised| raised.who == *who) {
            raised.last = now;
            narrow(&mut raised.path, dir);
            raised.frozen &= alarm.freeze;
            if raised.frozen {
                raised.refused += 1;
                return Outcome::Refused;
            }
            raised.files += 1;
            return Outcome::Passes;
        }
        let length = (u64::try_from(alarm.within.as_millis()).unwrap_or(u64::MAX) / SLICES).max(1);
        let slice = now / length;
        if self.counters.len() >= MOST && !self.counters.contains_key(who) {
            self.forget_calmest();
        }
        let new = || Counter { slices: [0; SLICES as usize], latest: slice, path: dir.to_vec() };
        let counter = self.counters.entry(who.clone()).or_insert_with(new);
        counter.count(slice, dir);
        let files = counter.files();
        if files <= u64::from(alarm.count) {
            return Outcome::Passes;
        }
        let path = std::mem::take(&mut counter.path);
        self.counters.remove(who);
        let (files, refused) = if alarm.freeze { (files - 1, 1) } else { (files, 0) };
        let raised =
            Raised { who: who.clone(), since: now, last: now, files, refused, path, frozen: alarm.freeze };
        if self.raised.len() >= MOST_RAISED {
            let over = self.raised.iter().position(|raised| !raised.frozen).unwrap_or(0);
            self.raised.remove(over);
        }
        self.raised.push(raised);
        Outcome::Raises
    }

    /// Returns the alarms that are not over, in the order in which they were raised.
    pub fn raised(&mut self, now: u64) -> &[Raised<K>] {
        self.end_calm(now);
        &self.raised
    }

    /// Lets those go on that were frozen, and ends their alarms. Returns how many there were.
    pub fn let_go(&mut self, goes: impl Fn(&K) -> bool) -> usize {
        let before = self.raised.len();
        self.counters.retain(|who, _| !goes(who));
        self.raised.retain(|raised| !goes(&raised.who));
        before - self.raised.len()
    }

    fn end_calm(&mut self, now: u64) {
        self.raised.retain(|raised| raised.frozen || now.saturating_sub(raised.last) < CALM * 1000);
    }

    /// Forgets half of the programs, those that have removed least: one that is about to be stopped is not forgotten for others that
    /// come and go.
    fn forget_calmest(&mut self) {
        let mut files: Vec<u64> = self.counters.values().map(Counter::files).collect();
        files.sort_unstable();
        let median = files[files.len() / 2];
        self.counters.retain(|_, counter| counter.files() > median);
    }
}

impl Counter {
    fn count(&mut self, slice: u64, dir: &[u8]) {
        let passed = slice.saturating_sub(self.latest).min(SLICES);
        for past in 0..passed {
            self.slices[((slice - past) % SLICES) as usize] = 0;
        }
        if self.files() == 0 {
            self.path = dir.to_vec();
        }
        self.latest = self.latest.max(slice);
        let current = &mut self.slices[(self.latest % SLICES) as usize];
        *current = current.saturating_add(1);
        narrow(&mut self.path, dir);
    }

    fn files(&self) -> u64 {
        self.slices.iter().map(|files| u64::from(*files)).sum()
    }
}

/// Cuts a path down to the part that is above another one, too.
fn narrow(path: &mut Vec<u8>, other: &[u8]) {
    let is_above = |path: &[u8]| {
        path.is_empty()
            || other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
    };
    while !is_above(path) {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        path.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(count: u32, freeze: bool) -> Alarm {
        Alarm { count, within: Duration::from_secs(60), freeze }
    }

    #[test]
    fn who_removes_more_than_so_many_in_a_minute_raises_one_alarm() {
        let mut brake = Brake::default();
        let mut count = |who, now, dir: &str| brake.count(&who, &alarm(10, false), now, dir.as_bytes());
        for second in 0..1000 {
            // Six to ten in each minute are not too many.
            assert_eq!(count("rsync", second * 8000, "backup"), Outcome::Passes, "{second}");
        }
        let begin = 1_000_000_000;
        let outcomes: Vec<Outcome> = (0..12).map(|at| count("rm", begin + at, "photos/2026/a")).collect();
        assert_eq!(outcomes.iter().position(|outcome| *outcome == Outcome::Raises), Some(10));
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Passes).count(), 11);
        count("rm", begin + 20, "photos/2025");
        let raised = brake.raised(begin + 20).to_vec();
        assert_eq!((raised.len(), raised[0].who, raised[0].files), (1, "rm", 13));
        assert_eq!((raised[0].path.as_slice(), raised[0].frozen), (&b"photos"[..], false));
        assert!(brake.raised(begin + 21 + CALM * 1000).is_empty());
    }

    #[test]
    fn who_is_frozen_stays_so_until_somebody_lets_go() {
        let mut brake = Brake::default();
        for at in 0..3 {
            assert_eq!(brake.count(&1, &alarm(3, true), at, b"d"), Outcome::Passes);
        }
        assert_eq!(brake.count(&1, &alarm(3, true), 4, b"d"), Outcome::Raises);
        assert_eq!(brake.count(&1, &alarm(3, true), 9_000_000, b"other"), Outcome::Refused);
        assert_eq!(brake.count(&2, &alarm(3, true), 9_000_000, b"d"), Outcome::Passes, "another goes on");
        let raised = brake.raised(u64::MAX)[0].clone();
        assert_eq!((raised.files, raised.refused, raised.path.as_slice()), (3, 2, &b""[..]));
        assert_eq!(brake.let_go(|who| *who == 2), 0);
        assert_eq!(brake.count(&1, &alarm(3, true), 9_000_000, b"d"), Outcome::Refused);
        assert_eq!(brake.let_go(|who| *who == 1), 1);
        assert_eq!(brake.count(&1, &alarm(3, true), 9_000_001, b"d"), Outcome::Passes);
        // A rule that does not freeze any more frees who was.
        for _ in 0..5 {
            brake.count(&1, &alarm(3, true), 9_000_002, b"d");
        }
        assert_eq!(brake.count(&1, &alarm(3, false), 9_000_003, b"d"), Outcome::Passes);
    }

    #[test]
    fn nothing_grows_and_who_removes_most_is_not_forgotten() {
        let mut brake = Brake::default();
        for who in 0..100_000_u32 {
            assert_eq!(brake.count(&who, &alarm(50, true), u64::from(who) / 100, b"d"), Outcome::Passes);
            if who % 1000 == 0 && who < 50_000 {
                assert_eq!(
                    brake.count(&u32::MAX, &alarm(50, true), u64::from(who) / 100, b"d"),
                    Outcome::Passes
                );
            }
            assert!(brake.counters.len() <= MOST);
        }
        assert_eq!(brake.count(&u32::MAX, &alarm(50, true), 1000, b"d"), Outcome::Raises);
        for who in 0..1000 {
            for _ in 0..=50 {
                brake.count(&who, &alarm(50, false), 1000, b"d");
            }
        }
        assert!(
            brake.raised.len() <= MOST_RAISED && brake.raised.iter().any(|raised| raised.who == u32::MAX)
        );
    }
}
