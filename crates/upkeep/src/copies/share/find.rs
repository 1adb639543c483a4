//! Files of one branch that hold the same: by size first, then by the digest of their content.

use crate::error::Result;
use crate::filter::Filter;
use crate::held::{CHUNK, HeldCopy, Lease, NotTouched, read_exactly};
use crate::pace::Pace;
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::relocate::Stays;
use crate::stop::Stop;
use crate::survey::{Entry, FileCopy, walk_all};
use blake3::{Hash, Hasher};
use canopy_base::text::os_error;
use rustix::fs::FileType;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

/// A file of a branch, by one of its names.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Relative to the root of the pool.
    pub(super) path: PathBuf,
    pub(super) copy: FileCopy,
}

/// What was found in a tree.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Files of equal size on one filesystem of one branch, at least two.
    pub(super) groups: Vec<Vec<Item>>,
    pub(super) dirs: Vec<PathBuf>,
    pub(super) failed: Vec<Stays>,
}

/// Looks through some files and trees of a pool, none within another.
pub(super) fn look(pool: &PoolLink, starts: &[PathBuf], filter: &Filter, stop: &Stop) -> Result<Looked> {
    let mut sizes: BTreeMap<(usize, u64, u64), Vec<Item>> = BTreeMap::new();
    let (mut known, mut dirs) = (HashSet::new(), Vec::new());
    let mut take = |entry: &Entry| {
        if pool.keep.stays(&entry.path) {
            return false;
        }
        if entry.is_dir() {
            dirs.push(entry.path.clone());
        }
        for copy in &entry.copies {
            let counts = copy.kind() == FileType::RegularFile
                && copy.size() > 0
                && pool.branches[copy.branch].gives()
                && filter.admits(&pool.mountpoint, std::iter::once(entry.path.as_path()), copy);
            if counts && known.insert((copy.branch, copy.key())) {
                let item = Item { path: entry.path.clone(), copy: *copy };
                sizes.entry((copy.branch, copy.stat.st_dev, copy.size())).or_default().push(item);
            }
        }
        !stop.is_set()
    };
    let failed = walk_all(pool, starts, &mut take)?;
    stop.check()?;
    let failed = failed.into_iter().map(|(path, errno)| Stays { path, why: os_error(errno) }).collect();
    Ok(Looked { groups: sizes.into_values().filter(|group| group.len() > 1).collect(), dirs, failed })
}

/// What files are compared by.
pub(super) struct Reader<'r> {
    pub(super) pool: &'r PoolLink,
    pub(super) stop: &'r Stop,
    pub(super) pace: Pace,
    pub(super) progress: Progress,
}

impl Reader<'_> {
    /// Divides files of one size into those of one content, at least two. Returns also what could not be read.
    pub(super) fn divide(&mut self, group: Vec<Item>) -> Result<(Vec<Vec<Item>>, Vec<Stays>)> {
        let mut contents: Vec<(Hash, Vec<Item>)> = Vec::new();
        let mut failed = Vec::new();
        for item in group {
            let after = self.progress.position() + item.copy.size();
            self.progress.show(&self.pool.mountpoint.join(&item.path));
            match self.digest(&item) {
                Ok(digest) => match contents.iter_mut().find(|(known, _)| *known == digest) {
                    Some((_, items)) => items.push(item),
                    None => contents.push((digest, vec![item])),
                },
                Err(NotTouched::Stopped) => self.stop.check()?,
                Err(NotTouched::Because(why)) => {
                    failed
                        .push(Stays { path: self.pool.branches[item.copy.branch].path.join(item.path), why });
                }
            }
            self.progress.set_position(after);
        }
        let contents = contents.into_iter().map(|(_, items)| items);
        Ok((contents.filter(|items| items.len() > 1).collect(), failed))
    }

    fn digest(&mut self, item: &Item) -> Result<Hash, NotTouched> {
        let branch = &self.pool.branches[item.copy.branch];
        // A file that a program writes meanwhile is not equal to what was read, which is found out when they are joined.
        let held = HeldCopy::open(branch, &item.path, &item.copy, Lease::None)?;
        let (mut hasher, mut buffer, mut at) = (Hasher::new(), vec![0; CHUNK], 0_u64);
        while at < item.copy.size() {
            let length = usize::try_from(item.copy.size() - at).map_or(CHUNK, |rest| rest.min(CHUNK));
            read_exactly(held.file(), &mut buffer[..length], at)?;
            hasher.update(&buffer[..length]);
            at += length as u64;
            self.progress.inc(length as u64);
            self.pace.keep(length as u64, &mut || {
                if self.stop.is_set() { Err(NotTouched::Stopped) } else { Ok(()) }
            })?;
        }
        Ok(hasher.finalize())
    }
}
