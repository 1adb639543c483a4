//! A seed gives the world of a storm: its disks, and the options of its pool.

use canopy_testkit::{Kind, Rng};

use crate::weather::{Weather, Weathers};

const MIB: u64 = 1 << 20;

/// What a disk is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    Real {
        kind: Kind,
        size: u64,
    },
    /// A mirror of a directory, which can be told to fail.
    Faulty,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) weathers: Weathers,
    pub(crate) disks: Vec<Make>,
    /// The disk that has little room.
    pub(crate) small: Option<usize>,
    pub(crate) options: Vec<String>,
    /// In both, `@N` is the branch of disk N.
    pub(crate) rules: &'static str,
    pub(crate) tiers: &'static str,
    pub(crate) trash: &'static str,
    /// Files are read from copies.
    pub(crate) cached: bool,
}

/// What the trash keeps. The first is for everything.
const TRASHES: [&str; 5] = [
    "**=30 days|overwritten",
    "**=30 days|overwritten|except b",
    "**=30 days",
    "**=until snapraid sync|overwritten",
    "t/a/**=1 second|overwritten;**=1 hour|overwritten",
];

/// The pool's directory in which clients work.
pub(crate) const TOP: &str = "t";

impl Plan {
    pub(crate) fn of(seed: u64, weathers: &Weathers) -> Self {
        let has = |weather| weathers.has(weather);
        let mut rng = Rng::new(seed ^ 0x5eed);
        let count = 2 + rng.index(4);
        let drawn: Vec<Kind> = (0..count)
            .map(|_| *rng.pick(&[Kind::Tmpfs, Kind::Tmpfs, Kind::Ext4, Kind::Xfs, Kind::Btrfs]))
            .collect();
        let real = |kind| Make::Real { kind, size: if kind == Kind::Xfs { 300 } else { 128 } * MIB };
        let mut disks: Vec<Make> = drawn
            .iter()
            .map(|kind| real(if has(Weather::Filesystems) { *kind } else { Kind::Tmpfs }))
            .collect();
        if has(Weather::Older) {
            disks[0] = real(Kind::Ext4);
        }
        let small = (rng.below(2) == 0 && has(Weather::Small) && count > 2).then_some(1);
        if let Some(small) = small {
            let kind = if has(Weather::Filesystems) { Kind::Ext4 } else { Kind::Tmpfs };
            disks[small] = Make::Real { kind, size: 4 * MIB };
        }
        if has(Weather::Unreadable) || has(Weather::Failing) || has(Weather::Refusing) {
            disks.truncate(2);
            disks.push(Make::Faulty);
        }
        let policy = *rng.pick(&["ff", "rand", "mfs", "pfrd"]);
        let mut options = vec![format!("category.create={policy},minfreespace=0")];
        if has(Weather::Kill) || has(Weather::Upgrade) {
            options.push("survive=true".into());
        }
        let caches = *rng.pick(&[
            "",
            "passthrough.io=off",
            "passthrough.io=off,cache.files=full",
            "passthrough.io=off,cache.files=off,cache.attr=0,cache.entry=0",
            "cache.attr=60,cache.entry=60,cache.negative-entry=60,cache.readdir=true",
        ]);
        if has(Weather::Caches) && !caches.is_empty() {
            options.push(caches.into());
        }
        // Drawn by its own, so that the worlds of seeds stay as they are.
        let cached = has(Weather::ReadCache) && Rng::new(seed ^ 0xcac4e).below(2) == 0;
        let (copied, placed) =
            (has(Weather::Copies), has(Weather::Tiers) && rng.below(2) == 0 && disks.len() > 2);
        let everything = rng.below(2) == 0 || has(Weather::Rules);
        let at_once = rng.below(2) == 0 && has(Weather::Written);
        let rules = match (copied, placed) {
            (true, _) if everything && at_once => "**=copies 2 when written",
            (true, _) if everything => "**=copies 2",
            (true, false) if at_once => "t/a/**=copies 2 when written",
            (true, false) => "t/a/**=copies 2",
            (true, true) if at_once => "t/a/**=copies 2 when written;t/b/**=@0:@2",
            (true, true) => "t/a/**=copies 2;t/b/**=@0:@2",
            (false, true) => "t/b/**=@0:@2;t/c/**=slow",
            (false, false) => "",
        };
        let tiers = if placed { "fast=@0|fuller than 50%;slow=@2" } else { "" };
        let trash = *rng.pick(&TRASHES);
        let trash = if has(Weather::Trash) { trash } else { "" };
        Self { seed, weathers: weathers.clone(), disks, small, options, rules, tiers, trash, cached }
    }

    /// Whether the trash must keep what is removed under this path below [`TOP`]; or, if it is `overwritten`, what is replaced there.
    pub(crate) fn trash_keeps(&self, path: &[u8], overwritten: bool) -> bool {
        let is_except =
            self.trash.contains("except b") && path.split(|byte| *byte == b'/').next_back() == Some(b"b");
        let is_kept = !self.trash.is_empty() && (self.trash.contains("overwritten") || !overwritten);
        is_kept && !is_except && !self.trash_goes_soon(path)
    }

    /// Whether the trash keeps what had this path below [`TOP`] for a second only.
    pub(crate) fn trash_goes_soon(&self, path: &[u8]) -> bool {
        self.trash.contains("second") && path.starts_with(b"a/")
    }

    /// Whether a rule wants two copies of what has this path below [`TOP`].
    pub(crate) fn copies(&self, path: &[u8]) -> bool {
        self.rules.starts_with("**=copies")
            || (self.rules.starts_with("t/a/**=copies") && path.starts_with(b"a/"))
    }
}
