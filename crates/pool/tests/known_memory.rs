//! How much memory known files take. One test, because it measures the process.

mod common;

use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode::Rw;
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::config::Config;
use canopy_pool::ops;
use canopy_pool::{DirEntry, Entry};
use common::{ROOT, TestKernel};
use std::fs::{self, File};
use std::sync::Arc;
use std::time::Duration;

const FILES: usize = 200_000;
const FILES_OF_A_DIR: usize = 1000;
const BRANCHES: usize = 8;

/// Returns how many bytes of memory the process has written to.
fn allocated() -> usize {
    let map = fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let line = map.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[test]
fn a_known_file_takes_at_most_200_bytes_until_it_is_forgotten() {
    let made = common::pool(&[Rw; BRANCHES], Config::default());
    let pool = &*made.pool;
    ops::settings::connect(pool, Arc::new(TestKernel::default()), false);
    let mut known: Vec<NodeId> = Vec::with_capacity(FILES + FILES / FILES_OF_A_DIR);
    let mut before = allocated();
    for dir in 0..FILES / FILES_OF_A_DIR {
        let name = format!("dir{dir:04}");
        let dir =
            ops::names::create::mkdir(pool, &ROOT, NodeId::ROOT, name.as_bytes(), 0o755).expect("mkdir");
        for branch in 0..BRANCHES {
            fs::create_dir_all(made.on(branch, &name)).expect("a directory");
        }
        for file in 0..FILES_OF_A_DIR {
            File::create(made.on(file % BRANCHES, &format!("{name}/file-{file:06}.dat"))).expect("a file");
        }
        // As the server does when it is told of these changes.
        ops::external_changes::tell(pool, Change::Places, Client::Outside);
        ops::readdir::opendir(pool, dir.node).expect("opendir");
        let mut take = |_: DirEntry<'_>, entry: Option<Entry>| {
            known.extend(entry.map(|entry| entry.node));
            Duration::from_secs(1)
        };
        let mut position = 0;
        loop {
            let mut last = None;
            let taken = |entry: DirEntry<'_>, found: Option<Entry>| {
                last = Some(entry.next);
                take(entry, found)
            };
            let mut room = 100;
            let count = |_: &[u8]| {
                room -= 1;
                room > 0
            };
            ops::readdir::readdirplus(pool, dir.node, position, count, taken).expect("readdirplus");
            let Some(next) = last else { break };
            position = next;
        }
        known.push(dir.node);
    }
    assert_eq!(known.len(), FILES + FILES / FILES_OF_A_DIR);
    // The list of known nodes is the test's own.
    before += known.len() * size_of::<NodeId>();
    let taken = allocated() - before;
    println!("{} bytes for each file", taken / FILES);
    assert!(taken <= 200 * FILES, "{} bytes for each file", taken / FILES);
    known.iter().for_each(|&node| ops::names::lookup::forget(pool, node, 1));
    let rest = allocated().saturating_sub(before);
    assert!(rest < taken / 4, "{rest} of {taken} bytes are kept");
}
