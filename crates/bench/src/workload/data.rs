//! Reading and writing.

use super::concurrent::together;
use super::{Fault, Place, Sample, Tried, Work};
use rustix::fs::{Advice, Mode, OFlags};
use std::hint::black_box;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// A round moves this much at least, if need be in several passes: less is over before it can be told.
const LEAST: u64 = 8 << 20;
const MOST_PASSES: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Read,
    Write,
}

/// As `dd conv=fdatasync` does: a file is written anew and brought to the disk, or read from its beginning.
pub(crate) struct Dd {
    pub way: Way,
    pub size: u64,
}

impl Work for Dd {
    fn measure(&self, place: &Place, _round: usize) -> Result<Sample, Fault> {
        if self.way == Way::Read {
            let stream = Stream { key: "read", way: Way::Read, size: self.size, block: MIB, cold: true };
            return stream.measure(place, 0);
        }
        let path = place.root.join("written");
        let block = vec![9; MIB];
        let start = Instant::now();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644)).tried("make", &path)?;
        let mut left = self.size;
        while left > 0 {
            left -= rustix::io::write(&file, &block).tried("write", &path)? as u64;
        }
        rustix::fs::fdatasync(&file).tried("sync", &path)?;
        drop(file);
        let took = start.elapsed();
        rustix::fs::unlink(&path).tried("remove", &path)?;
        Ok(Sample { took, operations: 1, bytes: self.size })
    }
}

/// An existing file from its beginning, in blocks of one size. `cold`: the server's cached pages are dropped first;
/// so are the branch's, for all alike, which on tmpfs changes nothing.
pub(crate) struct Stream {
    pub key: &'static str,
    pub way: Way,
    pub size: u64,
    pub block: usize,
    pub cold: bool,
}

impl Work for Stream {
    fn measure(&self, place: &Place, _round: usize) -> Result<Sample, Fault> {
        let offsets: Vec<u64> = (0..self.size / self.block as u64).map(|n| n * self.block as u64).collect();
        transfer(place, self.key, self.way, self.size, self.block, self.cold, &offsets)
    }
}

/// Blocks of a file in no order, none twice.
pub(crate) struct Scatter {
    pub key: &'static str,
    pub way: Way,
    pub size: u64,
    pub block: usize,
    /// How many at most.
    pub most: u64,
    pub cold: bool,
}

impl Work for Scatter {
    fn measure(&self, place: &Place, _round: usize) -> Result<Sample, Fault> {
        let blocks = self.size / self.block as u64;
        let offsets: Vec<u64> = scattered(blocks).take(self.most as usize).collect();
        let offsets: Vec<u64> = offsets.into_iter().map(|number| number * self.block as u64).collect();
        transfer(place, self.key, self.way, self.size, self.block, self.cold, &offsets)
    }
}

/// The numbers below `count`, each once: a step that has no divisor in common with it meets them all.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    let common = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    // Near the golden section of the whole, so that neighbours in time are far apart.
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
    place: &Place,
    name: &str,
    way: Way,
    size: u64,
    block: usize,
    cold: bool,
    offsets: &[u64],
) -> Result<Sample, Fault> {
    let path = place.file(name, size)?;
    let file = open(&path, if way == Way::Read { OFlags::RDONLY } else { OFlags::WRONLY })?;
    let mut buffer = vec![5; block];
    let bytes = offsets.len() as u64 * block as u64;
    let passes = (LEAST / bytes.max(1)).clamp(1, MOST_PASSES);
    let mut took = Duration::ZERO;
    for _ in 0..passes {
        if cold {
            place.data_behind(name).map_or(Ok(()), |path| drop_pages(&path))?;
            drop_pages(&path)?;
        }
        let start = Instant::now();
        for &at in offsets {
            match way {
                Way::Read => rustix::io::pread(&file, &mut buffer[..], at).tried("read", &path)?,
                Way::Write => rustix::io::pwrite(&file, &buffer, at).tried("write", &path)?,
            };
        }
        took += start.elapsed();
    }
    black_box(&buffer);
    let operations = offsets.len() as u64 * passes;
    Ok(Sample { took, operations, bytes: operations * block as u64 })
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Fault> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).tried("open", path)
}

fn drop_pages(path: &Path) -> Result<(), Fault> {
    let file = open(path, OFlags::RDONLY)?;
    rustix::fs::fadvise(&file, 0, None::<NonZeroU64>, Advice::DontNeed).tried("drop pages of", path)
}

/// Several who write blocks of 1 MiB for a while, each to a file of its own or all to one.
pub(crate) struct Jobs {
    pub jobs: usize,
    pub shared: bool,
    pub lasting: Duration,
}

impl Jobs {
    /// Large enough that those who share it are rarely at the same block.
    const SIZE: usize = 64 * MIB;

    fn names(&self) -> Vec<String> {
        let name = |job| if self.shared { "shared".to_owned() } else { format!("job{job}") };
        (0..self.jobs).map(name).collect()
    }
}

impl Work for Jobs {
    /// The files have their size already: what makes a file longer is done by one at a time in any case.
    fn prepare(&self, place: &Place, _round: usize) -> Result<(), Fault> {
        for name in self.names() {
            let path = place.data_behind(&name).unwrap_or_else(|| place.data.join(&name));
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644)).tried("make", &path)?;
            rustix::fs::ftruncate(&file, Jobs::SIZE as u64).tried("size", &path)?;
        }
        Ok(())
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn measure(&self, place: &Place, _round: usize) -> Result<Sample, Fault> {
        let paths: Vec<PathBuf> = self.names().iter().map(|name| place.data.join(name)).collect();
        let files: Result<Vec<OwnedFd>, Fault> =
            paths.iter().map(|path| open(path, OFlags::WRONLY)).collect();
        let block = vec![1; MIB];
        let total = std::sync::atomic::AtomicU64::new(0);
        let works: Vec<(usize, OwnedFd)> = files?.into_iter().enumerate().collect();
        let took = together(works, |(job, file)| {
            let end = Instant::now() + self.lasting;
            let (mut at, mut written) = (job * Jobs::SIZE / self.jobs / MIB * MIB, 0);
            while Instant::now() < end {
                written += rustix::io::pwrite(&file, &block, at as u64).tried("write", &paths[job])? as u64;
                at = (at + MIB) % Jobs::SIZE;
            }
            total.fetch_add(written, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        })?;
        let bytes = total.into_inner();
        Ok(Sample { took, operations: bytes / MIB as u64, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_blocks_are_each_met_once() {
        for count in [1, 2, 4, 7, 256, 1000, 4096] {
            let mut all: Vec<u64> = scattered(count).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
        let far = scattered(4096).zip(scattered(4096).skip(1)).filter(|(a, b)| a.abs_diff(*b) > 64).count();
        assert!(far > 3000, "{far}");
    }
}
