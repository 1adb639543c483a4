//! Applying a sequence to both sides, and shrinking one that fails.

use std::fmt;
use std::path::PathBuf;

use super::{Op, Outcome, Plain, RenameHow, Subject, generate, is_explicit};
use crate::{Fields, Tree};
use rustix::io::Errno;

/// How the pool may differ from a plain directory, and how often to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Rename and link may fail with EXDEV where the source's branch lacks the target's directory.
    pub path_preserving: bool,
    /// SEEK_DATA and SEEK_HOLE may give other results.
    pub holes_unknown: bool,
    /// Compare the trees after this many operations, and at the end.
    pub every: usize,
}

/// The two sides of a run. Each run has its own. Dropping it cleans up.
pub struct World {
    pub plain: Plain,
    pub subject: Box<dyn Subject>,
    /// The directory of the subject's root on each branch of the pool. It need not exist on all.
    pub branches: Vec<PathBuf>,
    /// Anything that must live as long.
    pub keep: Box<dyn std::any::Any>,
}

/// The first difference between the two sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The index of the operation, or the number of operations for a difference at the end.
    pub at: usize,
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at operation {}: {}", self.at, self.what)
    }
}

/// Applies the operations to both sides of a new world.
pub fn replay(mut world: World, rules: Rules, ops: &[Op]) -> Result<(), Difference> {
    let world = &mut world;
    for (at, op) in ops.iter().enumerate() {
        let differ = |what: String| Difference { at, what };
        // The pool goes first. If it may refuse the operation, the plain directory must not apply it.
        let pool = world.subject.apply(op);
        if rules.path_preserving && may_refuse(op, &pool) {
            check_refusal(world, op).map_err(differ)?;
            continue;
        }
        let plain = world.plain.apply(op);
        if rules.holes_unknown && matches!(op, Op::Seek { .. }) {
            continue;
        }
        if !plain.allows(&pool) && !is_full_either_way(op, &plain, &pool) {
            return Err(differ(format!("{op:?}\n  plain directory: {plain:?}\n  pool:            {pool:?}")));
        }
        if (at + 1) % rules.every == 0 {
            compare(world).map_err(differ)?;
        }
    }
    let differ = |what: String| Difference { at: ops.len(), what };
    compare(world).map_err(differ)?;
    world.plain.finish().map_err(differ)?;
    world.subject.finish().map_err(differ)
}

/// POSIX lets a rename over a directory that is not empty fail in two ways. The pool says ENOTEMPTY whatever its branches are,
/// XFS says EEXIST.
fn is_full_either_way(op: &Op, plain: &Outcome, pool: &Outcome) -> bool {
    matches!(op, Op::Rename { how: RenameHow::Replace, .. })
        && *plain == Outcome::Failed(Errno::EXIST)
        && *pool == Outcome::Failed(Errno::NOTEMPTY)
}

fn may_refuse(op: &Op, pool: &Outcome) -> bool {
    matches!(op, Op::Rename { .. } | Op::Link { .. } | Op::LinkOpen { .. })
        && *pool == Outcome::Failed(Errno::XDEV)
}

/// Checks a refusal, which is right if a branch has the source and lacks the directory of the target.
fn check_refusal(world: &World, op: &Op) -> Result<(), String> {
    let (from, to) = match *op {
        Op::Rename { from, to, .. } | Op::Link { from, to } => (Some(from), to),
        Op::LinkOpen { to, .. } => (None, to),
        _ => return Err(format!("{op:?} fails with EXDEV")),
    };
    let dir = to.rsplit_once('/').map_or("", |(dir, _)| dir);
    let lacks = |branch: &PathBuf| {
        from.is_none_or(|from| branch.join(from).symlink_metadata().is_ok()) && !branch.join(dir).is_dir()
    };
    if world.branches.iter().any(lacks) {
        Ok(())
    } else {
        Err(format!("{op:?} fails with EXDEV, and no branch lacks the directory"))
    }
}

fn compare(world: &mut World) -> Result<(), String> {
    let plain = comparable(world.plain.capture()?);
    let pool = comparable(world.subject.capture()?);
    let diff = plain.diff(&pool);
    if !diff.is_empty() {
        return Err(format!("the trees differ (- plain, + pool):\n{diff}"));
    }
    let fields = Fields { root: true, ..Fields::default() };
    // A branch that was never chosen may lack the root.
    let held = world.branches.iter().filter(|path| path.exists());
    let branches: Vec<Tree> = held.map(|path| Tree::capture_with(path, fields)).collect();
    let union =
        Tree::union(&branches).map_err(|faults| format!("the branches contradict each other: {faults}"))?;
    let diff = plain.diff(&comparable(union));
    if !diff.is_empty() {
        return Err(format!("the branches differ (- plain, + branches):\n{diff}"));
    }
    Ok(())
}

/// Removes the times that the system has set, because they differ between the two sides.
fn comparable(mut tree: Tree) -> Tree {
    for entry in tree.entries.values_mut() {
        entry.mtime = entry.mtime.filter(|time| is_explicit(time.0));
    }
    tree
}

/// Runs the sequence of a seed. Shrinks it if there is a difference.
///
/// # Panics
/// If the pool and the plain directory differ. The message contains the shortened sequence.
pub fn check(seed: u64, count: usize, rules: Rules, world: impl Fn() -> World) {
    let ops = generate(seed, count);
    let fails = |ops: &[Op]| {
        let attempt = std::panic::AssertUnwindSafe(|| replay(world(), rules, ops).err());
        let panicked = |_| Some(Difference { at: ops.len(), what: "the pool panicked, see above".into() });
        std::panic::catch_unwind(attempt).unwrap_or_else(panicked)
    };
    let Some(difference) = fails(&ops) else { return };
    let (ops, difference) = shrink(ops, difference, fails);
    let list: String = ops.iter().map(|op| format!("    {op:?},\n")).collect();
    panic!("seed {seed}: {difference}\nwith [\n{list}]");
}

/// Removes operations that do not matter: halves first, then single ones, until the rest is needed.
fn shrink(
    mut ops: Vec<Op>,
    mut difference: Difference,
    fails: impl Fn(&[Op]) -> Option<Difference>,
) -> (Vec<Op>, Difference) {
    ops.truncate(difference.at + 1);
    let mut size = ops.len().div_ceil(2);
    while size > 0 {
        let (mut start, mut changed) = (0, false);
        while start < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(start..(start + size).min(ops.len()));
            match fails(&fewer) {
                Some(found) => {
                    fewer.truncate(found.at + 1);
                    (ops, difference, changed) = (fewer, found, true);
                }
                None => start += size,
            }
        }
        if !changed || size > 1 {
            size /= 2;
        }
    }
    (ops, difference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Change, On};

    fn world() -> World {
        let home = tempfile::tempdir().expect("a directory");
        let [one, two] = ["one", "two"].map(|name| home.path().join(name));
        for dir in [&one, &two] {
            std::fs::create_dir(dir).expect("mkdir");
        }
        World {
            plain: Plain::new(&one),
            subject: Box::new(Plain::new(&two)),
            branches: vec![two],
            keep: Box::new(home),
        }
    }

    const RULES: Rules = Rules { path_preserving: false, holes_unknown: false, every: 10 };

    #[test]
    fn a_plain_directory_agrees_with_itself() {
        for seed in 0..20 {
            check(seed, 60, RULES, world);
        }
    }

    #[test]
    fn shrinking_keeps_the_operations_that_matter() {
        let bad = |ops: &[Op]| {
            let made = ops.iter().position(|op| matches!(op, Op::Mkdir { path: "a", .. }))?;
            let at =
                ops.iter().position(|op| matches!(op, Op::Rmdir { path: "a" })).filter(|at| *at > made)?;
            Some(Difference { at, what: "bad".into() })
        };
        let mut ops = generate(7, 40);
        ops.insert(5, Op::Mkdir { path: "a", mode: 0 });
        ops.insert(20, Op::Rmdir { path: "a" });
        let (ops, _) = shrink(ops.clone(), bad(&ops).expect("it fails"), bad);
        assert_eq!(ops, [Op::Mkdir { path: "a", mode: 0 }, Op::Rmdir { path: "a" }]);
    }

    #[test]
    fn a_difference_is_found() {
        let world = world();
        std::fs::write(world.branches[0].join("a"), b"x").expect("a file");
        let ops = [Op::Change { on: On::Path(""), change: Change::Mtime(5) }];
        let found = replay(world, RULES, &ops).expect_err("a difference");
        assert!(found.at == 1 && found.what.contains("trees differ"), "{found}");
    }
}
