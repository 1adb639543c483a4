//! Names and attributes.

use super::{Fault, Place, Sample, Tried, Work};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// What a file holds where something is read or written.
pub(super) const BYTES: usize = 4096;

/// Which names are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Names {
    Existing,
    Missing,
}

/// stat(2) of names in one directory. `known`: they were asked for before the pause, else never.
pub(crate) struct Stat {
    pub key: &'static str,
    pub names: Names,
    pub known: bool,
    pub count: usize,
}

impl Stat {
    fn dir(&self, round: usize) -> String {
        // The floor holds as many files as the name says.
        format!("full.{}.{}-{round}", self.files(), self.key)
    }

    fn files(&self) -> usize {
        if self.names == Names::Existing { self.count } else { 0 }
    }

    fn paths(&self, place: &Place, round: usize) -> Vec<CString> {
        let prefix = if self.names == Names::Existing { "f" } else { "m" };
        place.paths(&self.dir(round), prefix, self.count)
    }
}

impl Work for Stat {
    fn prepare(&self, place: &Place, round: usize) -> Result<(), Fault> {
        let dir = self.dir(round);
        place.fill(&dir, self.files(), 0)?;
        // The way to the names is not what is measured.
        let path = place.root.join(&dir);
        rustix::fs::stat(&path).tried("stat", &path)?;
        if self.known {
            self.paths(place, round).iter().try_for_each(|path| stat(path, self.names))?;
        }
        Ok(())
    }

    fn measure(&self, place: &Place, round: usize) -> Result<Sample, Fault> {
        Sample::of_slices(&self.paths(place, round), |path| stat(path, self.names))
    }

    fn tidy(&self, place: &Place, round: usize) -> Result<(), Fault> {
        place.clear(&self.dir(round))
    }
}

fn stat(path: &CStr, names: Names) -> Result<(), Fault> {
    match (rustix::fs::stat(path), names) {
        (Ok(stat), Names::Existing) => {
            black_box(stat);
            Ok(())
        }
        (Err(Errno::NOENT), Names::Missing) => Ok(()),
        (Ok(_), Names::Missing) => Err(Errno::EXIST).tried("miss", as_path(path)),
        (Err(errno), _) => Err(errno).tried("stat", as_path(path)),
    }
}

fn as_path(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

/// stat(2) of files that have just been written to, of which the kernel then knows neither size nor times.
pub(crate) struct StatAfterWrite {
    pub key: &'static str,
    pub count: usize,
}

impl StatAfterWrite {
    fn dir(&self, round: usize) -> String {
        format!("full.{}.{}-{round}", self.count, self.key)
    }
}

impl Work for StatAfterWrite {
    fn prepare(&self, place: &Place, round: usize) -> Result<(), Fault> {
        place.fill(&self.dir(round), self.count, BYTES)
    }

    fn measure(&self, place: &Place, round: usize) -> Result<Sample, Fault> {
        let paths = place.paths(&self.dir(round), "f", self.count);
        let mut files = Vec::with_capacity(paths.len());
        for path in &paths {
            let file = open(path, OFlags::WRONLY)?;
            rustix::io::pwrite(&file, b"x", 0).tried("write", as_path(path))?;
            files.push(file);
        }
        Sample::of_slices(&paths, |path| stat(path, Names::Existing))
    }

    fn tidy(&self, place: &Place, round: usize) -> Result<(), Fault> {
        place.clear(&self.dir(round))
    }
}

fn open(path: &CStr, flags: OFlags) -> Result<OwnedFd, Fault> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).tried("open", as_path(path))
}

/// One operation of those that several may do at once; see [`super::concurrent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Each {
    /// fstat(2) that must be asked of the server (`AT_STATX_FORCE_SYNC`).
    Fstat,
    OpenReadClose,
    CreateWriteClose,
    Rename,
    Unlink,
}

impl Each {
    /// Files that are there already, and in turn used: enough that none is still being closed.
    const FILES: usize = 200;

    /// What the directory must hold before, for so many operations.
    pub(super) fn files(self) -> usize {
        match self {
            Each::Fstat => 1,
            Each::OpenReadClose => Each::FILES,
            _ => 0,
        }
    }

    /// What is to be made through the server before the clock runs.
    pub(super) fn prepare(self, place: &Place, dir: &str, count: usize) -> Result<(), Fault> {
        match self {
            Each::Rename | Each::Unlink => {
                place.paths(dir, "n", count).iter().try_for_each(|path| create(path))
            }
            Each::Fstat | Each::OpenReadClose => {
                // The names are known.
                place.paths(dir, "f", self.files()).iter().try_for_each(|path| stat(path, Names::Existing))
            }
            Each::CreateWriteClose => {
                let path = place.root.join(dir);
                rustix::fs::stat(&path).map(|_| ()).tried("stat", &path)
            }
        }
    }

    /// All the operations, with their names.
    pub(super) fn ready(self, place: &Place, dir: &str, count: usize) -> Result<Vec<Ready>, Fault> {
        let names = |prefix| place.paths(dir, prefix, count).into_iter();
        Ok(match self {
            Each::Fstat => {
                let file = Arc::new(open(&place.path(dir, "f0"), OFlags::RDONLY)?);
                (0..count).map(|_| Ready::Fstat(Arc::clone(&file))).collect()
            }
            Each::OpenReadClose => {
                let paths = place.paths(dir, "f", self.files());
                paths.iter().cycle().take(count).cloned().map(Ready::OpenReadClose).collect()
            }
            Each::CreateWriteClose => names("n").map(Ready::CreateWriteClose).collect(),
            Each::Rename => names("n").zip(names("r")).map(|(from, to)| Ready::Rename(from, to)).collect(),
            Each::Unlink => names("n").map(Ready::Unlink).collect(),
        })
    }
}

/// One operation, with everything but itself done.
pub(super) enum Ready {
    Fstat(Arc<OwnedFd>),
    OpenReadClose(CString),
    CreateWriteClose(CString),
    Rename(CString, CString),
    Unlink(CString),
}

impl Ready {
    pub(super) fn run(&self) -> Result<(), Fault> {
        match self {
            Ready::Fstat(file) => {
                let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
                let stat = rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS);
                black_box(stat.tried("stat", "an open file")?);
                Ok(())
            }
            Ready::OpenReadClose(path) => {
                let mut buffer = [MaybeUninit::uninit(); BYTES];
                let file = open(path, OFlags::RDONLY)?;
                black_box(rustix::io::read(&file, &mut buffer).tried("read", as_path(path))?);
                Ok(())
            }
            Ready::CreateWriteClose(path) => create(path),
            Ready::Rename(from, to) => {
                rustix::fs::renameat(CWD, from, CWD, to).tried("rename", as_path(from))
            }
            Ready::Unlink(path) => rustix::fs::unlink(path).tried("unlink", as_path(path)),
        }
    }
}

fn create(path: &CStr) -> Result<(), Fault> {
    let file = super::create(as_path(path))?;
    rustix::io::write(&file, &[3; BYTES]).tried("write", as_path(path)).map(|_| ())
}

/// One operation after another, of which none waits for any other.
pub(crate) struct Alone {
    pub key: &'static str,
    pub each: Each,
    pub count: usize,
}

impl Alone {
    fn dir(&self, round: usize) -> String {
        format!("full.{}.{}-{round}", self.each.files(), self.key)
    }
}

impl Work for Alone {
    fn prepare(&self, place: &Place, round: usize) -> Result<(), Fault> {
        place.fill(&self.dir(round), self.each.files(), BYTES)?;
        self.each.prepare(place, &self.dir(round), self.count)
    }

    fn measure(&self, place: &Place, round: usize) -> Result<Sample, Fault> {
        Sample::of_slices(&self.each.ready(place, &self.dir(round), self.count)?, Ready::run)
    }

    fn tidy(&self, place: &Place, round: usize) -> Result<(), Fault> {
        place.clear(&self.dir(round))
    }
}
