//! A write to a full branch moves the file to another branch, with all its names, attributes and handles. A move that fails
//! leaves nothing behind.
//!
//! Needs root.

#[path = "../common/mod.rs"]
mod common;

mod crash_recovery;
mod detached_names;
mod full_creates;
mod full_writes;
mod on_request;
mod preserved_metadata;

use canopy_base::ids::{HandleId, NodeId};
use canopy_branch::branch::Mode;
use canopy_policy::{Category, Policy};
use canopy_pool::config::{Config, MoveWhenFull};
use canopy_pool::ops;
use canopy_pool::{Pool, WriteKind};
use canopy_testkit::{LoopFs, files};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const MIB: usize = 1 << 20;
const NONE: [PathBuf; 0] = [];

/// A pool over filesystems. It creates files on the first one with room.
struct Disks {
    pool: Arc<Pool>,
    disks: Vec<LoopFs>,
}

impl Disks {
    fn new(disks: Vec<LoopFs>) -> Disks {
        Disks::with(disks, Config::default())
    }

    fn with(disks: Vec<LoopFs>, mut config: Config) -> Disks {
        config.policies.set_category(Category::Create, Policy::Ff);
        for disk in &disks {
            let _ = fs::remove_dir(disk.path().join("lost+found"));
        }
        let paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().to_owned()).collect();
        let pool = common::over(&paths, &vec![Mode::Rw; disks.len()], config);
        Disks { pool, disks }
    }

    /// Makes a pool over a branch of 4 MiB and one of 64 MiB.
    fn small_and_large() -> Disks {
        Disks::new(vec![LoopFs::tmpfs(4 << 20), LoopFs::tmpfs(64 << 20)])
    }

    fn on(&self, branch: usize, path: &str) -> PathBuf {
        self.disks[branch].path().join(path)
    }

    /// Fills a branch.
    fn fill(&self, branch: usize) {
        self.disks[branch].fill(0);
    }

    /// Opens a file of the pool.
    fn open(&self, client: &mut common::Client, path: &str, flags: OFlags) -> (NodeId, HandleId) {
        let node = client.walk(path).expect("a file").node;
        (
            node,
            ops::data::open::open(&self.pool, &common::ROOT, node, flags.bits(), false).expect("open").handle,
        )
    }

    /// Returns the unfinished copies on all branches.
    fn unfinished_copies(&self) -> Vec<PathBuf> {
        self.disks.iter().flat_map(|disk| files::unfinished_copies(disk.path())).collect()
    }
}

/// Returns a configuration with which no file moves.
fn never() -> Config {
    Config { move_when_full: MoveWhenFull(None), ..Config::default() }
}

/// Writes all of the data, in as many calls as it takes.
fn write(pool: &Pool, handle: HandleId, mut at: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        let count = common::patiently(|| ops::data::io::write(pool, handle, at, data, WriteKind::default()))
            .map_err(|error| error.errno())?;
        at += count as u64;
        data = &data[count..];
    }
    Ok(())
}

fn read(pool: &Pool, handle: HandleId, len: usize) -> Vec<u8> {
    let mut buffer = vec![0xEE; len];
    let count = ops::data::io::read(pool, handle, 0, &mut buffer).expect("read");
    buffer.truncate(count);
    buffer
}

/// Returns pseudo-random bytes that depend on the seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = canopy_testkit::Rng::new(seed);
    rng.bytes(len)
}
