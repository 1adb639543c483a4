//! What a request does not tell about its caller, asked of `/proc`.
//!
//! Once `FUSE_ALLOW_IDMAP` is agreed on, only requests that create something carry their caller's ids; all
//! others have -1 in their place (fs/fuse/dev.c fuse_get_req). Supplementary groups and capabilities are in no
//! request at all. The caller waits for the answer, so its entry in `/proc` stays what it is meanwhile.
//!
//! `/proc` tells the ids of the process. Through a mount with mapped owners these are others than the files have, and
//! no request tells the mapping: then nobody but who has a capability owns anything here, which errs on the safe side.

use crate::fs::stat::Attr;
use crate::ids::Caller;

/// Stands for an id that was not told.
const UNKNOWN: u32 = u32::MAX;
/// Positions of capabilities (include/uapi/linux/capability.h).
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;
const CAP_LINUX_IMMUTABLE: u32 = 9;
const CAP_SYS_ADMIN: u32 = 21;

impl Caller {
    /// Who the caller is when it comes to files; none when nobody can tell.
    pub(crate) fn fsuid(&self) -> Option<u32> {
        match self.uid {
            // Real, effective, saved, filesystem.
            UNKNOWN => numbers(&self.status()?, "Uid:").nth(3),
            uid => Some(uid),
        }
    }

    /// The caller with its ids told, as whoever creates something must know them; none when nobody can tell.
    pub(crate) fn with_ids(&self) -> Option<Caller> {
        let gid = match self.gid {
            UNKNOWN => numbers(&self.status()?, "Gid:").nth(3)?,
            gid => gid,
        };
        Some(Caller { uid: self.fsuid()?, gid, ..*self })
    }

    /// May the caller do what only a file's owner may (fs/inode.c inode_owner_or_capable)?
    pub(crate) fn owner_or_capable(&self, attr: &Attr) -> bool {
        self.fsuid() == Some(attr.uid) || self.has(CAP_FOWNER, Reach::File(attr))
    }

    /// Has the kernel itself checked what older ones leave to the filesystem? That of Linux 6.12 has, which does not tell
    /// the caller, and it alone knows who owns what in a mount with mapped owners.
    pub(crate) fn is_checked(&self) -> bool {
        self.uid == UNKNOWN
    }

    /// Is the caller in the group, or root, who is in all of them?
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        if self.gid == gid || self.uid == 0 {
            return true;
        }
        let Some(status) = self.status() else { return false };
        (self.gid == UNKNOWN && numbers(&status, "Gid:").nth(3) == Some(gid))
            || (self.uid == UNKNOWN && numbers(&status, "Uid:").nth(3) == Some(0))
            || numbers(&status, "Groups:").any(|group| group == gid)
    }

    /// May the caller make files immutable or append-only, and undo it?
    pub(crate) fn may_set_file_flags(&self) -> bool {
        self.has(CAP_LINUX_IMMUTABLE, Reach::System)
    }

    /// Do set-id bits survive what the caller does to a file?
    pub(crate) fn keeps_set_id(&self, attr: &Attr) -> bool {
        self.has(CAP_FSETID, Reach::File(attr))
    }

    /// May what the caller makes in a set-group-ID directory run with the directory's group (fs/inode.c
    /// in_group_or_capable)? Of a mount with mapped owners the kernel has seen to it.
    pub(crate) fn gives_group(&self, dir: &Attr) -> bool {
        self.is_mapped() || self.is_in_group(dir.gid) || self.keeps_set_id(dir)
    }

    /// Is the caller told as another than the process is?
    fn is_mapped(&self) -> bool {
        let Some(status) = self.status() else { return false };
        let told = |name, id| numbers(&status, name).nth(3).is_some_and(|own| own != id);
        told("Uid:", self.uid) || told("Gid:", self.gid)
    }

    /// May the caller do to a whole filesystem what only its administrator may?
    pub(crate) fn has_sys_admin(&self) -> bool {
        self.has(CAP_SYS_ADMIN, Reach::System)
    }

    /// May the caller read attributes called `trusted.*`?
    pub(crate) fn may_read_trusted(&self) -> bool {
        self.has(CAP_SYS_ADMIN, Reach::System)
    }

    /// Has the caller a capability that reaches so far? Of who cannot be asked, root has them all.
    fn has(&self, capability: u32, reach: Reach<'_>) -> bool {
        let Some(status) = self.status() else { return self.uid == 0 };
        let mask = field(&status, "CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        mask.is_some_and(|mask| mask & (1 << capability) != 0) && self.reaches(reach)
    }

    /// Those of a user namespace have their capabilities over what is mapped into it, and over nothing of the system
    /// (kernel/capability.c privileged_wrt_inode_uidgid).
    fn reaches(&self, reach: Reach<'_>) -> bool {
        let reaches = |map: &str, id: u32| {
            let read = |process: &str| std::fs::read_to_string(format!("/proc/{process}/{map}")).ok();
            let Some(theirs) = read(&self.pid.to_string()) else { return false };
            // A namespace with a map like the daemon's own reaches as far.
            read("self").as_ref() == Some(&theirs) || matches!(reach, Reach::File(_)) && maps_to(&theirs, id)
        };
        let (uid, gid) = match reach {
            Reach::System => (0, 0),
            Reach::File(attr) => (attr.uid, attr.gid),
        };
        reaches("uid_map", uid) && reaches("gid_map", gid)
    }

    fn status(&self) -> Option<String> {
        std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()
    }
}

/// What a capability is needed over.
#[derive(Clone, Copy)]
enum Reach<'a> {
    System,
    File(&'a Attr),
}

/// Does the map of a user namespace (user_namespaces(7): first id inside, first id out here, how many) lead to an id?
fn maps_to(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers =
            line.split_ascii_whitespace().skip(1).filter_map(|number| number.parse::<u64>().ok());
        let (Some(first), Some(count)) = (numbers.next(), numbers.next()) else { return false };
        (first..first + count).contains(&u64::from(id))
    })
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

fn numbers<'a>(status: &'a str, name: &str) -> impl Iterator<Item = u32> + 'a {
    field(status, name).unwrap_or_default().split_ascii_whitespace().filter_map(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY_KNOWS: u32 = u32::MAX - 1;

    fn told(uid: u32, gid: u32, pid: u32) -> Caller {
        Caller { uid, gid, pid, umask: 0 }
    }

    #[test]
    fn ids_missing_from_the_header_are_read_from_proc() {
        let own = std::process::id();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        assert_eq!(told(UNKNOWN, UNKNOWN, own).fsuid(), Some(uid));
        assert_eq!(told(UNKNOWN, UNKNOWN, own).with_ids(), Some(told(uid, gid, own)));
        assert!(told(UNKNOWN, UNKNOWN, own).is_in_group(gid));
        assert_eq!(told(UNKNOWN, UNKNOWN, own).is_in_group(NOBODY_KNOWS), uid == 0);
    }

    #[test]
    fn ids_in_the_header_are_used() {
        assert_eq!(told(7, 8, 0).fsuid(), Some(7));
        assert!(told(7, 8, 0).is_in_group(8) && !told(7, 8, 0).is_in_group(9));
        assert!(told(0, 0, 0).may_set_file_flags() && !told(7, 0, 0).may_set_file_flags());
        let sevens = Attr { uid: 7, ..Attr::default() };
        assert!(
            told(7, 8, 0).owner_or_capable(&sevens)
                && told(0, 0, 0).owner_or_capable(&sevens)
                && !told(8, 7, 0).owner_or_capable(&sevens)
        );
    }

    #[test]
    fn a_caller_without_ids_has_no_rights() {
        let gone = told(UNKNOWN, UNKNOWN, 0);
        assert_eq!((gone.fsuid(), gone.with_ids()), (None, None));
        let attr = Attr::default();
        assert!(!gone.is_in_group(0) && !gone.may_set_file_flags() && !gone.owner_or_capable(&attr));
        assert!(!gone.keeps_set_id(&attr) && !gone.may_read_trusted());
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
