//! Directories that are cloned to further branches while operations that began before go on.

use super::*;
use crate::config::Config;
use crate::dir::merged::MergedDir;
use crate::door::Caller;
use crate::kernel::{BackingFile, Kernel, NoKernel};
use crate::ops::branch_deadlines;
use crate::ops::names;
use crate::ops::resolve;
use crate::ops::settings;
use crate::pool::{Op, Pool};
use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_branch::branch;
use canopy_branch::branch::list::{BranchList, BranchSpec};
use canopy_policy::{Category, Policy};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const BRANCHES: usize = 4;
/// More lookups than it takes until the names are listed.
const MANY: usize = 100;

/// All changes on the branches have been seen.
struct Watching;

impl Kernel for Watching {
    fn open_backing(&self, _: BorrowedFd<'_>) -> Result<Box<dyn BackingFile>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    fn adopt_backing(&self, id: u32) -> Box<dyn BackingFile> {
        NoKernel.adopt_backing(id)
    }
    fn caught_up(&self) -> bool {
        true
    }
    fn invalidate_attr(&self, _: NodeId) {}
    fn drop_pages(&self, _: NodeId) {}
    fn forget_name(&self, _: NodeId, _: &[u8]) {}
    fn caller_is_killed(&self) -> bool {
        false
    }
}

struct Rig {
    pool: Pool,
    home: TempDir,
}

impl Rig {
    fn new() -> Rig {
        let home = tempfile::tempdir().unwrap();
        let spec = |index| {
            let path = home.path().join(format!("b{index}"));
            std::fs::create_dir(&path).unwrap();
            BranchSpec { path, mode: branch::Mode::Rw, min_free: None }
        };
        let branches = Branches::open(&(0..BRANCHES).map(spec).collect::<BranchList>()).unwrap();
        let mut config = Config { min_free: 0, ..Config::default() };
        config.policies.set_category(Category::Create, Policy::Ff);
        let pool = Pool::new(config, branches);
        settings::connect(&pool, Arc::new(Watching), false);
        Rig { pool, home }
    }

    fn on(&self, branch: usize, path: &str) -> PathBuf {
        self.home.path().join(format!("b{branch}")).join(path)
    }

    /// Makes a directory on the first branch, and returns its node.
    fn dir(&self, parent: NodeId, name: &str) -> NodeId {
        names::create::mkdir(&self.pool, &ROOT, parent, name.as_bytes(), 0o755).unwrap().node
    }

    /// Returns the directory as an operation that begins now has it.
    fn begin<'b>(&self, op: &'b Op<'_>, dir: NodeId) -> MergedDir<'b> {
        resolve::dirs::dirs(op, dir, resolve::dirs::cache_trust(op)).unwrap().1
    }

    fn op(&self) -> Op<'_> {
        Op::begin(&self.pool)
    }

    /// Clones a directory to a branch, and makes a file in it there, as create(2) does. Returns its error.
    fn create_on(&self, index: usize, dir: NodeId, name: &[u8]) -> Result<(), Errno> {
        let op = &self.op();
        let (path, mut dirs) = resolve::dirs::dirs(op, dir, resolve::dirs::cache_trust(op)).unwrap();
        names::create::bring_dir(op, &mut dirs, index, &path)?;
        rustix::fs::mkdirat(dirs.get(index).unwrap(), name, rustix::fs::Mode::RWXU).unwrap();
        dirs.name_created(name, index);
        Ok(())
    }

    fn is_taken(&self, dir: NodeId, name: &[u8]) -> bool {
        match names::create::mkdir(&self.pool, &ROOT, dir, name, 0o755).map_err(Error::errno) {
            Err(Errno::EXIST) => true,
            Ok(_) => false,
            Err(errno) => panic!("{errno}"),
        }
    }
}

fn look_for_missing_names(dirs: &MergedDir<'_>) {
    for round in 0..MANY {
        assert!(!dirs.copies(format!("missing{round}").as_bytes()).any());
    }
}

#[test]
fn names_on_a_further_branch_are_not_lost_to_an_operation_that_began_without_it() {
    for names_are_known in [true, false] {
        let rig = Rig::new();
        let dir = rig.dir(NodeId::ROOT, "d");
        let op = rig.op();
        let before = rig.begin(&op, dir);
        if names_are_known {
            look_for_missing_names(&before);
        }
        rig.create_on(1, dir, b"new").unwrap();
        let now = rig.begin(&op, dir);
        assert!(!now.lacks(1) && now.names.is_some(), "the directory stays cached");
        // It asks the branches that it knows of, and may list their names.
        assert!(!before.copies(b"new").any());
        look_for_missing_names(&before);
        assert!(rig.is_taken(dir, b"new"), "names are known: {names_are_known}");
        look_for_missing_names(&rig.begin(&op, dir));
        assert!(rig.is_taken(dir, b"new"), "names are known: {names_are_known}");
    }
}

#[test]
fn names_made_in_a_clone_by_others_are_found() {
    let rig = Rig::new();
    let dir = rig.dir(NodeId::ROOT, "d");
    let op = rig.op();
    look_for_missing_names(&rig.begin(&op, dir));
    let node = rig.pool.nodes.get(dir).unwrap();
    std::fs::create_dir_all(rig.on(1, "d/direct")).unwrap();
    let made =
        canopy_branch::relocate::clone_dirs(op.branches[0].root(), op.branches[1].root(), b"d", &|_, _| true);
    assert!(made.unwrap().made.is_empty(), "something else has made it");
    let made = rustix::fs::open(rig.on(1, "d"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    rig.pool.dir_cache.extend(&node, &op.branches, 1, made);
    assert!(rig.begin(&op, dir).names.is_some_and(|names| names.holders(b"direct").is_some()), "known");
    assert!(rig.is_taken(dir, b"direct"));
}

#[test]
fn a_clone_leaves_the_attributes_of_other_copies_known() {
    let rig = Rig::new();
    for index in 0..BRANCHES - 1 {
        std::fs::create_dir(rig.on(index, "d")).unwrap();
    }
    let dir = names::lookup::lookup(&rig.pool, NodeId::ROOT, b"d").unwrap().node;
    let op = rig.op();
    let known = |dirs: &MergedDir<'_>| dirs.attrs().known();
    drop(rig.begin(&op, dir));
    let before = rig.begin(&op, dir);
    before.own_remembered();
    assert_eq!(known(&before), [0, 1, 2]);
    rig.create_on(BRANCHES - 1, dir, b"new").unwrap();
    let after = rig.begin(&op, dir);
    assert!(!after.lacks(BRANCHES - 1));
    assert_eq!(known(&after), [0, 1, 2], "what was made in the clone has changed it");
    after.own_remembered();
    assert_eq!(known(&after), [0, 1, 2, 3]);
    // Its new place changes every copy.
    names::rename::rename(
        &rig.pool,
        &ROOT,
        NodeId::ROOT,
        b"d",
        NodeId::ROOT,
        b"e",
        crate::RenameKind::Replace,
    )
    .unwrap();
    assert_eq!(known(&rig.begin(&op, dir)), [0; 0]);
}

#[test]
fn names_are_known_in_directories_that_silent_branches_lack() {
    let rig = Rig::new();
    let dir = rig.dir(NodeId::ROOT, "d");
    std::fs::create_dir(rig.on(3, "e")).unwrap();
    let other = names::lookup::lookup(&rig.pool, NodeId::ROOT, b"e").unwrap().node;
    let op = rig.op();
    let look = |dir, name: &[u8]| names::lookup::lookup(&rig.pool, dir, name).map(drop).map_err(Error::errno);
    for dir in [dir, other, NodeId::ROOT] {
        drop(rig.begin(&op, dir));
        assert_eq!(look(dir, b"missing"), Err(Errno::NOENT));
    }
    for silent in [1, 3] {
        assert!(branch_deadlines::set_silent(&rig.pool, op.branches[silent].id, true));
        assert_eq!(look(NodeId::ROOT, b"missing"), Err(Errno::TIMEDOUT));
        assert_eq!(look(dir, b"missing"), Err(Errno::NOENT), "{silent}");
        let expected = if silent == 1 { Errno::NOENT } else { Errno::TIMEDOUT };
        assert_eq!(look(other, b"missing"), Err(expected), "{silent}");
    }
    // What is made below it is known, too.
    let mut below = dir;
    for name in ["below", "below it"] {
        below = rig.dir(below, name);
        assert_eq!(look(below, b"missing"), Err(Errno::NOENT));
    }
    // An operation that is stuck may bring the directory to the branch.
    let cloning = op.branches[3].cloning();
    assert_eq!(look(dir, b"missing"), Err(Errno::TIMEDOUT));
    drop(cloning);
    assert_eq!(look(dir, b"missing"), Err(Errno::NOENT));
    // The branches may have a directory with its new name.
    names::rename::rename(
        &rig.pool,
        &ROOT,
        NodeId::ROOT,
        b"d",
        NodeId::ROOT,
        b"f",
        crate::RenameKind::Replace,
    )
    .unwrap();
    assert_eq!(look(dir, b"missing"), Err(Errno::TIMEDOUT));
    for silent in [1, 3] {
        assert!(branch_deadlines::set_silent(&rig.pool, op.branches[silent].id, false));
    }
    assert_eq!([dir, NodeId::ROOT].map(|dir| look(dir, b"missing")), [Err(Errno::NOENT); 2]);
}

/// From the moment when a directory is cached again after a clone, it is opened in its parent, which must know the clone.
#[test]
fn a_clone_is_recorded_from_the_top() {
    let rig = Rig::new();
    let top = rig.dir(NodeId::ROOT, "top");
    let dir = rig.dir(top, "d");
    let op = rig.op();
    let [above, node] = [top, dir].map(|id| rig.pool.nodes.get(id).unwrap());
    let mut dirs = rig.begin(&op, dir);
    let begun = rig.pool.changes.ticket();
    std::thread::scope(|scope| {
        let held = node.dir().cached.lock();
        let clone = scope.spawn(|| names::create::bring_dir(&op, &mut dirs, 1, b"top/d"));
        let is_recorded = || !rig.pool.changes.unchanged(begun, Item::places(above.id));
        for _ in 0..10_000 {
            if is_recorded() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let in_time = is_recorded();
        drop(held);
        clone.join().unwrap().unwrap();
        assert!(in_time, "the parent first");
    });
    assert!(!rig.begin(&op, dir).lacks(1) && !rig.begin(&op, top).lacks(1));
}

#[test]
fn a_removed_directory_is_not_brought_back_by_a_clone() {
    let rig = Rig::new();
    rig.dir(NodeId::ROOT, "d");
    let op = rig.op();
    // A clone that has begun: the removal waits for it, and removes the clone too.
    std::thread::scope(|scope| {
        let cloning = resolve::locks::lock_for_clone(&op, b"d", op.branches[1].id).unwrap();
        let removal = scope.spawn(|| names::remove::rmdir(&rig.pool, NodeId::ROOT, b"d"));
        for _ in 0..100 {
            if removal.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        names::create::clone_path(&op, &op.branches[0], &op.branches[1], b"d", None).unwrap();
        drop(cloning);
        removal.join().unwrap().unwrap();
    });
    assert!((0..BRANCHES).all(|branch| !rig.on(branch, "d").exists()));
    // An operation that had the directory before, while another directory takes over its path.
    let dir = rig.dir(NodeId::ROOT, "e");
    let mut before = rig.begin(&op, dir);
    names::remove::rmdir(&rig.pool, NodeId::ROOT, b"e").unwrap();
    names::create::mkdir(&rig.pool, &ROOT, NodeId::ROOT, b"e", 0o755).unwrap();
    assert_eq!(names::create::bring_dir(&op, &mut before, 1, b"e"), Err(Errno::NOENT));
    assert!(!rig.on(1, "e").exists());
}
