//! Files move while clients write, rename, link, read and remove them. No client notices.

use super::rig::{BINARY, PATIENCE, unfinished};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, Pool, PoolBed, Rng};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many files move before the clients end. `CANOPY_SCALE` multiplies it.
const MOVES: u64 = 120;
const FILES: usize = 6;
const LARGE: usize = 2 << 20;

fn moves() -> u64 {
    let scale = std::env::var("CANOPY_SCALE").ok().and_then(|text| text.parse::<u64>().ok());
    MOVES * scale.unwrap_or(1)
}

/// Whether clients go on: until enough files have moved, or another client has failed.
pub(super) struct Goes<'c>(pub(super) &'c AtomicBool);

impl Goes<'_> {
    pub(super) fn on(&self) -> bool {
        !self.0.load(Ordering::Acquire)
    }
}

impl Drop for Goes<'_> {
    /// A client only ends early because it has failed.
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Writes files in parts, and knows what they must hold.
fn writer(dir: &Path, goes: &Goes<'_>) {
    let mut rng = Rng::new(1);
    let mut expected: Vec<Vec<u8>> = vec![Vec::new(); FILES];
    while goes.on() {
        let index = rng.index(FILES);
        let (path, content) = (dir.join(format!("w{index}")), &mut expected[index]);
        match rng.below(10) {
            0 => {
                content.truncate(rng.index(content.len() + 1));
                let file =
                    OpenOptions::new().write(true).create(true).truncate(false).open(&path).expect("open");
                file.set_len(content.len() as u64).expect("truncate");
            }
            1 => {
                *content = rng.bytes(LARGE);
                fs::write(&path, &content).expect("write");
            }
            _ => {
                let file =
                    OpenOptions::new().write(true).create(true).truncate(false).open(&path).expect("open");
                let at = rng.index(content.len() + 1);
                let part = rng.bytes(70_000);
                content.resize(content.len().max(at + part.len()), 0);
                content[at..at + part.len()].copy_from_slice(&part);
                // In two calls, so that a move may come between them.
                file.write_all_at(&part[..30_000], at as u64).expect("write");
                std::thread::yield_now();
                file.write_all_at(&part[30_000..], at as u64 + 30_000).expect("write");
            }
        }
        assert!(fs::read(&path).expect("read") == *content, "{} differs", path.display());
    }
    for (index, content) in expected.iter().enumerate().filter(|(_, content)| !content.is_empty()) {
        assert!(fs::read(dir.join(format!("w{index}"))).expect("read") == *content, "w{index} differs");
    }
}

/// Renames files between directories, adds and removes hard links, and replaces files.
fn renamer(dirs: [&Path; 2], goes: &Goes<'_>) {
    let mut rng = Rng::new(2);
    let content = |index: usize| vec![index as u8 + 1; LARGE / 2];
    let mut at = [0; FILES];
    for index in 0..FILES {
        fs::write(dirs[0].join(format!("r{index}")), content(index)).expect("write");
    }
    while goes.on() {
        let index = rng.index(FILES);
        let name = format!("r{index}");
        let here = dirs[at[index]].join(&name);
        match rng.below(4) {
            0 => {
                let link = dirs[1 - at[index]].join(format!("link{index}"));
                fs::hard_link(&here, &link).expect("link");
                let [one, other] = [&here, &link].map(|path| fs::metadata(path).expect("stat"));
                assert_eq!((one.ino(), one.nlink(), other.nlink()), (other.ino(), 2, 2));
                fs::remove_file(&link).expect("unlink");
            }
            1 => {
                let new = dirs[at[index]].join("new");
                fs::write(&new, content(index)).expect("write");
                fs::rename(&new, &here).expect("replace");
            }
            _ => {
                fs::rename(&here, dirs[1 - at[index]].join(&name)).expect("rename");
                at[index] = 1 - at[index];
            }
        }
        let found = fs::read(dirs[at[index]].join(&name)).expect("read");
        assert!(found == content(index), "{name} differs");
    }
}

/// Reads files that nobody changes, from one open to the next and through one descriptor.
fn reader(dir: &Path, seed: u64, goes: &Goes<'_>) {
    let mut rng = Rng::new(seed);
    let kept = File::open(dir.join("s0")).expect("open");
    while goes.on() {
        let index = rng.index(FILES);
        assert!(fs::read(dir.join(format!("s{index}"))).expect("read") == still(index), "s{index} differs");
        let mut part = vec![0; 4096];
        kept.read_exact_at(&mut part, rng.below(LARGE as u64 - 4096)).expect("read");
        assert!(part.iter().all(|byte| *byte == 100), "an open file changes");
    }
}

fn still(index: usize) -> Vec<u8> {
    vec![100 + index as u8; LARGE]
}

/// Runs commands that move files back and forth. Returns how many files have moved.
fn mover(bed: &PoolBed, goes: &Goes<'_>) -> u64 {
    let (mut moved, mut round) = (0, 0);
    while goes.on() && moved < moves() {
        let branch = bed.on(round % 3, "");
        let mut command = Command::new(BINARY);
        match round % 4 {
            0 => command.arg("drain").arg(bed.pool.path()).arg(&branch),
            1 => command.arg("balance").arg(bed.pool.path()).args(["--to", "0%"]),
            _ => command.arg("move").arg(bed.pool.path()).arg(bed.pool.path()).arg("--to").arg(&branch),
        };
        let done = run_within(command.args(["--eager", "--json"]), PATIENCE);
        // What is open for writing stays, and what is renamed may not be found.
        assert!(matches!(done.code(), Some(0 | 1)), "{command:?}: {}", done.describe());
        let report: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{}", done.describe()));
        moved += report["moved"]["files"].as_u64().expect("a number");
        round += 1;
    }
    moved
}

#[test]
fn clients_notice_nothing() {
    // In memory, so that clients and moves meet often.
    let builder = Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0");
    let bed = PoolBed::mount(builder, [0; 3].map(|_| LoopFs::tmpfs(96 << 20)));
    let [one, two] = ["one", "two"].map(|name| bed.at(name));
    for dir in [&one, &two] {
        fs::create_dir(dir).expect("mkdir");
    }
    for index in 0..FILES {
        fs::write(two.join(format!("s{index}")), still(index)).expect("write");
    }
    let (ended, one, two) = (AtomicBool::new(false), &one, &two);
    let moved = std::thread::scope(|scope| {
        let ended = &ended;
        let goes = move || Goes(ended);
        let clients = [
            scope.spawn(move || writer(one, &goes())),
            scope.spawn(move || renamer([one, two], &goes())),
            scope.spawn(move || reader(two, 3, &goes())),
            scope.spawn(move || reader(two, 4, &goes())),
        ];
        let moved = mover(&bed, &goes());
        clients.into_iter().for_each(|client| client.join().expect("a client"));
        moved
    });
    println!("{moved} files have moved");
    assert!(moved >= moves(), "a client has failed");
    assert_eq!(unfinished(&bed), 0);
    for dir in ["one", "two"] {
        for entry in fs::read_dir(bed.at(dir)).expect("list") {
            let path = format!("{dir}/{}", entry.expect("an entry").file_name().to_string_lossy());
            assert_eq!(bed.branches_with(&path).len(), 1, "{path}");
        }
    }
    assert!(fs::read(bed.at("two/s0")).expect("read") == still(0));
}
