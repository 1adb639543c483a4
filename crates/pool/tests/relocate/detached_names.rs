//! Names that are given to another node while the file is open: at no time does a node with a writer share its file with one whose
//! pages the kernel caches.

use crate::common::{self, ROOT, TestKernel};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode;
use canopy_pool::config::{CacheFiles, Config, PassthroughIo};
use canopy_pool::{Caller, Opened, Pool, ops};
use canopy_testkit::{LoopFs, Rng};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::thread;

const FILES: usize = 1000;
const THREADS: u64 = 4;
const OPENS: u64 = 20;

/// How a node's file is open.
#[derive(Clone, Copy, Default, Debug)]
struct Uses {
    cached: u32,
    written: u32,
}

/// The nodes of one file.
type Open = Mutex<HashMap<NodeId, Uses>>;

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

fn use_file(pool: &Pool, names: &[String; 2], seed: u64, nodes: &Open) {
    let mut rng = Rng::new(seed);
    // The other name is looked up for the first time while the file is open.
    let mut nodes_of = [None; 2];
    for number in 0..OPENS {
        let which = if number < OPENS / 4 { 0 } else { rng.index(2) };
        let name = &names[which];
        let found =
            || ops::names::lookup::lookup(pool, NodeId::ROOT, name.as_bytes()).expect("a lookup").node;
        let mut known = nodes_of[which].unwrap_or_else(found);
        let flags = *rng.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR]);
        let opened = open(pool, &mut known, name, flags).expect("an open");
        nodes_of[which] = Some(known);
        let (cached, written) = (opened.travel.passthrough.is_none(), flags != OFlags::RDONLY);
        let count = |uses: &mut Uses, by: u32| {
            uses.cached = uses.cached.wrapping_add(if cached { by } else { 0 });
            uses.written = uses.written.wrapping_add(if written { by } else { 0 });
        };
        let mut now = nodes.lock();
        count(now.entry(known).or_default(), 1);
        for (node, uses) in now.iter().filter(|(_, uses)| uses.written > 0) {
            let other = now.iter().find(|(other, uses)| *other != node && uses.cached > 0);
            assert!(other.is_none(), "{name}: {node} {uses:?}, and {other:?}");
        }
        drop(now);
        thread::yield_now();
        count(nodes.lock().get_mut(&known).expect("it is open"), u32::MAX);
        ops::data::open::release(pool, opened.handle).expect("a close");
    }
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
        let nodes = Open::default();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, names, nodes) = (&pool, &names, &nodes);
                scope.spawn(move || use_file(pool, names, number as u64 * THREADS + thread, nodes));
            }
        });
        detached += usize::from(nodes.lock().len() > 1);
    }
    assert!(detached > FILES / 20, "{detached}");
}
