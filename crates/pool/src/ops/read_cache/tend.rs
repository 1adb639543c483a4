//! Making copies, and keeping what they take within bounds.

use super::{drop_worst, seconds_now};
use crate::node::read_cache::{Counts, Home, Waiting, Worth, parse_notes};
use crate::pool::{Op, Pool};
use canopy_branch::cached::{Store, Version};
use canopy_branch::fs::stat;
use canopy_branch::relocate::lease::{self, LeasedFile};
use canopy_sys::shown::Show as _;
use canopy_sys::thread::ioprio;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

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

/// What filesystems give files at least.
const BLOCK: u64 = 4096;

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
    op.read_cache.give_up_nameless();
    // Who reads a file meanwhile is not to notice.
    ioprio::yield_disks();
    while let Some(file) = op.read_cache.next_waiting() {
        if let Err(errno) = copy(op, &file, &|| pool.config().read_cache == op.config.read_cache) {
            tracing::debug!("a file on {} is not cached: {errno}", file.branch.path.shown());
            if file.asked {
                op.read_cache.failed(file.id, errno);
            }
        }
    }
    ioprio::reset();
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
                let noted = parse_notes(&String::from_utf8_lossy(&notes));
                let (store, counts) = (Arc::new(store), Arc::new(Counts::default()));
                let home = Home { path: path.to_owned(), room, store: Arc::clone(&store), counts };
                for surplus in op.read_cache.add_home(home, &found, noted) {
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
    let is_same = attr.key().ino == file.id.ino && Version::of(&attr) == file.version;
    if attr.nlink == 0 || !is_same || !op.read_cache.is_at_rest(&file.version) {
        return Err(Errno::AGAIN);
    }
    // One of another state is of no use any more, and only takes room.
    if let Some((store, former)) = op.read_cache.take(&file.id) {
        store.remove(&file.id, &former)?;
    }
    // What is asked for takes the place of nothing else that was.
    let worth =
        if file.asked { (true, Default::default()) } else { op.read_cache.worth_of(&file.id, seconds_now()) };
    let home = home_for(op, file, attr.size, worth)?;
    let source = LeasedFile::hold_if_possible(lease::readable(&file.fd)?)?;
    let grows = |copy: BorrowedFd<'_>| {
        file.spool.grows(copy);
        is_wanted()
    };
    let made = home.store.put(&source, file.id.branch, &attr, &grows);
    if made.is_err() {
        // Before whoever wants to write the file can.
        file.spool.give_up();
    }
    drop(source);
    if let Some((store, former)) = op.read_cache.made(file, &home.store, made?) {
        let _ = store.remove(&file.id, &former);
    }
    if !file.branch.is_remote() {
        op.read_cache.keep_original(&file.id, file.fd.as_fd(), seconds_now());
    }
    Ok(())
}

/// Returns the directory for the copy of a file: the first where room is left, or is made by removing what is worth less.
fn home_for(op: &Op<'_>, file: &Waiting, size: u64, worth: Worth) -> Result<Home, Errno> {
    let homes: Vec<Home> =
        op.read_cache.homes().into_iter().filter(|home| file.dirs.contains(&home.path)).collect();
    // The file is on the fast disk itself.
    if homes.iter().any(|home| home.store.dev == file.branch.dev) {
        return Err(Errno::EXIST);
    }
    // Copies take whole blocks.
    let size = size.next_multiple_of(BLOCK);
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
