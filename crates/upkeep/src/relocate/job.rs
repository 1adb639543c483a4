//! What there is to move: the files of a tree, each with all names that were met.

use crate::error::Result;
use crate::filter::Filter;
use crate::keep::Keep;
use crate::pool_link::PoolLink;
use crate::stop::Stop;
use crate::survey::{Entry, FileCopy, walk_all};
use canopy_base::text::os_error;
use canopy_control::OsText;
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::{Serialize, Serializer};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Why a file stays of which no copy may be moved or removed.
pub(super) const SEVERAL: &str = "several branches hold a copy";

/// Why a file stays that is not on the filesystem of its branch.
pub(crate) const BELOW_ANOTHER: &str =
    "in a btrfs subvolume or another mount below its branch; move it yourself";

/// A file or symlink that may move.
#[derive(Debug)]
pub(crate) struct MoveCandidate {
    /// Relative to the root of the pool; at least one.
    pub(crate) names: Vec<PathBuf>,
    /// At least one; each is up to date.
    pub(crate) copies: Vec<FileCopy>,
    /// On how many disks a rule wants it.
    pub(crate) wanted: usize,
}

impl MoveCandidate {
    pub(crate) fn first(&self) -> &FileCopy {
        &self.copies[0]
    }
}

/// Something that stays where it is, and why.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stays {
    #[serde(serialize_with = "os_text")]
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

fn os_text<S: Serializer>(path: &Path, to: S) -> std::result::Result<S::Ok, S::Error> {
    OsText::from(path).serialize(to)
}

/// What was found in a tree.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) found: Vec<MoveCandidate>,
    /// Directories, each after what is above it, and the branches that hold them.
    pub(crate) dirs: Vec<(PathBuf, Vec<usize>)>,
    pub(crate) stays: Vec<Stays>,
    /// What several branches hold, one that is looked at among them.
    pub(crate) shared: Vec<Entry>,
    /// What belongs to its disk.
    pub(crate) belongs: Vec<PathBuf>,
    /// Directories that are not on the filesystem of their branch. Only the topmost of them is told.
    foreign: HashSet<(usize, PathBuf)>,
}

/// Looks through some files and trees of a pool, none within another, for what is on branches that `from` admits. What several
/// branches hold stays.
pub(crate) fn collect(
    pool: &PoolLink,
    starts: &[PathBuf],
    from: &dyn Fn(usize) -> bool,
    filter: &Filter,
    stop: &Stop,
) -> Result<Job> {
    let mut job = look_through(pool, starts, from, filter, stop)?;
    let stay = |entry: Entry| Stays { path: pool.mountpoint.join(entry.path), why: SEVERAL.into() };
    job.stays.extend(job.shared.drain(..).map(stay));
    Ok(job)
}

/// As [`collect`], with what several branches hold apart.
pub(crate) fn look_through(
    pool: &PoolLink,
    starts: &[PathBuf],
    from: &dyn Fn(usize) -> bool,
    filter: &Filter,
    stop: &Stop,
) -> Result<Job> {
    let mut job = Job::default();
    let mut known: HashMap<(u64, u64), usize> = HashMap::new();
    let roots: Vec<Option<u64>> = pool
        .branches
        .iter()
        .map(|branch| branch.stat(Path::new("")).ok())
        .map(|stat| stat.map(|stat| stat.st_dev))
        .collect();
    let failed = walk_all(pool, starts, &mut |entry| {
        // The root of the pool is no entry.
        let is_root = entry.path.as_os_str().is_empty();
        is_root || !stop.is_set() && job.add(pool, entry, from, &roots, &mut known)
    })?;
    stop.check()?;
    let stays = |(path, errno): (PathBuf, Errno)| Stays { path, why: os_error(errno) };
    job.stays.extend(failed.into_iter().map(stays));
    job.found.retain(|found| {
        filter.admits(&pool.mountpoint, found.names.iter().map(PathBuf::as_path), found.first())
    });
    job.shared.retain(|entry| {
        let of_branch = |copy: &&FileCopy| from(copy.branch);
        entry
            .copies
            .iter()
            .filter(of_branch)
            .any(|copy| filter.admits(&pool.mountpoint, std::iter::once(entry.path.as_path()), copy))
    });
    Ok(job)
}

impl Job {
    /// Records an entry. Returns whether to look at what is below it.
    fn add(
        &mut self,
        pool: &PoolLink,
        entry: &Entry,
        from: &dyn Fn(usize) -> bool,
        roots: &[Option<u64>],
        known: &mut HashMap<(u64, u64), usize>,
    ) -> bool {
        if pool.keep.stays(&entry.path) {
            if Keep::is_told(&entry.path) && entry.copies.iter().any(|copy| from(copy.branch)) {
                self.belongs.push(pool.mountpoint.join(&entry.path));
            }
            return false;
        }
        let is_foreign = |copy: &&FileCopy| roots[copy.branch] != Some(copy.stat.st_dev);
        let parent = entry.path.parent().unwrap_or(Path::new(""));
        if entry.is_dir() {
            for copy in entry.copies.iter().filter(|copy| from(copy.branch)).filter(is_foreign) {
                if !self.foreign.contains(&(copy.branch, parent.to_owned())) {
                    let place = pool.branches[copy.branch].path.join(&entry.path);
                    let why = "a btrfs subvolume or another mount below its branch; move its files yourself";
                    self.stays.push(Stays { path: place, why: why.into() });
                }
                self.foreign.insert((copy.branch, entry.path.clone()));
            }
            self.dirs.push((entry.path.clone(), entry.copies.iter().map(|copy| copy.branch).collect()));
            return true;
        }
        if !entry.copies.iter().any(|copy| from(copy.branch)) {
            return false;
        }
        let mut stay = |why: &str| {
            self.stays.push(Stays { path: pool.mountpoint.join(&entry.path), why: why.into() });
            false
        };
        let [copy] = entry.copies.as_slice() else {
            self.shared.push(entry.clone());
            return false;
        };
        if is_foreign(&copy) {
            // It is told once, of the topmost directory.
            return !self.foreign.contains(&(copy.branch, parent.to_owned())) && stay(BELOW_ANOTHER);
        }
        if !matches!(copy.kind(), FileType::RegularFile | FileType::Symlink) {
            return stay("sockets, fifos and devices do not move");
        }
        let linked = copy.stat.st_nlink > 1;
        if linked && let Some(index) = known.get(&copy.key()) {
            self.found[*index].names.push(entry.path.clone());
            return false;
        }
        if linked {
            known.insert(copy.key(), self.found.len());
        }
        self.found.push(MoveCandidate { names: vec![entry.path.clone()], copies: vec![*copy], wanted: 1 });
        false
    }
}
