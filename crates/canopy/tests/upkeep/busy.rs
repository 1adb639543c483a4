//! Files move while clients write, rename, link, read and remove them. No client notices.

use super::rig::{BINARY, PATIENCE, on_pool, put, unfinished};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, Pool, PoolBed, Rng};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
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

/// Every command that leads a path to another file, and the branches that hold the file before. A rule wants copies below
/// `copied`, and the policy for opening picks the copy on the first branch there.
const WAYS: [(&str, &str, &[&str], &[usize]); 6] = [
    ("move", "f", &["{f}", "--to", "{1}"], &[0]),
    ("drain", "f", &["{0}", "--eager"], &[0]),
    ("consolidate", "d/f", &["{d}"], &[0]),
    ("dup", "f", &["{f}", "--copies", "2"], &[1]),
    ("dedup", "f", &["{f}", "--yes", "--keep", "newest"], &[0, 1]),
    ("dedup", "f", &["{f}", "--yes", "--keep", "smallest"], &[0, 1]),
];

/// A client that has a file open sees what others write to it by name, whatever has moved or copied the file, or was refused
/// for its sake. Its data, size and number are those of one file.
#[test]
fn open_readers_and_later_writers_have_one_file() {
    for passthrough in ["rw", "ro", "off"] {
        for (command, path, args, on) in WAYS {
            let what = format!("{command} {args:?}, passthrough.io={passthrough}");
            let options = format!("minfreespace=0,cache.attr=0,cache.entry=0,passthrough.io={passthrough}");
            let builder = Pool::builder(BINARY).option(options);
            let bed = PoolBed::mount(builder, [0; 3].map(|_| LoopFs::tmpfs(64 << 20)));
            on.iter().for_each(|branch| put(&bed, *branch, path, "one "));
            put(&bed, 1, "d/large", vec![0; LARGE]);
            let reader = File::open(bed.at(path)).expect("open");
            let places = [bed.at(path), bed.at("d"), bed.on(0, ""), bed.on(1, "")];
            let fill = |arg: &&str| match *arg {
                "{f}" => places[0].clone().into_os_string(),
                "{d}" => places[1].clone().into_os_string(),
                "{0}" => places[2].clone().into_os_string(),
                "{1}" => places[3].clone().into_os_string(),
                text => text.into(),
            };
            let mut seen = vec![0; 64];
            reader.read_at(&mut seen, 0).expect("read");
            let done = on_pool(&bed, command, args.iter().map(fill));
            let mut expected = b"one ".to_vec();
            for round in 0..2 {
                OpenOptions::new()
                    .append(true)
                    .open(bed.at(path))
                    .expect("open")
                    .write_all(b"more ")
                    .expect("write");
                expected.extend(b"more ");
                let read = reader.read_at(&mut seen, 0).expect("read");
                let (own, named) =
                    (reader.metadata().expect("fstat"), fs::metadata(bed.at(path)).expect("stat"));
                let said = done.describe();
                assert_eq!(seen[..read], expected, "{what}, {round}: {said}");
                assert_eq!(fs::read(bed.at(path)).expect("read"), expected, "{what}, {round}: {said}");
                assert_eq!((own.len(), named.len()), (read as u64, read as u64), "{what}, {round}: {said}");
                assert_eq!((own.ino(), own.nlink()), (named.ino(), named.nlink()), "{what}, {round}: {said}");
                // Some are done by now.
                on_pool(&bed, command, args.iter().map(fill));
            }
            if command == "move" {
                let stays = passthrough != "off";
                assert_eq!(bed.branches_with(path), [usize::from(!stays)], "{what}");
                assert_eq!(
                    done.stdout.contains("a program is reading it (passthrough)"),
                    stays,
                    "{}",
                    done.describe()
                );
                drop(reader);
                bed.wait_until_closed(path);
                let done = on_pool(&bed, command, args.iter().map(fill));
                assert_eq!((done.code(), bed.branches_with(path)), (Some(0), vec![1]), "{}", done.describe());
            }
        }
    }
}
