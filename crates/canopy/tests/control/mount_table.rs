//! The generic options of mount(8), and their effect in the mount table.

use super::rig::Dirs;
use canopy_testkit::Pool;
use std::fs;

pub(super) const NAMES: &[&str] = &[
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "allow_suid",
    "allow_dev",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
];

/// Each row has the options of a mount, of which the last is under test, a flag of the mount table, and whether the flag
/// must be set.
const WORDS: &[(&str, &str, bool)] = &[
    ("ro", "ro", true),
    ("ro,rw", "rw", true),
    ("suid", "nosuid", false),
    ("suid,nosuid", "nosuid", true),
    ("dev", "nodev", false),
    ("dev,nodev", "nodev", true),
    ("allow_suid", "nosuid", false),
    ("allow_dev", "nodev", false),
    ("noexec,exec", "noexec", false),
    ("noexec", "noexec", true),
    ("sync", "sync", true),
    ("sync,async", "sync", false),
    ("dirsync", "dirsync", true),
    ("noatime,atime", "noatime", false),
    ("noatime", "noatime", true),
    ("nodiratime,diratime", "nodiratime", false),
    ("nodiratime", "nodiratime", true),
    // relatime is the kernel's default. norelatime does not clear it, on any filesystem.
    ("relatime", "relatime", true),
    ("relatime,norelatime", "relatime", true),
    ("strictatime", "relatime", false),
    ("strictatime,nostrictatime", "relatime", true),
    ("lazytime", "lazytime", true),
    ("lazytime,nolazytime", "lazytime", false),
];

/// Returns the options that the mount table shows for a pool.
pub(super) fn in_force(pool: &Pool) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").expect("the mount table");
    let point = pool.path().display().to_string();
    let line = table.lines().find(|line| line.split(' ').nth(1) == Some(&point)).expect("a mount");
    line.split(' ').nth(3).expect("options").split(',').map(str::to_owned).collect()
}

pub(super) fn every_word() {
    let shown: Vec<&str> = WORDS.iter().filter_map(|(words, ..)| words.rsplit(',').next()).collect();
    assert_eq!(shown, NAMES);
    let dirs = Dirs::new();
    for (words, option, there) in WORDS {
        let pool = dirs.pool(words);
        let found = in_force(&pool);
        assert_eq!(found.iter().any(|found| found == option), *there, "{words}: {found:?}");
        pool.umount();
    }
}
