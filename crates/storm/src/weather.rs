//! What may happen in a storm. Each weather is switched on and off by its name, so that one can find which two meet.

use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weather {
    Links,
    Renames,
    Specials,
    Attributes,
    Mappings,
    Filesystems,
    Caches,
    ReadCache,
    Copies,
    Written,
    Tiers,
    Small,
    Kill,
    Upgrade,
    Remount,
    Upkeep,
    Killed,
    Dedup,
    Rules,
    Reorder,
    Grow,
    Drain,
    Direct,
    Races,
    Readonly,
    Unreadable,
    Away,
    Pull,
    Unsettled,
    Older,
    Removals,
    Types,
    Trash,
    Failing,
    Refusing,
}

/// A weather, its name, whether it is on unless one says otherwise, and what it is.
pub(crate) struct Row(pub(crate) Weather, pub(crate) &'static str, pub(crate) bool, pub(crate) &'static str);

pub(crate) const TABLE: &[Row] = &[
    Row(Weather::Links, "links", true, "clients make hard links"),
    Row(Weather::Renames, "renames", true, "clients rename, replace and exchange"),
    Row(Weather::Specials, "specials", true, "clients make symlinks and fifos"),
    Row(
        Weather::Attributes,
        "attributes",
        true,
        "clients change modes, owners, times, sizes by name and attributes",
    ),
    Row(
        Weather::Mappings,
        "mappings",
        true,
        "clients write through shared mappings (xfs_io), and cut files by name",
    ),
    Row(Weather::Filesystems, "filesystems", true, "disks are ext4, XFS and btrfs, not only tmpfs"),
    Row(Weather::Caches, "caches", true, "passthrough and the kernel's caches are set at random"),
    Row(Weather::ReadCache, "read-cache", true, "files are read from copies in a read cache"),
    Row(Weather::Copies, "copies", true, "rules want two copies"),
    Row(Weather::Written, "written", true, "copies are written at the same time, in every other storm"),
    Row(Weather::Tiers, "tiers", true, "there are tiers, and rules with a place"),
    Row(Weather::Small, "small", true, "one disk is small, and is full at times"),
    Row(Weather::Kill, "kill", true, "the process that serves is killed (survive=true)"),
    Row(Weather::Upgrade, "upgrade", true, "canopy upgrade"),
    Row(Weather::Remount, "remount", true, "the pool is unmounted and mounted again"),
    Row(Weather::Upkeep, "upkeep", true, "the mover and every command of upkeep, beside the clients"),
    Row(Weather::Killed, "killed", true, "these commands are killed"),
    Row(Weather::Dedup, "dedup", true, "copies = 1, canopy dedup --write, copies = 2"),
    Row(Weather::Rules, "rules", false, "files are made and copied by canopy dup while there are no rules"),
    Row(Weather::Reorder, "reorder", true, "the branches change their order"),
    Row(Weather::Grow, "grow", true, "an empty disk is added"),
    Row(Weather::Drain, "drain", true, "a disk is drained, removed, and added again"),
    Row(
        Weather::Direct,
        "direct",
        true,
        "files that no rule copies are made, changed and removed on their branch",
    ),
    Row(
        Weather::Races,
        "races",
        true,
        "an attribute, a size or a name is changed beside an open for writing",
    ),
    Row(Weather::Readonly, "readonly", true, "a disk is read-only for a while"),
    Row(
        Weather::Unreadable,
        "unreadable",
        true,
        "the attributes of files on one disk cannot be read (EBADMSG)",
    ),
    Row(
        Weather::Away,
        "away",
        true,
        "a disk is taken out of the pool and comes back, all copies made before",
    ),
    Row(Weather::Pull, "pull", true, "a disk's mount disappears and comes back, all copies made before"),
    Row(Weather::Unsettled, "unsettled", true, "both without waiting for the copies"),
    Row(Weather::Older, "older", false, "a disk comes back as an older image of itself"),
    Row(Weather::Removals, "removals", true, "what is removed while a disk is away must stay removed"),
    Row(Weather::Types, "types", true, "while a disk is away, its names may become of another type"),
    Row(Weather::Trash, "trash", true, "what is removed is kept, listed, restored and removed for good"),
    Row(Weather::Failing, "failing", true, "what files on one disk hold cannot be read (EIO)"),
    Row(
        Weather::Refusing,
        "refusing",
        true,
        "what files on one disk hold, or anything there, cannot be changed (EIO)",
    ),
];

impl Weather {
    pub(crate) fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).expect("each weather is in the table")
    }

    /// A stream of random numbers of its own, so that a weather that is switched off leaves the others as they are.
    pub(crate) fn stream(self) -> u64 {
        (TABLE.iter().position(|row| row.0 == self).unwrap_or(0) as u64 + 1) << 40
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Weathers(BTreeSet<Weather>);

impl Weathers {
    pub(crate) fn usual() -> Self {
        Self(TABLE.iter().filter(|row| row.2).map(|row| row.0).collect())
    }

    pub(crate) fn none() -> Self {
        Self(BTreeSet::new())
    }

    pub(crate) fn all() -> Self {
        Self(TABLE.iter().map(|row| row.0).collect())
    }

    pub(crate) fn has(&self, weather: Weather) -> bool {
        self.0.contains(&weather)
    }

    /// Switches weathers by their names, separated by commas.
    pub(crate) fn switch(&mut self, names: &str, on: bool) -> Result<(), String> {
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let row = TABLE
                .iter()
                .find(|row| row.1 == name)
                .ok_or_else(|| format!("no weather is called {name}"))?;
            if on {
                self.0.insert(row.0);
            } else {
                self.0.remove(&row.0);
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn without(&self, weather: Weather) -> Self {
        let mut fewer = self.clone();
        fewer.0.remove(&weather);
        fewer
    }

    pub(crate) fn names(&self) -> String {
        self.0.iter().map(|weather| weather.row().1).collect::<Vec<_>>().join(",")
    }
}
