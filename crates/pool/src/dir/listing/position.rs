//! Positions in a listing: the numbers that telldir(3) returns, and at which an NFS server resumes.
//!
//! A position stays valid after the directory has been reopened, after names were removed, and after the daemon was
//! restarted. So it is a place on a branch and not an ordinal number: the branch, identified by its path, and the
//! filesystem's own position of the next entry there (`d_off`), to which lseek(2) on the branch's directory leads.
//! Filesystems that can be exported by NFS keep these positions valid when names are removed. Where they do not
//! (those that count entries: overlayfs, many FUSE servers), or where the positions do not fit, the name that was
//! returned last takes their place. To resume there, the branch is searched for the name; if the name is gone, the
//! branch is read from its beginning, so names may occur twice and none is missed.
//!
//! The 63 bits, from the top: 2 for the kind, 2 for the pass over the branches, 12 for the branch, 47 for the place.
//!
//! Positions for programs of 32 bits have 31 bits, of which `sorted` tells the meaning. The two kinds are told apart by
//! their size, so that each stays valid when the option that asks for them is changed.

use canopy_base::ids::BranchId;
use canopy_branch::branch::{Branch, Branches};
use canopy_branch::fs::magic;
use rapidhash::v3::rapidhash_v3;
use rustix::system::uname;
use std::sync::LazyLock;

const VALUE_BITS: u32 = 47;
const BRANCH_BITS: u32 = 12;
const PASS_BITS: u32 = 2;
/// How many low bits of a large offset are dropped: it has 63 bits, as many as a position.
const DROPPED_BITS: u32 = 63 - VALUE_BITS;

/// The number of passes over the branches that a position can tell apart.
pub(crate) const PASSES: u8 = 1 << PASS_BITS;

const START: u64 = 0;
const WHOLE: u64 = 1;
const UPPER: u64 = 2;
const NAMED: u64 = 3;

/// After the last entry. The branch mark that it contains is never assigned.
pub(crate) const END: u64 = u64::MAX >> 1;
/// The same in 31 bits.
pub(crate) const NARROW_END: u32 = u32::MAX >> 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// After so many of the directory's own entries, `.` and `..`.
    Start(usize),
    At {
        pass: u8,
        mark: BranchMark,
        place: BranchPosition,
    },
    /// In the order of the names' hashes, of a listing whose positions have 31 bits.
    Narrow(u32),
    End,
}

/// A branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BranchMark(u16);

/// All branches that are missing: a mark that is never assigned.
pub(crate) const REMEMBERED: BranchMark = BranchMark((1 << BRANCH_BITS) - 1);

/// A place on a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BranchPosition {
    /// An offset for lseek(2).
    Offset(u64),
    /// After the name with this hash.
    Behind(u64),
}

/// How long a branch's own positions stay valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offsets {
    /// Valid after removals. An offset that is rounded down leads at most some entries back.
    Hashes,
    /// Valid after removals, if not rounded.
    Stable,
    /// Valid for one open directory only.
    Passing,
}

impl Offsets {
    pub(crate) fn of(branch: &Branch) -> Offsets {
        match branch.kind {
            // Most of them order entries by 31 bits of one hash, followed by 32 bits of another.
            magic::EXT => Offsets::Hashes,
            magic::TMPFS if *TMPFS_IS_STABLE => Offsets::Stable,
            // The NFS protocol requires it.
            magic::XFS | magic::BTRFS | magic::F2FS | magic::ZFS | magic::NFS => Offsets::Stable,
            _ => Offsets::Passing,
        }
    }

    /// Returns the place after an entry with this `d_off`.
    pub(crate) fn place(self, offset: u64, name: &[u8]) -> BranchPosition {
        match self {
            Offsets::Hashes => BranchPosition::Offset(offset),
            Offsets::Stable if offset >> VALUE_BITS == 0 => BranchPosition::Offset(offset),
            _ => BranchPosition::Behind(hash(name)),
        }
    }
}

/// Before Linux 6.6, tmpfs counts entries.
static TMPFS_IS_STABLE: LazyLock<bool> = LazyLock::new(|| {
    let uname = uname();
    let mut numbers = uname.release().to_bytes().split(|byte| !byte.is_ascii_digit());
    let mut number = || std::str::from_utf8(numbers.next()?).ok()?.parse::<u32>().ok();
    number().zip(number()) >= Some((6, 6))
});

/// Hashes a name, the same in every process.
pub(crate) fn hash(name: &[u8]) -> u64 {
    rapidhash_v3(name) >> (u64::BITS - VALUE_BITS)
}

impl Position {
    pub(crate) fn new(pass: u8, mark: BranchMark, place: BranchPosition) -> Position {
        Position::At { pass, mark, place }
    }

    pub(crate) fn to_u64(self) -> u64 {
        let (pass, mark, place) = match self {
            Position::Start(given) => return given as u64,
            Position::End => return END,
            Position::Narrow(position) => return position.into(),
            Position::At { pass, mark, place } => (pass, mark, place),
        };
        let (kind, value) = match place {
            BranchPosition::Offset(offset) if offset >> VALUE_BITS == 0 => (WHOLE, offset),
            BranchPosition::Offset(offset) => (UPPER, offset >> DROPPED_BITS),
            BranchPosition::Behind(hash) => (NAMED, hash),
        };
        (((kind << PASS_BITS | u64::from(pass)) << BRANCH_BITS) | u64::from(mark.0)) << VALUE_BITS | value
    }

    pub(crate) fn from_u64(position: u64) -> Position {
        match u32::try_from(position) {
            _ if position == END => return Position::End,
            Ok(NARROW_END) => return Position::End,
            Ok(narrow @ 4..NARROW_END) => return Position::Narrow(narrow),
            _ => {}
        }
        let value = position & ((1 << VALUE_BITS) - 1);
        let mark = BranchMark((position >> VALUE_BITS) as u16 & ((1 << BRANCH_BITS) - 1));
        let pass = (position >> (VALUE_BITS + BRANCH_BITS)) as u8 & (PASSES - 1);
        let place = match position >> (VALUE_BITS + BRANCH_BITS + PASS_BITS) {
            WHOLE => BranchPosition::Offset(value),
            UPPER => BranchPosition::Offset(value << DROPPED_BITS),
            NAMED => BranchPosition::Behind(value),
            // Not a position of ours: starting over misses nothing.
            _ => return Position::Start(if position <= 3 { position as usize } else { START as usize }),
        };
        Position::At { pass, mark, place }
    }
}

/// Assigns a mark to each branch, in branch order. A branch has the same mark in every process and at every place in
/// the list, unless a branch before it has taken that mark.
pub(crate) fn marks(branches: &Branches) -> Vec<(BranchId, BranchMark)> {
    // One less, because `END` contains the last.
    const MARKS: u16 = (1 << BRANCH_BITS) - 1;
    let mut taken = [false; MARKS as usize];
    let mut marked = 0;
    let mark = |branch: &std::sync::Arc<Branch>| {
        let mut mark = branch.seed.mark(BRANCH_BITS) % MARKS;
        // With more branches than marks, some share a mark: then names occur twice.
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
    fn positions_convert_back() {
        let mut places = vec![
            BranchPosition::Offset(0),
            BranchPosition::Offset(1),
            BranchPosition::Offset((1 << VALUE_BITS) - 1),
        ];
        places.extend([hash(b"name"), 0, (1 << VALUE_BITS) - 1].map(BranchPosition::Behind));
        for (pass, mark, place) in
            (0..PASSES).flat_map(|pass| places.iter().map(move |&place| (pass, BranchMark(4094), place)))
        {
            let position = Position::new(pass, mark, place);
            let number = position.to_u64();
            assert_eq!(Position::from_u64(number), position);
            assert!(
                i64::try_from(number).is_ok_and(|number| number > 3),
                "the kernel takes no negative ones"
            );
        }
        for start in 0..=3 {
            assert_eq!(Position::Start(start).to_u64(), start as u64);
            assert_eq!(Position::from_u64(start as u64), Position::Start(start));
        }
        assert_eq!(Position::from_u64(Position::End.to_u64()), Position::End);
        let last = Position::new(0, REMEMBERED, BranchPosition::Offset((1 << VALUE_BITS) - 1));
        assert_eq!(Position::from_u64(last.to_u64()), last);
        for narrow in [4, 5000, NARROW_END - 1] {
            assert_eq!(Position::from_u64(narrow.into()), Position::Narrow(narrow));
            assert_eq!(Position::Narrow(narrow).to_u64(), narrow.into());
        }
        assert_eq!(Position::from_u64(NARROW_END.into()), Position::End);
        assert_eq!(Position::from_u64(1 << 40), Position::Start(0), "not a position of ours");
    }

    #[test]
    fn a_large_offset_is_rounded_down() {
        for offset in [1 << VALUE_BITS, 0x1234_5678_9abc_def0, i64::MAX as u64] {
            let number = Position::new(0, BranchMark(7), BranchPosition::Offset(offset)).to_u64();
            let Position::At { place: BranchPosition::Offset(back), .. } = Position::from_u64(number) else {
                panic!("{number:#x}")
            };
            assert!(back <= offset && offset - back < 1 << DROPPED_BITS);
        }
    }

    #[test]
    fn an_offset_that_does_not_fit_becomes_a_name() {
        let by_name = BranchPosition::Behind(hash(b"n"));
        assert_eq!(Offsets::Stable.place(5, b"n"), BranchPosition::Offset(5));
        assert_eq!(Offsets::Stable.place(1 << VALUE_BITS, b"n"), by_name);
        assert_eq!(Offsets::Hashes.place(1 << VALUE_BITS, b"n"), BranchPosition::Offset(1 << VALUE_BITS));
        assert_eq!(Offsets::Passing.place(5, b"n"), by_name);
    }
}
