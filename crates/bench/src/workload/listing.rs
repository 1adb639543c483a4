//! Workloads that list directories.

use super::{Error, ErrorContext, Sample, Target, TargetKind, Workload};
use crate::server::Server;
use crate::testbed::Testbed;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use std::cell::RefCell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is read of each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    Names,
    /// As `ls -l` does.
    Attributes,
}

/// Lists a directory with many entries. If `warm`, it has been listed before.
pub(crate) struct ListDir {
    pub key: &'static str,
    pub depth: Depth,
    pub warm: bool,
    pub count: usize,
}

/// How often a round lists a warm directory; the median counts.
const TIMES: usize = 5;

impl ListDir {
    fn dir(&self, round: usize) -> String {
        format!("full.{}.{}-{round}", self.count, self.key)
    }
}

impl Workload for ListDir {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        let dir = self.dir(round);
        target.fill(&dir, self.count, 0)?;
        let path = target.root.join(&dir);
        if self.warm {
            list(&path, self.depth)?;
        } else {
            rustix::fs::stat(&path).context("stat", &path)?;
        }
        Ok(())
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        let dirs = [target.root.join(self.dir(round))];
        if !self.warm {
            return timed(&dirs, self.depth, self.count);
        }
        let again: Result<Vec<Sample>, Error> =
            (0..TIMES).map(|_| timed(&dirs, self.depth, self.count)).collect();
        let mut again = again?;
        again.sort_unstable_by_key(|sample| sample.elapsed);
        Ok(again[TIMES / 2])
    }

    fn clean_up(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.clear(&self.dir(round))
    }
}

/// Lists one directory that all branches have. It is too large to create anew in each round, so each round uses a new
/// pool.
pub(crate) struct ManyBranches<'s> {
    pub testbed: &'s Testbed,
    pub branches: Vec<PathBuf>,
    pub options: String,
    /// Files on each branch.
    pub each: usize,
    pub pool: RefCell<Option<Server>>,
}

const MANY: &str = "many";

impl ManyBranches<'_> {
    /// Creates the files, with different names on each branch.
    pub(crate) fn fill(&self) -> Result<(), Error> {
        for (number, branch) in self.branches.iter().enumerate() {
            let dir = branch.join(MANY);
            std::fs::create_dir(&dir).context("make", &dir)?;
            for file in 0..self.each {
                super::create(&dir.join(format!("f{}", file * self.branches.len() + number)))?;
            }
            self.testbed.interrupt.check()?;
        }
        Ok(())
    }

    pub(crate) fn total(&self) -> usize {
        self.each * self.branches.len()
    }

    fn on_floor(&self, round: usize) -> String {
        format!("full.{}.{MANY}-{round}", self.total())
    }
}

impl Workload for ManyBranches<'_> {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        match target.kind {
            TargetKind::Pool => {
                let pool = Server::pool(self.testbed, "many", &self.branches, &self.options)?;
                let path = pool.mountpoint().join(MANY);
                rustix::fs::stat(&path).context("stat", &path)?;
                *self.pool.borrow_mut() = Some(pool);
                Ok(())
            }
            TargetKind::Floor => target.fill(&self.on_floor(round), self.total(), 0),
            TargetKind::Branch | TargetKind::Against => Ok(()),
        }
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        let dirs = match (target.kind, self.pool.borrow().as_ref()) {
            (TargetKind::Pool, Some(pool)) => vec![pool.mountpoint().join(MANY)],
            (TargetKind::Floor, _) => vec![target.root.join(self.on_floor(round))],
            _ => self.branches.iter().map(|branch| branch.join(MANY)).collect(),
        };
        timed(&dirs, Depth::Attributes, self.total())
    }

    fn clean_up(&self, target: &Target, _round: usize) -> Result<(), Error> {
        if target.kind == TargetKind::Pool {
            *self.pool.borrow_mut() = None;
        }
        Ok(())
    }
}

fn timed(dirs: &[PathBuf], depth: Depth, expected: usize) -> Result<Sample, Error> {
    let start = Instant::now();
    let mut found = 0;
    for dir in dirs {
        found += list(dir, depth)?;
    }
    let elapsed = start.elapsed();
    if found == expected {
        return Ok(Sample::of_operations(elapsed, found));
    }
    Err(Error::Listing { path: dirs.first().cloned().unwrap_or_default(), found, expected })
}

/// Lists a directory, and returns the number of entries other than `.` and `..`.
fn list(path: &Path, depth: Depth) -> Result<usize, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).context("open", path)?;
    // The size of the C library's buffer.
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut found = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.context("list", path)?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if depth == Depth::Attributes {
            let stat = rustix::fs::statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            black_box(stat.context("stat an entry of", path)?);
        }
        found += 1;
    }
    Ok(found)
}
