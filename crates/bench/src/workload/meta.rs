//! Workloads with names and attributes.

use super::{Error, ErrorContext, Sample, Target, Workload};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The size of files that are read or written.
pub(super) const BYTES: usize = 4096;

/// Which names are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NameKind {
    Existing,
    Missing,
}

/// stat(2) of names in one directory. If `warm`, they have been looked up before the pause, otherwise never.
pub(crate) struct Stat {
    pub key: &'static str,
    pub names: NameKind,
    pub warm: bool,
    pub count: usize,
}

impl Stat {
    fn dir(&self, round: usize) -> String {
        // In the floor, this name determines the number of files.
        format!("full.{}.{}-{round}", self.files(), self.key)
    }

    fn files(&self) -> usize {
        if self.names == NameKind::Existing { self.count } else { 0 }
    }

    fn paths(&self, target: &Target, round: usize) -> Vec<CString> {
        let prefix = if self.names == NameKind::Existing { "f" } else { "m" };
        target.paths(&self.dir(round), prefix, self.count)
    }
}

impl Workload for Stat {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        let dir = self.dir(round);
        target.fill(&dir, self.files(), 0)?;
        // The lookup of the directory is not measured.
        let path = target.root.join(&dir);
        rustix::fs::stat(&path).context("stat", &path)?;
        if self.warm {
            self.paths(target, round).iter().try_for_each(|path| stat(path, self.names))?;
        }
        Ok(())
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        Sample::of_slices(&self.paths(target, round), |path| stat(path, self.names))
    }

    fn clean_up(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.clear(&self.dir(round))
    }
}

fn stat(path: &CStr, names: NameKind) -> Result<(), Error> {
    match (rustix::fs::stat(path), names) {
        (Ok(stat), NameKind::Existing) => {
            black_box(stat);
            Ok(())
        }
        (Err(Errno::NOENT), NameKind::Missing) => Ok(()),
        (Ok(_), NameKind::Missing) => Err(Errno::EXIST).context("miss", as_path(path)),
        (Err(errno), _) => Err(errno).context("stat", as_path(path)),
    }
}

fn as_path(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

/// stat(2) of files that have just been written. The kernel has no valid size and times for them.
pub(crate) struct StatAfterWrite {
    pub key: &'static str,
    pub count: usize,
}

impl StatAfterWrite {
    fn dir(&self, round: usize) -> String {
        format!("full.{}.{}-{round}", self.count, self.key)
    }
}

impl Workload for StatAfterWrite {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.fill(&self.dir(round), self.count, BYTES)
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        let paths = target.paths(&self.dir(round), "f", self.count);
        let mut files = Vec::with_capacity(paths.len());
        for path in &paths {
            let file = open(path, OFlags::WRONLY)?;
            rustix::io::pwrite(&file, b"x", 0).context("write", as_path(path))?;
            files.push(file);
        }
        Sample::of_slices(&paths, |path| stat(path, NameKind::Existing))
    }

    fn clean_up(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.clear(&self.dir(round))
    }
}

fn open(path: &CStr, flags: OFlags) -> Result<OwnedFd, Error> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).context("open", as_path(path))
}

/// An operation that several threads can run at the same time; see [`super::concurrent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileOp {
    /// fstat(2) that the server must answer (`AT_STATX_FORCE_SYNC`).
    Fstat,
    OpenReadClose,
    CreateWriteClose,
    Rename,
    Unlink,
}

impl FileOp {
    /// How many existing files are used in turn. There are enough that none is still being closed.
    const FILES: usize = 200;

    /// Returns how many files the directory must have.
    pub(super) fn files(self) -> usize {
        match self {
            FileOp::Fstat => 1,
            FileOp::OpenReadClose => FileOp::FILES,
            _ => 0,
        }
    }

    /// Prepares the directory through the server, before the clock runs.
    pub(super) fn prepare(self, target: &Target, dir: &str, count: usize) -> Result<(), Error> {
        match self {
            FileOp::Rename | FileOp::Unlink => {
                target.paths(dir, "n", count).iter().try_for_each(|path| create(path))
            }
            FileOp::Fstat | FileOp::OpenReadClose => {
                // The kernel caches the names.
                target
                    .paths(dir, "f", self.files())
                    .iter()
                    .try_for_each(|path| stat(path, NameKind::Existing))
            }
            FileOp::CreateWriteClose => {
                let path = target.root.join(dir);
                rustix::fs::stat(&path).map(|_| ()).context("stat", &path)
            }
        }
    }

    /// Returns all operations with their paths.
    pub(super) fn prepared_ops(
        self,
        target: &Target,
        dir: &str,
        count: usize,
    ) -> Result<Vec<PreparedOp>, Error> {
        let names = |prefix| target.paths(dir, prefix, count).into_iter();
        Ok(match self {
            FileOp::Fstat => {
                let file = Arc::new(open(&target.path(dir, "f0"), OFlags::RDONLY)?);
                (0..count).map(|_| PreparedOp::Fstat(Arc::clone(&file))).collect()
            }
            FileOp::OpenReadClose => {
                let paths = target.paths(dir, "f", self.files());
                paths.iter().cycle().take(count).cloned().map(PreparedOp::OpenReadClose).collect()
            }
            FileOp::CreateWriteClose => names("n").map(PreparedOp::CreateWriteClose).collect(),
            FileOp::Rename => {
                names("n").zip(names("r")).map(|(from, to)| PreparedOp::Rename(from, to)).collect()
            }
            FileOp::Unlink => names("n").map(PreparedOp::Unlink).collect(),
        })
    }
}

/// An operation with its arguments.
pub(super) enum PreparedOp {
    Fstat(Arc<OwnedFd>),
    OpenReadClose(CString),
    CreateWriteClose(CString),
    Rename(CString, CString),
    Unlink(CString),
}

impl PreparedOp {
    pub(super) fn run(&self) -> Result<(), Error> {
        match self {
            PreparedOp::Fstat(file) => {
                let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
                let stat = rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS);
                black_box(stat.context("stat", "an open file")?);
                Ok(())
            }
            PreparedOp::OpenReadClose(path) => {
                let mut buffer = [MaybeUninit::uninit(); BYTES];
                let file = open(path, OFlags::RDONLY)?;
                black_box(rustix::io::read(&file, &mut buffer).context("read", as_path(path))?);
                Ok(())
            }
            PreparedOp::CreateWriteClose(path) => create(path),
            PreparedOp::Rename(from, to) => {
                rustix::fs::renameat(CWD, from, CWD, to).context("rename", as_path(from))
            }
            PreparedOp::Unlink(path) => rustix::fs::unlink(path).context("unlink", as_path(path)),
        }
    }
}

fn create(path: &CStr) -> Result<(), Error> {
    let file = super::create(as_path(path))?;
    rustix::io::write(&file, &[3; BYTES]).context("write", as_path(path)).map(|_| ())
}

/// One operation repeated by one thread.
pub(crate) struct SingleThread {
    pub key: &'static str,
    pub op: FileOp,
    pub count: usize,
}

impl SingleThread {
    fn dir(&self, round: usize) -> String {
        format!("full.{}.{}-{round}", self.op.files(), self.key)
    }
}

impl Workload for SingleThread {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.fill(&self.dir(round), self.op.files(), BYTES)?;
        self.op.prepare(target, &self.dir(round), self.count)
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        Sample::of_slices(&self.op.prepared_ops(target, &self.dir(round), self.count)?, PreparedOp::run)
    }

    fn clean_up(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.clear(&self.dir(round))
    }
}
