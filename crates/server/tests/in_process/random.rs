//! Random changes on both sides: once nothing changes any more, the kernel believes what the branches hold.

use crate::rig::Rig;
use canopy_testkit::Rng;
use canopy_testkit::kernel::Kernel;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const ROUNDS: usize = 12;
const CHANGES: usize = 60;

/// A file's size, or `None` for a directory, by path.
type Tree = BTreeMap<String, Option<u64>>;

/// Returns what a pool of these branches has to show. A name is on one branch only, but for directories.
fn on_branches(rig: &Rig) -> Tree {
    fn add(dir: &Path, prefix: &str, tree: &mut Tree) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            let meta = entry.metadata().unwrap();
            tree.insert(path.clone(), meta.is_file().then_some(meta.size()));
            if meta.is_dir() {
                add(&entry.path(), &format!("{path}/"), tree);
            }
        }
    }
    let mut tree = Tree::new();
    (0..2).for_each(|number| add(rig.branch(number), "", &mut tree));
    tree
}

/// Returns what is shown, by listings and by stat.
fn shown(kernel: &Kernel) -> Option<Tree> {
    let (mut tree, mut left) = (Tree::new(), vec![String::new()]);
    while let Some(dir) = left.pop() {
        for name in kernel.list(&dir).ok()?.into_keys().filter(|name| name != ".mergerfs") {
            let path = format!("{dir}{}{name}", if dir.is_empty() { "" } else { "/" });
            let stat = kernel.stat(&path).ok()?;
            let is_dir = stat.mode & 0o170_000 == 0o40_000;
            tree.insert(path.clone(), (!is_dir).then_some(stat.size));
            if is_dir {
                left.push(path);
            }
        }
    }
    Some(tree)
}

/// Makes one change, through the pool or on a branch. It may fail: the path may be missing, or of another kind.
fn change(rig: &mut Rig, rng: &mut Rng) {
    let dirs = ["", "a/", "b/", "a/c/"];
    let names = ["one", "two", "three"];
    let path = |rng: &mut Rng| format!("{}{}", rng.pick(&dirs), rng.pick(&names));
    let (one, other, dir) = (path(rng), path(rng), *rng.pick(&dirs[1..]));
    // Each name has its branch, so that no file hides another.
    let place = |path: &str| path.len() % 2;
    let content = "x".repeat(rng.index(40));
    match rng.below(8) {
        0 => drop(rig.kernel().mkdir(dir.trim_end_matches('/'))),
        1 => drop(rig.kernel().unlink(&one)),
        2 => drop(rig.kernel().rename(&one, &other)),
        3 => drop(rig.kernel().write(&one, content.as_bytes())),
        4 => drop(rig.kernel().stat(&other)),
        5 => {
            let command =
                format!("[ ! -d $(dirname {one}) ] || [ -e ../{one} ] || printf '{content}' > {one}");
            if !rig.branch(1 - place(&one)).join(&one).exists() {
                rig.outside(place(&one), &command);
            }
        }
        6 => rig.outside(place(&one), &format!("rm -f {one}")),
        _ => rig.outside(place(&one), &format!("mkdir -p {dir} && chmod 7{}5 {dir}", rng.below(8))),
    }
}

#[test]
fn the_kernel_comes_to_believe_what_the_branches_hold() {
    let seed = std::env::var("CANOPY_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for round in 0..ROUNDS as u64 {
        let mut rig = Rig::watched(2, "category.create=ff");
        let mut rng = Rng::new(seed + round);
        for _ in 0..CHANGES {
            change(&mut rig, &mut rng);
            if rng.chance(100) {
                drop(shown(rig.kernel()));
            }
        }
        let expected = on_branches(&rig);
        let mut last = None;
        let comes = canopy_testkit::cmd::wait_until(canopy_testkit::PATIENCE, || {
            last = shown(rig.kernel());
            last.as_ref() == Some(&expected)
        });
        assert!(comes, "seed {}: shown {last:#?}, on the branches {expected:#?}", seed + round);
    }
}
