//! What must be in the trash of the disks, and what is there.

use std::fs;
use std::path::{Path, PathBuf};

use canopy_testkit::tree::{Entry, Kind};
use canopy_testkit::{Fields, Tree};

use crate::compare::{Paths, comparable, is_current};
use crate::plan::TOP;
use crate::world::World;

/// The directory on each disk that the pool does not show.
pub(crate) const DIR: &str = ".canopy-trash";

/// Something in the trash of a disk.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) disk: usize,
    pub(crate) batch: String,
    /// Below [`TOP`].
    pub(crate) path: Vec<u8>,
    pub(crate) entry: Entry,
    /// Nothing is below it.
    pub(crate) is_leaf: bool,
}

impl Found {
    pub(crate) fn is(&self, other: &Found) -> bool {
        (self.disk, &self.batch, &self.path) == (other.disk, &other.batch, &other.path)
    }

    /// Where it is.
    pub(crate) fn at(&self, world: &World) -> PathBuf {
        let below = Path::new(DIR).join(&self.batch).join(TOP).join(crate::compare::text(&self.path));
        world.disks[self.disk].path().join(below)
    }
}

/// Something that clients are about to remove, replace or empty, and that the trash is to keep.
#[derive(Debug, Clone)]
pub(crate) struct Going {
    pub(crate) path: Vec<u8>,
    pub(crate) entry: Entry,
    /// A client has it open, and may go on to change it.
    pub(crate) is_open: bool,
    /// It was on a disk on which old trash may have made room for it, or none could.
    pub(crate) is_crowded: bool,
}

/// What is known to be in the trash, in the order in which it came there.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) found: Found,
    is_open: bool,
}

/// What is in the trash of the disks that are there, below [`TOP`].
pub(crate) fn walk(world: &World) -> Vec<Found> {
    world.present().into_iter().flat_map(|disk| on_disk(world, disk)).collect()
}

fn on_disk(world: &World, disk: usize) -> Vec<Found> {
    let trash = world.disks[disk].contents().join(DIR);
    let mut found = Vec::new();
    for batch in fs::read_dir(&trash).into_iter().flatten().flatten() {
        let fields = Fields { dir_mtime: false, ..Fields::default() };
        let Ok(tree) = Tree::try_capture(&batch.path().join(TOP), fields) else { continue };
        let tree = comparable(tree, &Paths::new());
        let is_leaf = |path: &[u8]| {
            let below = [path, b"/"].concat();
            !tree.entries.range(below.clone()..).next().is_some_and(|(next, _)| next.starts_with(&below))
        };
        let name = batch.file_name().to_string_lossy().into_owned();
        found.extend(tree.entries.iter().map(|(path, entry)| Found {
            disk,
            batch: name.clone(),
            path: path.clone(),
            entry: entry.clone(),
            is_leaf: is_leaf(path),
        }));
    }
    found
}

/// Whether something in the trash is what was removed. Of a directory only its rights count: its attributes are those of when
/// something of it came there first.
pub(crate) fn is_it(going: &Entry, found: &Entry) -> bool {
    match (going.kind, found.kind) {
        (Kind::Dir, Kind::Dir) => (going.mode, going.uid, going.gid) == (found.mode, found.uid, found.gid),
        _ => is_current(going, found),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Known(Vec<Kept>);

impl Known {
    /// Notes what has come into the trash. Err: what is wrong with it.
    pub(crate) fn came(&mut self, going: &Going, all: &[Found]) -> Result<(), Came> {
        let of_path = || all.iter().filter(|found| found.path == going.path);
        let is_new =
            |found: &&Found| found.entry.kind == Kind::Dir || !self.0.iter().any(|kept| kept.found.is(found));
        let new: Vec<&Found> =
            of_path().filter(|found| is_it(&going.entry, &found.entry)).filter(is_new).collect();
        let Some(first) = new.first() else {
            let others =
                of_path().map(|found| format!("\n  disk{} {} {:?}", found.disk, found.batch, found.entry));
            return Err(Came::Nothing(others.collect()));
        };
        if first.entry.kind == Kind::Dir {
            return Ok(());
        }
        let kept = new.iter().map(|found| Kept { found: (*found).clone(), is_open: going.is_open });
        let twice = new.len() > 1;
        self.0.extend(kept);
        if twice { Err(Came::Twice) } else { Ok(()) }
    }

    /// What is no longer there as it was.
    pub(crate) fn missing(&self, world: &World, all: &[Found]) -> Vec<Kept> {
        let present = world.present();
        let stays = |kept: &&Kept| {
            let alike = |found: &Found| {
                found.is(&kept.found) && (kept.is_open || is_it(&kept.found.entry, &found.entry))
            };
            !present.contains(&kept.found.disk) || all.iter().any(alike)
        };
        self.0.iter().filter(|kept| !stays(kept)).cloned().collect()
    }

    /// Forgets what is not there any more.
    pub(crate) fn forget(&mut self, goes: impl Fn(&Found) -> bool) {
        self.0.retain(|kept| !goes(&kept.found));
    }

    /// Whether something of the same path came later.
    pub(crate) fn came_before_another(&self, found: &Found, all: &[Found]) -> bool {
        let Some(at) = self.0.iter().position(|kept| kept.found.is(found)) else { return false };
        let later =
            |kept: &Kept| kept.found.path == found.path && all.iter().any(|other| other.is(&kept.found));
        self.0[at + 1..].iter().any(later)
    }
}

/// What is wrong with what has come into the trash.
pub(crate) enum Came {
    Nothing(String),
    Twice,
}
