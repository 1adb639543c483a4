//! What belongs to its disk, and therefore stays where it is: no command moves, copies or removes it.

use crate::error::{Error, Result};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Patterns that every pool has. A pattern that begins with `/` counts at the root of a branch, others everywhere.
/// Programs look for these files by their path on that disk, or the filesystem itself does.
const OF_THE_DISK: &[&str] = &[
    // The filesystem's own, and marks of branches.
    "/lost+found",
    "/.mergerfs.branch",
    "/.mergerfs.branch_mounts_here",
    "/{aquota,quota}.{user,group}",
    // SnapRAID: its content files, and parity by the names that its manual uses.
    "{.,}snapraid.content*",
    "/*.snapraid.content",
    "{.,}snapraid*.parity",
    "/{*.,}{parity,?-parity}",
    // The trash of each disk.
    "/.Trash",
    "/.Trash-*",
    "/.Trashes",
    "/$RECYCLE.BIN",
    "/System Volume Information",
    // Swap.
    "/{.,}swapfile*",
    "/swap.img",
];

/// Of these, drained disks always have some, and nobody misses them.
const UNTOLD: &[&str] = &["lost+found", ".mergerfs.branch", ".mergerfs.branch_mounts_here"];

/// The predicate that all commands share.
#[derive(Debug)]
pub(crate) struct Keep {
    patterns: GlobSet,
    /// Files that other programs name, relative to the branch that they are on.
    named: HashSet<PathBuf>,
}

impl Keep {
    /// Compiles the patterns of the option `keep`, and looks up which files of these branches the system uses.
    pub(crate) fn of<'b>(option: &str, branches: impl Iterator<Item = &'b Path>) -> Result<Keep> {
        let more = option.split('|').filter(|word| !word.is_empty());
        let mut patterns = GlobSetBuilder::new();
        for text in OF_THE_DISK.iter().copied().chain(more) {
            let failed =
                |why: globset::Error| Error::Glob { glob: text.to_owned(), why: why.kind().to_string() };
            let anywhere = match text.strip_prefix('/') {
                Some(at_root) => at_root.to_owned(),
                None => format!("**/{text}"),
            };
            patterns.add(
                GlobBuilder::new(&anywhere)
                    .literal_separator(true)
                    .empty_alternates(true)
                    .build()
                    .map_err(failed)?,
            );
        }
        let patterns =
            patterns.build().map_err(|why| Error::Glob { glob: option.into(), why: why.to_string() })?;
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let used: Vec<PathBuf> =
            swaps(&read("/proc/swaps")).chain(snapraid(&read("/etc/snapraid.conf"))).collect();
        let named = branches
            .flat_map(|branch| used.iter().filter_map(move |path| path.strip_prefix(branch).ok()))
            .map(Path::to_owned)
            .collect();
        Ok(Keep { patterns, named })
    }

    /// Returns whether an entry of the pool stays where it is; a directory does so with everything below.
    pub(crate) fn stays(&self, path: &Path) -> bool {
        !path.as_os_str().is_empty() && (self.patterns.is_match(path) || self.named.contains(path))
    }

    /// Returns whether to tell users of an entry that stays.
    pub(crate) fn is_told(path: &Path) -> bool {
        !UNTOLD.iter().any(|name| path == Path::new(name))
    }
}

/// Returns the files in `/proc/swaps`.
fn swaps(text: &str) -> impl Iterator<Item = PathBuf> {
    let first_word = |line: &str| line.split_whitespace().next().map(|word| word.replace("\\040", " "));
    text.lines().skip(1).filter_map(first_word).map(PathBuf::from)
}

/// Returns the content and parity files that SnapRAID's configuration names. SnapRAID writes beside them.
fn snapraid(text: &str) -> impl Iterator<Item = PathBuf> {
    text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace)).flat_map(|(key, value)| {
        let is_own = key == "content" || key == "parity" || key.ends_with("-parity");
        let paths = if is_own { value.trim() } else { "" };
        let paths = paths.split(',').filter(|path| !path.is_empty());
        paths
            .flat_map(|path| ["", ".tmp", ".lock"].map(|end| PathBuf::from(format!("{path}{end}"))))
            .collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_its_disk() {
        let keep = Keep::of("*.local|/private", std::iter::empty()).unwrap();
        for path in [
            "lost+found",
            ".mergerfs.branch",
            ".snapraid.content",
            "snapraid.content",
            "snapraid.content.lock",
            "var/.snapraid.content",
            "disk1.snapraid.content",
            "snapraid.parity",
            ".snapraid.parity",
            "snapraid.2-parity",
            "parity",
            "2-parity",
            ".Trash-1000",
            "$RECYCLE.BIN",
            "System Volume Information",
            "aquota.user",
            "quota.group",
            "swapfile",
            ".swapfile2",
            "swap.img",
            "a/b.local",
            "private",
        ] {
            assert!(keep.stays(Path::new(path)), "{path}");
        }
        for path in [
            "",
            "films/lost+found",
            "films/swapfile",
            "content",
            "films/a.parity",
            "films/.Trash-1000",
            "a/private",
            "snapraid.conf",
        ] {
            assert!(!keep.stays(Path::new(path)), "{path}");
        }
        assert!(Keep::is_told(Path::new(".snapraid.content")) && !Keep::is_told(Path::new("lost+found")));
        assert!(matches!(Keep::of("[", std::iter::empty()), Err(Error::Glob { .. })));
    }

    #[test]
    fn files_that_the_system_names() {
        let text =
            "Filename Type Size Used Priority\n/mnt/d1/my\\040swap file 1 0 -2\n/dev/sda2 partition 1 0 -3\n";
        let found: Vec<_> = swaps(text).collect();
        assert_eq!(found, [Path::new("/mnt/d1/my swap"), Path::new("/dev/sda2")]);
        let text =
            "# content /no\nparity /p1/x,/p2/x\n2-parity /p3/y\n  content\t/mnt/d1/c\ndata d1 /mnt/d1\n";
        let found: Vec<_> =
            snapraid(text).filter(|path| path.extension().is_none()).map(PathBuf::into_os_string).collect();
        assert_eq!(found, ["/p1/x", "/p2/x", "/p3/y", "/mnt/d1/c"]);
    }
}
