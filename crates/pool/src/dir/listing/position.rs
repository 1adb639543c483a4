//! Positions of a listing: the numbers that telldir(3) gives, and by which a server of NFS goes on.
//!
//! A position outlives who reads: it is good after the directory has been opened anew, after names were removed, and after
//! the daemon has been restarted. So it tells a place on a branch and not an ordinal number: the branch, by its path, and
//! there the filesystem's own position of the next entry (`d_off`), to which lseek(2) on the branch's directory leads.
//! Filesystems that are exported by NFS keep these good over removals. Where they do not (what counts entries: overlayfs,
//! many servers of FUSE), or where they are too large to be told whole, the name that was given last stands in: who goes
//! on there searches the branch for it, and begins that branch anew when it is gone, so that names may come twice and none is
//! left out.
//!
//! From the top of its 63 bits: 2 for the kind, 2 for the pass over the branches, 12 for the branch, 47 for the place.

use crate::branch::{Branch, Branches};
use crate::fs::magic;
use crate::ids::BranchId;
use rapidhash::v3::rapidhash_v3;
use rustix::system::uname;
use std::sync::LazyLock;

const VALUE: u32 = 47;
const BRANCH: u32 = 12;
const PASS: u32 = 2;
/// How far a large offset is shifted: it has 63 bits, as a position has.
const DROPPED: u32 = 63 - VALUE;

/// Passes over the branches that can be told apart.
pub(crate) const PASSES: u8 = 1 << PASS;

const START: u64 = 0;
const WHOLE: u64 = 1;
const UPPER: u64 = 2;
const NAMED: u64 = 3;

/// After the last entry. No branch has the mark that it holds.
pub(crate) const END: u64 = u64::MAX >> 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// After so many of the directory's own entries, `.` and `..`.
    Start(usize),
    At {
        pass: u8,
        mark: BranchMark,
        place: Place,
    },
    End,
}

/// Which branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BranchMark(u16);

/// Where on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// As lseek(2) takes it.
    Offset(u64),
    /// Behind the name with this hash.
    Behind(u64),
}

/// What a branch's own positions are worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offsets {
    /// Good over removals. What comes from rounding one down is at most some entries before it.
    Hashes,
    /// Good over removals, as they are.
    Stable,
    /// Good for nobody but the reader himself.
    Passing,
}

impl Offsets {
    pub(crate) fn of(branch: &Branch) -> Offsets {
        match branch.kind {
            // Most of them order entries by 31 bits of one hash above 32 bits of another.
            magic::EXT => Offsets::Hashes,
            magic::TMPFS if *TMPFS_LASTS => Offsets::Stable,
            // The protocol of NFS demands it.
            magic::XFS | magic::BTRFS | magic::F2FS | magic::ZFS | magic::NFS => Offsets::Stable,
            _ => Offsets::Passing,
        }
    }

    /// The place behind an entry, whose `d_off` this is.
    pub(crate) fn place(self, offset: u64, name: &[u8]) -> Place {
        match self {
            Offsets::Hashes => Place::Offset(offset),
            Offsets::Stable if offset >> VALUE == 0 => Place::Offset(offset),
            _ => Place::Behind(hash(name)),
        }
    }
}

/// tmpfs counts entries before Linux 6.6.
static TMPFS_LASTS: LazyLock<bool> = LazyLock::new(|| {
    let uname = uname();
    let mut numbers = uname.release().to_bytes().split(|byte| !byte.is_ascii_digit());
    let mut number = || std::str::from_utf8(numbers.next()?).ok()?.parse::<u32>().ok();
    number().zip(number()) >= Some((6, 6))
});

/// The same in every process.
pub(crate) fn hash(name: &[u8]) -> u64 {
    rapidhash_v3(name) >> (u64::BITS - VALUE)
}

impl Position {
    pub(crate) fn new(pass: u8, mark: BranchMark, place: Place) -> Position {
        Position::At { pass, mark, place }
    }

    pub(crate) fn to_u64(self) -> u64 {
        let (pass, mark, place) = match self {
            Position::Start(given) => return given as u64,
            Position::End => return END,
            Position::At { pass, mark, place } => (pass, mark, place),
        };
        let (kind, value) = match place {
            Place::Offset(offset) if offset >> VALUE == 0 => (WHOLE, offset),
            Place::Offset(offset) => (UPPER, offset >> DROPPED),
            Place::Behind(hash) => (NAMED, hash),
        };
        (((kind << PASS | u64::from(pass)) << BRANCH) | u64::from(mark.0)) << VALUE | value
    }

    pub(crate) fn from_u64(position: u64) -> Position {
        if position == END {
            return Position::End;
        }
        let value = position & ((1 << VALUE) - 1);
        let mark = BranchMark((position >> VALUE) as u16 & ((1 << BRANCH) - 1));
        let pass = (position >> (VALUE + BRANCH)) as u8 & (PASSES - 1);
        let place = match position >> (VALUE + BRANCH + PASS) {
            WHOLE => Place::Offset(value),
            UPPER => Place::Offset(value << DROPPED),
            NAMED => Place::Behind(value),
            // Another number is nobody's; from the beginning nothing is left out.
            _ => return Position::Start(if position <= 3 { position as usize } else { START as usize }),
        };
        Position::At { pass, mark, place }
    }
}

/// The marks of all branches, in their order. A branch has the same one in every process and wherever it stands in the
/// list, unless one before it has taken that.
pub(crate) fn marks(branches: &Branches) -> Vec<(BranchId, BranchMark)> {
    // One less: `END` holds the last.
    const MARKS: u16 = (1 << BRANCH) - 1;
    let mut taken = [false; MARKS as usize];
    let mut marked = 0;
    let mark = |branch: &std::sync::Arc<Branch>| {
        let mut mark = branch.seed.mark(BRANCH) % MARKS;
        // With more branches than marks some share one: then names come twice.
        while marked < MARKS && taken[usize::from(mark)] {
            mark = (mark + 1) % MARKS;
        }
        taken[usize::from(mark)] = true;
        marked += 1;
        (branch.id, BranchMark(mark))
    };
    branches.iter().map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_decoded_as_they_were_encoded() {
        let mut places = vec![Place::Offset(0), Place::Offset(1), Place::Offset((1 << VALUE) - 1)];
        places.extend([hash(b"name"), 0, (1 << VALUE) - 1].map(Place::Behind));
        for (pass, mark, place) in
            (0..PASSES).flat_map(|pass| places.iter().map(move |&place| (pass, BranchMark(4094), place)))
        {
            let position = Position::new(pass, mark, place);
            let told = position.to_u64();
            assert_eq!(Position::from_u64(told), position);
            assert!(i64::try_from(told).is_ok_and(|told| told > 3), "the kernel takes no negative ones");
        }
        for start in 0..=3 {
            assert_eq!(Position::Start(start).to_u64(), start as u64);
            assert_eq!(Position::from_u64(start as u64), Position::Start(start));
        }
        assert_eq!(Position::from_u64(Position::End.to_u64()), Position::End);
        assert_eq!(Position::from_u64(5000), Position::Start(0), "nobody's");
    }

    #[test]
    fn a_large_offset_is_encoded_as_one_not_beyond_it() {
        for offset in [1 << VALUE, 0x1234_5678_9abc_def0, i64::MAX as u64] {
            let told = Position::new(0, BranchMark(7), Place::Offset(offset)).to_u64();
            let Position::At { place: Place::Offset(back), .. } = Position::from_u64(told) else {
                panic!("{told:#x}")
            };
            assert!(back <= offset && offset - back < 1 << DROPPED);
        }
    }

    #[test]
    fn an_unusable_offset_is_encoded_by_the_name() {
        let by_name = Place::Behind(hash(b"n"));
        assert_eq!(Offsets::Stable.place(5, b"n"), Place::Offset(5));
        assert_eq!(Offsets::Stable.place(1 << VALUE, b"n"), by_name);
        assert_eq!(Offsets::Hashes.place(1 << VALUE, b"n"), Place::Offset(1 << VALUE));
        assert_eq!(Offsets::Passing.place(5, b"n"), by_name);
    }
}
