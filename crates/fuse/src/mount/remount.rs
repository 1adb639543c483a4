//! Other flags for what is mounted.

use std::path::Path;

use rustix::io::Errno;

use super::{FLAGS, MountFlags, bits};

/// One of them holds: when a read changes the time of the last access.
pub const TIMES: MountFlags = MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

impl MountFlags {
    /// Those that a mount has, by the words of /proc/self/mountinfo: of the mount, and of its filesystem.
    #[must_use]
    pub fn listed(words: &str) -> MountFlags {
        let flag = |word: &str| FLAGS.iter().find(|(.., known)| *known == word).map(|(flag, ..)| *flag);
        let flags: MountFlags = words.split(',').filter_map(flag).collect();
        // What keeps every access is not listed.
        if flags.intersects(TIMES) { flags } else { flags | MountFlags::STRICTATIME }
    }

    /// By their words, separated by commas.
    #[must_use]
    pub fn words(self) -> String {
        let words = FLAGS.iter().filter(|(flag, ..)| self.contains(*flag)).map(|(.., word)| *word);
        words.collect::<Vec<_>>().join(",")
    }
}

/// Gives what is mounted at `path`, topmost, these flags and no others, and so its filesystem. What can only be said at
/// the mount stays as it is (`dirsync`).
///
/// # Errors
/// `EBUSY` when it is to be read-only and something is open for writing; `EPERM`.
pub fn remount(path: &Path, flags: MountFlags) -> Result<(), Errno> {
    // Without any of them the kernel keeps what it has.
    let flags = if flags.intersects(TIMES) { flags } else { flags | MountFlags::RELATIME };
    rustix::mount::mount_remount(path, bits(flags), c"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_they_are_listed() {
        let flags = MountFlags::listed("ro,nosuid,nodev,relatime,rw,user_id=0,lazytime");
        let words = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(flags, words | MountFlags::RELATIME | MountFlags::LAZYTIME);
        assert_eq!(MountFlags::listed("rw,nodev"), MountFlags::NODEV | MountFlags::STRICTATIME);
        assert_eq!(MountFlags::listed("rw,noatime").words(), "noatime");
    }
}
