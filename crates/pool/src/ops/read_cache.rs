//! Reading files from copies on a fast disk.
//!
//! A handle always has the original open; beside that, an open file may have a copy, from which the daemon reads while the copy
//! is known to be right. So it can go at any moment: when somebody opens the file for writing, truncates it, or changes it on its
//! branch. Names, attributes and locks are those of the original. Whoever uses the copy has looked at the original's times since
//! the last writer closed it.

use crate::node::Node;
use crate::node::read_cache::{CacheFigures, Home, OpenCopy, Waiting, parse_notes};
use crate::pool::{Op, Pool};
use canopy_branch::branch::Branch;
use canopy_branch::cached::{FileId, Store, Version};
use canopy_branch::fs::stat::{self, Attr};
use canopy_branch::relocate::lease::{self, LeasedFile};
use canopy_sys::shown::Show as _;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// Notes that a file is opened for reading. Returns its copy, if there is one and it is right now.
pub(crate) fn consult(
    op: &Op<'_>,
    node: &Node,
    branch: &Arc<Branch>,
    fd: &Arc<OwnedFd>,
    attr: &Attr,
) -> Option<OpenCopy> {
    let rules = &op.config.read_cache;
    if rules.is_empty() || attr.size == 0 || attr.dev != branch.dev || !attr.is_regular() {
        return None;
    }
    // A store through a mapping that is left of a writer changes the file, and nobody tells.
    if node.mapped.load(Ordering::Relaxed) {
        return None;
    }
    let path = op.nodes.locate(node.id).ok()?.1?;
    let rule = rules.rule(&path)?;
    let (id, version) = (FileId::of(branch.seed.number(), attr), Version::of(attr));
    let now = seconds_now();
    let (store, wanted) = op.read_cache.read(id, &version, now, |reads| reads.suffice(rule.when, now));
    // Not the descriptor itself: a move of the file waits for its users.
    if wanted && let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&**fd, 0) {
        let (branch, dirs) = (Arc::clone(branch), rule.dirs.clone());
        op.read_cache.wait(Waiting { id, branch, fd, dirs });
    }
    let copy = store.and_then(|store| match store.get(&id, &version) {
        Ok(fd) => Some(OpenCopy { fd: Arc::new(fd), version }),
        Err(errno) => {
            if errno == Errno::NOENT {
                op.read_cache.take(&id);
            }
            None
        }
    });
    op.read_cache.count(copy.is_some());
    copy
}

/// Notes that a file on a branch is gone.
pub(crate) fn gone(op: &Op<'_>, branch: &Branch, fd: &impl AsFd) {
    if !op.config.read_cache.is_empty()
        && let Ok(attr) = stat::of(fd.as_fd())
    {
        op.read_cache.gone(FileId::of(branch.seed.number(), &attr));
    }
}

/// Returns how many bytes the copies on the filesystem of a branch take.
pub(crate) fn bytes_on(op: &Op<'_>, branch: &Branch) -> u64 {
    if op.config.read_cache.is_empty() { 0 } else { op.read_cache.bytes(|store| store.dev == branch.dev) }
}

/// Removes copies from the filesystem of a branch, until so many bytes are available there or none is left. Returns whether any
/// went.
pub(crate) fn make_room(op: &Op<'_>, branch: &Branch, wanted: u64) -> bool {
    if op.config.read_cache.is_empty() || !op.read_cache.has_homes_on(branch.dev) {
        return false;
    }
    let mut any = false;
    // One that is open gives its room back when it is closed.
    loop {
        let available = op
            .read_cache
            .homes()
            .iter()
            .find(|home| home.store.dev == branch.dev)
            .map(|home| home.store.space());
        let Some(Ok((_, available))) = available else { return any };
        if available >= wanted || !drop_worst(op, |store| store.dev == branch.dev, wanted - available, None) {
            return any;
        }
        any = true;
    }
}

/// Removes the copies that are worth least, of so many bytes. Returns whether any went.
fn drop_worst(op: &Op<'_>, of: impl Fn(&Store) -> bool, bytes: u64, keep: Option<(u64, u64)>) -> bool {
    let mut any = false;
    for (id, store, version, bytes) in op.read_cache.take_worst(of, bytes, seconds_now(), keep) {
        match store.remove(&id, &version) {
            Ok(()) => any = true,
            Err(errno) => {
                tracing::debug!("a cached copy cannot be removed: {errno}");
                op.read_cache.give_back(id, store, version, bytes);
            }
        }
    }
    any
}

/// Returns what the caches hold, and what came of them.
pub fn figures(pool: &Pool) -> CacheFigures {
    pool.read_cache.figures()
}

/// Returns whether somebody is to look after the caches now. `round` counts the calls, about one in a second. Asks no disk.
pub fn is_due(pool: &Pool, round: u64) -> bool {
    let homes = pool.read_cache.homes();
    let rules = &pool.config().read_cache;
    let is_set_up =
        || rules.dirs().count() == homes.len() && rules.dirs().all(|(dir, _)| is_home(&homes, dir));
    pool.read_cache.is_waited_for()
        || !is_set_up() && round.is_multiple_of(TRIED_EVERY)
        || !rules.is_empty() && round.is_multiple_of(NOTED_EVERY)
}

/// Seconds between two attempts to use a directory.
const TRIED_EVERY: u64 = 5;
/// Seconds between two looks at the room that copies take, when reads are noted as well.
const NOTED_EVERY: u64 = 30;

fn is_home(homes: &[Home], dir: &Path) -> bool {
    homes.iter().any(|home| home.path == dir)
}

/// Copies what waits for it, and removes copies for which there is no room. Waits for disks.
pub fn tend(pool: &Pool) {
    let op = &Op::begin(pool);
    set_up(op);
    let gone = op.read_cache.take_gone().into_iter().filter_map(|id| Some((id, op.read_cache.take(&id)?)));
    for (id, (store, version)) in gone {
        let _ = store.remove(&id, &version);
    }
    while let Some(file) = op.read_cache.next_waiting() {
        let is_wanted = || pool.config().read_cache == op.config.read_cache;
        if let Err(errno) = copy(op, &file, &is_wanted) {
            tracing::debug!("a file on {} is not cached: {errno}", file.branch.path.shown());
        }
    }
    for home in op.read_cache.homes() {
        let Ok((held, most, _)) = room(op, &home) else { continue };
        if held > most {
            drop_worst(op, |store| std::ptr::eq(store, &*home.store), held - most, None);
        }
    }
    note(op);
}

/// Writes down the reads, for the next process.
fn note(op: &Op<'_>) {
    let Some(first) = op.read_cache.homes().into_iter().next() else { return };
    if let Some(notes) = op.read_cache.notes()
        && let Err(errno) = first.store.write_notes(notes.as_bytes())
    {
        tracing::debug!("reads cannot be noted in {}: {errno}", first.path.shown());
        op.read_cache.changed();
    }
}

/// Opens the directories that are to be used, and leaves those that are not.
fn set_up(op: &Op<'_>) {
    let dirs: HashMap<&Path, _> = op.config.read_cache.dirs().collect();
    op.read_cache.retain_homes(|path| dirs.get(path).copied());
    let homes = op.read_cache.homes();
    for (path, room) in op.config.read_cache.dirs().filter(|(dir, _)| !is_home(&homes, dir)) {
        match Store::open(path) {
            Ok((store, found)) => {
                let notes = store.read_notes().unwrap_or_default();
                let reads = parse_notes(&String::from_utf8_lossy(&notes));
                let store = Arc::new(store);
                let home = Home { path: path.to_owned(), room, store: Arc::clone(&store) };
                for surplus in op.read_cache.add_home(home, &found, reads) {
                    let _ = store.remove(&surplus.id, &surplus.version);
                }
            }
            Err(errno) => {
                if op.read_cache.unusable(path, errno) {
                    tracing::warn!("files are not cached in {}: {errno}", path.shown());
                }
            }
        }
    }
}

/// Returns how many bytes the copies of a directory take, how many they may take, and how many are available.
fn room(op: &Op<'_>, home: &Home) -> Result<(u64, u64, u64), Errno> {
    let (total, available) = home.store.space()?;
    let held = op.read_cache.bytes(|store| std::ptr::eq(store, &*home.store));
    // What the pool keeps free on a branch there is not for copies.
    let on_same = op.branches.iter().filter(|branch| branch.dev == home.store.dev);
    let kept = on_same.map(|branch| branch.min_free_or(op.config.min_free)).max().unwrap_or(0);
    Ok((held, home.room.most(held, total, available.saturating_sub(kept)), available))
}

fn copy(op: &Op<'_>, file: &Waiting, is_wanted: &dyn Fn() -> bool) -> Result<(), Errno> {
    let attr = file.branch.reads(|| stat::of(file.fd.as_fd()))?;
    let version = Version::of(&attr);
    if attr.nlink == 0 || attr.key().ino != file.id.ino || !version.rests(SystemTime::now()) {
        return Err(Errno::AGAIN);
    }
    let worth = op.read_cache.reads_of(&file.id).worth(seconds_now());
    let home = home_for(op, file, attr.size, worth)?;
    let source = LeasedFile::hold_if_possible(lease::readable(&file.fd)?)?;
    let bytes = home.store.put(&source, file.id.branch, &attr, is_wanted)?;
    if let Some((store, former)) = op.read_cache.made(file.id, &home.store, version, bytes) {
        let _ = store.remove(&file.id, &former);
    }
    Ok(())
}

/// Returns the directory for the copy of a file: the first where room is left, or is made by removing what is worth less.
fn home_for(op: &Op<'_>, file: &Waiting, size: u64, worth: (u64, u64)) -> Result<Home, Errno> {
    let homes: Vec<Home> =
        op.read_cache.homes().into_iter().filter(|home| file.dirs.contains(&home.path)).collect();
    // The file is on the fast disk itself.
    if homes.iter().any(|home| home.store.dev == file.branch.dev) {
        return Err(Errno::EXIST);
    }
    for makes_room in [false, true] {
        for home in &homes {
            let (held, most, _) = room(op, home)?;
            let wanted = held.saturating_add(size);
            if wanted > most && makes_room && size <= most {
                drop_worst(op, |store| std::ptr::eq(store, &*home.store), wanted - most, Some(worth));
            }
            let (held, most, _) = room(op, home)?;
            if held.saturating_add(size) <= most {
                return Ok(home.clone());
            }
        }
    }
    Err(Errno::NOSPC)
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}
