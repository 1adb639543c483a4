//! Mount flags, with their bits for mount(2) and their names as mount options.

use bitflags::bitflags;
use rustix::mount::MountFlags as Ms;

bitflags! {
    /// Flags of a mount, with their names in mount(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MountFlags: u32 {
        /// The filesystem is read-only.
        const RDONLY = 1 << 0;
        /// Set-user-ID and set-group-ID bits have no effect.
        const NOSUID = 1 << 1;
        /// Device files cannot be opened.
        const NODEV = 1 << 2;
        /// Programs cannot be run.
        const NOEXEC = 1 << 3;
        /// Every write is synchronous.
        const SYNCHRONOUS = 1 << 4;
        /// Every change of a directory is synchronous.
        const DIRSYNC = 1 << 5;
        /// Access times are not updated.
        const NOATIME = 1 << 6;
        /// Access times of directories are not updated.
        const NODIRATIME = 1 << 7;
        /// Access times are updated once after each change of the file, and once a day.
        const RELATIME = 1 << 8;
        /// Access times are updated with every read.
        const STRICTATIME = 1 << 9;
        /// Updates of times are written to disk late.
        const LAZYTIME = 1 << 10;
    }
}

/// For each flag, the bit for mount(2) and the name as a mount option.
pub(super) const FLAGS: [(MountFlags, Ms, &str); 11] = [
    (MountFlags::RDONLY, Ms::RDONLY, "ro"),
    (MountFlags::NOSUID, Ms::NOSUID, "nosuid"),
    (MountFlags::NODEV, Ms::NODEV, "nodev"),
    (MountFlags::NOEXEC, Ms::NOEXEC, "noexec"),
    (MountFlags::SYNCHRONOUS, Ms::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, Ms::DIRSYNC, "dirsync"),
    (MountFlags::NOATIME, Ms::NOATIME, "noatime"),
    (MountFlags::NODIRATIME, Ms::NODIRATIME, "nodiratime"),
    (MountFlags::RELATIME, Ms::RELATIME, "relatime"),
    (MountFlags::STRICTATIME, Ms::STRICTATIME, "strictatime"),
    (MountFlags::LAZYTIME, Ms::LAZYTIME, "lazytime"),
];

/// The flags that decide when a read updates the access time. A mount has exactly one of them.
pub const ATIME_FLAGS: MountFlags =
    MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

impl MountFlags {
    /// Parses the options of a mount and its filesystem, as listed in /proc/self/mountinfo. Other words are ignored.
    #[must_use]
    pub fn from_mountinfo(words: &str) -> MountFlags {
        let flag = |word: &str| FLAGS.iter().find(|(.., known)| *known == word).map(|(flag, ..)| *flag);
        let flags: MountFlags = words.split(',').filter_map(flag).collect();
        // The kernel does not list `strictatime`.
        if flags.intersects(ATIME_FLAGS) { flags } else { flags | MountFlags::STRICTATIME }
    }

    /// Returns the names of the flags as mount options, separated by commas.
    #[must_use]
    pub fn option_words(self) -> String {
        let words = FLAGS.iter().filter(|(flag, ..)| self.contains(*flag)).map(|(.., word)| *word);
        words.collect::<Vec<_>>().join(",")
    }
}

/// Converts the flags to those of mount(2).
pub(super) fn bits(flags: MountFlags) -> Ms {
    let flags = FLAGS.iter().filter(|(flag, ..)| flags.contains(*flag));
    flags.fold(Ms::empty(), |all, (_, bit, _)| all | *bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_parsed_from_mountinfo() {
        let flags = MountFlags::from_mountinfo("ro,nosuid,nodev,relatime,rw,user_id=0,lazytime");
        let words = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(flags, words | MountFlags::RELATIME | MountFlags::LAZYTIME);
        assert_eq!(MountFlags::from_mountinfo("rw,nodev"), MountFlags::NODEV | MountFlags::STRICTATIME);
        assert_eq!(MountFlags::from_mountinfo("rw,noatime").option_words(), "noatime");
    }
}
