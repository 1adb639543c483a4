//! Names that are given to another node while the file is open: at no time does a node with a writer share its file with one whose
//! pages the kernel caches.

use crate::common::{self, ROOT, TestKernel};
use canopy_base::error::{Error, Result};
use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Mode;
use canopy_pool::config::{CacheFiles, Config, PassthroughIo};
use canopy_pool::{Caller, Opened, Pool, ops};
use canopy_testkit::{LoopFs, Rng};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::thread;

const FILES: usize = 1000;
const THREADS: u64 = 4;
const OPENS: u64 = 20;

/// An open handle.
#[derive(Debug)]
struct Use {
    node: NodeId,
    cached: bool,
    written: bool,
}

/// All that one file has.
type Uses = Mutex<HashMap<HandleId, Use>>;

/// Opens a file as the kernel does: after `ESTALE` it looks the name up again, once.
fn open(pool: &Pool, known: &mut NodeId, name: &str, flags: OFlags) -> Result<Opened> {
    let caller = Caller { pid: rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), ..ROOT };
    let open = |node| common::patiently(|| ops::data::open::open(pool, &caller, node, flags.bits(), false));
    match open(*known) {
        Err(Error::Stale) => {
            *known = ops::names::lookup::lookup(pool, NodeId::ROOT, name.as_bytes())?.node;
            open(*known)
        }
        opened => opened,
    }
}

/// Returns whether its names have led to more than one node.
fn use_file(pool: &Pool, names: &[String; 2], seed: u64, uses: &Uses) -> bool {
    let mut rng = Rng::new(seed);
    // The other name is looked up for the first time while the file is open.
    let mut known_by = [None; 2];
    let mut met = HashSet::new();
    for number in 0..OPENS {
        let which = if number < OPENS / 4 { 0 } else { rng.index(2) };
        let name = &names[which];
        let found =
            || ops::names::lookup::lookup(pool, NodeId::ROOT, name.as_bytes()).expect("a lookup").node;
        let mut node = known_by[which].unwrap_or_else(found);
        let flags = *rng.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR]);
        let opened = open(pool, &mut node, name, flags).expect("an open");
        known_by[which] = Some(node);
        met.insert(node);
        let own = Use { node, cached: opened.travel.passthrough.is_none(), written: flags != OFlags::RDONLY };
        let mut now = uses.lock();
        now.insert(opened.handle, own);
        for writer in now.values().filter(|it| it.written) {
            let other = now.values().find(|it| it.node != writer.node && it.cached);
            assert!(other.is_none(), "{name}: {writer:?}, and {other:?}");
        }
        drop(now);
        thread::yield_now();
        uses.lock().remove(&opened.handle);
        ops::data::open::release(pool, opened.handle).expect("a close");
    }
    met.len() > 1
}

#[test]
fn a_node_with_a_writer_shares_its_file_with_none_that_is_cached() {
    // Of writers, a branch this small lets none past the daemon.
    let disk = LoopFs::tmpfs(16 << 20);
    let config =
        Config { passthrough: PassthroughIo::Ro, cache_files: CacheFiles::AutoFull, ..Config::default() };
    assert!(config.move_when_full.0.is_some());
    let pool = common::over(&[disk.path().to_owned()], &[Mode::Rw], config);
    let kernel = TestKernel { backing_files: Some(Arc::default()), ..TestKernel::default() };
    ops::settings::connect(&pool, Arc::new(kernel), true);
    let mut detached = 0;
    for number in 0..FILES {
        let names = ["f", "g"].map(|name| format!("{name}{number}"));
        let [name, link] = names.each_ref().map(|name| disk.path().join(name));
        fs::write(&name, "f").expect("a file");
        fs::hard_link(&name, &link).expect("a link");
        let uses = Uses::default();
        let moved = thread::scope(|scope| {
            let threads = (0..THREADS).map(|thread| {
                let (pool, names, uses) = (&pool, &names, &uses);
                scope.spawn(move || use_file(pool, names, number as u64 * THREADS + thread, uses))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|it| it.join().expect("a thread")).filter(|moved| *moved).count() > 0
        });
        detached += usize::from(moved);
    }
    assert!(detached > FILES / 20, "{detached}");
}
