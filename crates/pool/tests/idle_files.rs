//! The pool keeps a file open on its branch for a while after the last reader closes it. Such an idle file must never be
//! served after the name leads to another file, and must not keep a branch busy.
//!
//! This program has a single test, because it counts the descriptors of the process.

mod common;

use canopy_base::error::Result;
use canopy_base::ids::NodeId;
use canopy_branch::branch::{BranchList, BranchSpec, Branches, Mode};
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{Opened, WriteKind};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{PATIENCE, files};
use common::{Made, ROOT, TestKernel};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

struct Rig {
    made: Made,
    /// The number of backing files registered so far.
    backed: Arc<AtomicU32>,
}

impl Rig {
    fn new(config: Config) -> Rig {
        let made = common::pool(&[Mode::Rw, Mode::Rw], config);
        let backed = Arc::new(AtomicU32::new(0));
        ops::settings::connect(
            &made.pool,
            Arc::new(TestKernel { backing_files: Some(backed.clone()), ..TestKernel::default() }),
            true,
        );
        for name in ["f", "g"] {
            fs::write(made.on(0, name), name).expect("a file");
        }
        Rig { made, backed }
    }

    fn find(&self, name: &str) -> NodeId {
        ops::names::lookup::lookup(&self.made.pool, NodeId::ROOT, name.as_bytes()).expect("a lookup").node
    }

    fn open(&self, node: NodeId, flags: OFlags) -> Result<Opened> {
        ops::data::open::open(&self.made.pool, &ROOT, node, flags.bits(), false)
    }

    /// Opens, reads and closes a file. Returns the id of its backing file, and what the daemon read.
    fn read(&self, node: NodeId) -> Result<(Option<u32>, String)> {
        let opened = self.open(node, OFlags::RDONLY)?;
        let mut buffer = [0; 64];
        let read = ops::data::io::read(&self.made.pool, opened.handle, 0, &mut buffer).expect("a read");
        ops::data::open::release(&self.made.pool, opened.handle).expect("a close");
        Ok((opened.travel.passthrough, String::from_utf8_lossy(&buffer[..read]).into_owned()))
    }

    fn backed(&self) -> u32 {
        self.backed.load(Ordering::Relaxed)
    }

    /// Returns what this process has open on a branch, without the branch itself.
    fn held(&self, branch: usize) -> Vec<PathBuf> {
        let below =
            |path: &Path| path.starts_with(&self.made.branches[branch]) && path != self.made.branches[branch];
        let fds = fs::read_dir("/proc/self/fd").expect("/proc").flatten();
        fds.filter_map(|fd| fs::read_link(fd.path()).ok()).filter(|path| below(path)).collect()
    }

    fn assert_all_close(&self) {
        wait_until(PATIENCE, || self.held(0).is_empty());
        assert_eq!(self.held(0), Vec::<PathBuf>::new(), "files stay open");
    }
}

fn a_second_read_does_not_open_the_file_again() {
    let rig = Rig::new(Config::default());
    let node = rig.find("f");
    let first = rig.read(node).unwrap();
    assert_eq!(first, (Some(1), "f".into()));
    assert!(rig.held(0).len() <= 1);
    for _ in 0..100 {
        assert_eq!(rig.read(node).unwrap(), first);
    }
    assert_eq!(rig.backed(), 1);
    // Two handles, one of which outlives the other.
    let (one, two) = (rig.open(node, OFlags::RDONLY).unwrap(), rig.open(node, OFlags::RDONLY).unwrap());
    assert_eq!((one.travel, two.travel), (two.travel, one.travel));
    ops::data::open::release(&rig.made.pool, one.handle).unwrap();
    assert_eq!(rig.read(node).unwrap(), first);
    ops::data::open::release(&rig.made.pool, two.handle).unwrap();
    assert_eq!(rig.backed(), 1);
    rig.assert_all_close();
    assert_eq!(rig.read(node).unwrap(), (Some(2), "f".into()), "the idle file was closed");
}

fn a_writer_opens_the_file_again() {
    let rig = Rig::new(Config::default());
    let node = rig.find("f");
    assert_eq!(rig.read(node).unwrap().0, Some(1));
    let writer = rig.open(node, OFlags::WRONLY).unwrap();
    let kind = WriteKind { from_cache: false, kill_suidgid: None };
    assert_eq!(ops::data::io::write(&rig.made.pool, writer.handle, 0, b"new", kind).unwrap(), 3);
    // A reader beside the writer shares its backing file, and a later one reads what was written.
    assert_eq!(rig.read(node).unwrap(), (writer.travel.passthrough, "new".into()));
    ops::data::open::release(&rig.made.pool, writer.handle).unwrap();
    assert_eq!(rig.read(node).unwrap().1, "new");
    let direct = rig.open(node, OFlags::RDONLY | OFlags::NOATIME).unwrap();
    assert_ne!(direct.travel.passthrough, Some(1), "opened with other flags");
    ops::data::open::release(&rig.made.pool, direct.handle).unwrap();
}

fn a_file_without_a_name_is_closed() {
    let rig = Rig::new(Config::default());
    // A file that is removed within the clock tick of its creation is held until that tick ends.
    files::wait_for_clock_tick();
    let (node, other) = (rig.find("f"), rig.find("g"));
    rig.read(node).unwrap();
    rig.read(other).unwrap();
    ops::names::remove::unlink(&rig.made.pool, NodeId::ROOT, b"f").unwrap();
    ops::names::rename::rename(
        &rig.made.pool,
        &ROOT,
        NodeId::ROOT,
        b"g",
        NodeId::ROOT,
        b"f",
        canopy_pool::RenameKind::Replace,
    )
    .unwrap();
    ops::names::lookup::forget(&rig.made.pool, node, 1);
    let held = rig.held(0);
    assert!(held.iter().all(|path| path.ends_with("f")), "{held:?}");
    // Under its new name it is still the same file.
    assert_eq!(rig.read(other).unwrap(), (Some(2), "g".into()));
    // The file is closed after its name is removed.
    let opened = rig.open(other, OFlags::RDONLY).unwrap();
    ops::names::remove::unlink(&rig.made.pool, NodeId::ROOT, b"f").unwrap();
    ops::data::open::release(&rig.made.pool, opened.handle).unwrap();
    ops::names::lookup::forget(&rig.made.pool, other, 1);
    assert_eq!(rig.held(0), Vec::<PathBuf>::new());
}

fn a_file_replaced_on_the_branch_is_stale() {
    let rig = Rig::new(Config::default());
    let node = rig.find("f");
    rig.read(node).unwrap();
    fs::write(rig.made.on(0, "new"), "another").unwrap();
    fs::rename(rig.made.on(0, "new"), rig.made.on(0, "f")).unwrap();
    let error = rig.read(node).expect_err("the name leads to another file");
    assert_eq!(error.errno(), Errno::STALE);
    let found = rig.find("f");
    assert_eq!(rig.read(found).unwrap().1, "another");
    // What is tried again after ESTALE acts on the file that was looked up, for a second.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    fs::remove_file(rig.made.on(0, "f")).unwrap();
    assert!(rig.read(found).is_err());
}

fn changes_to_other_directories_do_not_close_a_file() {
    let rig = Rig::new(Config::default());
    for dir in ["d", "d/sub"] {
        fs::create_dir(rig.made.on(0, dir)).unwrap();
    }
    fs::write(rig.made.on(0, "d/sub/f"), "deep").unwrap();
    let below = |dir, name: &str| {
        ops::names::lookup::lookup(&rig.made.pool, dir, name.as_bytes()).expect("a lookup").node
    };
    let (dir, sub) = (rig.find("d"), below(rig.find("d"), "sub"));
    let node = below(sub, "f");
    assert_eq!(rig.read(node).unwrap(), (Some(1), "deep".into()));
    fs::create_dir(rig.made.on(0, "another")).unwrap();
    for _ in 0..2 {
        ops::external_changes::tell(&rig.made.pool, Change::Places, Client::Outside);
        assert_eq!(rig.read(node).unwrap(), (Some(1), "deep".into()));
        assert_eq!(ops::names::lookup::getattr(&rig.made.pool, node, None).unwrap().size, 4);
    }
    // Renaming its directory through the pool does not change the file.
    ops::names::rename::rename(
        &rig.made.pool,
        &ROOT,
        NodeId::ROOT,
        b"d",
        NodeId::ROOT,
        b"e",
        canopy_pool::RenameKind::Replace,
    )
    .unwrap();
    ops::external_changes::tell(&rig.made.pool, Change::Places, Client::Outside);
    assert_eq!(rig.read(node).unwrap(), (Some(1), "deep".into()));
    // After the directory is replaced on the branch, the old path no longer leads to the file.
    fs::rename(rig.made.on(0, "e"), rig.made.on(0, "away")).unwrap();
    fs::create_dir_all(rig.made.on(0, "e/sub")).unwrap();
    ops::external_changes::tell(&rig.made.pool, Change::Places, Client::Outside);
    assert_eq!(rig.read(node).expect_err("the file has moved").errno(), Errno::STALE);
    assert_eq!(
        ops::names::lookup::getattr(&rig.made.pool, node, None).expect_err("the file has moved").errno(),
        Errno::STALE
    );
    assert!(ops::names::lookup::getattr(&rig.made.pool, dir, None).is_ok());
}

fn after_link_cow_readers_get_the_copy() {
    let rig = Rig::new(Config { link_cow: true, ..Config::default() });
    fs::hard_link(rig.made.on(0, "f"), rig.made.on(0, "h")).unwrap();
    let node = rig.find("f");
    assert_eq!(rig.read(node).unwrap().1, "f");
    let writer = rig.open(node, OFlags::WRONLY).unwrap();
    let kind = WriteKind { from_cache: false, kill_suidgid: None };
    ops::data::io::write(&rig.made.pool, writer.handle, 0, b"mine", kind).unwrap();
    ops::data::open::release(&rig.made.pool, writer.handle).unwrap();
    assert_eq!(rig.read(node).unwrap().1, "mine");
    assert_eq!(fs::read(rig.made.on(0, "h")).unwrap(), b"f");
}

fn a_removed_branch_is_not_kept_busy() {
    let rig = Rig::new(Config::default());
    let node = rig.find("f");
    rig.read(node).unwrap();
    let open = rig.open(rig.find("g"), OFlags::RDONLY).unwrap();
    let rest: BranchList =
        [BranchSpec { path: rig.made.branches[1].clone(), mode: Mode::Rw, min_free: None }]
            .into_iter()
            .collect();
    ops::settings::set_branches(&rig.made.pool, Branches::open(&rest).expect("branches"));
    let held = rig.held(0);
    assert!(held.iter().all(|path| path.ends_with("g")), "{held:?}");
    // A file that is closed after that does not stay open either.
    ops::data::open::release(&rig.made.pool, open.handle).unwrap();
    assert_eq!(rig.held(0), Vec::<PathBuf>::new());
    assert!(rig.read(node).is_err());
}

fn forgetting_a_node_closes_its_file() {
    let rig = Rig::new(Config::default());
    let (node, other) = (rig.find("f"), rig.find("g"));
    rig.read(node).unwrap();
    rig.read(other).unwrap();
    ops::names::lookup::forget(&rig.made.pool, node, 1);
    let held = rig.held(0);
    assert!(held.iter().all(|path| path.ends_with("g")), "{held:?}");
}

fn at_most_512_files_stay_open() {
    let rig = Rig::new(Config::default());
    for number in 0..700 {
        fs::write(rig.made.on(0, &number.to_string()), "x").unwrap();
    }
    for number in 0..700 {
        rig.read(rig.find(&number.to_string())).unwrap();
        // What the tending thread has taken out, and closes, is open for a moment longer.
        assert!(wait_until(PATIENCE, || rig.held(0).len() <= 512), "{} are open", rig.held(0).len());
    }
    rig.assert_all_close();
}

#[test]
fn idle_files_stay_open_for_a_while_and_are_never_stale() {
    a_second_read_does_not_open_the_file_again();
    a_writer_opens_the_file_again();
    a_file_without_a_name_is_closed();
    a_file_replaced_on_the_branch_is_stale();
    changes_to_other_directories_do_not_close_a_file();
    after_link_cow_readers_get_the_copy();
    a_removed_branch_is_not_kept_busy();
    forgetting_a_node_closes_its_file();
    at_most_512_files_stay_open();
}
