//! fsx: long random sequences of reads, writes, mappings and size changes on one file, each read verified.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use canopy_testkit::cmd::run_within;
use canopy_testkit::{PATIENCE, lag};

use super::tools::{Rig, branches, disk, plain_disks, program, report, turn};

const SEEDS: [u64; 3] = [1, 20_260_101, 0xc0ff_ee00];
/// Operations for each seed, unless `CANOPY_FSX_OPS` sets another number.
const OPS: u64 = 20_000;

/// Every operation of fsx, on a file large enough for holes and truncations at page and block boundaries.
const CONFIG: &str = include_str!("fsx.toml");

/// Before Linux 6.6 a file past the page cache cannot be mapped shared (fs/fuse/file.c, `fuse_file_mmap`).
fn config(options: &str) -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next(), numbers.next());
    let maps = version >= (Some(6), Some(6)) || !options.contains("cache.files=off");
    let without = |config: String, operation: &&str| {
        config.replace(&format!("{operation} = "), &format!("{operation} = 0 # "))
    };
    ["mapread", "mapwrite", "invalidate"].iter().filter(|_| !maps).fold(CONFIG.to_owned(), without)
}

/// How long an operation may take on average on a disk that lags: some write the whole file back.
const LAGGING: Duration = Duration::from_secs(1);

/// The number of operations for each seed.
fn operations() -> u64 {
    std::env::var("CANOPY_FSX_OPS").ok().and_then(|ops| ops.parse().ok()).unwrap_or(OPS)
}

/// Runs fsx with one seed in a directory of a pool with these options. The error contains fsx's log of operations.
fn run(dir: &Path, options: &str, seed: u64, ops: u64) -> Result<(), String> {
    let work = tempfile::tempdir().expect("a temporary directory");
    let config = work.path().join("fsx.toml");
    fs::write(&config, self::config(options)).expect("a write");
    let file = dir.join(format!("fsx-{seed}"));
    let mut command = Command::new(program("fsx"));
    command.arg("-f").arg(&config).arg("-N").arg(ops.to_string()).arg("-S").arg(seed.to_string());
    command.arg("-P").arg(work.path()).arg(&file).env("RUST_BACKTRACE", "0");
    let each = if lag().is_some() { LAGGING } else { Duration::from_millis(1) };
    let done = run_within(&mut command, PATIENCE + each * u32::try_from(ops).expect("a number"));
    if done.success() && done.stdout.contains("All operations completed A-OK!") {
        fs::remove_file(&file).map_err(|error| format!("cannot remove {}: {error}", file.display()))
    } else {
        let text = done.describe();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(40);
        Err(format!("fsx -S {seed} -N {ops}: {}\n{}", lines[0], lines[from..].join("\n")))
    }
}

#[track_caller]
fn check_options(options: &str) {
    let _turn = turn();
    let ops = operations();
    let plain = disk();
    let rig = Rig::new(options);
    let started = Instant::now();
    for seed in SEEDS {
        if let Err(message) = run(rig.pool.path(), options, seed, ops) {
            let verdict = match run(plain.path(), options, seed, ops) {
                Ok(()) => format!("the same seed passes on plain {:?}", plain.kind()),
                Err(message) => format!("{:?} itself fails too: {message}", plain.kind()),
            };
            panic!("[{options}] {message}\n{verdict}");
        }
    }
    let (seeds, took) = (SEEDS.len(), started.elapsed());
    report(&format!(
        "fsx [{options}] over {:?}: {seeds} seeds of {ops} operations, no difference, {took:.1?}",
        branches()
    ));
    rig.end();
}

#[test]
fn plain_filesystems() {
    let _turn = turn();
    for plain in plain_disks() {
        for seed in SEEDS {
            run(plain.path(), "", seed, operations())
                .unwrap_or_else(|why| panic!("{:?} itself: {why}", plain.kind()));
        }
    }
}

/// The first combination is the default.
#[test]
fn every_transport_with_every_coherence_mode() {
    for transport in ["on", "off"] {
        for coherence in ["watch", "timeout"] {
            check_options(&format!("io-uring={transport},cache.coherence={coherence}"));
        }
    }
}

#[test]
fn passthrough_beside_cached_files() {
    check_options("passthrough.io=rw,cache.files=auto-full");
}

#[test]
fn no_caching() {
    check_options("passthrough.io=off,cache.files=off");
}

#[test]
fn partial_caching() {
    check_options("passthrough.io=off,cache.files=partial");
}

#[test]
fn full_caching() {
    check_options("passthrough.io=off,cache.files=full");
}

#[test]
fn auto_full_caching() {
    check_options("passthrough.io=off,cache.files=auto-full");
}

#[test]
fn writeback_caching() {
    check_options("passthrough.io=off,cache.files=full,cache.writeback=true");
}
