//! The identity of a mount.

use std::os::fd::AsFd;
use std::path::Path;

use canopy_sys::mountinfo::{self, MNT_ID_UNIQUE};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// The identity of a mount.
///
/// The unique id (Linux 6.8) is never reused. The plain id may be, so it is compared only when the other is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountId {
    pub(super) unique: Option<u64>,
    pub(super) plain: Option<u64>,
}

impl MountId {
    /// Returns the identity of the topmost mount at `path`, without sending a request to a FUSE server.
    pub(super) fn of(path: &Path) -> Result<MountId, Errno> {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
        let unique = rustix::fs::statx(CWD, path, flags, MNT_ID_UNIQUE).ok();
        let unique =
            unique.filter(|stat| stat.stx_mask & MNT_ID_UNIQUE.bits() != 0).map(|stat| stat.stx_mnt_id);
        let identity = MountId { unique, plain: plain_id(path) };
        if identity.plain.is_none() && identity.unique.is_none() { Err(Errno::NOENT) } else { Ok(identity) }
    }

    pub(super) fn is(self, other: MountId) -> bool {
        match (self.unique, other.unique) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.plain.is_some() && self.plain == other.plain,
        }
    }
}

/// Returns the unique id (Linux 6.8) of the topmost mount at `path`, without sending a request to a FUSE server. It is
/// never reused.
#[must_use]
pub fn unique_mount_id(path: &Path) -> Option<u64> {
    MountId::of(path).ok()?.unique
}

/// Returns the mount id that mountinfo lists. It does not ask for attributes, which the kernel refuses once a server has
/// returned invalid ones for the root: the mount must be identified even then.
fn plain_id(path: &Path) -> Option<u64> {
    let named =
        rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    mountinfo::id_of(named.as_fd()).ok().map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unique_id_decides_if_both_have_one() {
        let proc = MountId::of(Path::new("/proc")).unwrap();
        assert!(!proc.is(MountId::of(Path::new("/")).unwrap()));
        assert!(proc.is(MountId { unique: None, ..proc }));
    }
}
