//! Filesystems that a branch contains but is not on: mounted below its root, subvolumes, and the targets of followed
//! symlinks.
//!
//! Such a filesystem may use the same inode numbers as the branch. Two files of the pool must not share a number (backup
//! programs would take them for hard links of each other), so the filesystem takes part in the number. Its device number
//! would not do, since that differs from mount to mount. The filesystem id of statvfs(3) (`f_fsid`) stays the same where
//! it is derived from a UUID, and differs for each subvolume of a btrfs.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use smallvec::SmallVec;

/// The most devices remembered; there may be many subvolumes.
const MOST: usize = 1024;

/// For each device, the number that takes part in the inode numbers of its files; never the same for two devices.
#[derive(Default)]
pub struct NestedFilesystems(RwLock<SmallVec<[(u64, u64); 4]>, rank::Leaf>);

impl NestedFilesystems {
    pub fn get(&self, dev: u64) -> Option<u64> {
        self.0.read().iter().find(|(known, _)| *known == dev).map(|(_, share)| *share)
    }

    /// Records that a device holds the filesystem `fsid`. Returns its share.
    pub fn put(&self, dev: u64, fsid: u64) -> u64 {
        let mut known = self.0.write();
        if let Some((_, share)) = known.iter().find(|(known, _)| *known == dev) {
            return *share;
        }
        // A copy of a whole disk has the UUID of the original, and some filesystems have no id.
        let taken = |share: u64| share == 0 || known.iter().any(|(_, other)| *other == share);
        let share = if taken(fsid) { apart(fsid, dev) } else { fsid };
        if known.len() >= MOST {
            known.clear();
        }
        known.push((dev, share));
        share
    }

    /// Forgets all devices, for when mounts have changed: a device number may belong to another filesystem by now.
    pub fn clear(&self) {
        self.0.write().clear();
    }
}

pub fn apart(fsid: u64, dev: u64) -> u64 {
    fsid ^ dev.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_devices_get_the_same_id() {
        let below = NestedFilesystems::default();
        let shares: Vec<u64> = [(1, 77), (2, 78), (3, 77), (4, 0), (5, 0), (6, 77)]
            .map(|(dev, fsid)| below.put(dev, fsid))
            .into();
        assert_eq!(&shares[..2], [77, 78], "the filesystem's own id");
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
