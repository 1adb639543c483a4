//! How often somebody may try a token that lets nobody in. All share the number: at loopback, everybody has one address.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MOST: usize = 10;
const WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Attempts(Mutex<VecDeque<Instant>>);

impl Attempts {
    /// Returns after how many seconds the next attempt may be made; `None` if it may be made now.
    pub fn must_wait(&self) -> Option<u64> {
        self.must_wait_at(Instant::now())
    }

    fn must_wait_at(&self, now: Instant) -> Option<u64> {
        let mut failed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while failed.front().is_some_and(|&at| now.saturating_duration_since(at) >= WITHIN) {
            failed.pop_front();
        }
        let first = *failed.front().filter(|_| failed.len() >= MOST)?;
        Some((first + WITHIN).saturating_duration_since(now).as_secs().max(1))
    }

    pub fn failed(&self) {
        self.failed_at(Instant::now());
    }

    fn failed_at(&self, now: Instant) {
        let mut failed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.len() < MOST {
            failed.push_back(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_ten_failures_a_minute_passes() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for n in 0..10 {
            assert_eq!(attempts.must_wait_at(at(n)), None);
            attempts.failed_at(at(n));
        }
        assert_eq!(attempts.must_wait_at(at(10)), Some(50));
        assert_eq!(attempts.must_wait_at(at(60)), None);
        attempts.failed_at(at(60));
        assert_eq!(attempts.must_wait_at(at(60)), Some(1));
    }
}
