//! The workloads. A workload runs on each target once per round. Only `measure` is timed, and only the part that its
//! sample reports.

pub(super) mod concurrent;
pub(super) mod data;
pub(super) mod footprint;
pub(super) mod listing;
pub(super) mod meta;
pub(super) mod ops;
pub(super) mod process;
pub(super) mod program;
pub(super) mod tree;
pub(super) mod walk;

use crate::error::{Error, ErrorContext};
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The kind of filesystem that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TargetKind {
    /// The first branch itself.
    Branch,
    Pool,
    Floor,
    /// The filesystem of `--against`.
    Against,
}

/// A directory in which workloads run.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The column's name.
    pub name: String,
    pub kind: TargetKind,
    /// The path that programs use.
    pub root: PathBuf,
    /// The same directory on every branch, where the branches are known.
    pub branch_dirs: Vec<PathBuf>,
    /// The directory of the data files, as programs see it. A branch and its pools share the files, because the speed
    /// depends on where a file lies in memory.
    pub data: PathBuf,
    /// The same directory on the branch.
    pub branch_data: Option<PathBuf>,
    /// The server, if this process has started it.
    pub process: Option<u32>,
}

/// The result of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub elapsed: Duration,
    /// Operations, or entries of a listing.
    pub operations: u64,
    /// Bytes moved, for workloads with data.
    pub bytes: u64,
}

impl Sample {
    fn of_operations(elapsed: Duration, count: usize) -> Sample {
        Sample { elapsed, operations: count as u64, bytes: 0 }
    }

    /// Runs an operation on each item in turn, and computes the time from the median over slices of [`SLICE`] items. So
    /// a slice in which another process used the processor does not distort the result, nor does the first slice with
    /// its cold caches. Rare slow operations do not show in the median either.
    fn of_slices<T>(each: &[T], mut run: impl FnMut(&T) -> Result<(), Error>) -> Result<Sample, Error> {
        let mut times = Vec::with_capacity(each.len() / SLICE + 1);
        for slice in each.chunks(SLICE) {
            let start = Instant::now();
            for one in slice {
                run(one)?;
            }
            times.push(start.elapsed() / slice.len() as u32);
        }
        times.sort_unstable();
        let typical = times.get(times.len() / 2).copied().unwrap_or_default();
        Ok(Sample::of_operations(typical * each.len() as u32, each.len()))
    }
}

/// A slice takes much longer than reading the clock, and much less time than another process keeps the processor.
const SLICE: usize = 25;

pub(super) trait Workload {
    /// Prepares a round. The pause of the row follows.
    fn prepare(&self, _target: &Target, _round: usize) -> Result<(), Error> {
        Ok(())
    }

    /// Brings the target's caches into the state that the workload is about, right before it is measured.
    fn warm_up(&self, _target: &Target) -> Result<(), Error> {
        Ok(())
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error>;

    /// Returns whether one thread measures and waits for each reply.
    fn is_single_threaded(&self) -> bool {
        true
    }

    /// Cleans up after a round.
    fn clean_up(&self, _target: &Target, _round: usize) -> Result<(), Error> {
        Ok(())
    }
}

impl Target {
    /// Returns the directory on the last branch, the slowest to search. Files are created there without the pool. The
    /// floor has none, nor has a filesystem of which only the path is known.
    fn last_branch_dir(&self) -> Option<&Path> {
        self.branch_dirs.last().map(PathBuf::as_path)
    }

    /// Creates a directory with `count` files `f0`, `f1` and so on, which the kernel has not looked up yet.
    fn fill(&self, dir: &str, count: usize, bytes: usize) -> Result<(), Error> {
        let through = self.root.join(dir);
        match (self.kind, self.last_branch_dir()) {
            (TargetKind::Floor, _) => fs::create_dir(&through).context("make", &through),
            (_, Some(branch_dir)) => fill(&branch_dir.join(dir), count, bytes),
            (_, None) => {
                fill(&through, count, bytes)?;
                forget_names();
                Ok(())
            }
        }
    }

    /// Removes a directory.
    fn clear(&self, dir: &str) -> Result<(), Error> {
        let clear = |path: PathBuf| match fs::remove_dir_all(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.context("remove", &path),
        };
        match self.kind {
            // Keeping it costs nothing.
            TargetKind::Floor => Ok(()),
            _ if self.branch_dirs.is_empty() => clear(self.root.join(dir)),
            _ => self.branch_dirs.iter().try_for_each(|root| clear(root.join(dir))),
        }
    }

    /// Returns the path of a file with at least this size, and creates the file if necessary.
    fn file(&self, name: &str, size: u64) -> Result<PathBuf, Error> {
        let through = self.data.join(name);
        let path = self.branch_data_file(name).unwrap_or_else(|| through.clone());
        let there =
            fs::metadata(&path).is_ok_and(|meta| self.kind == TargetKind::Floor || meta.len() >= size);
        if !there {
            let mut file = File::create(&path).context("make", &path)?;
            let block = vec![7; 1 << 20];
            let mut left = size;
            while left > 0 {
                let part = left.min(block.len() as u64);
                file.write_all(&block[..part as usize]).context("fill", &path)?;
                left -= part;
            }
        }
        Ok(through)
    }

    fn branch_data_file(&self, name: &str) -> Option<PathBuf> {
        self.branch_data.as_ref().map(|dir| dir.join(name))
    }

    fn path(&self, dir: &str, name: &str) -> CString {
        let path = self.root.join(dir).join(name);
        // These paths contain no NUL.
        CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
    }

    /// Returns the paths `PREFIX0`, `PREFIX1` and so on, built before the clock runs.
    fn paths(&self, dir: &str, prefix: &str, count: usize) -> Vec<CString> {
        (0..count).map(|number| self.path(dir, &format!("{prefix}{number}"))).collect()
    }
}

fn fill(dir: &Path, count: usize, bytes: usize) -> Result<(), Error> {
    fs::create_dir_all(dir).context("make", dir)?;
    let data = vec![7; bytes];
    for number in 0..count {
        let path = dir.join(format!("f{number}"));
        let file = create(&path)?;
        if bytes > 0 {
            rustix::io::write(&file, &data).context("fill", &path)?;
        }
    }
    Ok(())
}

fn create(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).context("make", path)
}

/// Makes the kernel drop unused cached names. Without the privilege, waits until they expire.
fn forget_names() {
    if fs::write("/proc/sys/vm/drop_caches", "2").is_err() {
        std::thread::sleep(Duration::from_millis(1100));
    }
}
