//! Programs that walk a tree which they have walked before, also after the kernel has forgotten it.

use super::process::run;
use super::tree::{TREE, TreeShape, provide};
use super::{Error, ErrorContext, Sample, Target, Workload};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A program that walks the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    FindFiles,
    Du,
    FindNewer,
    Tar,
    GitStatus,
    LsRecursive,
}

impl Program {
    pub(crate) const ALL: [Program; 6] = [
        Program::FindFiles,
        Program::Du,
        Program::FindNewer,
        Program::Tar,
        Program::GitStatus,
        Program::LsRecursive,
    ];

    /// Returns the words of the command, which runs in the tree.
    pub(super) fn words(self) -> &'static [&'static str] {
        match self {
            Program::FindFiles => &["find", ".", "-type", "f"],
            Program::Du => &["du", "-s", "."],
            Program::FindNewer => &["find", ".", "-newer", "d0/f0"],
            // GNU tar reads no file if the archive is /dev/null.
            Program::Tar => &["tar", "-cf", "/dev/null", "."],
            Program::GitStatus => &["git", "status"],
            Program::LsRecursive => &["ls", "-lR", "."],
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Program::FindFiles => "find -type f",
            Program::Du => "du -s",
            Program::FindNewer => "find -newer",
            Program::Tar => "tar c to /dev/null",
            Program::GitStatus => "git status",
            Program::LsRecursive => "second ls -lR",
        }
    }

    /// Returns the program's name.
    pub(crate) fn name(self) -> &'static str {
        self.words()[0]
    }
}

/// A walk over names and attributes that the kernel has cached. The program's start and end are part of it.
pub(crate) struct Walk {
    pub program: Program,
    pub shape: TreeShape,
}

/// How often a round walks the tree; the shortest time counts. While other processes use the processor, a walk of the
/// branch waits for them more often than one of a pool, which sleeps in between.
const TIMES: u32 = 3;

impl Workload for Walk {
    fn prepare(&self, target: &Target, _round: usize) -> Result<(), Error> {
        provide(target, self.shape)
    }

    fn warm_up(&self, target: &Target) -> Result<(), Error> {
        run(self.program.words(), &target.root.join(TREE))
    }

    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        let tree = target.root.join(TREE);
        let mut best = Duration::MAX;
        for _ in 0..TIMES {
            let start = Instant::now();
            run(self.program.words(), &tree)?;
            best = best.min(start.elapsed());
        }
        Ok(Sample::of_operations(best * TIMES, TIMES as usize))
    }
}

/// A walk over names and attributes that the kernel has had for as long as the row pauses.
pub(crate) struct LaterWalk {
    pub program: Program,
    pub shape: TreeShape,
}

impl Workload for LaterWalk {
    fn prepare(&self, target: &Target, _round: usize) -> Result<(), Error> {
        provide(target, self.shape)?;
        run(self.program.words(), &target.root.join(TREE))
    }

    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        let start = Instant::now();
        run(self.program.words(), &target.root.join(TREE))?;
        Ok(Sample::of_operations(start.elapsed(), 1))
    }
}

/// A walk over names and attributes that the kernel has forgotten since the walk before. On a tmpfs, the branch has them in memory.
pub(crate) struct ColdWalk {
    pub program: Program,
    pub shape: TreeShape,
    /// How old the files are before the walk of which something may be kept.
    pub rested: Duration,
}

/// A directory without names. The program walks it first, so that its own pages are in memory.
const EMPTY: &str = "empty";

impl Workload for ColdWalk {
    fn prepare(&self, target: &Target, _round: usize) -> Result<(), Error> {
        let empty = target.root.join(EMPTY);
        fs::create_dir_all(&empty).context("make", &empty)?;
        provide(target, self.shape)
    }

    fn warm_up(&self, target: &Target) -> Result<(), Error> {
        let tree = target.root.join(TREE);
        let made = fs::metadata(&tree).and_then(|meta| meta.modified()).context("look at", &tree)?;
        sleep(self.rested.saturating_sub(made.elapsed().unwrap_or_default()));
        forget();
        run(self.program.words(), &tree)
    }

    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        forget();
        run(self.program.words(), &target.root.join(EMPTY))?;
        let start = Instant::now();
        run(self.program.words(), &target.root.join(TREE))?;
        Ok(Sample::of_operations(start.elapsed(), 1))
    }
}

/// Has the kernel forget names, attributes and listings that nobody uses, where that is allowed.
fn forget() {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}
