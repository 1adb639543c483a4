//! Carrying a sequence out on both sides, and making a failing one short.

use std::fmt;
use std::path::PathBuf;

use super::{Op, Outcome, Plain, Subject, generate, is_explicit};
use crate::{Fields, Tree};

/// What a comparison has to know of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Rename and link may answer EXDEV where the source's branch lacks the target's directory.
    pub path_preserving: bool,
    /// Files have no holes that the pool would know of.
    pub holes_unknown: bool,
    /// Compare everything after so many operations, besides at the end.
    pub every: usize,
}

/// The two sides of one run, made afresh for each. Dropping it cleans up.
pub struct World {
    pub plain: Plain,
    pub subject: Box<dyn Subject>,
    /// What each of the pool's branches has of the subject's root, which is not on all of them by need.
    pub branches: Vec<PathBuf>,
    /// Whatever must live as long.
    pub keep: Box<dyn std::any::Any>,
}

/// Where a run came apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The operation, or the number of operations for what only the end showed.
    pub at: usize,
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at operation {}: {}", self.at, self.what)
    }
}

/// Carries the operations out on both sides of a fresh world.
pub fn replay(mut world: World, rules: Rules, ops: &[Op]) -> Result<(), Difference> {
    let world = &mut world;
    for (at, op) in ops.iter().enumerate() {
        let differ = |what: String| Difference { at, what };
        // The pool goes first: where it may refuse, the plain directory must not go on without it.
        let pool = world.subject.apply(op);
        if rules.path_preserving && may_refuse(op, &pool) {
            explain(world, op).map_err(differ)?;
            continue;
        }
        let plain = world.plain.apply(op);
        if rules.holes_unknown && matches!(op, Op::Seek { .. }) {
            continue;
        }
        if !plain.allows(&pool) {
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

fn may_refuse(op: &Op, pool: &Outcome) -> bool {
    matches!(op, Op::Rename { .. } | Op::Link { .. } | Op::LinkOpen { .. })
        && *pool == Outcome::Failed(rustix::io::Errno::XDEV)
}

/// A refusal is right where a branch holds the source and lacks the directory of the target.
fn explain(world: &World, op: &Op) -> Result<(), String> {
    let (from, to) = match *op {
        Op::Rename { from, to, .. } | Op::Link { from, to } => (Some(from), to),
        Op::LinkOpen { to, .. } => (None, to),
        _ => return Err(format!("{op:?} is refused with EXDEV")),
    };
    let dir = to.rsplit_once('/').map_or("", |(dir, _)| dir);
    let lacks = |branch: &PathBuf| {
        from.is_none_or(|from| branch.join(from).symlink_metadata().is_ok()) && !branch.join(dir).is_dir()
    };
    match world.branches.iter().any(lacks) {
        true => Ok(()),
        false => Err(format!("{op:?} is refused with EXDEV, and no branch explains it")),
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
    // On a branch that was never chosen there may not even be the root.
    let held = world.branches.iter().filter(|path| path.exists());
    let branches: Vec<Tree> = held.map(|path| Tree::capture_with(path, fields)).collect();
    let union =
        Tree::union(&branches).map_err(|faults| format!("the branches contradict each other: {faults}"))?;
    let diff = plain.diff(&comparable(union));
    if !diff.is_empty() {
        return Err(format!("the branches hold something else (- plain, + branches):\n{diff}"));
    }
    Ok(())
}

/// Without the times that the system has set: they differ from one side to the other.
fn comparable(mut tree: Tree) -> Tree {
    for entry in tree.entries.values_mut() {
        entry.mtime = entry.mtime.filter(|time| is_explicit(time.0));
    }
    tree
}

/// Runs the sequence of a seed; on a difference shrinks it and panics with what is left.
///
/// # Panics
/// When the pool and the plain directory differ.
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

/// Leaves out what does not matter: halves first, then single operations, until nothing more can go.
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
