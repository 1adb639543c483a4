//! Names and attributes.

use super::{Fault, Place, Sample, Tried, Work};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

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
        let paths = self.paths(place, round);
        let start = Instant::now();
        for path in &paths {
            stat(path, self.names)?;
        }
        Ok(Sample::of_operations(start.elapsed(), paths.len()))
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
        let start = Instant::now();
        for path in &paths {
            stat(path, Names::Existing)?;
        }
        Ok(Sample::of_operations(start.elapsed(), paths.len()))
    }

    fn tidy(&self, place: &Place, round: usize) -> Result<(), Fault> {
        place.clear(&self.dir(round))
    }
}

fn open(path: &CStr, flags: OFlags) -> Result<OwnedFd, Fault> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).tried("open", as_path(path))
}

/// One operation of those that several may do at once; see [`super::crowd`].
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
            Each::Rename | Each::Unlink => create(&place.paths(dir, "n", count)),
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

    /// Whatever can be done before the clock runs, and then the work itself.
    pub(super) fn ready(self, place: &Place, dir: &str, count: usize) -> Result<Ready, Fault> {
        Ok(match self {
            Each::Fstat => Ready::Fstat(open(&place.path(dir, "f0"), OFlags::RDONLY)?, count),
            Each::OpenReadClose => Ready::OpenReadClose(place.paths(dir, "f", self.files()), count),
            Each::CreateWriteClose => Ready::CreateWriteClose(place.paths(dir, "n", count)),
            Each::Rename => {
                let from = place.paths(dir, "n", count);
                Ready::Rename(from.into_iter().zip(place.paths(dir, "r", count)).collect())
            }
            Each::Unlink => Ready::Unlink(place.paths(dir, "n", count)),
        })
    }
}

/// An operation with all its names.
pub(super) enum Ready {
    Fstat(OwnedFd, usize),
    OpenReadClose(Vec<CString>, usize),
    CreateWriteClose(Vec<CString>),
    Rename(Vec<(CString, CString)>),
    Unlink(Vec<CString>),
}

impl Ready {
    pub(super) fn run(&self) -> Result<(), Fault> {
        match self {
            Ready::Fstat(file, count) => {
                let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
                for _ in 0..*count {
                    let stat = rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS);
                    black_box(stat.tried("stat", "an open file")?);
                }
            }
            Ready::OpenReadClose(paths, count) => {
                let mut buffer = [0; BYTES];
                for path in paths.iter().cycle().take(*count) {
                    let file = open(path, OFlags::RDONLY)?;
                    rustix::io::read(&file, &mut buffer).tried("read", as_path(path))?;
                }
                black_box(&buffer);
            }
            Ready::CreateWriteClose(paths) => create(paths)?,
            Ready::Rename(pairs) => {
                for (from, to) in pairs {
                    rustix::fs::renameat(CWD, from, CWD, to).tried("rename", as_path(from))?;
                }
            }
            Ready::Unlink(paths) => {
                for path in paths {
                    rustix::fs::unlink(path).tried("unlink", as_path(path))?;
                }
            }
        }
        Ok(())
    }
}

fn create(paths: &[CString]) -> Result<(), Fault> {
    let data = [3; BYTES];
    for path in paths {
        let file = super::create(as_path(path))?;
        rustix::io::write(&file, &data).tried("write", as_path(path))?;
    }
    Ok(())
}
