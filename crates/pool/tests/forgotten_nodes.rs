//! What is known of a file or directory goes with it: no table keeps entries of what the kernel has forgotten.

mod common;

use canopy_pool::branch::Mode::Rw;
use canopy_pool::config::Config;
use canopy_pool::{Caller, Entry, NodeId, Pool, RenameKind, WriteKind};
use common::{Made, ROOT, TestKernel};
use rustix::fs::OFlags;
use std::sync::Arc;

/// More than any table may have left, and far fewer than are made.
const FEW: usize = 200;
const MANY: u64 = 3000;

fn made() -> Made {
    let made = common::pool(&[Rw, Rw], Config::default());
    made.pool.connect(Arc::new(TestKernel::default()), false);
    made
}

fn nothing_is_left(pool: &Pool, after: &str) {
    for (table, entries) in pool.sizes() {
        assert!(entries < FEW, "{entries} {table} after {after}");
    }
}

struct Kernel<'p>(&'p Pool);

impl Kernel<'_> {
    /// Looked for and not there, in vain often enough for the pool to learn the names.
    fn absent(&self, dir: NodeId) {
        for name in 0..40 {
            assert!(self.0.lookup(dir, format!("absent{name}").as_bytes()).is_err());
        }
    }

    fn list(&self, dir: NodeId) {
        self.0.opendir(dir).expect("opendir");
        let mut given: Vec<Entry> = Vec::new();
        let take = |_: canopy_pool::DirEntry<'_>, entry: Option<canopy_pool::Entry>| {
            given.extend(entry);
            std::time::Duration::ZERO
        };
        self.0.readdirplus(dir, 0, |_| true, take).expect("readdirplus");
        given.iter().for_each(|entry| self.0.forget(entry.node, 1));
    }
}

#[test]
fn used_directories_leave_no_entries() {
    let made = made();
    let (pool, kernel) = (&*made.pool, Kernel(&made.pool));
    let used = |name: &str| {
        let dir = pool.mkdir(&ROOT, NodeId::ROOT, name.as_bytes(), 0o755).expect("mkdir");
        kernel.absent(dir.node);
        kernel.list(dir.node);
        dir
    };
    for round in 0..MANY {
        let dir = used(&format!("d{round}"));
        pool.rmdir(NodeId::ROOT, format!("d{round}").as_bytes()).expect("rmdir");
        pool.forget(dir.node, 1);
    }
    nothing_is_left(pool, "directories that were removed");
    // Forgotten without being removed, all at once and again and again.
    let dirs: Vec<Entry> = (0..MANY).map(|round| used(&format!("d{round}"))).collect();
    dirs.iter().for_each(|dir| pool.forget(dir.node, 1));
    nothing_is_left(pool, "directories that were forgotten");
    for _ in 0..MANY {
        let dir = pool.lookup(NodeId::ROOT, b"d7").expect("lookup");
        kernel.absent(dir.node);
        pool.forget(dir.node, 1);
    }
    nothing_is_left(pool, "a directory that was forgotten and found again");
    // One that stays known, of which everything is forgotten: a name below keeps it.
    let dir = pool.lookup(NodeId::ROOT, b"d8").expect("lookup");
    let below = pool.mkdir(&ROOT, dir.node, b"below", 0o755).expect("mkdir");
    pool.forget(dir.node, 1);
    for _ in 0..MANY {
        let dir = pool.lookup(NodeId::ROOT, b"d8").expect("lookup");
        kernel.absent(dir.node);
        pool.forget(dir.node, 1);
    }
    pool.forget(below.node, 1);
    nothing_is_left(pool, "a directory with a known name in it");
}

#[test]
fn used_files_leave_no_entries() {
    let made = made();
    let pool = &*made.pool;
    let caller: &Caller = &ROOT;
    let open = OFlags::RDWR.bits();
    for round in 0..MANY {
        let [one, two, three] = ["a", "b", "c"].map(|letter| format!("{letter}{round}").into_bytes());
        let (file, opened) = pool.create(caller, NodeId::ROOT, &one, 0o644, open, false).expect("create");
        let kind = WriteKind { from_cache: false, kill_suidgid: None };
        pool.write(canopy_pool::Via::with_flags(opened.handle, open), 0, b"x", kind).expect("write");
        pool.link(caller, file.node, NodeId::ROOT, &two).expect("link");
        pool.rename(caller, NodeId::ROOT, &one, NodeId::ROOT, &three, RenameKind::Replace).expect("rename");
        pool.unlink(NodeId::ROOT, &two).expect("unlink");
        // Its last name goes while it is open.
        pool.unlink(NodeId::ROOT, &three).expect("unlink");
        pool.release(opened.handle).expect("release");
        pool.forget(file.node, 2);
        let (file, opened) = pool.tmpfile(caller, NodeId::ROOT, 0o600, open).expect("tmpfile");
        pool.release(opened.handle).expect("release");
        pool.forget(file.node, 1);
    }
    nothing_is_left(pool, "files that were removed");
}

/// Whoever may write to a branch makes names of an open file, shows them to the pool and takes them away.
#[test]
fn names_that_come_and_go_on_the_branch_leave_no_entries() {
    let made = made();
    let pool = &*made.pool;
    let open = OFlags::RDWR.bits();
    let (file, opened) = pool.create(&ROOT, NodeId::ROOT, b"f", 0o644, open, false).expect("create");
    let branch = usize::from(!made.on(0, "f").exists());
    let kept: Vec<String> = (0..70).map(|number| format!("kept{number}")).collect();
    for round in 0..MANY {
        let name = format!("link{round}");
        std::fs::hard_link(made.on(branch, "f"), made.on(branch, &name)).expect("a link");
        pool.name_changed(NodeId::ROOT, name.as_bytes());
        let entry = match round % 2 {
            0 => pool.lookup(NodeId::ROOT, name.as_bytes()).expect("lookup"),
            _ => {
                let mut found = None;
                let mut take = |given: &[u8], entry| {
                    if given == name.as_bytes() {
                        found = entry
                    } else {
                        entry.iter().for_each(|entry: &Entry| pool.forget(entry.node, 1))
                    }
                };
                let take = |given: canopy_pool::DirEntry<'_>, entry| {
                    take(given.name, entry);
                    std::time::Duration::ZERO
                };
                pool.readdirplus(NodeId::ROOT, 0, |_| true, take).expect("readdirplus");
                found.expect("the name")
            }
        };
        assert_eq!(entry.node, file.node);
        std::fs::remove_file(made.on(branch, &name)).expect("removal");
        pool.forget(entry.node, 1);
    }
    nothing_is_left(pool, "names that went on the branch");
    // Names that stay are known still, however many.
    for name in &kept {
        std::fs::hard_link(made.on(branch, "f"), made.on(branch, name)).expect("a link");
        pool.name_changed(NodeId::ROOT, name.as_bytes());
        pool.lookup(NodeId::ROOT, name.as_bytes()).expect("lookup");
    }
    pool.release(opened.handle).expect("release");
    for name in &kept {
        pool.unlink(NodeId::ROOT, name.as_bytes()).expect("unlink");
        assert_eq!(pool.getattr(file.node, None).expect("the file").ino, file.attr.ino);
    }
}
