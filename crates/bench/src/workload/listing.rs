//! Listings.

use super::{Fault, Kind, Place, Sample, Tried, Work};
use crate::server::Server;
use crate::testbed::Stage;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use std::cell::RefCell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is asked about each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    Names,
    /// As `ls -l` does.
    Attributes,
}

/// A directory of many entries. `known`: it has been listed before.
pub(crate) struct List {
    pub key: &'static str,
    pub depth: Depth,
    pub known: bool,
    pub count: usize,
}

/// A directory that is known is listed so often in a round; the median counts.
const TIMES: usize = 5;

impl List {
    fn dir(&self, round: usize) -> String {
        format!("full.{}.{}-{round}", self.count, self.key)
    }
}

impl Work for List {
    fn prepare(&self, place: &Place, round: usize) -> Result<(), Fault> {
        let dir = self.dir(round);
        place.fill(&dir, self.count, 0)?;
        let path = place.root.join(&dir);
        if self.known {
            list(&path, self.depth)?;
        } else {
            rustix::fs::stat(&path).tried("stat", &path)?;
        }
        Ok(())
    }

    fn measure(&self, place: &Place, round: usize) -> Result<Sample, Fault> {
        let dirs = [place.root.join(self.dir(round))];
        if !self.known {
            return timed(&dirs, self.depth, self.count);
        }
        let again: Result<Vec<Sample>, Fault> =
            (0..TIMES).map(|_| timed(&dirs, self.depth, self.count)).collect();
        let mut again = again?;
        again.sort_unstable_by_key(|sample| sample.took);
        Ok(again[TIMES / 2])
    }

    fn tidy(&self, place: &Place, round: usize) -> Result<(), Fault> {
        place.clear(&self.dir(round))
    }
}

/// One directory spread over all branches, too large to be made anew each round: a fresh pool lists it each time.
pub(crate) struct ManyBranches<'s> {
    pub stage: &'s Stage,
    pub branches: Vec<PathBuf>,
    pub options: String,
    /// Files on each branch.
    pub each: usize,
    pub pool: RefCell<Option<Server>>,
}

const MANY: &str = "many";

impl ManyBranches<'_> {
    /// Makes the files; the names on one branch are not those on another.
    pub(crate) fn fill(&self) -> Result<(), Fault> {
        for (number, branch) in self.branches.iter().enumerate() {
            let dir = branch.join(MANY);
            std::fs::create_dir(&dir).tried("make", &dir)?;
            for file in 0..self.each {
                super::create(&dir.join(format!("f{}", file * self.branches.len() + number)))?;
            }
            self.stage.interrupt.check()?;
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

impl Work for ManyBranches<'_> {
    fn prepare(&self, place: &Place, round: usize) -> Result<(), Fault> {
        match place.kind {
            Kind::Pool => {
                let pool = Server::pool(self.stage, "many", &self.branches, &self.options)?;
                let path = pool.point().join(MANY);
                rustix::fs::stat(&path).tried("stat", &path)?;
                *self.pool.borrow_mut() = Some(pool);
                Ok(())
            }
            Kind::Floor => place.fill(&self.on_floor(round), self.total(), 0),
            Kind::Branch | Kind::Against => Ok(()),
        }
    }

    fn measure(&self, place: &Place, round: usize) -> Result<Sample, Fault> {
        let dirs = match (place.kind, self.pool.borrow().as_ref()) {
            (Kind::Pool, Some(pool)) => vec![pool.point().join(MANY)],
            (Kind::Floor, _) => vec![place.root.join(self.on_floor(round))],
            _ => self.branches.iter().map(|branch| branch.join(MANY)).collect(),
        };
        timed(&dirs, Depth::Attributes, self.total())
    }

    fn tidy(&self, place: &Place, _round: usize) -> Result<(), Fault> {
        if place.kind == Kind::Pool {
            *self.pool.borrow_mut() = None;
        }
        Ok(())
    }
}

fn timed(dirs: &[PathBuf], depth: Depth, expected: usize) -> Result<Sample, Fault> {
    let start = Instant::now();
    let mut found = 0;
    for dir in dirs {
        found += list(dir, depth)?;
    }
    let took = start.elapsed();
    if found == expected {
        return Ok(Sample::of_operations(took, found));
    }
    Err(Fault::Listing { path: dirs.first().cloned().unwrap_or_default(), found, expected })
}

/// Entries of a directory, `.` and `..` left out.
fn list(path: &Path, depth: Depth) -> Result<usize, Fault> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).tried("open", path)?;
    // As large as the C library's.
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut found = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.tried("list", path)?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if depth == Depth::Attributes {
            let stat = rustix::fs::statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            black_box(stat.tried("stat an entry of", path)?);
        }
        found += 1;
    }
    Ok(found)
}
