//! A device of the kernel's device mapper, which can lag, hang or fail at any time. Few containers and sandboxes have device
//! mapper; `scripts/kernel-tests.sh` boots a kernel that has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Rng;
use crate::cmd::{run, run_within};

/// The parts of a disk that lags at random, each with a delay of its own.
const PARTS: u64 = 64;

/// What a disk does with requests. What it delays or holds back it carries out in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Healthy,
    /// It answers each request after this time.
    Lags(Duration),
    /// It answers after at most this time, which depends on the place on the disk and on the seed.
    LagsUpTo(Duration, u64),
    /// It answers nothing.
    Hangs,
    /// Each request fails with EIO.
    Fails,
    /// It works for the first number of seconds, then fails for the second, and so on.
    Flaky(u32, u32),
}

/// A device on top of another one.
#[derive(Debug)]
pub(super) struct Mapper {
    name: String,
    below: PathBuf,
    sectors: u64,
    /// A file for tables: dmsetup takes only those of one line as an argument.
    table: PathBuf,
}

/// Returns whether this kernel has device mapper, and this process its device.
pub(super) fn is_available() -> bool {
    Path::new("/dev/mapper/control").exists()
}

impl Mapper {
    /// Makes a healthy device. `dir` is a directory for its table.
    ///
    /// # Panics
    /// Without device mapper.
    #[track_caller]
    pub(super) fn new(below: &Path, dir: &Path) -> Mapper {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let size = run("blockdev", ["--getsz".as_ref(), below.as_os_str()]);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mapper = Mapper {
            name: format!("canopy-{}-{number}", std::process::id()),
            below: below.to_owned(),
            sectors: size.trim().parse().expect("a number of sectors"),
            table: dir.join("table"),
        };
        mapper.dmsetup("create", &["--noudevrules", mapper.write(Medium::Healthy)]);
        mapper.dmsetup("mknodes", &[]);
        mapper
    }

    pub(super) fn device(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }

    /// Sets what the device does from now on, also with requests that it holds back.
    #[track_caller]
    pub(super) fn set(&self, medium: Medium) {
        // Neither freezes the filesystem nor waits for its requests, which could take as long as the disk hangs.
        self.dmsetup("suspend", &["--nolockfs", "--noflush"]);
        if medium != Medium::Hangs {
            self.dmsetup("load", &[self.write(medium)]);
            self.dmsetup("resume", &[]);
        }
    }

    pub(super) fn remove(&self) -> Result<(), String> {
        let mut command = Command::new("dmsetup");
        command.args(["remove", "--retry", "--noudevsync", &self.name]);
        let done = run_within(&mut command, crate::PATIENCE);
        if done.success() { Ok(()) } else { Err(format!("cannot remove {}: {}", self.name, done.describe())) }
    }

    #[track_caller]
    fn dmsetup(&self, what: &str, arguments: &[&str]) {
        run("dmsetup", [what, "--noudevsync", &self.name].iter().chain(arguments));
    }

    /// Writes the table, and returns the path of its file.
    fn write(&self, medium: Medium) -> &str {
        let (sectors, below) = (self.sectors, self.below.display());
        let table = match medium {
            Medium::Healthy | Medium::Hangs => format!("0 {sectors} linear {below} 0\n"),
            Medium::Lags(time) => format!("0 {sectors} delay {below} 0 {}\n", time.as_millis()),
            Medium::Fails => format!("0 {sectors} error\n"),
            Medium::Flaky(up, down) => format!("0 {sectors} flakey {below} 0 {up} {down}\n"),
            Medium::LagsUpTo(time, seed) => {
                let mut rng = Rng::new(seed);
                let most = u64::try_from(time.as_millis()).expect("a time");
                let begin = |part: u64| sectors * part / PARTS;
                let mut line = |part: u64| {
                    let (from, to) = (begin(part), begin(part + 1));
                    format!("{from} {} delay {below} {from} {}\n", to - from, rng.below(most + 1))
                };
                (0..PARTS).map(&mut line).collect()
            }
        };
        fs::write(&self.table, table).expect("a table");
        self.table.to_str().expect("UTF-8")
    }
}
