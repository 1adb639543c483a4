//! Workloads that read and write data.

use super::concurrent::run_concurrently;
use super::{Error, ErrorContext, Sample, Target, Workload};
use rustix::fs::{Advice, Mode, OFlags};
use std::hint::black_box;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// A round moves at least this much, if necessary in several passes. Less is too short to measure.
const MIN_BYTES: u64 = 8 << 20;
const MAX_PASSES: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Writes a new file and syncs it, as `dd conv=fdatasync` does, or reads a file.
pub(crate) struct Dd {
    pub direction: Direction,
    pub size: u64,
}

impl Workload for Dd {
    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        if self.direction == Direction::Read {
            let stream = SequentialIo {
                key: "read",
                direction: Direction::Read,
                size: self.size,
                block: MIB,
                cold: true,
            };
            return stream.measure(target, 0);
        }
        let path = target.root.join("written");
        let block = vec![9; MIB];
        let start = Instant::now();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644)).context("make", &path)?;
        let mut left = self.size;
        while left > 0 {
            left -= rustix::io::write(&file, &block).context("write", &path)? as u64;
        }
        rustix::fs::fdatasync(&file).context("sync", &path)?;
        drop(file);
        let elapsed = start.elapsed();
        rustix::fs::unlink(&path).context("remove", &path)?;
        Ok(Sample { elapsed, operations: 1, bytes: self.size })
    }
}

/// Reads or overwrites an existing file from its start. If `cold`, the cached pages of the file and of the branch's file
/// are dropped first, which has no effect on tmpfs.
pub(crate) struct SequentialIo {
    pub key: &'static str,
    pub direction: Direction,
    pub size: u64,
    pub block: usize,
    pub cold: bool,
}

impl Workload for SequentialIo {
    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        let offsets: Vec<u64> = (0..self.size / self.block as u64).map(|n| n * self.block as u64).collect();
        transfer(target, self.key, self.direction, self.size, self.block, self.cold, &offsets)
    }
}

/// Reads or overwrites blocks of a file in random order, each once.
pub(crate) struct RandomIo {
    pub key: &'static str,
    pub direction: Direction,
    pub size: u64,
    pub block: usize,
    /// The most blocks per pass.
    pub max_blocks: u64,
    pub cold: bool,
}

impl Workload for RandomIo {
    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        let blocks = self.size / self.block as u64;
        let offsets: Vec<u64> = shuffled(blocks).take(self.max_blocks as usize).collect();
        let offsets: Vec<u64> = offsets.into_iter().map(|number| number * self.block as u64).collect();
        transfer(target, self.key, self.direction, self.size, self.block, self.cold, &offsets)
    }
}

/// Returns the numbers below `count`, each once. A step that is coprime to `count` reaches all of them.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    let common = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    // Near the golden ratio, so that consecutive numbers are far apart.
    let mut step = (count as f64 * 0.618) as u64 | 1;
    while common(step, count) > 1 {
        step += 1;
    }
    (0..count).scan(0, move |at, _| {
        let now = *at;
        *at = (*at + step) % count;
        Some(now)
    })
}

fn transfer(
    target: &Target,
    name: &str,
    direction: Direction,
    size: u64,
    block: usize,
    cold: bool,
    offsets: &[u64],
) -> Result<Sample, Error> {
    let path = target.file(name, size)?;
    let file = open(&path, if direction == Direction::Read { OFlags::RDONLY } else { OFlags::WRONLY })?;
    let mut buffer = vec![5; block];
    let bytes = offsets.len() as u64 * block as u64;
    let passes = (MIN_BYTES / bytes.max(1)).clamp(1, MAX_PASSES);
    let mut elapsed = Duration::ZERO;
    for _ in 0..passes {
        if cold {
            target.branch_data_file(name).map_or(Ok(()), |path| drop_pages(&path))?;
            drop_pages(&path)?;
        }
        let start = Instant::now();
        for &at in offsets {
            match direction {
                Direction::Read => rustix::io::pread(&file, &mut buffer[..], at).context("read", &path)?,
                Direction::Write => rustix::io::pwrite(&file, &buffer, at).context("write", &path)?,
            };
        }
        elapsed += start.elapsed();
    }
    black_box(&buffer);
    let operations = offsets.len() as u64 * passes;
    Ok(Sample { elapsed, operations, bytes: operations * block as u64 })
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Error> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).context("open", path)
}

fn drop_pages(path: &Path) -> Result<(), Error> {
    let file = open(path, OFlags::RDONLY)?;
    rustix::fs::fadvise(&file, 0, None::<NonZeroU64>, Advice::DontNeed).context("drop pages of", path)
}

/// Several threads write blocks of 1 MiB for a while, each to its own file or all to one.
pub(crate) struct Jobs {
    pub jobs: usize,
    pub shared: bool,
    pub duration: Duration,
}

impl Jobs {
    /// Large enough that threads on a shared file rarely write the same block.
    const SIZE: usize = 64 * MIB;

    fn names(&self) -> Vec<String> {
        let name = |job| if self.shared { "shared".to_owned() } else { format!("job{job}") };
        (0..self.jobs).map(name).collect()
    }
}

impl Workload for Jobs {
    /// Gives the files their full size, because writes that extend a file always run one at a time.
    fn prepare(&self, target: &Target, _round: usize) -> Result<(), Error> {
        for name in self.names() {
            let path = target.branch_data_file(&name).unwrap_or_else(|| target.data.join(&name));
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644)).context("make", &path)?;
            rustix::fs::ftruncate(&file, Jobs::SIZE as u64).context("size", &path)?;
        }
        Ok(())
    }

    fn is_single_threaded(&self) -> bool {
        false
    }

    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        let paths: Vec<PathBuf> = self.names().iter().map(|name| target.data.join(name)).collect();
        let files: Result<Vec<OwnedFd>, Error> =
            paths.iter().map(|path| open(path, OFlags::WRONLY)).collect();
        let block = vec![1; MIB];
        let total = std::sync::atomic::AtomicU64::new(0);
        let works: Vec<(usize, OwnedFd)> = files?.into_iter().enumerate().collect();
        let elapsed = run_concurrently(works, |(job, file)| {
            let end = Instant::now() + self.duration;
            let (mut at, mut written) = (job * Jobs::SIZE / self.jobs / MIB * MIB, 0);
            while Instant::now() < end {
                written += rustix::io::pwrite(&file, &block, at as u64).context("write", &paths[job])? as u64;
                at = (at + MIB) % Jobs::SIZE;
            }
            total.fetch_add(written, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        })?;
        let bytes = total.into_inner();
        Ok(Sample { elapsed, operations: bytes / MIB as u64, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_blocks_occur_once() {
        for count in [1, 2, 4, 7, 256, 1000, 4096] {
            let mut all: Vec<u64> = shuffled(count).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
        let far = shuffled(4096).zip(shuffled(4096).skip(1)).filter(|(a, b)| a.abs_diff(*b) > 64).count();
        assert!(far > 3000, "{far}");
    }
}
