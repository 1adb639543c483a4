//! Measures the cost of requests over each transport: the same work alternately over both, in several rounds, and the
//! median of each.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use canopy_sys::page_buf::PageBuf;
use rustix::fs::{Advice, CWD, Mode, OFlags, fadvise, fstat, openat};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const MIB: usize = 1 << 20;
const FILE: usize = 64 * MIB;

/// A server in its own process.
struct Server {
    child: Child,
    point: PathBuf,
}

impl Server {
    fn start(below: &Path, transport: &str) -> Result<Server, Box<dyn Error>> {
        let point = below.join(format!("memfs-{}-{transport}", std::process::id()));
        fs::create_dir(&point)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg(&point)
            .args(["4", "0", transport])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        print!("{transport:<6} {line}");
        Ok(Server { child, point })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = canopy_fuse::mount::unmount_path(&self.point, true);
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.point);
    }
}

/// Calls `work` `count` times, and returns the average time in microseconds.
fn each(count: usize, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        work();
    }
    start.elapsed().as_secs_f64() * 1e6 / count as f64
}

fn stat(point: &Path) -> f64 {
    let file = File::open(point.join("small")).expect("a file");
    each(5_000, || {
        fstat(&file).expect("attributes");
    })
}

fn open_close(point: &Path) -> f64 {
    each(1_000, || drop(File::open(point.join("small")).expect("a file")))
}

fn lookup_missing(point: &Path) -> f64 {
    each(3_000, || assert!(fs::symlink_metadata(point.join("missing")).is_err()))
}

fn direct(point: &Path) -> File {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
    openat(CWD, point.join("large"), flags, Mode::from_raw_mode(0o600)).expect("a file").into()
}

fn transfer(point: &Path, size: usize, total: usize, write: bool) -> f64 {
    let file = direct(point);
    let mut buffer = PageBuf::new(size).expect("memory");
    buffer.fill(1);
    let mut at = 0;
    each(total / size, || {
        let done = if write { file.write_at(&buffer, at) } else { file.read_at(&mut buffer, at) };
        assert_eq!(done.expect("a transfer"), size);
        at = (at + size as u64) % FILE as u64;
    })
}

/// Reads a file sequentially, after dropping its pages from the cache.
fn buffered(point: &Path) -> f64 {
    let file = File::open(point.join("large")).expect("a file");
    let mut buffer = vec![0; MIB];
    fadvise(&file, 0, None, Advice::DontNeed).expect("dropped pages");
    let mut at = 0;
    each(FILE / MIB, || {
        assert_eq!(file.read_at(&mut buffer, at).expect("a read"), MIB);
        at += MIB as u64;
    })
}

/// Does the same work in two threads at once, and returns the average time of one call.
fn twice(work: impl Fn() -> f64 + Sync) -> f64 {
    std::thread::scope(|scope| {
        let other = scope.spawn(&work);
        let mine = work();
        f64::midpoint(mine, other.join().expect("a thread"))
    })
}

/// Does the work on one processor.
fn pinned(work: impl FnOnce() -> f64) -> f64 {
    let before = sched_getaffinity(None).expect("affinity");
    let mut one = CpuSet::new();
    one.set(0);
    sched_setaffinity(None, &one).expect("affinity");
    let took = work();
    sched_setaffinity(None, &before).expect("affinity");
    took
}

type Work = (&'static str, fn(&Path) -> f64);

const WORK: [Work; 13] = [
    ("fstat", stat),
    ("fstat, caller on one CPU", |point| pinned(|| stat(point))),
    ("fstat, two callers", |point| twice(|| stat(point))),
    ("lookup of nothing", lookup_missing),
    ("open, close", open_close),
    ("4 KiB direct read", |point| transfer(point, 4096, 8 * MIB, false)),
    ("4 KiB direct write", |point| transfer(point, 4096, 8 * MIB, true)),
    ("1 MiB direct read", |point| transfer(point, MIB, 64 * MIB, false)),
    ("1 MiB direct write", |point| transfer(point, MIB, 64 * MIB, true)),
    ("1 MiB direct read, two callers", |point| twice(|| transfer(point, MIB, 64 * MIB, false))),
    ("1 MiB direct write, two callers", |point| twice(|| transfer(point, MIB, 64 * MIB, true))),
    ("1 MiB buffered read", buffered),
    ("1 MiB buffered read, on one CPU", |point| pinned(|| buffered(point))),
];

pub(crate) fn measure(below: &Path, rounds: usize) -> Result<(), Box<dyn Error>> {
    let servers = [Server::start(below, "dev")?, Server::start(below, "uring")?];
    for server in &servers {
        fs::write(server.point.join("small"), b"small")?;
        transfer(&server.point, MIB, FILE, true);
    }
    println!("\nmicroseconds, median (quartiles){:>20} {:>24} {:>7}", "dev", "uring", "ratio");
    for (name, work) in WORK {
        let mut taken = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (server, taken) in servers.iter().zip(&mut taken) {
                taken.push(work(&server.point));
            }
        }
        let [dev, uring] = taken.map(|mut taken| {
            taken.sort_by(f64::total_cmp);
            [rounds / 4, rounds / 2, rounds - 1 - rounds / 4].map(|at| taken[at])
        });
        let show = |[low, middle, high]: [f64; 3]| format!("{middle:.1} ({low:.1}-{high:.1})");
        println!("{name:<32} {:>24} {:>24} {:>7.2}", show(dev), show(uring), uring[1] / dev[1]);
    }
    Ok(())
}
