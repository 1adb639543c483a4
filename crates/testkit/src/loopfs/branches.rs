//! On which filesystems the suites have their branches: `CANOPY_TEST_BRANCHES`.

use super::{Kind, LoopFs};

const VARIABLE: &str = "CANOPY_TEST_BRANCHES";

/// The filesystems of a pool's branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Branches {
    /// All on the same kind of filesystem.
    All(Kind),
    /// One after the other: a subvolume of a btrfs, a bind mount of a directory of an XFS, a tmpfs, an ext4. Before Linux 6.6,
    /// when a tmpfs had no attributes of users, another ext4 instead of it: programs could tell its files from others.
    Mixed,
}

impl Branches {
    /// Returns what `CANOPY_TEST_BRANCHES` says, if it is set.
    ///
    /// # Panics
    /// If it names nothing that is known.
    #[track_caller]
    pub fn asked() -> Option<Branches> {
        std::env::var(VARIABLE).ok().map(|text| Self::parse(&text))
    }

    #[track_caller]
    fn parse(text: &str) -> Branches {
        let mut kinds = [Kind::Tmpfs, Kind::Xfs, Kind::Btrfs, Kind::Ext4].into_iter();
        match kinds.find(|kind| kind.name() == text) {
            Some(kind) => Self::All(kind),
            None if text == "mixed" => Self::Mixed,
            None => panic!("{VARIABLE}={text}: tmpfs, xfs, btrfs, ext4 or mixed"),
        }
    }

    /// The kinds of filesystems among these.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::All(Kind::Ext4) => &[Kind::Ext4],
            Self::All(Kind::Xfs) => &[Kind::Xfs],
            Self::All(Kind::Btrfs) => &[Kind::Btrfs],
            Self::All(Kind::Tmpfs) => &[Kind::Tmpfs],
            Self::Mixed if tmpfs_has_attributes() => &[Kind::Btrfs, Kind::Xfs, Kind::Tmpfs, Kind::Ext4],
            Self::Mixed => &[Kind::Btrfs, Kind::Xfs, Kind::Ext4, Kind::Ext4],
        }
    }

    /// Makes the filesystem of a plain directory to which files on these are compared.
    #[track_caller]
    pub fn plain_disk(self, size: u64) -> LoopFs {
        match self {
            Self::All(_) => self.disk(0, size),
            Self::Mixed => LoopFs::new(Kind::Ext4, size),
        }
    }

    /// Makes the filesystem of a branch by the number of the branch.
    #[track_caller]
    pub fn disk(self, number: usize, size: u64) -> LoopFs {
        let kinds = self.kinds();
        let kind = kinds[number % kinds.len()];
        let size = size.max(kind.least());
        match (self, kind) {
            (Self::Mixed, Kind::Btrfs | Kind::Xfs) => LoopFs::part(kind, size),
            _ => LoopFs::new(kind, size),
        }
    }
}

/// Returns whether files in memory can have attributes of users, as they can since Linux 6.6 (`mm/shmem.c`).
fn tmpfs_has_attributes() -> bool {
    let file = rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd_create");
    rustix::fs::fsetxattr(file, "user.probe", b"", rustix::fs::XattrFlags::empty()).is_ok()
}

/// Makes the filesystem of a branch, by its number: of this kind unless `CANOPY_TEST_BRANCHES` names another.
#[track_caller]
pub fn branch_disk(number: usize, otherwise: Kind, size: u64) -> LoopFs {
    Branches::asked().unwrap_or(Branches::All(otherwise)).disk(number, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    #[test]
    fn every_name_is_understood() {
        for kind in [Kind::Tmpfs, Kind::Xfs, Kind::Btrfs, Kind::Ext4] {
            assert_eq!(Branches::parse(kind.name()), Branches::All(kind));
            assert_eq!(Branches::All(kind).kinds(), [kind]);
        }
        assert_eq!(Branches::parse("mixed"), Branches::Mixed);
        assert!(std::panic::catch_unwind(|| Branches::parse("zfs")).is_err());
    }

    #[test]
    fn four_branches_of_a_mixture_are_on_four_filesystems() {
        let disks: Vec<LoopFs> = (0..4).map(|number| Branches::Mixed.disk(number, 16 << 20)).collect();
        let kinds: Vec<Kind> = disks.iter().map(LoopFs::kind).collect();
        assert_eq!(kinds, [Kind::Btrfs, Kind::Xfs, Kind::Tmpfs, Kind::Ext4]);
        let mounts: Vec<bool> = disks.iter().map(|disk| proc::mount_at(disk.path()).is_some()).collect();
        assert_eq!(mounts, [false, true, true, true]);
    }
}
