//! What is wrong on a machine that has pools, and how to fix it.

mod at_boot;
mod branches;
mod machine;
mod pools;

use crate::expected::Pool;
use canopy_config::fstab::Line;
use canopy_sys::mountinfo::MountEntry;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Good to know. Nothing needs to be done.
    Note,
    /// It will hurt some day.
    Warning,
    /// It hurts now.
    Problem,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Its subject, for programs. Later versions may add codes, but never change their meaning.
    pub code: String,
    pub level: Level,
    pub text: String,
    /// What to do, in one line.
    pub fix: String,
    /// The same, where a program can do it.
    #[serde(rename = "fixable", serialize_with = "is_there")]
    pub action: Option<Action>,
}

/// Programs are told whether `--fix` can do it.
fn is_there<S: serde::Serializer>(action: &Option<Action>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(action.is_some())
}

/// What `canopy doctor --fix` does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Commands, one after the other. The program `canopy` is this one.
    Run(Vec<Vec<String>>),
    /// An option more in a line of fstab.
    AddOption { line: usize, mountpoint: String, option: String },
}

impl Action {
    /// Returns the action that runs a command.
    fn run(words: &[&str]) -> Action {
        Action::Run(vec![words.iter().map(|&word| word.to_owned()).collect()])
    }
}

/// The codes of findings that have an action, in the order in which they are fixed: a pool is mounted after its disks, and
/// mounts by what fstab says then.
pub const FIXABLE: [&str; 8] = [
    "few-watches",
    "fstab-disk-nofail",
    "fstab-nofail",
    "fstab-order",
    "disk-not-mounted",
    "pool-not-mounted",
    "branch-lacking",
    "roots-differ",
];

impl Finding {
    fn by(mut self, action: Action) -> Finding {
        debug_assert!(FIXABLE.contains(&self.code.as_str()), "{}", self.code);
        self.action = Some(action);
        self
    }
}

/// What the machine says. Where it does not say something, that is `None`, and nothing is found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Version of the kernel.
    pub linux: (u32, u32),
    pub has_fuse: bool,
    /// The parameter `fuse.enable_uring`; `None` if the kernel does not have it.
    pub io_uring: Option<bool>,
    /// The most descriptors that a process may ask for.
    pub descriptors: u64,
    /// The most directories that a user may watch.
    pub watches: Option<u64>,
    pub is_root: bool,
    /// `user_allow_other` is set in /etc/fuse.conf.
    pub allows_other: bool,
    pub has_fusermount: bool,
    /// The clock of the machine, in seconds since 1970.
    pub now: u64,
    pub fstab_file: PathBuf,
    pub fstab: Vec<Line>,
    pub mounts: Vec<MountEntry>,
    /// The pools that files and `fstab` describe.
    pub pools: Vec<Pool>,
    pub running: Vec<RunningPool>,
    /// The branches of `running` that answer well.
    pub branches: Vec<Branch>,
    /// Files with SnapRAID's parity.
    pub parity: Vec<PathBuf>,
    /// Branches that containers have for themselves.
    pub binds: Vec<Bind>,
    /// A program that sends disks to sleep, and where it is told so.
    pub spindown: Option<PathBuf>,
}

/// A pool that is mounted and answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningPool {
    pub mountpoint: PathBuf,
    /// All of them, also those that do not answer.
    pub branches: Vec<PathBuf>,
    /// Owner, group and mode that its root shows.
    pub root: Option<(u32, u32, u32)>,
}

/// A branch of a mounted pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The mountpoint of the pool.
    pub pool: PathBuf,
    pub path: PathBuf,
    /// Owner, group and mode of its root.
    pub root: Option<(u32, u32, u32)>,
    pub fstype: String,
    /// When its directory was changed, in seconds since 1970.
    pub changed: Option<u64>,
    /// One of its disks turns.
    pub spins: bool,
}

/// A part of a branch in another mount namespace, without its pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bind {
    pub branch: PathBuf,
    /// Where the other namespace has it.
    pub at: PathBuf,
    /// A process there, and its name.
    pub pid: u32,
    pub program: String,
}

/// Returns everything that is wrong, the worst first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    machine::look(facts, &mut found);
    at_boot::look(facts, &mut found);
    pools::look(facts, &mut found);
    branches::look(facts, &mut found);
    let mut seen = BTreeSet::new();
    found.retain(|one| seen.insert((one.code.clone(), one.text.clone())));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found
}

fn finding(code: &str, level: Level, text: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { code: code.into(), level, text: text.into(), fix: fix.into(), action: None }
}

#[cfg(test)]
pub(super) mod tests {
    use super::machine::{AHEAD, THE_PAST};
    use super::*;

    pub(in crate::doctor) fn good() -> Facts {
        Facts {
            linux: (6, 18),
            has_fuse: true,
            io_uring: Some(true),
            descriptors: 1 << 20,
            watches: Some(1 << 20),
            is_root: true,
            allows_other: true,
            has_fusermount: true,
            now: THE_PAST + 1,
            ..Facts::default()
        }
    }

    pub(in crate::doctor) fn codes(facts: &Facts) -> Vec<String> {
        findings(facts).into_iter().map(|finding| finding.code).collect()
    }

    pub(in crate::doctor) fn branch(path: &str, fstype: &str) -> Branch {
        Branch {
            pool: "/mnt/pool".into(),
            path: path.into(),
            root: None,
            fstype: fstype.into(),
            changed: None,
            spins: true,
        }
    }

    #[test]
    fn a_good_machine_has_no_findings() {
        assert_eq!(findings(&good()), []);
        let facts = Facts { branches: vec![branch("/mnt/d1", "ext4")], ..good() };
        assert_eq!(findings(&facts), []);
    }

    #[test]
    fn each_fault_is_found() {
        let table: [(Facts, &str); 12] = [
            (Facts { has_fuse: false, ..good() }, "no-fuse"),
            (Facts { linux: (5, 3), ..good() }, "old-kernel"),
            (Facts { linux: (6, 1), ..good() }, "no-passthrough"),
            (Facts { linux: (6, 12), io_uring: None, ..good() }, "no-io-uring"),
            (Facts { io_uring: Some(false), ..good() }, "io-uring-off"),
            (Facts { descriptors: 1024, ..good() }, "few-descriptors"),
            (Facts { watches: Some(100), ..good() }, "few-watches"),
            (Facts { now: 1000, ..good() }, "clock-never-set"),
            (Facts { has_fusermount: false, ..good() }, "no-fusermount"),
            (Facts { allows_other: false, ..good() }, "user-allow-other"),
            (Facts { branches: vec![branch("/mnt/stick", "exfat")], ..good() }, "branch-lacks-features"),
            (
                Facts {
                    branches: vec![branch("/mnt/d1", "xfs")],
                    spindown: Some("/etc/hdparm.conf".into()),
                    ..good()
                },
                "disks-sleep",
            ),
        ];
        for (facts, code) in table {
            assert_eq!(codes(&facts), [code]);
        }
        let mut late = branch("/mnt/d1", "ext4");
        late.changed = Some(THE_PAST + 1 + AHEAD + 1);
        assert_eq!(codes(&Facts { branches: vec![late], ..good() }), ["clock-differs"]);
        let bind = Bind { branch: "/mnt/d1".into(), at: "/data".into(), pid: 7, program: "sonarr".into() };
        assert_eq!(codes(&Facts { binds: vec![bind], ..good() }), ["container-binds-branch"]);
    }

    #[test]
    fn the_worst_comes_first_and_everything_has_a_fix_of_one_line() {
        let facts =
            Facts { has_fuse: false, descriptors: 1, linux: (5, 4), io_uring: None, ..Facts::default() };
        let found = findings(&facts);
        assert!(found.len() > 4 && found.is_sorted_by_key(|one| std::cmp::Reverse(one.level)));
        assert!(found.iter().all(|one| !one.fix.is_empty() && !one.fix.contains('\n')));
    }
}
