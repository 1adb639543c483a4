//! The names of the program. The name it is called by selects the grammar of the command line.

use canopy_config::program_name::Name;
use canopy_upkeep::Tool;
use std::ffi::OsStr;
use std::path::Path;

/// The grammar of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invocation {
    /// Called by its own name, or an unknown one.
    Canopy,
    Mergerfs,
    /// Called by mount(8), for a filesystem of this type.
    Helper(Name),
    /// Called as `fsck.mergerfs`, by fsck(8) or by a user.
    Fsck,
    /// Called as `mergerfs.collect-info`.
    CollectInfo,
    /// Called as one of mergerfs-tools.
    Tool(Tool),
}

impl Invocation {
    /// Derives it from the last component of the first argument.
    pub fn from_program(program: &OsStr) -> Invocation {
        let base = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
        match base.strip_prefix("mount.").and_then(Name::from_fstype) {
            Some(name) => Invocation::Helper(name),
            None if base == "mergerfs" => Invocation::Mergerfs,
            None if matches!(base, "fsck.mergerfs" | "fsck.canopy") => Invocation::Fsck,
            None if base == "mergerfs.collect-info" => Invocation::CollectInfo,
            None => Tool::ALL
                .into_iter()
                .find(|(name, _)| *name == base)
                .map_or(Invocation::Canopy, |(_, tool)| Invocation::Tool(tool)),
        }
    }

    pub fn name(self) -> Name {
        match self {
            Invocation::Canopy | Invocation::Fsck | Invocation::CollectInfo | Invocation::Tool(_) => {
                Name::Canopy
            }
            Invocation::Mergerfs => Name::Mergerfs,
            Invocation::Helper(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_component_of_the_path_counts() {
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
            ("/usr/bin/mergerfs.balance", Invocation::Tool(Tool::Balance)),
            ("mergerfs.ctl", Invocation::Tool(Tool::Ctl)),
            ("mergerfs.frob", Invocation::Canopy),
        ];
        for (program, invocation) in table {
            assert_eq!(Invocation::from_program(OsStr::new(program)), invocation, "{program}");
        }
    }
}
