//! Ids, groups and capabilities of a request's caller, read from `/proc` where the request lacks them.
//!
//! Once `FUSE_ALLOW_IDMAP` is agreed on, only requests that create something carry their caller's ids; all
//! others carry -1 instead (fs/fuse/dev.c fuse_get_req). No request carries supplementary groups or capabilities.
//! The caller waits for the answer, so its entry in `/proc` does not change meanwhile.
//!
//! `/proc` shows the ids of the process. On an idmapped mount these differ from the owners of the files, and no request
//! carries the mapping. The pool then treats no caller as an owner unless it has the capability, which is safe.
//!
//! What is not about the rights of a file, the [door](super) decides.

use super::task::Task;
use canopy_branch::fs::stat::Attr;
use canopy_sys::creds::Identity;

/// Bit positions of capabilities (include/uapi/linux/capability.h).
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;

/// Stands for an id that a request does not carry.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// The client that sent a request; new files belong to it. An id of -1 is unknown; see above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Process id in the daemon's pid namespace; 0 when unknown.
    pub pid: u32,
    /// Permission bits to clear where the parent directory has no default ACL.
    pub umask: u32,
}

impl Caller {
    /// Returns the caller's filesystem uid, or `None` if it cannot be determined.
    pub(crate) fn fsuid(&self) -> Option<u32> {
        match self.uid {
            UNKNOWN => self.task()?.fsuid(),
            uid => Some(uid),
        }
    }

    /// Returns the caller with both ids filled in, which creating a file requires; `None` if they cannot be determined.
    pub(crate) fn with_ids(&self) -> Option<Caller> {
        let gid = match self.gid {
            UNKNOWN => self.task()?.fsgid()?,
            gid => gid,
        };
        Some(Caller { uid: self.fsuid()?, gid, ..*self })
    }

    /// Returns whether the caller has the rights of the file's owner (fs/inode.c inode_owner_or_capable).
    pub(crate) fn owner_or_capable(&self, attr: &Attr) -> bool {
        self.fsuid() == Some(attr.uid) || self.has(CAP_FOWNER, attr)
    }

    /// Returns whether the kernel has itself checked what older kernels leave to the filesystem. A kernel that omits
    /// the caller's ids (since Linux 6.12) has, and only the kernel knows the owners on an idmapped mount.
    pub(crate) fn is_checked(&self) -> bool {
        self.uid == UNKNOWN
    }

    /// Returns whether the caller is in the group. Root counts as a member of all groups.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        if self.gid == gid || self.uid == 0 {
            return true;
        }
        let Some(task) = self.task() else { return false };
        (self.gid == UNKNOWN && task.fsgid() == Some(gid))
            || (self.uid == UNKNOWN && task.fsuid() == Some(0))
            || task.groups().any(|group| group == gid)
    }

    /// Returns whether set-id bits survive the caller's changes of a file.
    pub(crate) fn keeps_set_id(&self, attr: &Attr) -> bool {
        self.has(CAP_FSETID, attr)
    }

    /// Returns whether a file that the caller creates in a setgid directory may keep the setgid bit (fs/inode.c
    /// in_group_or_capable). On an idmapped mount, the kernel has already checked this.
    pub(crate) fn gives_group(&self, dir: &Attr) -> bool {
        self.is_mapped() || self.is_in_group(dir.gid) || self.keeps_set_id(dir)
    }

    /// Returns whether the request carries other ids than those of the process, as on an idmapped mount.
    fn is_mapped(&self) -> bool {
        let Some(task) = self.task() else { return false };
        let differs = |own: Option<u32>, id| own.is_some_and(|own| own != id);
        differs(task.fsuid(), self.uid) || differs(task.fsgid(), self.gid)
    }

    /// Returns the identity by which a filesystem decides who gets the blocks that it keeps; `None` if it cannot be
    /// determined. It is that of the process, whatever the owners of files are mapped to. `resource` is whether the caller has
    /// CAP_SYS_RESOURCE: who has gets what is kept for root, and the daemon does not have it.
    pub(crate) fn spends_as(&self, resource: bool) -> Option<Identity> {
        let task = self.task()?;
        let uid = if resource { 0 } else { task.fsuid()? };
        Some(Identity { uid, gid: task.fsgid()?, groups: task.groups().collect() })
    }

    /// The caller of which only the thread is known.
    pub(crate) fn of_thread(pid: u32) -> Caller {
        Caller { uid: UNKNOWN, gid: UNKNOWN, pid, umask: 0 }
    }

    /// Returns whether the caller has a capability over a file. If `/proc` has no entry for the caller, root has all
    /// capabilities and other users have none.
    fn has(&self, capability: u32, over: &Attr) -> bool {
        let Some(task) = self.task() else { return self.uid == 0 };
        task.capabilities().is_some_and(|mask| mask & (1 << capability) != 0) && self.reaches(over)
    }

    /// Returns whether the caller's capabilities extend to a file. In a user namespace they extend to files whose
    /// owner and group are mapped into it (kernel/capability.c privileged_wrt_inode_uidgid).
    ///
    /// A namespace with the same map as the daemon's has all the ids that the daemon's has, be it another: each line counts
    /// as many ids, and none is mapped twice.
    fn reaches(&self, file: &Attr) -> bool {
        let reaches = |map: &str, id: u32| {
            let read = |process: &str| std::fs::read_to_string(format!("/proc/{process}/{map}")).ok();
            let Some(theirs) = read(&self.pid.to_string()) else { return false };
            read("self").as_ref() == Some(&theirs) || maps_to(&theirs, id)
        };
        reaches("uid_map", file.uid) && reaches("gid_map", file.gid)
    }

    fn task(&self) -> Option<Task> {
        Task::read(self.pid)
    }
}

/// Returns whether the map of a user namespace contains an outer id. Each line holds the first id inside, the first
/// id outside and the count (user_namespaces(7)).
fn maps_to(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers =
            line.split_ascii_whitespace().skip(1).filter_map(|number| number.parse::<u64>().ok());
        let (Some(first), Some(count)) = (numbers.next(), numbers.next()) else { return false };
        (first..first + count).contains(&u64::from(id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNUSED_GID: u32 = u32::MAX - 1;

    fn caller(uid: u32, gid: u32, pid: u32) -> Caller {
        Caller { uid, gid, pid, umask: 0 }
    }

    #[test]
    fn ids_missing_from_the_header_are_read_from_proc() {
        let own = std::process::id();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        assert_eq!(caller(UNKNOWN, UNKNOWN, own).fsuid(), Some(uid));
        assert_eq!(caller(UNKNOWN, UNKNOWN, own).with_ids(), Some(caller(uid, gid, own)));
        assert!(caller(UNKNOWN, UNKNOWN, own).is_in_group(gid));
        assert_eq!(caller(UNKNOWN, UNKNOWN, own).is_in_group(UNUSED_GID), uid == 0);
    }

    #[test]
    fn ids_in_the_header_are_used() {
        assert_eq!(caller(7, 8, 0).fsuid(), Some(7));
        assert!(caller(7, 8, 0).is_in_group(8) && !caller(7, 8, 0).is_in_group(9));
        let sevens = Attr { uid: 7, ..Attr::default() };
        assert!(
            caller(7, 8, 0).owner_or_capable(&sevens)
                && caller(0, 0, 0).owner_or_capable(&sevens)
                && !caller(8, 7, 0).owner_or_capable(&sevens)
        );
    }

    #[test]
    fn a_caller_without_ids_has_no_rights() {
        let gone = caller(UNKNOWN, UNKNOWN, 0);
        assert_eq!((gone.fsuid(), gone.with_ids()), (None, None));
        let attr = Attr::default();
        assert!(!gone.is_in_group(0) && !gone.owner_or_capable(&attr));
        assert!(!gone.keeps_set_id(&attr));
    }

    #[test]
    fn ids_are_translated_by_a_user_namespace_map() {
        let map = "         0       6004          1\n         1     100000      65536\n";
        for (id, mapped) in [(6004, true), (6005, false), (0, false), (100_000, true), (165_535, true)] {
            assert_eq!(maps_to(map, id), mapped, "{id}");
        }
        assert!(!maps_to(map, 165_536) && !maps_to("", 0));
        assert!(maps_to("         0          0 4294967295\n", u32::MAX - 1));
    }
}
