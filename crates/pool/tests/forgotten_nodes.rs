//! No table of the pool keeps entries for files and directories that the kernel has forgotten.

mod common;

use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Caller, Entry, Pool, RenameKind, WriteKind};
use common::{Made, ROOT, TestKernel};
use rustix::fs::OFlags;
use std::sync::Arc;

/// More entries than any table may keep, and far fewer than the tests make.
const FEW: usize = 200;
const MANY: u64 = 3000;

fn made() -> Made {
    let made = common::pool(&[Rw, Rw], Config::default());
    ops::settings::connect(&made.pool, Arc::new(TestKernel::default()), false);
    made
}

fn assert_tables_small(pool: &Pool, after: &str) {
    for (table, entries) in ops::settings::sizes(pool) {
        assert!(entries < FEW, "{entries} {table} after {after}");
    }
}

struct Kernel<'p>(&'p Pool);

impl Kernel<'_> {
    /// Looks up absent names, often enough that the pool reads the directory and caches its names.
    fn absent(&self, dir: NodeId) {
        for name in 0..40 {
            assert!(ops::names::lookup::lookup(self.0, dir, format!("absent{name}").as_bytes()).is_err());
        }
    }

    fn list(&self, dir: NodeId) {
        ops::readdir::opendir(self.0, dir).expect("opendir");
        let mut given: Vec<Entry> = Vec::new();
        let take = |_: canopy_pool::DirEntry<'_>, entry: Option<canopy_pool::Entry>| {
            given.extend(entry);
            std::time::Duration::ZERO
        };
        ops::readdir::readdirplus(self.0, dir, 0, |_| true, take).expect("readdirplus");
        given.iter().for_each(|entry| ops::names::lookup::forget(self.0, entry.node, 1));
    }
}

#[test]
fn used_directories_leave_no_entries() {
    let made = made();
    let (pool, kernel) = (&*made.pool, Kernel(&made.pool));
    let used = |name: &str| {
        let dir =
            ops::names::create::mkdir(pool, &ROOT, NodeId::ROOT, name.as_bytes(), 0o755).expect("mkdir");
        kernel.absent(dir.node);
        kernel.list(dir.node);
        dir
    };
    for round in 0..MANY {
        let dir = used(&format!("d{round}"));
        ops::names::remove::rmdir(pool, NodeId::ROOT, format!("d{round}").as_bytes()).expect("rmdir");
        ops::names::lookup::forget(pool, dir.node, 1);
    }
    assert_tables_small(pool, "directories that were removed");
    // Directories that are forgotten but not removed: many at once, and one many times.
    let dirs: Vec<Entry> = (0..MANY).map(|round| used(&format!("d{round}"))).collect();
    dirs.iter().for_each(|dir| ops::names::lookup::forget(pool, dir.node, 1));
    assert_tables_small(pool, "directories that were forgotten");
    for _ in 0..MANY {
        let dir = ops::names::lookup::lookup(pool, NodeId::ROOT, b"d7").expect("lookup");
        kernel.absent(dir.node);
        ops::names::lookup::forget(pool, dir.node, 1);
    }
    assert_tables_small(pool, "a directory that was forgotten and found again");
    // A directory that stays known, because a node in it is.
    let dir = ops::names::lookup::lookup(pool, NodeId::ROOT, b"d8").expect("lookup");
    let below = ops::names::create::mkdir(pool, &ROOT, dir.node, b"below", 0o755).expect("mkdir");
    ops::names::lookup::forget(pool, dir.node, 1);
    for _ in 0..MANY {
        let dir = ops::names::lookup::lookup(pool, NodeId::ROOT, b"d8").expect("lookup");
        kernel.absent(dir.node);
        ops::names::lookup::forget(pool, dir.node, 1);
    }
    ops::names::lookup::forget(pool, below.node, 1);
    assert_tables_small(pool, "a directory with a known name in it");
}

#[test]
fn used_files_leave_no_entries() {
    let made = made();
    let pool = &*made.pool;
    let caller: &Caller = &ROOT;
    let open = OFlags::RDWR.bits();
    for round in 0..MANY {
        let [one, two, three] = ["a", "b", "c"].map(|letter| format!("{letter}{round}").into_bytes());
        let (file, opened) =
            ops::data::create::create(pool, caller, NodeId::ROOT, &one, 0o644, open).expect("create");
        let kind = WriteKind { from_cache: false, kill_suidgid: None };
        ops::data::io::write(pool, canopy_pool::Via::with_flags(opened.handle, open), 0, b"x", kind)
            .expect("write");
        ops::names::link::link(pool, caller, file.node, NodeId::ROOT, &two).expect("link");
        ops::names::rename::rename(
            pool,
            caller,
            NodeId::ROOT,
            &one,
            NodeId::ROOT,
            &three,
            RenameKind::Replace,
        )
        .expect("rename");
        ops::names::remove::unlink(pool, NodeId::ROOT, &two).expect("unlink");
        // The last name is removed while the file is open.
        ops::names::remove::unlink(pool, NodeId::ROOT, &three).expect("unlink");
        ops::data::open::release(pool, opened.handle).expect("release");
        ops::names::lookup::forget(pool, file.node, 2);
        let (file, opened) =
            ops::data::create::tmpfile(pool, caller, NodeId::ROOT, 0o600, open).expect("tmpfile");
        ops::data::open::release(pool, opened.handle).expect("release");
        ops::names::lookup::forget(pool, file.node, 1);
    }
    assert_tables_small(pool, "files that were removed");
}

/// A user who can write to a branch links an open file there, looks the name up in the pool, and removes it.
#[test]
fn names_that_come_and_go_on_the_branch_leave_no_entries() {
    let made = made();
    let pool = &*made.pool;
    let open = OFlags::RDWR.bits();
    let (file, opened) =
        ops::data::create::create(pool, &ROOT, NodeId::ROOT, b"f", 0o644, open).expect("create");
    let branch = usize::from(!made.on(0, "f").exists());
    let kept: Vec<String> = (0..70).map(|number| format!("kept{number}")).collect();
    for round in 0..MANY {
        let name = format!("link{round}");
        std::fs::hard_link(made.on(branch, "f"), made.on(branch, &name)).expect("a link");
        ops::external_changes::tell(
            pool,
            Change::Holders { dir: NodeId::ROOT, name: name.as_bytes() },
            Client::Outside,
        );
        let entry = match round % 2 {
            0 => ops::names::lookup::lookup(pool, NodeId::ROOT, name.as_bytes()).expect("lookup"),
            _ => {
                let mut found = None;
                let mut take = |given: &[u8], entry| {
                    if given == name.as_bytes() {
                        found = entry
                    } else {
                        entry.iter().for_each(|entry: &Entry| ops::names::lookup::forget(pool, entry.node, 1))
                    }
                };
                let take = |given: canopy_pool::DirEntry<'_>, entry| {
                    take(given.name, entry);
                    std::time::Duration::ZERO
                };
                ops::readdir::readdirplus(pool, NodeId::ROOT, 0, |_| true, take).expect("readdirplus");
                found.expect("the name")
            }
        };
        assert_eq!(entry.node, file.node);
        std::fs::remove_file(made.on(branch, &name)).expect("removal");
        ops::names::lookup::forget(pool, entry.node, 1);
    }
    assert_tables_small(pool, "names that were removed on the branch");
    // Names that stay on the branch remain known, however many there are.
    for name in &kept {
        std::fs::hard_link(made.on(branch, "f"), made.on(branch, name)).expect("a link");
        ops::external_changes::tell(
            pool,
            Change::Holders { dir: NodeId::ROOT, name: name.as_bytes() },
            Client::Outside,
        );
        ops::names::lookup::lookup(pool, NodeId::ROOT, name.as_bytes()).expect("lookup");
    }
    ops::data::open::release(pool, opened.handle).expect("release");
    for name in &kept {
        ops::names::remove::unlink(pool, NodeId::ROOT, name.as_bytes()).expect("unlink");
        assert_eq!(ops::names::lookup::getattr(pool, file.node, None).expect("the file").ino, file.attr.ino);
    }
}

/// A name that is replaced on its branch between each lookup and the operation: the operation that follows the second lookup
/// acts on the file that was looked up.
#[test]
fn a_file_that_was_replaced_since_its_lookup_is_found() {
    for branches in [1, 2] {
        let home = common::home();
        let roots: Vec<_> = (0..branches).map(|number| home.path().join(number.to_string())).collect();
        roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
        let pool = common::over(&roots, &vec![Rw; branches], Config::default());
        let replace = |text: &str| {
            std::fs::write(roots[0].join("new"), text).unwrap();
            std::fs::rename(roots[0].join("new"), roots[0].join("f")).unwrap();
        };
        replace("first");
        let first = ops::names::lookup::lookup(&pool, NodeId::ROOT, b"f").unwrap().node;
        replace("second");
        assert_eq!(
            ops::names::lookup::getattr(&pool, first, None).map(|_| ()).map_err(|error| error.errno()),
            Err(rustix::io::Errno::STALE)
        );
        let second = ops::names::lookup::lookup(&pool, NodeId::ROOT, b"f").unwrap().node;
        replace("third, longer");
        assert_eq!(ops::names::lookup::getattr(&pool, second, None).unwrap().size, 6);
        let opened = ops::data::open::open(&pool, &common::ROOT, second, 0, false).unwrap();
        let mut data = [0; 16];
        assert_eq!(ops::data::io::read(&pool, opened.handle, 0, &mut data).unwrap(), 6);
        assert_eq!(&data[..6], b"second");
        ops::data::open::release(&pool, opened.handle).unwrap();
        let third = ops::names::lookup::lookup(&pool, NodeId::ROOT, b"f").unwrap().node;
        assert_eq!(ops::names::lookup::getattr(&pool, third, None).unwrap().size, 13);
        // What has no name left cannot be linked: the file that has its name by now is.
        let link = |text: &str| {
            let node = ops::names::lookup::lookup(&pool, NodeId::ROOT, b"f").unwrap().node;
            replace(text);
            ops::names::link::link(&pool, &common::ROOT, node, NodeId::ROOT, b"l")
        };
        // As the kernel does, once more.
        let linked = link("fourth").or_else(|_| link("fifth!")).unwrap();
        let text = std::fs::read_to_string(roots[0].join("l")).unwrap();
        assert!(["fourth", "fifth!"].contains(&&*text) && linked.attr.nlink == 2, "{text}");
        // Unless it has other rights, which the kernel has not checked.
        std::fs::remove_file(roots[0].join("l")).unwrap();
        let node = ops::names::lookup::lookup(&pool, NodeId::ROOT, b"f").unwrap().node;
        std::fs::write(roots[0].join("new"), "private").unwrap();
        common::chmod(&roots[0].join("new"), 0o600);
        std::fs::rename(roots[0].join("new"), roots[0].join("f")).unwrap();
        let refused = ops::names::link::link(&pool, &common::ROOT, node, NodeId::ROOT, b"l");
        assert_eq!(refused.err().map(|error| error.errno()), Some(rustix::io::Errno::STALE));
        // It is kept for a moment only.
        let open = || {
            let held = std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|entry| entry.unwrap().path().read_link().ok());
            held.filter(|path| path.starts_with(&roots[0]) && path.to_string_lossy().ends_with("(deleted)"))
                .count()
        };
        let begun = std::time::Instant::now();
        while open() > 0 {
            assert!(begun.elapsed().as_secs() < 60, "replaced files stay open");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// As above, with a name that changes places with another one, so that the file that was looked up still has a name.
#[test]
fn a_file_that_was_exchanged_since_its_lookup_is_found() {
    for branches in [1, 2] {
        let home = common::home();
        let roots: Vec<_> = (0..branches).map(|number| home.path().join(number.to_string())).collect();
        roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
        let pool = common::over(&roots, &vec![Rw; branches], Config::default());
        std::fs::write(roots[0].join("f"), "first").unwrap();
        std::fs::write(roots[0].join("g"), "second, longer").unwrap();
        let exchange = || {
            let (one, two) = (roots[0].join("f"), roots[0].join("g"));
            let kind = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, two, kind).unwrap();
        };
        let lookup = || ops::names::lookup::lookup(&pool, NodeId::ROOT, b"f").unwrap();
        let first = lookup();
        assert!(!first.brief);
        exchange();
        let gone = ops::names::lookup::getattr(&pool, first.node, None).map(|_| ());
        assert_eq!(gone.map_err(|error| error.errno()), Err(rustix::io::Errno::STALE));
        let second = lookup();
        exchange();
        assert_eq!(ops::names::lookup::getattr(&pool, second.node, None).unwrap().size, 14);
        let write = rustix::fs::OFlags::RDWR.bits();
        let opened = ops::data::open::open(&pool, &common::ROOT, second.node, write, false).unwrap();
        assert_eq!(ops::data::io::write(&pool, opened.handle, 0, b"SECOND", Default::default()).unwrap(), 6);
        ops::data::open::release(&pool, opened.handle).unwrap();
        assert_eq!(std::fs::read_to_string(roots[0].join("g")).unwrap(), "SECOND, longer");
        // The kernel may not keep such a name, so the thread's next operation sees what it leads to by then.
        assert!(second.brief);
        assert_eq!(lookup().attr.size, 5);
    }
}
