//! The name of the program.

use std::ffi::CStr;
use std::sync::OnceLock;

/// The name of a pool in its filesystem type (`fuse.NAME`), in the name of its process, and before its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Name {
    #[default]
    Canopy,
    /// For setups, tools and scripts that look for mergerfs.
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

    /// Returns the usage line of a mount under this name.
    pub fn usage(self) -> &'static str {
        match self {
            Name::Canopy => "canopy mount BRANCH[:BRANCH...] MOUNTPOINT",
            Name::Mergerfs => "mergerfs [options] <branches> <mountpoint>",
        }
    }

    fn from_word(text: &str) -> Option<Name> {
        [Name::Canopy, Name::Mergerfs].into_iter().find(|name| name.as_str() == text)
    }

    /// Returns the name in a filesystem type of fstab or `mount -t`.
    pub fn from_fstype(fstype: &str) -> Option<Name> {
        let bare = ["fuse.", "fuseblk."].iter().find_map(|prefix| fstype.strip_prefix(prefix));
        Name::from_word(bare.unwrap_or(fstype))
    }
}

static CURRENT: OnceLock<Name> = OnceLock::new();

/// Sets the name of this process. Only the first call counts.
pub fn set_current(name: Name) {
    let _ = CURRENT.set(name);
}

/// Returns the name of this process.
pub fn current() -> Name {
    CURRENT.get().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filesystem_types_may_start_with_fuse() {
        assert_eq!(Name::from_fstype("fuse.canopy"), Some(Name::Canopy));
        assert_eq!(Name::from_fstype("fuseblk.mergerfs"), Some(Name::Mergerfs));
        assert_eq!(Name::from_fstype("mergerfs"), Some(Name::Mergerfs));
        assert_eq!(Name::from_fstype("fuse.sshfs"), None);
    }
}
