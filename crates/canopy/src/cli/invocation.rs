//! The names the program answers to. Which one it was called by decides about the grammar of its command line.

use canopy_config::program_name::Name;
use std::ffi::OsStr;
use std::path::Path;

/// Whose grammar the command line is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invocation {
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

impl Invocation {
    /// By the last part of the first argument.
    pub fn from_program(program: &OsStr) -> Invocation {
        let base = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
        match base.strip_prefix("mount.").and_then(Name::from_fstype) {
            Some(name) => Invocation::Helper(name),
            None if base == "mergerfs" => Invocation::Mergerfs,
            None if matches!(base, "fsck.mergerfs" | "fsck.canopy") => Invocation::Fsck,
            None if base == "mergerfs.collect-info" => Invocation::CollectInfo,
            None => Invocation::Canopy,
        }
    }

    pub fn name(self) -> Name {
        match self {
            Invocation::Canopy | Invocation::Fsck | Invocation::CollectInfo => Name::Canopy,
            Invocation::Mergerfs => Name::Mergerfs,
            Invocation::Helper(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_the_path_counts() {
        let table = [
            ("canopy", Invocation::Canopy),
            ("/usr/bin/canopy", Invocation::Canopy),
            ("frob", Invocation::Canopy),
            ("", Invocation::Canopy),
            ("/", Invocation::Canopy),
            ("mergerfs", Invocation::Mergerfs),
            ("./mergerfs", Invocation::Mergerfs),
            ("/sbin/mount.mergerfs", Invocation::Helper(Name::Mergerfs)),
            ("mount.fuse.mergerfs", Invocation::Helper(Name::Mergerfs)),
            ("mount.canopy", Invocation::Helper(Name::Canopy)),
            ("mount.fuse.canopy", Invocation::Helper(Name::Canopy)),
            ("mount.ext4", Invocation::Canopy),
            ("/sbin/fsck.mergerfs", Invocation::Fsck),
            ("fsck.canopy", Invocation::Fsck),
            ("/usr/bin/mergerfs.collect-info", Invocation::CollectInfo),
            ("fsck.ext4", Invocation::Canopy),
        ];
        for (program, invocation) in table {
            assert_eq!(Invocation::from_program(OsStr::new(program)), invocation, "{program}");
        }
    }
}
