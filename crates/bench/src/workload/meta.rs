//! Workloads with names and attributes.

use super::ops::{BYTES, FileOp, PreparedOp, as_path, open};
use super::{Error, ErrorContext, Sample, Target, Workload};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::time::Duration;

/// After this time a pool has been told of what was made on its branch.
const TOLD: Duration = Duration::from_millis(100);

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
            // A pool that is told of the files only after they were asked for has to ask for their attributes again.
            std::thread::sleep(TOLD);
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

/// One operation repeated by one thread.
pub(crate) struct SingleThread {
    pub key: &'static str,
    pub op: FileOp,
    pub count: usize,
}

impl SingleThread {
    fn dir(&self, round: usize) -> String {
        format!("full.{}.{}-{round}", self.op.files(self.count), self.key)
    }
}

impl Workload for SingleThread {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.fill(&self.dir(round), self.op.files(self.count), BYTES)?;
        self.op.prepare(target, &self.dir(round), self.count)
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        Sample::of_slices(&self.op.prepared_ops(target, &self.dir(round), self.count)?, PreparedOp::run)
    }

    fn clean_up(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.clear(&self.dir(round))
    }
}
