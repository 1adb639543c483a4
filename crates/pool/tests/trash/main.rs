//! What clients remove goes to the trash of its branch.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_branch::trash::sweep::{Verdict, sweep};
use canopy_policy::placement::{Pattern, Placement, Rule, Target};
use canopy_policy::trash::{Keep, TrashRule, TrashRules};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::ops::names::rename::RenameKind;
use common::{Made, ROOT, TestKernel, administrator, pool};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

fn rules(except: &[&str], overwritten: bool) -> TrashRules {
    TrashRules(vec![TrashRule {
        path: Pattern::new("**").unwrap(),
        except: except.iter().map(|glob| Pattern::new(glob).unwrap()).collect(),
        keep: Keep::For(Duration::from_secs(3600)),
        overwritten,
        alarm: None,
    }])
}

fn with_trash(branches: usize) -> Made {
    made(branches, Config { trash: rules(&["*.tmp"], true), ..Config::default() })
}

fn made(branches: usize, config: Config) -> Made {
    let made = pool(&vec![Rw; branches], config);
    ops::settings::connect(
        &made.pool,
        Arc::new(TestKernel { unwatched: true, ..TestKernel::default() }),
        false,
    );
    made
}

fn put(made: &Made, branch: usize, path: &str, text: &str) {
    let path = made.on(branch, path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns what is in the trash of a branch: paths with their texts, or with a slash for a directory.
fn kept(made: &Made, branch: usize) -> Vec<String> {
    let root = fs::File::open(made.on(branch, "")).unwrap();
    let mut all = Vec::new();
    let home = made.on(branch, ".canopy-trash");
    sweep(std::os::fd::AsFd::as_fd(&root), &mut |found| {
        let path = std::str::from_utf8(found.path).unwrap();
        let at = home.join(std::str::from_utf8(found.kept_in).unwrap()).join(path);
        let text = || format!("{path}: {}", fs::read_to_string(&at).unwrap());
        all.push(if found.attr.is_dir() { format!("{path}/") } else { text() });
        Verdict::Stays
    })
    .unwrap();
    all.sort();
    all
}

fn look(made: &Made, path: &str) -> canopy_pool::Entry {
    let mut at = NodeId::ROOT;
    let mut found = None;
    for name in path.split('/') {
        let entry = ops::names::lookup::lookup(&made.pool, at, name.as_bytes()).unwrap();
        at = entry.node;
        found = Some(entry);
    }
    found.unwrap()
}

fn parent<'p>(made: &Made, path: &'p str) -> (NodeId, &'p [u8]) {
    match path.rsplit_once('/') {
        None => (NodeId::ROOT, path.as_bytes()),
        Some((dir, name)) => (look(made, dir).node, name.as_bytes()),
    }
}

fn unlink(made: &Made, path: &str) -> Result<(), Errno> {
    let (dir, name) = parent(made, path);
    ops::names::remove::unlink(&made.pool, dir, name).map_err(|error| error.errno())
}

fn rename(made: &Made, from: &str, to: &str) -> Result<(), Errno> {
    let (from, to) = (parent(made, from), parent(made, to));
    let kind = RenameKind::Replace;
    ops::names::rename::rename(&made.pool, &administrator(), from.0, from.1, to.0, to.1, kind)
        .map_err(|error| error.errno())
}

fn listed(made: &Made) -> Vec<String> {
    let mut client = made.client();
    let mut names: Vec<String> = client
        .entries(NodeId::ROOT, None)
        .unwrap()
        .into_iter()
        .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
        .filter(|name| !matches!(name.as_str(), "." | ".."))
        .collect();
    names.sort();
    names
}

#[test]
fn a_removed_file_is_kept_and_nobody_sees_it() {
    let made = with_trash(2);
    put(&made, 1, "d/f", "text");
    put(&made, 1, "d/f.tmp", "nobody wants it");
    look(&made, "d/f");
    unlink(&made, "d/f").unwrap();
    unlink(&made, "d/f.tmp").unwrap();
    assert_eq!(kept(&made, 1), ["d/f: text"]);
    assert_eq!(listed(&made), ["d"]);
    assert_eq!(unlink(&made, "d/f"), Err(Errno::NOENT));
    let hidden = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b".canopy-trash");
    assert_eq!(hidden.map(drop).unwrap_err().errno(), Errno::NOENT);
    assert!(ops::names::create::mkdir(&made.pool, &ROOT, NodeId::ROOT, b".canopy-trash", 0o755).is_err());
}

#[test]
fn without_a_rule_nothing_is_kept() {
    let made = made(1, Config::default());
    put(&made, 0, "f", "text");
    unlink(&made, "f").unwrap();
    assert!(!made.on(0, ".canopy-trash").exists());
}

#[test]
fn a_tree_that_is_removed_leaves_its_files_and_directories() {
    let made = with_trash(2);
    put(&made, 0, "d/e/f", "1");
    put(&made, 1, "d/e/g", "2");
    fs::create_dir(made.on(0, "d/bare")).unwrap();
    common::chmod(&made.on(0, "d"), 0o700);
    for path in ["d/e/f", "d/e/g"] {
        unlink(&made, path).unwrap();
    }
    for path in ["d/e", "d/bare", "d"] {
        let (dir, name) = parent(&made, path);
        ops::names::remove::rmdir(&made.pool, dir, name).unwrap();
    }
    assert_eq!(listed(&made), [""; 0]);
    assert_eq!(
        (kept(&made, 0), kept(&made, 1)),
        (vec!["d/bare/".into(), "d/e/f: 1".into()], vec!["d/e/g: 2".to_owned()])
    );
    let batch = fs::read_dir(made.on(0, ".canopy-trash")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::metadata(batch.join("d")).unwrap().mode() & 0o777, 0o700);
}

/// What had the name before is kept in the same batch, where it is in the way.
#[test]
fn a_file_in_a_directory_that_takes_the_name_of_what_was_removed_is_kept() {
    let made = with_trash(1);
    put(&made, 0, "target", "0");
    for before in ["a file", "a symlink"] {
        match before {
            "a file" => put(&made, 0, "d", "1"),
            _ => std::os::unix::fs::symlink(made.on(0, "target"), made.on(0, "d")).unwrap(),
        }
        unlink(&made, "d").unwrap();
        put(&made, 0, "d/f", before);
        unlink(&made, "d/f").unwrap();
        let (dir, name) = parent(&made, "d");
        ops::names::remove::rmdir(&made.pool, dir, name).unwrap();
    }
    assert_eq!(kept(&made, 0), ["d/f: a file", "d/f: a symlink", "d: 0", "d: 1"]);
}

#[test]
fn a_directory_that_is_not_empty_leaves_nothing() {
    let made = with_trash(1);
    put(&made, 0, "d/f", "1");
    let removed = ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"d");
    assert_eq!(removed.unwrap_err().errno(), Errno::NOTEMPTY);
    assert!(!made.on(0, ".canopy-trash").exists());
}

/// The pool hides the name, so only the branch knows why the directory cannot go.
#[test]
fn a_directory_with_a_name_that_the_pool_hides_leaves_nothing() {
    let made = with_trash(1);
    put(&made, 0, "d/.canopy-aside/file", "what is no leftover");
    let removed = ops::names::remove::rmdir(&made.pool, NodeId::ROOT, b"d");
    assert_eq!(removed.unwrap_err().errno(), Errno::NOTEMPTY);
    assert_eq!((kept(&made, 0), listed(&made)), (Vec::new(), vec!["d".to_owned()]));
}

#[test]
fn of_equal_copies_one_is_kept_and_of_others_each() {
    let copies = Placement {
        tiers: Vec::new(),
        rules: vec![Rule {
            path: Pattern::new("c/").unwrap(),
            target: Target::Anywhere,
            copies: Some(2),
            written: false,
        }],
    };
    let made = made(2, Config { trash: rules(&[], false), placement: copies, ..Config::default() });
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for (branch, name, text) in
        [(0, "same", "x"), (1, "same", "x"), (0, "other", "x"), (1, "other", "longer")]
    {
        put(&made, branch, name, text);
        fs::File::open(made.on(branch, name)).unwrap().set_modified(old).unwrap();
    }
    unlink(&made, "same").unwrap();
    unlink(&made, "other").unwrap();
    let mut all = [kept(&made, 0), kept(&made, 1)].concat();
    all.sort();
    assert_eq!(all, ["other: longer", "other: x", "same: x"]);
}

#[test]
fn what_a_rename_replaces_is_kept_if_a_rule_says_so() {
    let made = with_trash(2);
    put(&made, 0, "f", "old");
    put(&made, 1, "new", "new");
    look(&made, "f");
    rename(&made, "new", "f").unwrap();
    assert_eq!(kept(&made, 0), ["f: old"]);
    assert_eq!(fs::read_to_string(made.on(1, "f")).unwrap(), "new");
    assert!(!made.on(0, "f").exists() && listed(&made) == ["f"]);
    // On one branch; then a rename that fails, and one of a file with two names.
    put(&made, 1, "newer", "newer");
    rename(&made, "newer", "f").unwrap();
    assert_eq!(kept(&made, 1), ["f: new"]);
    fs::create_dir(made.on(1, "dir")).unwrap();
    assert_eq!(rename(&made, "dir", "f"), Err(Errno::NOTDIR));
    put(&made, 1, "newest", "newest");
    fs::hard_link(made.on(1, "f"), made.on(1, "g")).unwrap();
    rename(&made, "newest", "f").unwrap();
    assert_eq!(kept(&made, 1), ["f: new"], "g still has the other");
    assert_eq!(fs::metadata(made.on(1, "g")).unwrap().nlink(), 1);

    let plain = self::made(1, Config { trash: rules(&[], false), ..Config::default() });
    put(&plain, 0, "f", "old");
    put(&plain, 0, "new", "new");
    rename(&plain, "new", "f").unwrap();
    assert!(!plain.on(0, ".canopy-trash").exists());
}

#[test]
fn of_copies_that_differ_a_rename_keeps_each() {
    let made = with_trash(2);
    put(&made, 0, "q", "one");
    put(&made, 1, "q", "another");
    put(&made, 0, "new", "new");
    rename(&made, "new", "q").unwrap();
    assert_eq!([kept(&made, 0), kept(&made, 1)], [["q: one"], ["q: another"]]);
    assert_eq!(fs::read_to_string(made.on(0, "q")).unwrap(), "new");
    assert!(!made.on(1, "q").exists());
}

#[test]
fn who_has_a_removed_file_open_sees_it_without_a_name() {
    let made = with_trash(1);
    put(&made, 0, "f", "text");
    let entry = look(&made, "f");
    let opened =
        ops::data::open::open(&made.pool, &ROOT, entry.node, rustix::fs::OFlags::RDWR.bits(), false).unwrap();
    let links = |handle| ops::names::lookup::getattr(&made.pool, entry.node, handle).unwrap().nlink;
    assert_eq!(links(Some(opened.handle)), 1);
    unlink(&made, "f").unwrap();
    assert_eq!((links(Some(opened.handle)), links(None)), (0, 0));
    // It comes back, as `canopy trash restore` brings it.
    let batch = fs::read_dir(made.on(0, ".canopy-trash")).unwrap().next().unwrap().unwrap().path();
    fs::rename(batch.join("f"), made.on(0, "f")).unwrap();
    let again = look(&made, "f");
    assert_eq!((again.node, again.attr.nlink), (entry.node, 1), "it is the same file");
    assert_eq!(links(Some(opened.handle)), 1);
    ops::data::open::release(&made.pool, opened.handle).unwrap();
}

#[test]
fn what_is_over_goes() {
    let made = with_trash(1);
    put(&made, 0, "f", &"x".repeat(10_000));
    unlink(&made, "f").unwrap();
    let branch = Arc::clone(&ops::settings::branches(&made.pool)[0]);
    assert!(ops::trash::bytes(&made.pool, &branch) >= 10_000);
    let now = |after: u64| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        i64::try_from(now + after).unwrap()
    };
    let due = || ops::trash::due(&made.pool).len();
    assert_eq!(due(), 1, "nobody has looked yet");
    ops::trash::tend(&made.pool, &branch, now(3500));
    assert_eq!((kept(&made, 0).len(), due()), (1, 0));
    // A pool that begins anew looks at once.
    let again = common::over(&made.branches, &[Rw], Config { trash: rules(&[], false), ..Config::default() });
    let branch = Arc::clone(&ops::settings::branches(&again)[0]);
    ops::trash::tend(&again, &branch, now(3500));
    assert!(ops::trash::bytes(&again, &branch) >= 10_000, "it is counted");
    let before = ops::attrs::statfs::statfs(&again, NodeId::ROOT).unwrap();
    let third = common::over(&made.branches, &[Rw], Config { trash: rules(&[], false), ..Config::default() });
    let branch = Arc::clone(&ops::settings::branches(&third)[0]);
    ops::trash::tend(&third, &branch, now(3700));
    assert_eq!((kept(&made, 0), ops::trash::bytes(&third, &branch)), (Vec::new(), 0));
    assert!(before.bavail > 0);
}
