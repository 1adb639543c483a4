//! Files that were written and closed, or have got their name, where a rule wants copies: what makes the copies asks for them.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_base::path::PoolPath;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most files that are remembered, the latest. Who asks too late has to look at all files.
const MOST: usize = 16_384;
/// A file is told of when it has been left alone for so long: one that is written again and again would be copied each time.
const QUIET: Duration = Duration::from_secs(3);
/// The most bytes of paths in one answer, which has to fit into an attribute as JSON.
const ANSWER: usize = 8_000;

/// What was closed since another answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClosedSince {
    /// To ask with the next time.
    pub upto: u64,
    /// Others were closed that are not remembered.
    pub lost: bool,
    /// Paths in the pool.
    pub paths: Vec<Vec<u8>>,
}

#[derive(Default)]
pub struct ClosedFiles(Mutex<List, rank::Leaf>);

struct List {
    /// The last number, and the last one that was forgotten. They begin with the time: numbers of another process that has
    /// served the pool before are smaller.
    last: u64,
    forgotten: u64,
    files: BTreeMap<u64, (PoolPath, Instant)>,
    numbers: HashMap<PoolPath, u64>,
}

impl ClosedFiles {
    pub fn put(&self, path: PoolPath) {
        self.0.lock().put(path, Instant::now());
    }

    /// Returns the number of the last file that is not remembered, and that of the last file.
    pub fn numbers(&self) -> (u64, u64) {
        let list = self.0.lock();
        (list.forgotten, list.last)
    }

    /// Returns the files that were closed after those of an answer with this number, as far as they have been left alone.
    pub fn since(&self, after: u64) -> ClosedSince {
        self.0.lock().since(after, Instant::now())
    }
}

impl Default for List {
    fn default() -> List {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let forgotten = u64::try_from(time.as_micros()).unwrap_or(1);
        List { last: forgotten, forgotten, files: BTreeMap::new(), numbers: HashMap::new() }
    }
}

impl List {
    fn put(&mut self, path: PoolPath, now: Instant) {
        self.last += 1;
        if let Some(before) = self.numbers.insert(path.clone(), self.last) {
            self.files.remove(&before);
        }
        self.files.insert(self.last, (path, now));
        if self.files.len() > MOST
            && let Some((number, (path, _))) = self.files.pop_first()
        {
            self.forgotten = number;
            self.numbers.remove(&path);
        }
    }

    fn since(&self, after: u64, now: Instant) -> ClosedSince {
        let mut answer = ClosedSince { upto: after, lost: after < self.forgotten, paths: Vec::new() };
        let mut bytes = 0;
        for (number, (path, closed)) in self.files.range(after.saturating_add(1)..) {
            bytes += path.len();
            if now.saturating_duration_since(*closed) < QUIET || bytes > ANSWER {
                return answer;
            }
            answer.upto = *number;
            answer.paths.push(path.to_vec());
        }
        answer.upto = self.last.max(after);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PoolPath {
        PoolPath::from_slice(name.as_bytes())
    }

    #[test]
    fn files_are_told_of_once_and_when_they_are_left_alone() {
        let (mut list, begun) = (List::default(), Instant::now());
        let none = list.since(0, begun);
        assert!(
            none.lost && none.paths.is_empty(),
            "who asks for the first time knows nothing of what was before"
        );
        list.put(path("a"), begun);
        list.put(path("b"), begun + QUIET);
        list.put(path("c"), begun + QUIET);
        let first = list.since(none.upto, begun + QUIET);
        assert_eq!((first.lost, first.paths), (false, vec![b"a".to_vec()]));
        // One that is closed again counts from then on.
        list.put(path("b"), begun + QUIET * 2);
        let second = list.since(first.upto, begun + QUIET * 2);
        assert_eq!((second.lost, second.paths), (false, vec![b"c".to_vec()]));
        let third = list.since(second.upto, begun + QUIET * 3);
        assert_eq!((third.lost, third.paths), (false, vec![b"b".to_vec()]));
        assert!(list.since(third.upto, begun + QUIET * 3).paths.is_empty());
    }

    #[test]
    fn who_asks_too_late_is_told() {
        let (mut list, begun) = (List::default(), Instant::now());
        list.put(path("first"), begun);
        let known = list.since(0, begun + QUIET).upto;
        for number in 0..=MOST {
            list.put(path(&format!("{number:0>200}")), begun);
        }
        let mut answer = list.since(known, begun + QUIET);
        assert!(answer.lost && answer.paths.len() < ANSWER / 200 + 1);
        let mut all = answer.paths.len();
        while !answer.paths.is_empty() {
            answer = list.since(answer.upto, begun + QUIET);
            assert!(!answer.lost);
            all += answer.paths.len();
        }
        assert_eq!(all, MOST);
        assert_eq!((list.files.len(), list.numbers.len()), (MOST, MOST));
    }
}
