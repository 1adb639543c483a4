//! Which copy of a file is the newest: a number in an extended attribute of every copy, which only grows.
//!
//! A copy with a smaller number than another one is out of date. The mark "+" says that other copies may have the same
//! number, and so hold the same. Whoever is about to change a copy with the mark first gives it a larger number without one.

use super::{beneath, xattr};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::time::SystemTime;

/// The attribute. Clients of a pool neither see nor change it.
pub const ATTRIBUTE: &[u8] = b"user.canopy.generation";

/// How often copies are read again that differ.
const ATTEMPTS: usize = 8;

/// What a copy says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Generation {
    pub number: u64,
    /// Other copies may have the same number.
    pub shared: bool,
}

impl Generation {
    /// Of a copy that is being changed while another one is the newest.
    pub const OUT_OF_DATE: Generation = Generation { number: 0, shared: false };

    /// `None` for what is no generation.
    pub fn parse(text: &[u8]) -> Option<Generation> {
        let (digits, shared) = match text.strip_suffix(b"+") {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(Generation { number, shared })
    }

    pub fn to_bytes(self) -> Vec<u8> {
        format!("{}{}", self.number, if self.shared { "+" } else { "" }).into_bytes()
    }
}

/// Returns a number that is larger than any before it: the time, or one more. The time also makes it larger than those of
/// copies on branches that are away.
pub fn next(before: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(0).max(before.saturating_add(1))
}

fn parsed(read: Result<usize, Errno>, value: &[u8]) -> Result<Option<Generation>, Errno> {
    match read {
        // Something else is there. Whether the copy is old nobody knows.
        Ok(length) => match Generation::parse(value.get(..length).unwrap_or_default()) {
            None => Err(Errno::BADMSG),
            parsed => Ok(parsed),
        },
        Err(Errno::RANGE) => Err(Errno::BADMSG),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the generation of the file behind a descriptor, for which `O_PATH` is enough; `None` for one that has none.
///
/// Errors: any says only that it cannot be read, as `EBADMSG` does of one that makes no sense. Such a copy may be the newest.
pub fn read(file: BorrowedFd<'_>) -> Result<Option<Generation>, Errno> {
    let mut value = [0; 32];
    parsed(xattr::get(file, ATTRIBUTE, &mut value), &value)
}

/// As `read`, of a name in a directory.
pub fn read_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Generation>, Errno> {
    let mut value = [0; 32];
    parsed(xattr::get_at(dir, name, ATTRIBUTE, &mut value), &value)
}

pub fn write(file: BorrowedFd<'_>, generation: Generation) -> Result<(), Errno> {
    xattr::set(file, ATTRIBUTE, &generation.to_bytes(), XattrFlags::empty())
}

/// As `write`, and the generation is on disk when this returns, if its filesystem can do that.
///
/// Errors: `EAGAIN`, before anything has changed, while a lease keeps a pinned file from being opened.
pub fn put(file: BorrowedFd<'_>, generation: Generation) -> Result<(), Errno> {
    let is_pinned = rustix::fs::fcntl_getfl(file)?.contains(OFlags::PATH);
    let opened = if is_pinned { Some(beneath::reopen(file, OFlags::RDONLY)?) } else { None };
    write(file, generation)?;
    match rustix::fs::fsync(opened.as_ref().map_or(file, AsFd::as_fd)) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Marks a copy, so that another one may get the same number. The mark is on disk when this returns.
pub fn share(file: BorrowedFd<'_>, before: Option<Generation>) -> Result<(), Errno> {
    if before.is_some_and(|before| before.shared) {
        return Ok(());
    }
    let number = match before {
        None => next(0),
        // To be copied makes nothing newer. The number is a name for this content, smaller than that of any change.
        Some(Generation::OUT_OF_DATE) => next(0) >> 12,
        Some(before) => before.number,
    };
    put(file, Generation { number, shared: true })
}

/// How much larger the number of a copy is at most that has taken the place of one whose writer it served: numbers that have
/// nothing to do with each other are so many nanoseconds apart only by a miracle.
const SUCCEEDS: u64 = 16;

/// Returns the number of a copy that takes the place of one with this number, which cannot be changed any more.
pub fn successor(of: u64) -> u64 {
    of.saturating_add(1)
}

/// Returns whether an old copy was changed apart from the newest one, which never had what it holds. A copy that has only been left
/// behind still has the mark, or is marked as out of date: it loses the mark when it is changed, and gets it again when that has
/// been copied.
pub fn was_apart(old: Option<Generation>, newest: u64) -> bool {
    old.is_some_and(|old| {
        let followed = newest.saturating_sub(old.number) <= SUCCEEDS;
        !old.shared && old != Generation::OUT_OF_DATE && old.number < newest && !followed
    })
}

/// Reads the generations of all copies of a file as they were at one moment. `read` reads them all, one after the other. While a
/// change goes from copy to copy, that may find one before it and another one in the middle of it, and the wrong one is the
/// largest. As numbers only grow, what is found twice is what there was in between.
pub fn read_together<T: PartialEq>(mut read: impl FnMut() -> SmallVec<[T; 4]>) -> SmallVec<[T; 4]> {
    let mut found = read();
    // Somebody who changes the file all the time has to be met in the middle of that again and again.
    for _ in 0..ATTEMPTS {
        if found.iter().all(|copy| *copy == found[0]) {
            break;
        }
        let again = read();
        if again == found {
            break;
        }
        found = again;
    }
    found
}

/// Returns which of some copies are current: those with the largest number, or all if none has one.
pub fn current(copies: &[Option<Generation>]) -> impl Iterator<Item = usize> + '_ {
    let number = |copy: &Option<Generation>| copy.map(|generation| generation.number);
    let newest = copies.iter().map(number).max().flatten();
    copies.iter().enumerate().filter(move |(_, copy)| number(copy) == newest).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Generation> {
        (!text.is_empty()).then(|| Generation::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn the_largest_number_is_current() {
        let table: [(&[&str], &[usize]); 8] = [
            (&["7"], &[0]),
            (&["", ""], &[0, 1]),
            (&["7+", "7+"], &[0, 1]),
            (&["7+", "8", "7+"], &[1]),
            (&["", "0"], &[1]),
            (&["0", "1", ""], &[1]),
            (&["18446744073709551615", "9+"], &[0]),
            (&[], &[]),
        ];
        for (copies, expected) in table {
            let copies: Vec<_> = copies.iter().map(|text| of(text)).collect();
            assert_eq!(current(&copies).collect::<Vec<_>>(), expected, "{copies:?}");
        }
    }

    #[test]
    fn what_was_changed_apart_has_lost_its_mark() {
        let (newest, table) = (
            1000,
            [("900", true), ("900+", false), ("0", false), ("", false), ("999", false), ("1000", false)],
        );
        for (old, apart) in table {
            assert_eq!(was_apart(of(old), newest), apart, "{old:?}");
        }
        assert!(!was_apart(of("900"), successor(900)), "it went on with the same writer");
    }

    #[test]
    fn copies_are_read_as_they_were_at_one_moment() {
        // A change of the first copy, then of the second: its numbers, after so many reads.
        let steps = [["7+", "7+"], ["9", "7+"], ["9", "8"], ["9+", "8"], ["9+", "9+"]];
        for (start, pace) in (0..steps.len()).flat_map(|start| (1..4).map(move |pace| (start, pace))) {
            let mut reads = 0;
            let seen = read_together(|| {
                let read = |copy: usize| {
                    let step = (start + reads * pace / 2).min(steps.len() - 1);
                    reads += 1;
                    of(steps[step][copy])
                };
                (0..2).map(read).collect()
            });
            let newest: Vec<_> = current(&seen).collect();
            assert!(newest.contains(&0), "from {start} at {pace}: {seen:?}");
        }
    }

    #[test]
    fn numbers_only_grow() {
        let first = next(0);
        assert!(next(first) > first);
        assert_eq!(next(u64::MAX - 1), u64::MAX);
        assert!(first > 1_700_000_000_000_000_000, "the time, in nanoseconds");
    }

    #[test]
    fn what_is_written_is_read() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = home.path().join("f");
        let file = std::fs::File::create(&path).unwrap();
        let dir = std::fs::File::open(home.path()).unwrap();
        use rustix::fd::AsFd;
        assert_eq!(read(file.as_fd()), Ok(None));
        for generation in [Generation { number: u64::MAX, shared: true }, Generation::OUT_OF_DATE] {
            write(file.as_fd(), generation).unwrap();
            assert_eq!(read(file.as_fd()), Ok(Some(generation)));
            assert_eq!(read_at(dir.as_fd(), b"f"), Ok(Some(generation)));
        }
        for nonsense in [&b"nonsense"[..], b"", b"+", &[b'1'; 99]] {
            xattr::set(file.as_fd(), ATTRIBUTE, nonsense, XattrFlags::empty()).unwrap();
            assert_eq!(read(file.as_fd()), Err(Errno::BADMSG), "{nonsense:?}");
        }
    }

    /// What was marked as out of date gets a number by which its copies know each other, and stays older than any change.
    #[test]
    fn to_be_copied_makes_nothing_newer() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = std::fs::File::create(home.path().join("f")).unwrap();
        let changed = next(0);
        share(file.as_fd(), Some(Generation::OUT_OF_DATE)).unwrap();
        let copied = read(file.as_fd()).unwrap().unwrap();
        assert!(copied.shared && 0 < copied.number && copied.number < changed, "{copied:?}");
    }
}
