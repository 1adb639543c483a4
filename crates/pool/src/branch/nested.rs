//! Filesystems that a branch holds and is not on: mounted below its root, subvolumes, and where followed symlinks lead.
//!
//! Their inode numbers are those of the branch once more. So that two files do not get one number in the pool (backup
//! programs take such for hard links of each other), the filesystem takes part in theirs. Device numbers change from mount to
//! mount; what statvfs(3) calls the filesystem (`f_fsid`) does not where it comes from a UUID, and is another one for each
//! subvolume of a btrfs.

use crate::lock::rank;
use crate::lock::ranked::RwLock;
use smallvec::SmallVec;

/// Devices that are known; subvolumes may be many.
const MOST: usize = 1024;

/// By device: what takes part in the numbers of files there, never the same for two.
#[derive(Default)]
pub(crate) struct NestedFilesystems(RwLock<SmallVec<[(u64, u64); 4]>, rank::NestedFilesystems>);

impl NestedFilesystems {
    pub(crate) fn get(&self, dev: u64) -> Option<u64> {
        self.0.read().iter().find(|(known, _)| *known == dev).map(|(_, share)| *share)
    }

    /// A device has been found to hold this filesystem.
    pub(crate) fn put(&self, dev: u64, fsid: u64) -> u64 {
        let mut known = self.0.write();
        if let Some((_, share)) = known.iter().find(|(known, _)| *known == dev) {
            return *share;
        }
        // A copy of a whole disk has the UUID of the first; and some have none.
        let taken = |share: u64| share == 0 || known.iter().any(|(_, other)| *other == share);
        let share = if taken(fsid) { apart(fsid, dev) } else { fsid };
        if known.len() >= MOST {
            known.clear();
        }
        known.push((dev, share));
        share
    }

    /// What was mounted may not be any more, and its device be another's.
    pub(crate) fn clear(&self) {
        self.0.write().clear();
    }
}

pub(crate) fn apart(fsid: u64, dev: u64) -> u64 {
    fsid ^ dev.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_devices_have_the_same_share() {
        let below = NestedFilesystems::default();
        let shares: Vec<u64> = [(1, 77), (2, 78), (3, 77), (4, 0), (5, 0), (6, 77)]
            .map(|(dev, fsid)| below.put(dev, fsid))
            .into();
        assert_eq!(&shares[..2], [77, 78], "what a filesystem calls itself");
        let mut apart = shares.clone();
        apart.sort_unstable();
        apart.dedup();
        assert_eq!(apart.len(), shares.len(), "{shares:?}");
        assert!(!shares.contains(&0));
        for (dev, share) in (1..).zip(&shares) {
            assert_eq!((below.get(dev), below.put(dev, 99)), (Some(*share), *share));
        }
        below.clear();
        assert_eq!(below.get(1), None);
        for dev in 0..5000 {
            below.put(dev, dev + 1);
        }
        assert!(below.0.read().len() <= MOST);
    }
}
