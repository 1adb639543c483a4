//! Which copy of a file is the newest: a number in an extended attribute of every copy, which only grows.
//!
//! A copy with a smaller number than another one is out of date. The mark "+" says that other copies may have the same
//! number, and so hold the same. Whoever is about to change a copy with the mark first gives it a larger number without one.

use super::{beneath, xattr};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use std::time::SystemTime;

/// The attribute. Clients of a pool neither see nor change it.
pub const ATTRIBUTE: &[u8] = b"user.canopy.generation";

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

    pub fn parse(text: &[u8]) -> Generation {
        let (digits, shared) = match text.strip_suffix(b"+") {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        // Somebody has written something else there: any copy that makes sense is newer.
        number.map_or(Generation::OUT_OF_DATE, |number| Generation { number, shared })
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
        Ok(length) => Ok(Some(Generation::parse(value.get(..length).unwrap_or_default()))),
        Err(Errno::RANGE) => Ok(Some(Generation::OUT_OF_DATE)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the generation of the file behind a descriptor, for which `O_PATH` is enough; `None` for one that has none.
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
    let known = before.map(|before| before.number).filter(|number| *number > 0);
    let number = known.unwrap_or_else(|| next(0));
    put(file, Generation { number, shared: true })
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
        (!text.is_empty()).then(|| Generation::parse(text.as_bytes()))
    }

    #[test]
    fn the_largest_number_is_current() {
        let table: [(&[&str], &[usize]); 9] = [
            (&["7"], &[0]),
            (&["", ""], &[0, 1]),
            (&["7+", "7+"], &[0, 1]),
            (&["7+", "8", "7+"], &[1]),
            (&["", "0"], &[1]),
            (&["0", "1", ""], &[1]),
            (&["nonsense", "3"], &[1]),
            (&["18446744073709551615", "9+"], &[0]),
            (&[], &[]),
        ];
        for (copies, expected) in table {
            let copies: Vec<_> = copies.iter().map(|text| of(text)).collect();
            assert_eq!(current(&copies).collect::<Vec<_>>(), expected, "{copies:?}");
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
        xattr::set(file.as_fd(), ATTRIBUTE, &[b'1'; 99], XattrFlags::empty()).unwrap();
        assert_eq!(read(file.as_fd()), Ok(Some(Generation::OUT_OF_DATE)), "too long to be one");
    }
}
