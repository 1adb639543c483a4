//! The policies, explained to those who choose one.

use canopy_policy::Policy;
use std::fmt::Write as _;

/// An example: three disks, and where each policy puts a new file in `/films`.
const PICTURE: &str = "\
            0 ─────────────────── size   size   used   free   has /films
  disk1     ██████████████░░░░░          8T     6T     2T     yes
  disk2     █████░░░░░░░░░░░░░░          4T     1T     3T     no
  disk3     ████████████████░░░         24T    20T     4T     yes
";

/// What a policy does with a new file, whom it suits, and its choice in the example.
struct Meaning {
    policy: Policy,
    goes: &'static str,
    suits: &'static str,
    chosen: &'static str,
}

const fn meaning(policy: Policy, goes: &'static str, suits: &'static str, chosen: &'static str) -> Meaning {
    Meaning { policy, goes, suits, chosen }
}

/// Those that matter first.
const MEANINGS: [Meaning; 21] = [
    meaning(
        Policy::Pfrd,
        "to a random disk; emptier disks are chosen more often",
        "most pools (the default): all disks fill up and work alike",
        "disk1, 2 or 3 with 2 : 3 : 4",
    ),
    meaning(
        Policy::Mfs,
        "to the disk with the most free space",
        "one who wants to know which disk is next",
        "disk3",
    ),
    meaning(
        Policy::Ff,
        "to the first disk in the list that has room",
        "disks that are to be filled one after the other, while the others sleep",
        "disk1",
    ),
    meaning(
        Policy::MspMfs,
        "to a disk that has the directory; if none has room, to one that has the directory above, and so on; of several, \
         the one with the most free space",
        "albums and seasons that are to stay together",
        "disk3; disk2 if 1 and 3 are full",
    ),
    meaning(
        Policy::Lup,
        "to the disk of which the smallest share is used",
        "disks of different sizes that are to be equally full",
        "disk2 (25 %)",
    ),
    meaning(Policy::Lus, "to the disk on which the fewest bytes are used", "disks of one size", "disk2"),
    meaning(
        Policy::Lfs,
        "to the disk with the least free space that has room",
        "gaps that are to be filled first",
        "disk1",
    ),
    meaning(
        Policy::Rand,
        "to any disk, all equally often",
        "disks of one size, and many programs at once",
        "disk1, 2 or 3",
    ),
    meaning(
        Policy::EpMfs,
        "to the disk with the most free space of those that have the directory; without room there, it fails with ENOSPC",
        "directories that never leave the disks you have made them on",
        "disk3",
    ),
    meaning(
        Policy::EpFf,
        "the same, to the first of those disks",
        "the same, one disk after the other",
        "disk1",
    ),
    meaning(
        Policy::EpPfrd,
        "the same, to a random one; emptier disks are chosen more often",
        "the same, spread",
        "disk1 or 3 with 2 : 4",
    ),
    meaning(Policy::EpLfs, "the same, to the one with the least free space", "the same, gaps first", "disk1"),
    meaning(
        Policy::EpLus,
        "the same, to the one on which the fewest bytes are used",
        "the same, with disks of one size",
        "disk1",
    ),
    meaning(Policy::EpRand, "the same, to any of them", "the same, spread", "disk1 or 3"),
    meaning(
        Policy::MspPfrd,
        "as mspmfs; of several disks, a random one, emptier ones more often",
        "the same, spread",
        "disk1 or 3 with 2 : 4",
    ),
    meaning(
        Policy::MspLus,
        "as mspmfs; of several disks, the one on which the fewest bytes are used",
        "the same, with disks of one size",
        "disk1",
    ),
    meaning(
        Policy::MspLfs,
        "as mspmfs; of several disks, the one with the least free space",
        "the same, gaps first",
        "disk1",
    ),
    meaning(
        Policy::Newest,
        "to the disk whose copy of the directory was changed last",
        "reading: of several copies, the newest is shown",
        "where /films was changed last",
    ),
    meaning(
        Policy::All,
        "to the first disk; a directory is made on all",
        "directories that are to be on all disks (func.mkdir)",
        "disk1",
    ),
    meaning(
        Policy::EpAll,
        "the same, among the disks that have the directory",
        "changing: chmod and the like change all copies (the default there)",
        "disk1",
    ),
    meaning(Policy::Erofs, "nowhere: it fails with EROFS", "a kind of change that is to be refused", "none"),
];

/// Returns the section of a Markdown page.
pub(super) fn markdown() -> String {
    let mut text = format!(
        "A policy chooses among the branches that may take a file: those of mode `RW` that are not read-only and have at \
         least `minfreespace`. `category.create` sets it for everything that is made, `func.NAME` for one kind of call. \
         Most pools need one of the first four. In this pool, a new file in `/films` goes to the disk in the last column:\n\n\
         ```\n{PICTURE}```\n\n\
         | policy | a new file goes | suits | here |\n| --- | --- | --- | --- |\n"
    );
    for Meaning { policy, goes, suits, chosen } in &MEANINGS {
        let _ = writeln!(text, "| `{}` | {goes} | {suits} | {chosen} |", policy.name());
    }
    text.push_str(
        "\nWhere something is looked up or changed, it exists already: then a policy chooses among the branches that have \
         it, with or without `ep` in its name. `canopy explain` shows which branches a policy would choose now, and why.\n",
    );
    text
}

/// Returns the names with their meanings, for the manual page.
pub(super) fn terms() -> impl Iterator<Item = (&'static str, String)> {
    MEANINGS.iter().map(|Meaning { policy, goes, suits, .. }| {
        (policy.name(), format!("A new file goes {goes}. It suits {suits}."))
    })
}

/// # Panics
/// If a policy is missing.
pub(super) fn check() {
    for policy in Policy::ALL {
        let count = MEANINGS.iter().filter(|meaning| meaning.policy == policy).count();
        assert_eq!(count, 1, "{}", policy.name());
    }
}
