//! When the kernel has to drop the cached pages of a file that is opened: only when it may have some, and they may be old; and
//! never once the open is answered, for it would also drop what another handle is writing by then.

use crate::common::{Made, ROOT, TestKernel};
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Mode;
use canopy_pool::config::{CacheFiles, Config, PassthroughIo};
use canopy_pool::ops;
use rustix::fs::OFlags;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

struct Rig {
    made: Made,
    dropped: Arc<AtomicU32>,
}

impl Rig {
    fn new(cache_files: CacheFiles) -> Rig {
        let made = crate::common::pool(
            &[Mode::Rw],
            Config { cache_files, passthrough: PassthroughIo::Off, ..Config::default() },
        );
        let dropped = Arc::new(AtomicU32::new(0));
        let kernel = TestKernel { pages_dropped: dropped.clone(), ..TestKernel::default() };
        ops::settings::connect(&made.pool, Arc::new(kernel), true);
        fs::write(made.on(0, "f"), "f").expect("a file");
        Rig { made, dropped }
    }

    fn find(&self) -> NodeId {
        ops::names::lookup::lookup(&self.made.pool, NodeId::ROOT, b"f").expect("a lookup").node
    }

    /// Opens a file. Returns its handle, and how often its pages were dropped.
    fn open(&self, node: NodeId, flags: OFlags) -> (HandleId, u32) {
        let before = self.dropped.load(Ordering::Relaxed);
        let opened =
            ops::data::open::open(&self.made.pool, &ROOT, node, flags.bits(), false).expect("an open");
        assert!(opened.travel.keep_cache, "the kernel is to drop pages after the answer");
        (opened.handle, self.dropped.load(Ordering::Relaxed) - before)
    }

    /// Opens a file to read, and closes it. Returns how often its pages were dropped.
    fn look(&self, node: NodeId) -> u32 {
        let (handle, dropped) = self.open(node, OFlags::RDONLY);
        ops::data::open::release(&self.made.pool, handle).expect("a close");
        dropped
    }

    fn change(&self) {
        let longer = fs::read_to_string(self.made.on(0, "f")).expect("a file") + "x";
        fs::write(self.made.on(0, "f"), longer).expect("a change on the branch");
    }
}

#[test]
fn pages_of_a_file_that_was_changed_are_dropped() {
    let rig = Rig::new(CacheFiles::AutoFull);
    let node = rig.find();
    assert_eq!(rig.look(node), 0, "the kernel cannot have pages");
    assert_eq!(rig.look(node), 0, "nothing has changed");
    rig.change();
    assert_eq!(rig.look(node), 1);
    assert_eq!(rig.look(node), 0);
}

#[test]
fn each_open_drops_pages_if_they_count_for_one_open() {
    let rig = Rig::new(CacheFiles::Partial);
    let node = rig.find();
    assert_eq!([rig.look(node), rig.look(node), rig.look(node)], [0, 1, 1]);
}

#[test]
fn what_is_being_written_is_not_dropped() {
    for cache in [CacheFiles::AutoFull, CacheFiles::Partial] {
        let rig = Rig::new(cache);
        let node = rig.find();
        rig.look(node);
        rig.change();
        // Its own pages come later.
        let (writer, dropped) = rig.open(node, OFlags::WRONLY);
        assert_eq!(dropped, 1, "{cache}");
        rig.change();
        assert_eq!(rig.look(node), 0, "{cache}");
        let (second, dropped) = rig.open(node, OFlags::RDWR);
        assert_eq!(dropped, 0, "{cache}");
        ops::data::open::release(&rig.made.pool, writer).expect("a close");
        rig.change();
        assert_eq!(rig.look(node), 0, "{cache}: one still writes");
        ops::data::open::release(&rig.made.pool, second).expect("a close");
        rig.change();
        assert_eq!(rig.look(node), 1, "{cache}");
    }
}
