//! What a pool costs against its own branch, on tmpfs: data by passthrough, and the common metadata work.
//!
//! Branch and pool are measured in turn, round after round in one run, so that a busy machine is unfair to
//! both; what counts is the median of the rounds' ratios. `cargo bench -p canopy` (as root) prints the table.

use canopy_testkit::{LoopFs, Pool};
use rustix::fs::{Mode, OFlags};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
const MIB: usize = 1 << 20;
const STREAM: usize = 256 * MIB;

/// Where one of the two works.
struct Side {
    data: PathBuf,
    own: PathBuf,
}

/// One row: what is done, how often, and whether more or less of the figure is better.
struct Row {
    name: &'static str,
    /// What the ratio must reach for the goal in the last column.
    goal: &'static str,
    run: fn(&Side) -> Duration,
    /// Ratio of throughputs rather than of times.
    throughput: bool,
}

fn main() {
    // `cargo test --benches` and `cargo bench` hand over flags of the default harness.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let branch = LoopFs::tmpfs(2 << 30);
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(branch.path())
        .option("minfreespace=0,passthrough.io=rw")
        .mount();
    // Data rows use one and the same file from both sides: no two files lie alike in memory.
    let below = Side { data: branch.path().join("data"), own: branch.path().join("direct") };
    let through = Side { data: pool.path().join("data"), own: pool.path().join("pooled") };
    for dir in [&below.data, &below.own, &through.own] {
        std::fs::create_dir_all(dir).expect("a directory to work in");
    }
    let rows = [
        Row { name: "sequential read, 1 MiB", goal: ">= 0.97", run: stream_read, throughput: true },
        Row { name: "sequential write, 1 MiB", goal: ">= 0.97", run: stream_write, throughput: true },
        Row { name: "pread, 4 KiB random", goal: "<= 1.15", run: random_read, throughput: false },
        Row { name: "pwrite, 4 KiB random", goal: "<= 1.15", run: random_write, throughput: false },
        Row { name: "stat of a known name", goal: "", run: stat_known, throughput: false },
        Row { name: "stat of a missing name", goal: "", run: stat_missing, throughput: false },
        Row { name: "open, read 4 KiB, close", goal: "", run: open_read_close, throughput: false },
        Row { name: "create, write 4 KiB, close", goal: "", run: create, throughput: false },
        Row { name: "unlink", goal: "", run: unlink, throughput: false },
    ];
    println!("pool against branch, tmpfs, {ROUNDS} rounds in turn: median ratio, lowest and highest");
    println!("{:<28} {:>10} {:>10} {:>7} {:>15}  goal", "work", "branch", "pool", "ratio", "spread");
    for row in &rows {
        // Not counted: files come into being, caches fill.
        (row.run)(&below);
        (row.run)(&through);
        let (mut own, mut pooled, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Whoever goes first may find a warmer cache: they take turns in that too.
            let (a, b) = match round % 2 {
                0 => {
                    let a = (row.run)(&below).as_secs_f64();
                    (a, (row.run)(&through).as_secs_f64())
                }
                _ => {
                    let b = (row.run)(&through).as_secs_f64();
                    ((row.run)(&below).as_secs_f64(), b)
                }
            };
            own.push(a);
            pooled.push(b);
            ratios.push(if row.throughput { a / b } else { b / a });
        }
        let ratio = median(&mut ratios);
        let spread = format!("{:.2} - {:.2}", ratios[0], ratios[ratios.len() - 1]);
        let show = |seconds: f64| match row.throughput {
            true => format!("{:.1} GB/s", STREAM as f64 / seconds / 1e9),
            false => format!("{:.2} us", seconds / COUNT as f64 * 1e6),
        };
        println!(
            "{:<28} {:>10} {:>10} {:>7.2} {:>15}  {}",
            row.name,
            show(median(&mut own)),
            show(median(&mut pooled)),
            ratio,
            spread,
            row.goal
        );
    }
    pool.umount();
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Operations in one round of the rows that are told in microseconds.
const COUNT: usize = 2000;
/// For those that cost little, so that a round is longer than the clock is coarse.
const REPEAT: usize = 10;

fn file(dir: &Path, name: &str, size: usize) -> std::fs::File {
    let path = dir.join(name);
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() == size as u64) {
        return std::fs::OpenOptions::new().read(true).write(true).open(path).expect("open");
    }
    std::fs::write(&path, vec![7u8; size]).expect("fill");
    file(dir, name, size)
}

fn stream_read(side: &Side) -> Duration {
    let file = file(&side.data, "stream", STREAM);
    let mut buffer = vec![0u8; MIB];
    let start = Instant::now();
    for at in (0..STREAM).step_by(MIB) {
        rustix::io::pread(&file, &mut buffer[..], at as u64).expect("read");
    }
    black_box(&buffer);
    start.elapsed()
}

fn stream_write(side: &Side) -> Duration {
    let file = file(&side.data, "stream", STREAM);
    let buffer = vec![9u8; MIB];
    let start = Instant::now();
    for at in (0..STREAM).step_by(MIB) {
        rustix::io::pwrite(&file, &buffer, at as u64).expect("write");
    }
    start.elapsed()
}

/// Offsets that visit a 512 MiB file in no order, the same for branch and pool.
fn scattered() -> impl Iterator<Item = u64> {
    (0..(COUNT * REPEAT) as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 47) * 4096)
}

fn random_read(side: &Side) -> Duration {
    let file = file(&side.data, "random", 512 * MIB);
    let mut buffer = [0u8; 4096];
    let start = Instant::now();
    for at in scattered() {
        rustix::io::pread(&file, &mut buffer, at).expect("read");
    }
    black_box(&buffer);
    start.elapsed() / REPEAT as u32
}

fn random_write(side: &Side) -> Duration {
    let file = file(&side.data, "random", 512 * MIB);
    let buffer = [5u8; 4096];
    let start = Instant::now();
    for at in scattered() {
        rustix::io::pwrite(&file, &buffer, at).expect("write");
    }
    start.elapsed() / REPEAT as u32
}

fn stat_known(side: &Side) -> Duration {
    file(&side.own, "known", 4096);
    let path = side.own.join("known");
    let start = Instant::now();
    for _ in 0..COUNT * REPEAT {
        black_box(rustix::fs::stat(&path).expect("stat"));
    }
    start.elapsed() / REPEAT as u32
}

fn stat_missing(side: &Side) -> Duration {
    let path = side.own.join("missing");
    let start = Instant::now();
    for _ in 0..COUNT {
        assert!(rustix::fs::stat(&path).is_err());
    }
    start.elapsed()
}

fn open_read_close(side: &Side) -> Duration {
    file(&side.own, "known", 4096);
    let path = side.own.join("known");
    let mut buffer = [0u8; 4096];
    let start = Instant::now();
    for _ in 0..COUNT {
        let file = rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).expect("open");
        rustix::io::read(&file, &mut buffer).expect("read");
    }
    start.elapsed()
}

fn create(side: &Side) -> Duration {
    let names: Vec<_> = (0..COUNT).map(|i| side.own.join(format!("new{i}"))).collect();
    for name in &names {
        let _ = std::fs::remove_file(name);
    }
    let buffer = [3u8; 4096];
    let start = Instant::now();
    for name in &names {
        let file =
            rustix::fs::open(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)
                .expect("create");
        rustix::io::write(&file, &buffer).expect("write");
    }
    start.elapsed()
}

fn unlink(side: &Side) -> Duration {
    create(side);
    let names: Vec<_> = (0..COUNT).map(|i| side.own.join(format!("new{i}"))).collect();
    let start = Instant::now();
    for name in &names {
        std::fs::remove_file(name).expect("unlink");
    }
    start.elapsed()
}
