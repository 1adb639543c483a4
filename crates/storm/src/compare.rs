//! Comparing the pool, the plain directory and the disks.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use canopy_testkit::model::{Subject, is_explicit};
use canopy_testkit::tree::{Entry, Kind};
use canopy_testkit::{Fields, Tree};

use crate::world::World;

/// Paths below the directory that the storm plays in.
pub(crate) type Paths = BTreeSet<Vec<u8>>;

/// The plain directory.
pub(crate) fn expected(world: &mut World) -> Result<Tree, String> {
    world.reference.capture().map(|tree| comparable(tree, &Paths::new()))
}

/// Compares the pool with the plain directory, without what nobody can reach.
pub(crate) fn pool(world: &mut World, hidden: &Paths) -> Result<(), String> {
    let plain = comparable(world.reference.capture()?, hidden);
    let pool =
        comparable(world.client.capture().map_err(|error| format!("reading the pool: {error}"))?, hidden);
    let (mut plain, mut pool) = (plain, pool);
    if world.survives() {
        // What shows that two names are one file is the number, which another process may compute anew for one of them.
        plain.entries.values_mut().chain(pool.entries.values_mut()).for_each(|entry| entry.group = None);
    }
    let diff = plain.diff(&pool);
    if diff.is_empty() {
        Ok(())
    } else {
        Err(format!("the trees differ (- plain, + pool):\n{diff}{}", where_are(world, &plain, &pool)))
    }
}

/// Tells which disks hold what differs.
fn where_are(world: &World, plain: &Tree, pool: &Tree) -> String {
    let all: BTreeSet<&Vec<u8>> = plain.entries.keys().chain(pool.entries.keys()).collect();
    let differ = all.into_iter().filter(|path| plain.get(path) != pool.get(path));
    let differ: Vec<String> =
        differ.take(12).map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    // What a directory is on each disk decides about what is made in it.
    let parents = differ.iter().filter_map(|path| Some(path.rsplit_once('/')?.0.to_owned()));
    let told: BTreeSet<String> = parents.chain(differ.iter().cloned()).collect();
    told.iter().map(|path| format!("  {path}: {}\n", on_each(world, path))).collect()
}

/// Tells what each disk holds under a path.
fn on_each(world: &World, path: &str) -> String {
    let copy = |disk: usize| {
        let meta = world.on(disk, path).symlink_metadata().ok()?;
        let state = if world.present().contains(&disk) { "" } else { " (away)" };
        let (mode, uid, gid, len) = (meta.mode(), meta.uid(), meta.gid(), meta.len());
        Some(format!("disk{disk}{state} mode {mode:o} owner {uid}:{gid} {len} bytes"))
    };
    (0..world.disks.len()).filter_map(copy).collect::<Vec<String>>().join(", ")
}

/// What is on a disk, without what clients do not see.
pub(crate) fn on_disk(world: &World, disk: usize) -> Tree {
    let tree = Tree::try_capture(&world.on(disk, ""), Fields { root: true, ..Fields::default() })
        .unwrap_or_default();
    let mut tree = comparable(tree, &Paths::new());
    tree.entries.retain(|path, _| !path.split(|byte| *byte == b'/').any(|name| name.starts_with(b".canopy")));
    tree
}

/// Whether an entry on a disk is as it should be. Its links are not looked at.
pub(crate) fn is_current(expected: &Entry, found: &Entry) -> bool {
    let alike = |entry: &Entry| Entry { nlink: 0, group: None, data: None, ..entry.clone() };
    alike(expected) == alike(found)
}

/// The paths that no disk of the pool, except one, holds as they should be, with all other names of these files.
pub(crate) fn only_on(world: &mut World, disk: usize) -> Result<Paths, String> {
    let expected = expected(world)?;
    let others: Vec<Tree> = world
        .present()
        .into_iter()
        .filter(|other| *other != disk)
        .map(|other| on_disk(world, other))
        .collect();
    let held = |path: &Vec<u8>, entry: &Entry| {
        others.iter().any(|tree| tree.get(path).is_some_and(|found| is_current(entry, found)))
    };
    let alone: Vec<(&Vec<u8>, &Entry)> =
        expected.entries.iter().filter(|(path, entry)| !held(path, entry)).collect();
    let groups: BTreeSet<&Vec<u8>> = alone.iter().filter_map(|(_, entry)| entry.group.as_ref()).collect();
    let linked = |entry: &Entry| entry.group.as_ref().is_some_and(|group| groups.contains(group));
    let all = expected
        .entries
        .iter()
        .filter(|(path, entry)| alone.iter().any(|(known, _)| known == path) || linked(entry));
    Ok(all.map(|(path, _)| path.clone()).filter(|path| !path.is_empty()).collect())
}

/// What is wrong with the copies, once the mover has had its way: each file that a rule wants twice is on two disks, and all
/// copies of a file are what the file is.
pub(crate) fn copies(world: &mut World, hidden: &Paths) -> Result<Vec<String>, String> {
    let expected = expected(world)?;
    let disks: Vec<(usize, Tree)> =
        world.present().into_iter().map(|disk| (disk, on_disk(world, disk))).collect();
    let mut wrong = Vec::new();
    let files =
        expected.entries.iter().filter(|(path, entry)| entry.kind == Kind::File && !hidden.contains(*path));
    for (path, entry) in files {
        let found: Vec<(usize, &Entry)> =
            disks.iter().filter_map(|(disk, tree)| Some((*disk, tree.get(path)?))).collect();
        let (good, bad): (Vec<_>, Vec<_>) = found.iter().partition(|(_, copy)| is_current(entry, copy));
        let wanted = if world.plan.copies(path) { world.most_copies() } else { 1 };
        if good.len() < wanted || !bad.is_empty() {
            let told = |list: &[(usize, &Entry)]| -> String {
                list.iter()
                    .map(|(disk, copy)| format!(" disk{disk} ({} bytes, mode {:o})", copy.size, copy.mode))
                    .collect()
            };
            wrong.push(format!(
                "{} ({} bytes, mode {:o}): current on{}; not so on{}",
                String::from_utf8_lossy(path),
                entry.size,
                entry.mode,
                told(&good),
                told(&bad)
            ));
        }
    }
    Ok(wrong)
}

/// Removes the times that the system has set, because they differ between the two sides, and what is hidden.
pub(crate) fn comparable(mut tree: Tree, hidden: &Paths) -> Tree {
    tree.entries.retain(|path, _| !is_below(path, hidden));
    for entry in tree.entries.values_mut() {
        // A directory has the newest time of those on the disks that are there.
        entry.mtime = entry.mtime.filter(|time| is_explicit(time.0) && entry.kind != Kind::Dir);
        entry.xattrs.retain(|name, _| !name.starts_with(b"user.canopy."));
    }
    tree
}

/// Whether a path is one of these, or below one.
pub(crate) fn is_below(path: &[u8], tops: &Paths) -> bool {
    tops.iter().any(|top| is_within(path, top))
}

pub(crate) fn is_within(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top).is_some_and(|rest| top.is_empty() || rest.is_empty() || rest.starts_with(b"/"))
}

/// Paths as text.
pub(crate) fn text(path: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(path))
}
