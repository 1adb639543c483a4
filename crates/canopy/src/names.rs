//! The names the program answers to. Which one it was called by decides about the grammar of its command
//! line, and what the mount is known as.

use std::ffi::{CStr, OsStr};
use std::path::Path;
use std::sync::OnceLock;

/// What a pool is known as: the filesystem type behind `fuse.`, the name of the process, the word before
/// its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Name {
    #[default]
    Canopy,
    /// For setups, tools and scripts that look for it by this name.
    Mergerfs,
}

impl Name {
    pub fn as_str(self) -> &'static str {
        match self {
            Name::Canopy => "canopy",
            Name::Mergerfs => "mergerfs",
        }
    }

    pub fn as_c_str(self) -> &'static CStr {
        match self {
            Name::Canopy => c"canopy",
            Name::Mergerfs => c"mergerfs",
        }
    }

    /// How to mount under this name.
    pub fn usage(self) -> &'static str {
        match self {
            Name::Canopy => "canopy mount BRANCH[:BRANCH...] MOUNTPOINT",
            Name::Mergerfs => "mergerfs [options] <branches> <mountpoint>",
        }
    }

    fn of(text: &str) -> Option<Name> {
        [Name::Canopy, Name::Mergerfs].into_iter().find(|name| name.as_str() == text)
    }

    /// From a filesystem type, as fstab and `mount -t` write it.
    pub fn of_type(fstype: &str) -> Option<Name> {
        let bare = ["fuse.", "fuseblk."].iter().find_map(|prefix| fstype.strip_prefix(prefix));
        Name::of(bare.unwrap_or(fstype))
    }
}

/// Whose grammar the command line is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Called {
    /// By its own name, or one that nobody knows.
    Canopy,
    Mergerfs,
    /// By mount(8), for a filesystem of this type.
    Helper(Name),
    /// By fsck(8), or by whoever wants copies compared.
    Fsck,
    /// By who was asked to for a report of a defect.
    CollectInfo,
}

impl Called {
    /// By the last part of the first argument.
    pub fn by(program: &OsStr) -> Called {
        let base = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
        match base.strip_prefix("mount.").and_then(Name::of_type) {
            Some(name) => Called::Helper(name),
            None if base == "mergerfs" => Called::Mergerfs,
            None if matches!(base, "fsck.mergerfs" | "fsck.canopy") => Called::Fsck,
            None if base == "mergerfs.collect-info" => Called::CollectInfo,
            None => Called::Canopy,
        }
    }

    pub fn name(self) -> Name {
        match self {
            Called::Canopy | Called::Fsck | Called::CollectInfo => Name::Canopy,
            Called::Mergerfs => Name::Mergerfs,
            Called::Helper(name) => name,
        }
    }
}

static SPOKEN_TO: OnceLock<Name> = OnceLock::new();

/// Says once, at the start, what this process is known as.
pub fn answer_to(name: Name) {
    let _ = SPOKEN_TO.set(name);
}

/// What this process is known as.
pub fn own() -> Name {
    SPOKEN_TO.get().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_the_path_counts() {
        let table = [
            ("canopy", Called::Canopy),
            ("/usr/bin/canopy", Called::Canopy),
            ("frob", Called::Canopy),
            ("", Called::Canopy),
            ("/", Called::Canopy),
            ("mergerfs", Called::Mergerfs),
            ("./mergerfs", Called::Mergerfs),
            ("/sbin/mount.mergerfs", Called::Helper(Name::Mergerfs)),
            ("mount.fuse.mergerfs", Called::Helper(Name::Mergerfs)),
            ("mount.canopy", Called::Helper(Name::Canopy)),
            ("mount.fuse.canopy", Called::Helper(Name::Canopy)),
            ("mount.ext4", Called::Canopy),
            ("/sbin/fsck.mergerfs", Called::Fsck),
            ("fsck.canopy", Called::Fsck),
            ("/usr/bin/mergerfs.collect-info", Called::CollectInfo),
            ("fsck.ext4", Called::Canopy),
        ];
        for (program, called) in table {
            assert_eq!(Called::by(OsStr::new(program)), called, "{program}");
        }
    }

    #[test]
    fn types_may_say_fuse() {
        assert_eq!(Name::of_type("fuse.canopy"), Some(Name::Canopy));
        assert_eq!(Name::of_type("fuseblk.mergerfs"), Some(Name::Mergerfs));
        assert_eq!(Name::of_type("mergerfs"), Some(Name::Mergerfs));
        assert_eq!(Name::of_type("fuse.sshfs"), None);
    }
}
