//! Without openat2(2) (Linux before 5.6) the pool walks paths component by component. The results are the same, and
//! still nothing leaves a branch. This is a program of its own because the simulation affects the whole process.

use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_branch::branch::{BranchList, BranchSpec, Branches, Mode};
use canopy_branch::fs::beneath::pretend_no_openat2;
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Caller, Entry, Pool, RenameKind, WriteKind};
use rustix::fs::OFlags;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0o022 };

fn over(branches: &[&Path]) -> Pool {
    let spec = |path: &&Path| BranchSpec { path: path.to_path_buf(), mode: Mode::Rw, min_free: None };
    let list: BranchList = branches.iter().map(spec).collect();
    let config = Config { min_free: 0, ..Config::default() };
    Pool::new(config, Branches::open(&list).expect("the branches"))
}

fn walk(pool: &Pool, names: &[&str]) -> Result<Entry, Error> {
    let mut at = ops::names::lookup::lookup(pool, NodeId::ROOT, names[0].as_bytes())?;
    for name in &names[1..] {
        at = ops::names::lookup::lookup(pool, at.node, name.as_bytes())?;
    }
    Ok(at)
}

#[test]
fn without_openat2_the_pool_works_and_nothing_leaves_a_branch() {
    let home = tempfile::tempdir().expect("a directory");
    let [a, b, outside] = ["a", "b", "outside"].map(|name| home.path().join(name));
    fs::create_dir_all(a.join("one/two/three")).expect("mkdir");
    fs::create_dir_all(b.join("one")).expect("mkdir");
    fs::create_dir_all(outside.join("two")).expect("mkdir");
    fs::write(a.join("one/two/three/f"), "inside").expect("a file");
    fs::write(outside.join("two/g"), "outside").expect("a file");
    symlink(&outside, b.join("one/link")).expect("symlink");

    pretend_no_openat2(true);
    let pool = over(&[&a, &b]);
    let file = walk(&pool, &["one", "two", "three", "f"]).expect("a deep file");
    let opened = ops::data::open::open(&pool, &CALLER, file.node, OFlags::RDWR.bits(), false).expect("open");
    let mut content = [0; 16];
    assert_eq!(ops::data::io::read(&pool, opened.handle, 0, &mut content), Ok(6));
    assert_eq!(&content[..6], b"inside");
    assert_eq!(ops::data::io::write(&pool, opened.handle, 6, b"!", WriteKind::default()), Ok(1));
    ops::data::open::release(&pool, opened.handle).expect("release");

    let deep = walk(&pool, &["one", "two", "three"]).expect("a directory");
    let flags = (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).bits();
    let (new, opened) =
        ops::data::create::create(&pool, &CALLER, deep.node, b"new", 0o644, flags).expect("create");
    ops::data::open::release(&pool, opened.handle).expect("release");
    let one = walk(&pool, &["one"]).expect("a directory");
    ops::names::rename::rename(&pool, &CALLER, deep.node, b"new", one.node, b"moved", RenameKind::Replace)
        .expect("rename");
    assert_eq!(walk(&pool, &["one", "moved"]).expect("moved").node, new.node);
    assert_eq!(ops::names::lookup::lookup(&pool, deep.node, b"new").err(), Some(Error::Absent));

    // The pool does not follow a symlink that replaces a directory on the branch.
    fs::rename(a.join("one/two"), a.join("one/was-two")).expect("rename on the branch");
    symlink(outside.join("two"), a.join("one/two")).expect("symlink");
    assert!(ops::names::lookup::lookup(&pool, deep.node, b"f").is_err());
    let two = walk(&pool, &["one", "two"]).expect("the symlink itself");
    assert!(ops::names::lookup::lookup(&pool, two.node, b"g").is_err());
    let link = walk(&pool, &["one", "link"]).expect("a symlink");
    assert!(
        ops::names::lookup::lookup(&pool, link.node, b"two").is_err()
            && ops::readdir::opendir(&pool, link.node).is_err()
    );
    // NFS servers look up `..` (FUSE_EXPORT_SUPPORT). The root of the pool has no parent.
    assert_eq!(ops::names::lookup::lookup(&pool, one.node, b"..").expect("the root").node, NodeId::ROOT);
    assert!(!ops::names::lookup::lookup(&pool, NodeId::ROOT, b"..").is_ok_and(|up| up.node != NodeId::ROOT));
    assert_eq!(fs::read_dir(outside.join("two")).expect("outside").count(), 1);
}
