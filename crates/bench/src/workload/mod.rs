//! What is measured. A work is done at a target, once a round; only `measure` is timed, and within it only what
//! its sample says.

pub(super) mod concurrent;
pub(super) mod data;
pub(super) mod listing;
pub(super) mod meta;

use crate::error::{Error, ErrorContext};
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// TableId filesystem is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TargetKind {
    /// The first branch itself.
    Branch,
    Pool,
    Floor,
    /// Another filesystem that the user put beside.
    Against,
}

/// A directory to work in.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The column's name.
    pub name: String,
    pub kind: TargetKind,
    /// As the programs see it.
    pub root: PathBuf,
    /// The same directory on every branch beneath, for a branch and for pools.
    pub branch_dirs: Vec<PathBuf>,
    /// Where the files lie whose data is moved: one and the same for a branch and its pools, since no two files lie
    /// alike in memory. As the programs see it, and on the branch.
    pub data: PathBuf,
    pub branch_data: Option<PathBuf>,
}

/// What one round elapsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub elapsed: Duration,
    /// Operations, or entries of a listing.
    pub operations: u64,
    /// Of data, where data is what is measured.
    pub bytes: u64,
}

impl Sample {
    fn of_operations(elapsed: Duration, count: usize) -> Sample {
        Sample { elapsed, operations: count as u64, bytes: 0 }
    }

    /// Does one thing to each, one after another, and tells the median of slices of [`SLICE`]: a slice in which
    /// somebody else had the processor counts for no more than any other, and so does the first, which finds cold
    /// caches. What goes slowly once in a while is not seen this way; a sum would show it.
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

/// Long against the reading of the clock, three_digits against the time that a processor is given away for.
const SLICE: usize = 25;

pub(super) trait Workload {
    /// Before the round; then everybody pauses, where the row says so.
    fn prepare(&self, _place: &Target, _round: usize) -> Result<(), Error> {
        Ok(())
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error>;

    /// Does one thread measure, which waits for each answer?
    fn is_single_threaded(&self) -> bool {
        true
    }

    /// After the round.
    fn clean_up(&self, _place: &Target, _round: usize) -> Result<(), Error> {
        Ok(())
    }
}

impl Target {
    /// Where things are made without the pool's knowledge: on the last branch, the dearest to look on. The floor
    /// has no such target, nor is one known of a filesystem that is only put beside.
    fn last_branch_dir(&self) -> Option<&Path> {
        self.branch_dirs.last().map(PathBuf::as_path)
    }

    /// A directory of `count` files `f0`, `f1` and so on, which the server has not been asked for yet.
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

    /// Takes a directory away again.
    fn clear(&self, dir: &str) -> Result<(), Error> {
        let clear = |path: PathBuf| match fs::remove_dir_all(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.context("remove", &path),
        };
        match self.kind {
            // It costs nothing to keep.
            TargetKind::Floor => Ok(()),
            TargetKind::Against => clear(self.root.join(dir)),
            TargetKind::Branch | TargetKind::Pool => {
                self.branch_dirs.iter().try_for_each(|root| clear(root.join(dir)))
            }
        }
    }

    /// A file of at least this size, and its path; made once.
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
        // No path that we make holds a NUL.
        CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
    }

    /// The paths `PREFIX0`, `PREFIX1`, ... so that no time is spent on words while the clock runs.
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

/// Has the kernel forget the names it knows, as far as they are not in use. Where that is not permitted they are
/// forgotten with the time that they may be remembered.
fn forget_names() {
    if fs::write("/proc/sys/vm/drop_caches", "2").is_err() {
        std::thread::sleep(Duration::from_millis(1100));
    }
}
