//! A seed gives a sequence of steps: what clients do, and what happens meanwhile.

use canopy_testkit::Rng;
use canopy_testkit::model::{Change, On, Op, generate};

use crate::weather::{Weather, Weathers};

/// How a disk leaves the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// By `canopy set`.
    Set,
    /// Its mount disappears.
    Pull,
}

/// What a client changes while another one opens the same file for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    Mode,
    Attribute,
    Times,
    Truncate,
    Rename,
}

/// What somebody does on a branch, beside the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Directly {
    Make,
    Append,
    Mode,
    Remove,
}

/// What a disk fails to do, while it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Writes, truncations and allocations.
    Data,
    Syncs,
    /// Both.
    Writes,
    /// Attributes and names as well.
    Changes,
}

/// What is done with the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trashing {
    /// It is listed, and must have what was removed.
    List,
    Restore,
    /// One path is removed for good, and what is below it.
    Empty,
    EmptyAll,
    /// Large files are made and removed until disks are full of trash.
    Litter,
}

/// A step. In a world where it makes no sense it does nothing, so any part of a sequence is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    Client(Op),
    /// truncate(2), which is no open.
    Truncate {
        path: &'static str,
        size: u64,
    },
    /// Stores through a shared mapping, synced.
    Map {
        path: &'static str,
        offset: u64,
        len: u64,
        byte: u8,
    },
    /// An attribute that needs a block of its own on most filesystems.
    BigAttribute {
        path: &'static str,
        byte: u8,
    },
    /// Everything is closed, copies are made, and all is compared.
    Settle,
    Race {
        how: Beside,
        files: usize,
    },
    /// The process that serves is killed after so many microseconds, while the next steps run.
    Kill {
        after: u64,
    },
    Upgrade,
    Remount,
    /// Starts a command of upkeep.
    Start {
        command: usize,
        disk: usize,
    },
    /// Waits for it, or kills it first.
    End {
        kill: bool,
    },
    Dedup,
    /// Files are made, and copied by `canopy dup`, while there are no rules.
    Unruled {
        files: usize,
    },
    Reorder {
        seed: u64,
    },
    Grow,
    Drain {
        disk: usize,
    },
    Direct {
        what: Directly,
        choice: usize,
    },
    Full {
        full: bool,
    },
    Readonly {
        disk: usize,
        on: bool,
    },
    Unreadable {
        on: bool,
    },
    Failing {
        on: bool,
    },
    /// A disk fails some changes, or none any more.
    Refusing {
        what: Option<Refused>,
    },
    Away {
        disk: usize,
        how: How,
        settled: bool,
    },
    Back {
        front: bool,
    },
    /// An image of a disk is kept, for [`Step::Older`].
    Picture {
        disk: usize,
    },
    /// The disk that is away becomes what it was when its picture was taken.
    Older,
    Trash {
        what: Trashing,
        choice: usize,
    },
}

/// The commands of upkeep. `POOL` is the pool, `DIR` a directory of it, `DISK` a branch.
pub(crate) const COMMANDS: &[&str] = &[
    "tier POOL --once --now",
    "tier POOL --once",
    "balance POOL --to 1%",
    "move POOL DIR --to DISK",
    "consolidate POOL DIR",
    "drain POOL DISK",
    "dedup POOL --write",
    "verify POOL --write",
    "verify POOL",
    "fsck POOL",
    "sync POOL",
    "du POOL",
    "which DIR",
    "status POOL",
];

/// How often a weather comes, in a thousand operations of clients, and what it brings. Further steps follow after so many
/// operations.
fn arrivals(weather: Weather, rng: &mut Rng, unsettled: bool) -> (u32, Vec<(usize, Step)>) {
    let disk = rng.index(5);
    let later = 2 + rng.index(25);
    let away = |rng: &mut Rng, how| {
        let settled = rng.chance(500) || !unsettled;
        // The mover may work meanwhile.
        let moves = rng.chance(500).then_some((later / 2, Step::Settle));
        let steps = [(0, Step::Away { disk, how, settled }), (later, Step::Back { front: rng.chance(500) })];
        steps.into_iter().chain(moves).collect()
    };
    match weather {
        Weather::Mappings => (40, vec![(0, mapping(rng))]),
        Weather::Attributes => {
            (15, vec![(0, Step::BigAttribute { path: some_path(rng), byte: rng.below(26) as u8 })])
        }
        Weather::Small => (15, vec![(0, Step::Full { full: true }), (later, Step::Full { full: false })]),
        Weather::Kill => (25, vec![(0, Step::Kill { after: rng.below(30_000) })]),
        Weather::Upgrade => (12, vec![(0, Step::Upgrade)]),
        Weather::Remount => (4, vec![(0, Step::Remount)]),
        Weather::Upkeep => {
            let command = rng.index(COMMANDS.len());
            (40, vec![(0, Step::Start { command, disk }), (later, Step::End { kill: false })])
        }
        Weather::Killed => {
            let command = rng.index(8);
            (25, vec![(0, Step::Start { command, disk }), (rng.index(12), Step::End { kill: true })])
        }
        Weather::Dedup => (5, vec![(0, Step::Dedup)]),
        Weather::Rules => (8, vec![(0, Step::Unruled { files: 1 + rng.index(3) })]),
        Weather::Reorder => (12, vec![(0, Step::Reorder { seed: rng.next_u64() })]),
        Weather::Grow => (4, vec![(0, Step::Grow)]),
        Weather::Drain => (6, vec![(0, Step::Drain { disk })]),
        Weather::Direct => {
            let what = *rng.pick(&[Directly::Make, Directly::Append, Directly::Mode, Directly::Remove]);
            (25, vec![(0, Step::Direct { what, choice: rng.index(100) })])
        }
        Weather::Races => {
            let all = [Beside::Mode, Beside::Attribute, Beside::Times, Beside::Truncate, Beside::Rename];
            (6, vec![(0, Step::Race { how: *rng.pick(&all), files: 60 })])
        }
        Weather::Readonly => {
            (6, vec![(0, Step::Readonly { disk, on: true }), (later, Step::Readonly { disk, on: false })])
        }
        Weather::Unreadable => {
            (12, vec![(0, Step::Unreadable { on: true }), (later, Step::Unreadable { on: false })])
        }
        Weather::Failing => (8, vec![(0, Step::Failing { on: true }), (later, Step::Failing { on: false })]),
        Weather::Refusing => {
            use Refused::{Changes, Data, Syncs, Writes};
            let what = *rng.pick(&[Data, Syncs, Writes, Writes, Changes, Changes]);
            (16, vec![(0, Step::Refusing { what: Some(what) }), (later, Step::Refusing { what: None })])
        }
        Weather::Away => (12, away(rng, How::Set)),
        Weather::Pull => (8, away(rng, How::Pull)),
        Weather::Older => {
            let gone = 4 + rng.index(30);
            let steps = [
                (0, Step::Picture { disk }),
                (gone, Step::Away { disk, how: How::Set, settled: true }),
                (gone + later, Step::Older),
                (gone + later, Step::Back { front: rng.chance(500) }),
            ];
            (6, steps.to_vec())
        }
        Weather::Trash => {
            use Trashing::{Empty, EmptyAll, List, Litter, Restore};
            let all = [List, List, Restore, Restore, Restore, Restore, Empty, EmptyAll, Litter];
            (50, vec![(0, Step::Trash { what: *rng.pick(&all), choice: rng.index(1000) })])
        }
        Weather::Links
        | Weather::Renames
        | Weather::Specials
        | Weather::Filesystems
        | Weather::Caches
        | Weather::ReadCache
        | Weather::Copies
        | Weather::Written
        | Weather::Tiers
        | Weather::Unsettled
        | Weather::Removals
        | Weather::Types => (0, vec![]),
    }
}

fn some_path(rng: &mut Rng) -> &'static str {
    const PATHS: [&str; 12] = ["a", "b", "c", "a/a", "a/b", "a/c", "b/a", "b/b", "b/c", "c/a", "c/b", "c/c"];
    PATHS[rng.index(PATHS.len())]
}

fn mapping(rng: &mut Rng) -> Step {
    let path = some_path(rng);
    if rng.chance(500) {
        return Step::Truncate { path, size: *rng.pick(&[0, 1, 3, 4096, 9000]) };
    }
    let (offset, len) = (*rng.pick(&[0, 1, 100, 4096]), *rng.pick(&[1, 10, 4096]));
    Step::Map { path, offset, len, byte: 0x41 + rng.below(26) as u8 }
}

/// Whether a weather that is off keeps clients from an operation.
fn is_clients(op: &Op, weathers: &Weathers) -> bool {
    let needs = match op {
        Op::Link { .. } | Op::LinkOpen { .. } => Weather::Links,
        Op::Rename { .. } => Weather::Renames,
        Op::Symlink { .. } | Op::Mknod { .. } => Weather::Specials,
        Op::Change { on: On::Path(_), .. } | Op::Xattr { .. } => Weather::Attributes,
        Op::Change { change: Change::Mode(_) | Change::Owner { .. } | Change::Mtime(_), .. } => {
            Weather::Attributes
        }
        _ => return true,
    };
    weathers.has(needs)
}

/// The steps of a seed: so many operations of clients, and what happens between them.
pub(crate) fn write(seed: u64, operations: usize, weathers: &Weathers) -> Vec<Step> {
    let mut steps: Vec<(usize, Step)> =
        generate(seed, operations).into_iter().map(Step::Client).enumerate().collect();
    steps.retain(|(_, step)| !matches!(step, Step::Client(op) if !is_clients(op, weathers)));
    for row in crate::weather::TABLE.iter().filter(|row| weathers.has(row.0)) {
        let mut rng = Rng::new(seed ^ row.0.stream());
        for at in 0..operations {
            let (often, brings) = arrivals(row.0, &mut rng, weathers.has(Weather::Unsettled));
            if rng.chance(often) {
                steps.extend(brings.into_iter().map(|(later, step)| (at + later, step)));
            }
        }
    }
    steps.sort_by_key(|(at, _)| *at);
    let mut steps: Vec<Step> = steps.into_iter().map(|(_, step)| step).collect();
    // At the end all disks are well, so that everything is compared.
    steps.extend([
        Step::Back { front: false },
        Step::Readonly { disk: 0, on: false },
        Step::Unreadable { on: false },
        Step::Failing { on: false },
        Step::Refusing { what: None },
        Step::Settle,
        Step::Trash { what: Trashing::List, choice: 0 },
    ]);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weather_that_is_off_leaves_the_others_as_they_are() {
        let all = write(5, 400, &Weathers::all());
        let fewer = write(5, 400, &Weathers::all().without(Weather::Kill));
        let rest: Vec<Step> = all.iter().copied().filter(|step| !matches!(step, Step::Kill { .. })).collect();
        assert_eq!(rest, fewer);
        assert!(fewer.len() < all.len());
    }
}
