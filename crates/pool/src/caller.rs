//! What a request does not tell about its caller, asked of `/proc`.
//!
//! Once `FUSE_ALLOW_IDMAP` is agreed on, only requests that create something carry their caller's ids; all
//! others have -1 in their place (fs/fuse/dev.c fuse_get_req). Supplementary groups and capabilities are in no
//! request at all. The caller waits for the answer, so its entry in `/proc` stays what it is meanwhile.

use crate::Caller;

/// Stands for an id that was not told.
const UNKNOWN: u32 = u32::MAX;
/// Positions of capabilities (include/uapi/linux/capability.h).
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
    pub(crate) fn identified(&self) -> Option<Caller> {
        let gid = match self.gid {
            UNKNOWN => numbers(&self.status()?, "Gid:").nth(3)?,
            gid => gid,
        };
        Some(Caller { uid: self.fsuid()?, gid, ..*self })
    }

    /// May the caller do what only a file's owner and root may?
    pub(crate) fn owns(&self, owner: u32) -> bool {
        self.fsuid().is_some_and(|uid| uid == 0 || uid == owner)
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
    pub(crate) fn may_guard_files(&self) -> bool {
        self.is_root_with(CAP_LINUX_IMMUTABLE)
    }

    /// Do set-id bits survive what the caller does to a file?
    pub(crate) fn keeps_set_id(&self) -> bool {
        self.is_root_with(CAP_FSETID)
    }

    /// May the caller read attributes called `trusted.*`?
    pub(crate) fn sees_trusted(&self) -> bool {
        self.is_root_with(CAP_SYS_ADMIN)
    }

    /// Root of a user namespace has another id out here, and rights over nothing but its own.
    fn is_root_with(&self, capability: u32) -> bool {
        let has_it = |status: String| {
            let mask = field(&status, "CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
            mask.is_some_and(|mask| mask & (1 << capability) != 0)
        };
        self.fsuid() == Some(0) && self.status().is_none_or(has_it)
    }

    fn status(&self) -> Option<String> {
        std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()
    }
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
    fn ids_that_were_not_told_are_found() {
        let own = std::process::id();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        assert_eq!(told(UNKNOWN, UNKNOWN, own).fsuid(), Some(uid));
        assert_eq!(told(UNKNOWN, UNKNOWN, own).identified(), Some(told(uid, gid, own)));
        assert!(told(UNKNOWN, UNKNOWN, own).is_in_group(gid));
        assert_eq!(told(UNKNOWN, UNKNOWN, own).is_in_group(NOBODY_KNOWS), uid == 0);
    }

    #[test]
    fn ids_that_were_told_count() {
        assert_eq!(told(7, 8, 0).fsuid(), Some(7));
        assert!(told(7, 8, 0).is_in_group(8) && !told(7, 8, 0).is_in_group(9));
        assert!(told(0, 0, 0).may_guard_files() && !told(7, 0, 0).may_guard_files());
    }

    #[test]
    fn nobody_can_do_nothing() {
        let gone = told(UNKNOWN, UNKNOWN, 0);
        assert_eq!((gone.fsuid(), gone.identified()), (None, None));
        assert!(!gone.is_in_group(0) && !gone.may_guard_files());
    }
}
