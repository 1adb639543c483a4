//! The names the program answers to. Which one it was called by decides about the grammar of its command line.

use canopy_config::program_name::Name;
use std::ffi::OsStr;
use std::path::Path;

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
        match base.strip_prefix("mount.").and_then(Name::from_fstype) {
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
}
