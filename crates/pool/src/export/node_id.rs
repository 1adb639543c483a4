//! Composing and taking apart stable node ids.

use canopy_base::ids::NodeId;
use canopy_base::inode_number::BranchSeed;
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::{Attr, FileKey};
use smallvec::SmallVec;

/// Set in stable ids only.
const MARK: u64 = 1 << 63;
/// Widths of the parts of an id in bits, from its top: hash of the branch, inode number, proof.
const TAG: u32 = 10;
const INO: u32 = 40;
const PROOF: u32 = 13;

const _: () = assert!(1 + TAG + INO + PROOF == u64::BITS);

/// The id and generation of a node that stay the same across restarts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StableId {
    pub(crate) id: NodeId,
    pub(crate) generation: u32,
}

impl StableId {
    /// Returns the stable id of a file on a branch, if it has one.
    pub(crate) fn of(branch: &Branch, key: FileKey) -> Option<StableId> {
        let fits = branch.stable_inodes && key.dev == branch.dev && key.birth != (0, 0);
        fits.then(|| StableId::new(branch.seed, key))?
    }

    fn new(seed: BranchSeed, key: FileKey) -> Option<StableId> {
        // With all bits set the id could be mistaken for that of the control file.
        let fits = key.ino < (1 << INO) - 1;
        let proof = seed.proof(key.ino, key.birth);
        let id = MARK | tag(seed) << (INO + PROOF) | key.ino << PROOF | proof >> (u64::BITS - PROOF);
        fits.then_some(StableId { id: NodeId(id), generation: proof as u32 })
    }

    /// Returns the stable id of a directory, given its copies with their branches: that of the oldest copy. Among
    /// copies born in the same tick, the choice favours no branch and does not depend on the order of branches: other
    /// copies may come and go.
    pub(crate) fn of_dir<'a>(copies: impl Iterator<Item = (&'a Branch, &'a Attr)>) -> Option<StableId> {
        let stable = |(branch, attr): (&Branch, &Attr)| {
            Some((attr.key().birth, StableId::of(branch, attr.key()).filter(|_| attr.is_dir())?))
        };
        let mut copies: SmallVec<[_; 4]> = copies.filter_map(stable).collect();
        let oldest = copies.iter().map(|(birth, _)| *birth).min()?;
        copies.retain(|(birth, _)| *birth == oldest);
        copies.sort_unstable_by_key(|(_, stable)| stable.id);
        copies.into_iter().map(|(_, stable)| stable).reduce(StableId::tie_break)
    }

    /// Returns the copy of a directory from which its stable id comes, or would come if those of filesystems below the
    /// branches had one. `None` if no copy has an inode number that lasts.
    pub(crate) fn oldest<'a>(
        copies: impl Iterator<Item = (&'a Branch, &'a Attr)>,
    ) -> Option<(&'a Branch, &'a Attr)> {
        let lasts = |(branch, attr): &(&Branch, &Attr)| {
            branch.stable_inodes && attr.is_dir() && attr.key().birth != (0, 0)
        };
        let mut copies: SmallVec<[_; 4]> = copies.filter(lasts).collect();
        let oldest = copies.iter().map(|(_, attr)| attr.key().birth).min()?;
        copies.retain(|(_, attr)| attr.key().birth == oldest);
        let stable = |(branch, attr): &(&Branch, &Attr)| StableId::of(branch, attr.key());
        copies.sort_unstable_by_key(|copy| {
            (stable(copy).map_or(u64::MAX, |stable| stable.id.0), copy.0.seed.number(), copy.1.ino)
        });
        copies.into_iter().reduce(|one, other| match (stable(&one), stable(&other)) {
            (Some(first), Some(second)) if first.tie_break(second) == second => other,
            _ => one,
        })
    }

    /// Picks one of two pseudo-randomly, so that code that adds a copy can retry until the result stays the same.
    fn tie_break(self, other: StableId) -> StableId {
        if (self.generation ^ other.generation).count_ones().is_multiple_of(2) { self } else { other }
    }
}

fn tag(seed: BranchSeed) -> u64 {
    seed.proof(0, (0, 0)) >> (u64::BITS - TAG)
}

/// The file that a stable id refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StableTarget {
    pub(crate) id: NodeId,
    pub(crate) ino: u64,
}

impl StableTarget {
    /// Takes an id apart; `None` if it is not stable.
    pub(crate) fn of(id: NodeId) -> Option<StableTarget> {
        let ino = id.0 >> PROOF & ((1 << INO) - 1);
        (id.0 & MARK != 0).then_some(StableTarget { id, ino })
    }

    /// Returns true if the file may be on this branch.
    pub(crate) fn may_be_on(self, branch: &Branch) -> bool {
        branch.stable_inodes && self.id.0 >> (INO + PROOF) & ((1 << TAG) - 1) == tag(branch.seed)
    }

    /// Returns the stable id of this file of a branch, if it is the one referred to.
    pub(crate) fn is(self, branch: &Branch, key: FileKey) -> Option<StableId> {
        StableId::of(branch, key).filter(|stable| stable.id == self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn key(ino: u64, birth: (i64, u32)) -> FileKey {
        FileKey { dev: 7, ino, birth }
    }

    /// If these numbers change, all handles that clients hold become stale.
    #[test]
    fn ids_do_not_change_between_versions() {
        let seed = BranchSeed::new(b"/mnt/disk1");
        let stable = StableId::new(seed, key(12345, (1_700_000_000, 123_456_789))).unwrap();
        assert_eq!((stable.id.0, stable.generation), (IDS.0, IDS.1));
    }

    const IDS: (u64, u32) = (11_060_840_684_923_076_308, 61_361_684);

    #[test]
    fn an_id_contains_the_inode_number_and_differs_between_files() {
        let seeds = [b"/mnt/a", b"/mnt/b"].map(|path| BranchSeed::new(path));
        let mut seen = HashSet::new();
        for seed in seeds {
            for ino in [2, 12, 1 << 32, (1 << INO) - 2] {
                for birth in [(1, 0), (1, 1), (2, 0)] {
                    let stable = StableId::new(seed, key(ino, birth)).unwrap();
                    let wanted = StableTarget::of(stable.id).unwrap();
                    assert_eq!(wanted.ino, ino);
                    assert!(seen.insert((stable.id, stable.generation)), "{ino} {birth:?}");
                }
            }
        }
        assert_eq!(StableId::new(seeds[0], key((1 << INO) - 1, (1, 0))), None);
        assert_eq!(StableTarget::of(NodeId(12)), None);
    }
}
