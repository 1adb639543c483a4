//! Which files get a cached copy on a fast disk, and which of the copies go first. Pure: without system calls.

use crate::placement::Pattern;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which files a cache is for, and where it is.
#[derive(Clone, PartialEq, Debug)]
pub struct CacheRule {
    /// The directories that hold the copies.
    pub dirs: Vec<PathBuf>,
    pub paths: Vec<Pattern>,
    pub room: Room,
    pub when: When,
    /// A large file is read from its copy while that is being made.
    pub spool: bool,
}

/// How much a cache may take, in each of its directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// So many bytes.
    Size(u64),
    /// All but so many bytes of the filesystem, which stay free.
    Free(u64),
    /// As `Free`, in per cents of the filesystem.
    FreeShare(u8),
}

/// When a file gets a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// It is opened for reading.
    Opened,
    /// It has been opened for reading so often in such a time.
    Read { times: u8, within: Duration },
    /// An administrator asks for it.
    Added,
}

impl Room {
    /// Returns how many bytes the copies of a directory may take, which take `held` now, on a filesystem of `total` bytes with
    /// `available` ones.
    #[must_use]
    pub fn most(self, held: u64, total: u64, available: u64) -> u64 {
        let stays = match self {
            Room::Size(size) => return size.min(held.saturating_add(available)),
            Room::Free(bytes) => bytes,
            Room::FreeShare(share) => total / 100 * u64::from(share),
        };
        held.saturating_add(available).saturating_sub(stays)
    }
}

/// All caches, in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CacheRules(pub Vec<CacheRule>);

impl CacheRules {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first cache for a path in the pool.
    #[must_use]
    pub fn rule(&self, path: &[u8]) -> Option<&CacheRule> {
        self.0.iter().find(|rule| rule.paths.iter().any(|pattern| pattern.matches(path)))
    }

    /// Returns all directories with the room of each.
    pub fn dirs(&self) -> impl Iterator<Item = (&Path, Room)> {
        self.0.iter().flat_map(|rule| rule.dirs.iter().map(|dir| (dir.as_path(), rule.room)))
    }
}

/// So many of the last reads of a file are known.
pub const MOST_READS: usize = 16;

/// What comes so many seconds after another read is the same: a program that looks at a file before it plays it.
const SAME: u64 = 5;

/// A read counts half as much after so many seconds.
const HALF: u64 = 86_400;

/// When a file was read last: seconds since 1970, the latest at the end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reads(Vec<u64>);

impl Reads {
    pub fn note(&mut self, now: u64) {
        match self.0.last() {
            // It keeps its time: a file that is always read again within that would seem to be read once.
            Some(last) if now.saturating_sub(*last) < SAME => {}
            _ => {
                if self.0.len() == MOST_READS {
                    self.0.remove(0);
                }
                self.0.push(now);
            }
        }
    }

    /// Returns whether a cache takes the file.
    #[must_use]
    pub fn suffice(&self, when: When, now: u64) -> bool {
        match when {
            When::Opened => !self.0.is_empty(),
            When::Added => false,
            When::Read { times, within } => {
                let since = now.saturating_sub(within.as_secs());
                self.0.iter().filter(|read| **read >= since).count() >= usize::from(times)
            }
        }
    }

    /// Returns what the file is worth: of two, the one that is worth less goes first. Often and lately count for it.
    #[must_use]
    pub fn worth(&self, now: u64) -> (u64, u64) {
        let one = |read: &u64| (1 << 20) >> (now.saturating_sub(*read) / HALF).min(63);
        (self.0.iter().map(one).sum::<u64>(), self.0.last().copied().unwrap_or(0))
    }

    #[must_use]
    pub fn as_slice(&self) -> &[u64] {
        &self.0
    }
}

impl FromIterator<u64> for Reads {
    fn from_iter<T: IntoIterator<Item = u64>>(times: T) -> Reads {
        let mut times: Vec<u64> = times.into_iter().collect();
        times.sort_unstable();
        Reads(times.split_off(times.len().saturating_sub(MOST_READS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, ThreadRandom};
    use std::collections::HashMap;

    const DAY: u64 = 86_400;

    fn reads(times: &[u64]) -> Reads {
        times.iter().copied().collect()
    }

    #[test]
    fn the_first_cache_that_is_for_a_path_decides() {
        let rule = |dir: &str, paths: &[&str]| CacheRule {
            dirs: vec![dir.into()],
            paths: paths.iter().map(|path| Pattern::new(path).unwrap()).collect(),
            room: Room::Size(1),
            when: When::Opened,
            spool: false,
        };
        let rules = CacheRules(vec![rule("/a", &["films/**", "*.flac"]), rule("/b", &["music/**"])]);
        let dir = |path: &str| rules.rule(path.as_bytes()).map(|rule| rule.dirs[0].to_str().unwrap());
        assert_eq!(dir("films/a.mkv"), Some("/a"));
        assert_eq!(dir("music/a.flac"), Some("/a"));
        assert_eq!(dir("music/a.mp3"), Some("/b"));
        assert_eq!(dir("photos/a.jpg"), None);
        assert_eq!(rules.dirs().count(), 2);
    }

    #[test]
    fn what_a_cache_may_take() {
        // Held, total, available.
        for (room, held, total, available, most) in [
            (Room::Size(50), 10, 100, 90, 50),
            (Room::Size(50), 10, 100, 5, 15),
            (Room::Free(20), 30, 100, 25, 35),
            (Room::Free(20), 30, 100, 5, 15),
            (Room::Free(80), 30, 100, 5, 0),
            (Room::FreeShare(10), 30, 100, 25, 45),
        ] {
            assert_eq!(room.most(held, total, available), most, "{room:?}");
        }
    }

    #[test]
    fn reads_suffice_within_their_time() {
        let twice = When::Read { times: 2, within: Duration::from_secs(7 * DAY) };
        for (times, when, expected) in [
            (&[][..], When::Opened, false),
            (&[0], When::Opened, true),
            (&[0], When::Added, false),
            (&[0], twice, false),
            (&[0, DAY], twice, true),
            (&[0, 8 * DAY], twice, false),
            (&[0, 8 * DAY, 9 * DAY], twice, true),
        ] {
            let now = times.last().copied().unwrap_or(0);
            assert_eq!(reads(times).suffice(when, now), expected, "{times:?} {when:?}");
        }
    }

    #[test]
    fn one_program_that_opens_a_file_again_at_once_reads_it_once() {
        let mut all = Reads::default();
        for time in [100, 101, 103, 107, 300] {
            all.note(time);
        }
        assert_eq!(all.as_slice(), [100, 107, 300]);
        (1..100).for_each(|round| all.note(1000 * round));
        assert_eq!(all.as_slice().len(), MOST_READS);
    }

    #[test]
    fn often_and_lately_count() {
        let now = 30 * DAY;
        let worth = |times: &[u64]| reads(times).worth(now);
        assert!(worth(&[now]) > worth(&[now - DAY]));
        assert!(worth(&[now - 10, now - 9]) > worth(&[now]));
        assert!(worth(&[now]) > worth(&[DAY, 2 * DAY, 3 * DAY]), "what was loved a month ago goes");
        assert_eq!(worth(&[]), (0, 0));
    }

    /// A load that prefers some files, as a library does: what is kept comes near to the best that this room could hold.
    #[test]
    fn of_a_zipf_load_most_of_what_a_perfect_cache_has_is_hit() {
        const FILES: usize = 2000;
        const ROOM: usize = 200;
        const READS: u64 = 20_000;
        let weights: Vec<f64> = (1..=FILES).map(|rank| 1.0 / rank as f64).collect();
        let total: f64 = weights.iter().sum();
        let perfect: f64 = weights.iter().take(ROOM).sum::<f64>() / total;
        ThreadRandom::seed(7);
        let (mut known, mut held): (HashMap<usize, Reads>, Vec<usize>) = (HashMap::new(), Vec::new());
        let (mut hits, mut counted) = (0u64, 0u64);
        for round in 0..READS {
            let now = round * 10;
            let mut at = ThreadRandom.below(1 << 53) as f64 / (1u64 << 53) as f64 * total;
            let reached = |weight: &f64| {
                at -= weight;
                at < 0.0
            };
            let file = weights.iter().position(reached).unwrap_or(FILES - 1);
            known.entry(file).or_default().note(now);
            let hit = held.contains(&file);
            if round > READS / 2 {
                (hits, counted) = (hits + u64::from(hit), counted + 1);
            }
            if hit {
                continue;
            }
            if held.len() < ROOM {
                held.push(file);
                continue;
            }
            let (index, least) =
                held.iter().enumerate().min_by_key(|(_, held)| known[*held].worth(now)).unwrap();
            if known[least].worth(now) < known[&file].worth(now) {
                held[index] = file;
            }
        }
        let share = hits as f64 / counted as f64 / perfect;
        assert!(share > 0.9, "{share:.3} of the hits of a perfect cache");
    }
}
