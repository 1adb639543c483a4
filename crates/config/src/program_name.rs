//! The names a pool is known by.

use std::ffi::CStr;
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

    fn from_word(text: &str) -> Option<Name> {
        [Name::Canopy, Name::Mergerfs].into_iter().find(|name| name.as_str() == text)
    }

    /// From a filesystem type, as fstab and `mount -t` write it.
    pub fn from_fstype(fstype: &str) -> Option<Name> {
        let bare = ["fuse.", "fuseblk."].iter().find_map(|prefix| fstype.strip_prefix(prefix));
        Name::from_word(bare.unwrap_or(fstype))
    }
}

static CURRENT: OnceLock<Name> = OnceLock::new();

/// Says once, at the start, what this process is known as.
pub fn set_current(name: Name) {
    let _ = CURRENT.set(name);
}

/// What this process is known as.
pub fn current() -> Name {
    CURRENT.get().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_may_say_fuse() {
        assert_eq!(Name::from_fstype("fuse.canopy"), Some(Name::Canopy));
        assert_eq!(Name::from_fstype("fuseblk.mergerfs"), Some(Name::Mergerfs));
        assert_eq!(Name::from_fstype("mergerfs"), Some(Name::Mergerfs));
        assert_eq!(Name::from_fstype("fuse.sshfs"), None);
    }
}
