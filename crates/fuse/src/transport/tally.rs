//! What workers have answered, counted in their states.
//!
//! A worker counts while it holds the lock of its state, which it takes for each request anyway, in memory that no other
//! worker writes to. So counting costs a few instructions, and no cache line travels.
//!
//! Two readings of the clock would cost more than everything else here. So only some requests are timed, chosen by chance:
//! with a fixed distance, work that repeats the same few requests would always be timed at the same one. What takes long
//! is counted without the clock, because the watchdog has asked about it.

use std::time::Instant;

use crate::opcode::Opcode;

/// The upper bounds of the buckets for times, in nanoseconds. The last bucket has none.
pub const BOUNDS: [u64; 9] =
    [10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];
/// One request in so many is timed, on average.
pub const ONE_IN: u32 = 16;

/// More than the number of any operation that a pool answers.
const KINDS: usize = 64;
/// More than any errno of Linux, but for those that are internal to the kernel.
const ERRNOS: usize = 134;

/// What was answered of one kind of operation.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct KindTally {
    /// How many requests.
    pub answered: u64,
    /// How many of them with an error.
    pub failed: u64,
    /// How many of them took so long that the watchdog asked about them ([`WorkerGrowth`](super::WorkerGrowth)).
    pub slow: u64,
    /// How many of them were timed.
    pub timed: u64,
    /// How long those took in all, from their arrival at the worker until their answer was made.
    pub nanoseconds: u64,
    /// How many of those took at most as long as each of [`BOUNDS`] but longer than the one before, and how many longer.
    pub buckets: [u64; BOUNDS.len() + 1],
}

/// What one worker, or several, have answered.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// By opcode. Numbers that are too large count as 0, which no operation has.
    kinds: [KindTally; KINDS],
    /// How many answers were each errno. Those that are too large count as 0.
    errors: [u64; ERRNOS],
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { kinds: [KindTally::default(); KINDS], errors: [0; ERRNOS] }
    }
}

impl Tally {
    fn kind(&mut self, opcode: u32) -> &mut KindTally {
        let slot = opcode as usize;
        &mut self.kinds[if slot < KINDS { slot } else { 0 }]
    }

    /// Counts an answer with a positive errno, or 0.
    pub(super) fn count(&mut self, opcode: u32, errno: i32, slow: bool) {
        let kind = self.kind(opcode);
        kind.answered += 1;
        kind.slow += u64::from(slow);
        if errno != 0 {
            kind.failed += 1;
            let slot = errno.unsigned_abs() as usize;
            self.errors[if slot < ERRNOS { slot } else { 0 }] += 1;
        }
    }

    /// Counts how long a request took.
    #[cold]
    pub(super) fn time(&mut self, opcode: u32, nanoseconds: u64) {
        let bucket = BOUNDS.partition_point(|&bound| bound < nanoseconds);
        let kind = self.kind(opcode);
        kind.timed += 1;
        kind.nanoseconds += nanoseconds;
        kind.buckets[bucket] += 1;
    }

    pub(super) fn add(&mut self, other: &Tally) {
        for (kind, more) in self.kinds.iter_mut().zip(&other.kinds) {
            kind.answered += more.answered;
            kind.failed += more.failed;
            kind.slow += more.slow;
            kind.timed += more.timed;
            kind.nanoseconds += more.nanoseconds;
            kind.buckets.iter_mut().zip(more.buckets).for_each(|(count, more)| *count += more);
        }
        self.errors.iter_mut().zip(other.errors).for_each(|(count, more)| *count += more);
    }

    /// Returns the kinds of operations that were answered.
    pub(super) fn kinds(&self) -> Vec<(Opcode, KindTally)> {
        let known = |number: usize| Opcode::from_u32(u32::try_from(number).ok()?);
        let kinds = self.kinds.iter().enumerate().filter(|(_, kind)| kind.answered > 0);
        kinds.filter_map(|(number, kind)| Some((known(number)?, *kind))).collect()
    }

    /// Returns the errnos of answers, and how often each was given. 0 stands for those that are not known.
    pub(super) fn errors(&self) -> Vec<(i32, u64)> {
        let numbered = (0..).zip(self.errors);
        numbered.filter(|(_, count)| *count > 0).collect()
    }
}

/// Chooses the requests that are timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    /// How many requests until the next one that is timed.
    left: u32,
    random: u32,
}

impl Default for Sampler {
    /// Chooses the first request.
    fn default() -> Sampler {
        Sampler { left: 1, random: 0x9e37_79b9 }
    }
}

impl Sampler {
    /// Returns when the request began, if it is to be timed.
    pub(super) fn begin(&mut self) -> Option<Instant> {
        self.left -= 1;
        if self.left > 0 { None } else { self.choose() }
    }

    #[cold]
    fn choose(&mut self) -> Option<Instant> {
        // Xorshift: any sequence that has nothing to do with that of the requests will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.left = 1 + self.random % (2 * ONE_IN - 1);
        Some(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_kind_and_error() {
        let mut one = Tally::default();
        for (opcode, errno) in [(1, 0), (1, 2), (3, 0), (1, 2), (999, 5), (3, 5000)] {
            one.count(opcode, errno, errno == 5000);
        }
        let mut both = Tally::default();
        both.add(&one);
        both.add(&one);
        let kinds = both.kinds();
        let shown: Vec<_> =
            kinds.iter().map(|(op, kind)| (op.name(), kind.answered, kind.failed, kind.slow)).collect();
        assert_eq!(shown, [("LOOKUP", 6, 4, 0), ("GETATTR", 4, 2, 2)]);
        assert_eq!(both.errors(), [(0, 2), (2, 4), (5, 2)]);
    }

    #[test]
    fn a_time_falls_into_the_bucket_that_ends_with_it() {
        let mut tally = Tally::default();
        for nanoseconds in [0, 10_000, 10_001, 1_000_000, 10_000_000_001] {
            tally.time(15, nanoseconds);
        }
        let kind = *tally.kind(Opcode::Read as u32);
        assert_eq!((kind.timed, kind.nanoseconds), (5, 10_001_020_002));
        assert_eq!(kind.buckets, [2, 1, 0, 0, 1, 0, 0, 0, 0, 1]);
    }

    /// Work of a few requests that come again and again: each is timed equally often.
    #[test]
    fn requests_are_chosen_whatever_their_order() {
        for period in [2_usize, 4, 16, 17, 31] {
            let (mut sampler, mut chosen) = (Sampler::default(), vec![0_u32; period]);
            let rounds = 1 << 16;
            for request in 0..rounds * period {
                chosen[request % period] += u32::from(sampler.begin().is_some());
            }
            let expected = rounds as u32 / ONE_IN;
            for count in &chosen {
                assert!(count.abs_diff(expected) < expected / 5, "{chosen:?} instead of {expected}");
            }
        }
    }
}
