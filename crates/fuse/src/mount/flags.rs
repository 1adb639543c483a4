//! Flags of a mount, under the three names that they go by: the bit, mount(2)'s, and the word in a list of options.

use bitflags::bitflags;
use rustix::mount::MountFlags as Ms;

bitflags! {
    /// Flags of the mount, by their names in mount(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MountFlags: u32 {
        /// Nothing can be changed.
        const RDONLY = 1 << 0;
        /// Set-id programs run as their caller.
        const NOSUID = 1 << 1;
        /// Device files cannot be opened.
        const NODEV = 1 << 2;
        /// Programs cannot be run.
        const NOEXEC = 1 << 3;
        /// Every write is synchronous.
        const SYNCHRONOUS = 1 << 4;
        /// Every change of a directory is synchronous.
        const DIRSYNC = 1 << 5;
        /// Access times stay.
        const NOATIME = 1 << 6;
        /// Access times of directories stay.
        const NODIRATIME = 1 << 7;
        /// Access times change once after each change of the file, and once a day.
        const RELATIME = 1 << 8;
        /// Access times change with every read.
        const STRICTATIME = 1 << 9;
        /// Times reach the disk late.
        const LAZYTIME = 1 << 10;
    }
}

/// For each flag: mount(2)'s bit and the word that a helper takes.
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

/// One of them grants: when a read changes the time of the last access.
pub const ATIME_FLAGS: MountFlags =
    MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

impl MountFlags {
    /// Those that a mount has, by the words of /proc/self/mountinfo: of the mount, and of its filesystem.
    #[must_use]
    pub fn from_mountinfo(words: &str) -> MountFlags {
        let flag = |word: &str| FLAGS.iter().find(|(.., known)| *known == word).map(|(flag, ..)| *flag);
        let flags: MountFlags = words.split(',').filter_map(flag).collect();
        // What keeps every access is not listed.
        if flags.intersects(ATIME_FLAGS) { flags } else { flags | MountFlags::STRICTATIME }
    }

    /// By their words, separated by commas.
    #[must_use]
    pub fn option_words(self) -> String {
        let words = FLAGS.iter().filter(|(flag, ..)| self.contains(*flag)).map(|(.., word)| *word);
        words.collect::<Vec<_>>().join(",")
    }
}

/// As mount(2) takes them.
pub(super) fn bits(flags: MountFlags) -> Ms {
    let flags = FLAGS.iter().filter(|(flag, ..)| flags.contains(*flag));
    flags.fold(Ms::empty(), |all, (_, bit, _)| all | *bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_they_are_listed() {
        let flags = MountFlags::from_mountinfo("ro,nosuid,nodev,relatime,rw,user_id=0,lazytime");
        let words = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(flags, words | MountFlags::RELATIME | MountFlags::LAZYTIME);
        assert_eq!(MountFlags::from_mountinfo("rw,nodev"), MountFlags::NODEV | MountFlags::STRICTATIME);
        assert_eq!(MountFlags::from_mountinfo("rw,noatime").option_words(), "noatime");
    }
}
