//! Random numbers for the random policies, behind a trait so that tests can choose them.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A source of uniform numbers.
pub trait Random {
    /// Returns a number in `0..n`, each equally likely. `n` is not zero.
    fn below(&mut self, n: u64) -> u64;
}

/// A generator per thread: no lock, nothing shared.
///
/// Good for spreading files; not for secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadRandom;

thread_local! {
    // RandomState takes its keys from the system's source of randomness.
    static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish());
}

impl ThreadRandom {
    /// Seeds the calling thread's generator, so that its numbers repeat. For tests.
    pub fn seed(seed: u64) {
        STATE.set(seed);
    }
}

impl Random for ThreadRandom {
    fn below(&mut self, n: u64) -> u64 {
        STATE.with(|state| {
            bounded(n, || {
                state.set(state.get().wrapping_add(GOLDEN));
                mix(state.get())
            })
        })
    }
}

/// SplitMix64: a counter in steps of the golden ratio, and a mixing function.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Lemire's method: the high half of a 128-bit product; draws again in the small range of values that would be
/// favoured.
fn bounded(n: u64, mut next: impl FnMut() -> u64) -> u64 {
    debug_assert_ne!(n, 0, "an empty range");
    if n == 0 {
        return 0;
    }
    let mut product = u128::from(next()) * u128::from(n);
    if (product as u64) < n {
        let favoured = n.wrapping_neg() % n;
        while (product as u64) < favoured {
            product = u128::from(next()) * u128::from(n);
        }
    }
    (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The first outputs for the seed 1234567, from the test vectors of the reference program.
        let mut state = 1234567u64;
        let mut next = || {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        };
        assert_eq!(next(), 6457827717110365317);
        assert_eq!(next(), 3203168211198807973);
    }

    #[test]
    fn bounded_draws_again_in_the_favoured_range() {
        // For n = 3, one of the 2^64 values is too many: a low half below 1.
        let mut draws = [0, u64::MAX].into_iter();
        assert_eq!(bounded(3, || draws.next().expect("two draws")), 2);
        assert_eq!(draws.next(), None);
        assert_eq!(bounded(1, || 12345), 0);
        assert_eq!(bounded(u64::MAX, || u64::MAX), u64::MAX - 1);
    }

    #[test]
    fn numbers_of_a_thread_are_in_range_and_uniform() {
        let mut random = ThreadRandom;
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        // 10 standard deviations of a binomial around 10,000 are 949.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 1000), "{counts:?}");
    }
}
