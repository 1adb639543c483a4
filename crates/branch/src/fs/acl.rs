//! POSIX ACLs, and who enforces them.
//!
//! Under an ACL, the group bits of a mode are the ACL's mask: the most that any named user or group has, not what the
//! owning group has. A kernel that checks callers by mode alone would grant all of that to the group. So where the
//! kernel does not ask for ACLs, the pool reports a mode that grants only what the ACL grants to everybody.

use super::beneath::ProcPath;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::atomic::AtomicBool;

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Who checks the permissions of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PermissionCheck {
    /// The branch, if it does.
    #[default]
    Branch,
    /// The kernel, by the mode.
    Mode,
    /// The kernel, by mode and ACL (`FUSE_POSIX_ACL`).
    Acl,
}

/// How permissions are checked in a pool.
#[derive(Debug, Default)]
pub struct Acls {
    pub by_mode: AtomicBool,
    pub by_acl: AtomicBool,
    pub unheeded: AtomicBool,
}

pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Returns true if the filesystem of a directory supports ACLs.
pub fn is_known(dir: BorrowedFd<'_>) -> bool {
    rustix::fs::getxattr_query(ProcPath::of(dir).as_bytes(), ACCESS) != Err(Errno::OPNOTSUPP)
}

/// Returns the permissions that an ACL (include/uapi/linux/posix_acl_xattr.h) grants to every member of the group,
/// and to everybody else: no more than the entry of any named user or group. `None` if the ACL is malformed.
///
/// A process in several groups has the permissions of each, so the entry of a named group does not limit those of the
/// owning group.
pub fn rights_of_all(list: &[u8]) -> Option<(u32, u32)> {
    const GROUP: u16 = 0x04;
    const USER_NAMED: u16 = 0x02;
    const GROUP_NAMED: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    const VERSION: [u8; 4] = 2_u32.to_le_bytes();
    const ALL: u32 = 0o7;
    const NOBODY: u32 = 0o17;

    let entries = list.strip_prefix(&VERSION)?.as_chunks::<8>().0;
    let (mut group, mut users, mut groups, mut mask, mut others) = (0, NOBODY, NOBODY, ALL, 0);
    for entry in entries {
        let (tag, rights) =
            (u16::from_le_bytes([entry[0], entry[1]]), u32::from(u16::from_le_bytes([entry[2], entry[3]])));
        match tag {
            GROUP => group = rights,
            USER_NAMED => users &= rights,
            GROUP_NAMED => groups &= rights,
            MASK => mask = rights,
            OTHER => others = rights,
            _ => {}
        }
    }
    let named = |rights| if rights == NOBODY { ALL } else { rights & mask };
    Some((group & mask & named(users), others & named(users) & named(groups)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x04;
    const NAMED: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let entry = |&(tag, rights): &(u16, u16)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &1000_u32.to_le_bytes()].concat()
        };
        [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
    }

    #[test]
    fn a_mode_grants_no_more_than_the_acl_grants_to_everybody() {
        let ends = |middle: &[(u16, u16)], others| {
            let all = [&[(OWNER, 6)][..], middle, &[(OTHER, others)][..]].concat();
            rights_of_all(&list(&all))
        };
        for (middle, others, granted) in [
            (&[(GROUP, 5)][..], 4, (5, 4)),
            // Only a mask.
            (&[(GROUP, 7), (MASK, 4)], 6, (4, 6)),
            // A named user has more than the group, or more than everybody: the surplus is dropped.
            (&[(USER, 7), (GROUP, 0), (MASK, 7)], 0, (0, 0)),
            (&[(USER, 7), (GROUP, 4), (MASK, 6)], 4, (4, 4)),
            // A named user has less: nobody gets more than that user.
            (&[(USER, 0), (GROUP, 7), (MASK, 7)], 7, (0, 0)),
            (&[(USER, 7), (USER, 5), (GROUP, 7), (MASK, 7)], 7, (5, 5)),
            // The mask limits.
            (&[(USER, 7), (GROUP, 7), (MASK, 4)], 6, (4, 4)),
            // A named group has less than others; its members may be in the owning group, too.
            (&[(GROUP, 6), (NAMED, 4), (MASK, 7)], 6, (6, 4)),
            (&[(USER, 6), (GROUP, 6), (NAMED, 1), (MASK, 7)], 7, (6, 0)),
        ] {
            assert_eq!(ends(middle, others), Some(granted), "{middle:?} {others}");
        }
        assert_eq!(rights_of_all(b""), None);
        assert_eq!(rights_of_all(&[1, 0, 0, 0]), None);
        assert_eq!(rights_of_all(&[2, 0, 0, 0]), Some((0, 0)));
    }
}
