//! Taking over what another process has served: open handles, and the nodes that the kernel knows.
//!
//! Ids of nodes say where they are (`export`), so each is found again when the kernel first asks for it. The kernel may
//! hold more references to it than are counted here; it gives them back all at once. What is recorded of a node is the
//! inode number of a directory, which clients remember: one that changes looks to them like another directory.

use crate::export::StableId;
use crate::node::Orphan;
use crate::node::handles::FileHandle;
use crate::node::handles::records::{HandleRecord, HandleRecords, Recorded};
use crate::node::open_file::{self, FileLocation, FileUse, OpenFile, only_reads};
use crate::node::table::dir_numbers::{DirNumbers, NameHash};
use crate::ops::data;
use crate::ops::data::open::Room;
use crate::ops::names;
use crate::ops::names::lookup::Entry;
use crate::ops::resolve;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::{HandleId, NodeId};
use canopy_base::path::FileName;
use canopy_branch::branch::Branch;
use canopy_branch::fs::reserved::is_reserved;
use canopy_branch::fs::{generation, stat};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::borrow::Cow;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The numbers that one process gives to handles, and to nodes without stable ids.
const NUMBERS: u32 = 40;

/// The open files that were found in the records, by the numbers of their descriptors and by node.
#[derive(Default)]
struct FoundHandles {
    descriptors: HashMap<RawFd, Arc<OwnedFd>>,
    files: HashMap<NodeId, Arc<OpenFile>>,
    /// Those of files that were being moved: of the copy that was not completed, or of the file that it replaces.
    given_up: Vec<RawFd>,
}

/// Records handles there from now on, and takes over those that are recorded. `run`: how many processes have served
/// before this one, and it. The pool is connected to the kernel already. Returns the number of handles.
pub fn adopt_handles(pool: &Pool, records: Arc<HandleRecords>, run: u64) -> usize {
    pool.succeeds.store(run > 1, Ordering::Relaxed);
    pool.files.skip_to(run << NUMBERS | 1);
    pool.nodes.skip_to(run << NUMBERS | (NodeId::ROOT.0 + 1));
    let op = &Op::begin(pool);
    let left = records.left();
    let _ = pool.handle_records.set(records);
    let mut found = FoundHandles::default();
    let adopted = left.into_iter().filter_map(|(record, said)| {
        let handle = said.handle;
        let adopted = adopt_handle(op, record, &said, &mut found);
        adopted.inspect_err(|why| tracing::warn!("handle {} of {} is lost: {why}", handle.0, said.node)).ok()
    });
    let count = adopted.count();
    found.given_up.retain(|number| !found.descriptors.contains_key(number));
    found.given_up.sort_unstable();
    found.given_up.dedup();
    found.given_up.into_iter().filter_map(canopy_sys::fd::take_over).for_each(drop);
    count
}

/// Records directories there from now on, and takes over those that are recorded, for as long as the kernel knows them. Returns
/// how many.
pub fn adopt_numbers(pool: &Pool, numbers: DirNumbers) -> usize {
    let (count, removed) = pool.nodes.adopt_numbers(numbers);
    let op = Op::begin(pool);
    for removed in &removed {
        let branch = op.branches.iter().find(|branch| branch.seed.number() as u32 == removed.branch);
        let fd = canopy_sys::fd::take_over(removed.fd);
        let orphan = branch.cloned().zip(fd).map(|(branch, fd)| Orphan { branch, fd, kept: false });
        pool.nodes.adopt_removed(removed, orphan);
    }
    count + removed.len()
}

/// Records that the kernel does not know a directory any more that it knew from the process before.
pub fn forgotten(pool: &Pool, dir: NodeId) {
    pool.nodes.forget_left(dir);
}

/// Returns the number of the next handle that this thread opens, so that it can be noted before.
pub fn reserve_handle(pool: &Pool) -> HandleId {
    pool.files.reserve_id()
}

fn adopt_handle(
    op: &Op<'_>,
    record: HandleRecord,
    said: &Recorded,
    found: &mut FoundHandles,
) -> Result<(), Cow<'static, str>> {
    let number = match said.next_fd.filter(|&next| next != said.fd) {
        // The move has been finished, or taken back, from its journal.
        Some(next) => {
            let moved = has_moved(said.fd, next) || is_newer(said.fd, next);
            found.given_up.push(if moved { said.fd } else { next });
            if moved { next } else { said.fd }
        }
        None => said.fd,
    };
    let fd = match found.descriptors.get(&number) {
        Some(fd) => fd.clone(),
        None => {
            let fd = canopy_sys::fd::take_over(number).ok_or("its descriptor is not there")?;
            let fd = Arc::new(fd);
            found.descriptors.insert(number, fd.clone());
            fd
        }
    };
    let attr = stat::of(fd.as_fd()).map_err(|errno| errno.to_string())?;
    // Copies that were written together may have been equal, with the mark, when the process ended.
    let is_marked =
        open_file::writes(said.flags) && resolve::generations::outdate_others(op, fd.as_fd()).is_err();
    let on = |branch: &&Arc<Branch>| branch.seed.number() == said.branch;
    let moved = |branch: &&Arc<Branch>| number != said.fd && branch.dev == attr.dev;
    let branch = op.branches.iter().find(moved).or_else(|| op.branches.iter().find(on));
    let branch = branch.ok_or("its branch is not there")?;
    let stable = StableId { id: said.node, generation: said.generation };
    let node = op.nodes.adopt_open(stable, attr.key(), said.number);
    let open = found.files.entry(said.node).or_insert_with(|| {
        let reads = only_reads(said.flags).then(|| attr.key());
        let backing = (said.backing != 0).then(|| op.kernel.load().adopt_backing(said.backing));
        let location = FileLocation::new(branch.clone(), fd.clone(), reads);
        Arc::new(OpenFile::new(&node, location, backing, op.dir_cache.idle_files.begin()))
    });
    *node.open().lock() = Arc::downgrade(open);
    if is_marked {
        data::mirrors::part_before_change(&node);
    }
    let mut handle = FileHandle::adopted(
        node.clone(),
        (fd.clone(), branch.traffic),
        FileUse::new(open.clone()),
        (record, said),
    );
    if handle.maps_past_daemon() {
        data::mapped::may_be_mapped(op, &node, false);
    }
    if handle.passthrough
        && let Room::Ample(writer) = data::open::room(op, branch, &fd, said.flags, Some(&attr))
    {
        handle.headroom = Some(writer);
    }
    if handle.writable() {
        op.figures.writer_opened();
    }
    op.files.insert(said.handle, handle);
    Ok(())
}

/// Finds a node again that the kernel knows from another process, if it is not known here.
///
/// Errors: [`Error::Wait`] while it is being searched for.
pub fn recall(pool: &Pool, id: NodeId) -> Result<()> {
    if pool.nodes.hold(id) {
        return Ok(());
    }
    match names::export::find(pool, id).or_else(|error| recall_by_place(pool, id, error)) {
        // Requests at the same time may all find it, but the kernel may hold only one reference. A node that is counted
        // too often is never forgotten; one that is counted too seldom is found again.
        Ok(_) => {
            pool.nodes.give_back_but_one(id);
            // That process may have let programs map it.
            if let Ok(node) = pool.nodes.get(id)
                && !node.is_dir()
                && !pool.no_passthrough.load(Ordering::Relaxed)
            {
                data::mapped::may_be_mapped(&Op::begin(pool), &node, false);
            }
        }
        Err(wait @ Error::Wait(_)) => return Err(wait),
        Err(error) => tracing::debug!("{id}, which the kernel knows, is not found: {error}"),
    }
    Ok(())
}

/// Finds a directory by its place, and hands the kernel a reference to its node. `error`: why its id does not lead to it.
///
/// Errors: that one.
fn recall_by_place(pool: &Pool, id: NodeId, error: Error) -> Result<Entry> {
    let Some((parent, name)) = pool.nodes.left_place(id).filter(|_| error == Error::Stale) else {
        return Err(error);
    };
    recall(pool, parent)?;
    let op = &mut Op::begin(pool);
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::node(parent));
    let (path, dirs) = resolve::dirs::dirs(op, parent, trust)?;
    let mut on_branches = (0..op.branches.len()).filter_map(|index| dirs.get(index));
    let named = on_branches.find_map(|dir| find_name(dir, name).ok()?).ok_or(Error::Stale)?;
    let entry = names::lookup::enter(op, parent, &path, &dirs, &named)?;
    if entry.node != id {
        names::lookup::take_back(op, entry.node);
        return Err(Error::Stale);
    }
    Ok(entry)
}

/// Returns the name in an open directory that has this hash.
fn find_name(dir: BorrowedFd<'_>, wanted: NameHash) -> Result<Option<FileName>, Errno> {
    let opened =
        rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 32768];
    let mut entries = RawDir::new(opened.as_fd(), &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !is_reserved(name) && wanted.is(name) {
            return Ok(Some(FileName::from_slice(name)));
        }
    }
    Ok(None)
}

/// Returns whether a copy was to take the place of a file that had failed, and has become the newest.
fn is_newer(from: RawFd, to: RawFd) -> bool {
    let number = |number| {
        let fd = std::mem::ManuallyDrop::new(canopy_sys::fd::take_over(number)?);
        generation::read(fd.as_fd()).ok().flatten().map(|generation| generation.number)
    };
    number(to).is_some_and(|to| number(from).is_none_or(|from| from < to))
}

/// Returns whether a file that was being moved is the copy now.
fn has_moved(from: RawFd, to: RawFd) -> bool {
    // Only looked at: `adopt_handles` closes what is not taken over.
    let links = |number| {
        let fd = std::mem::ManuallyDrop::new(canopy_sys::fd::take_over(number)?);
        stat::of(fd.as_fd()).ok().map(|attr| attr.nlink)
    };
    links(from).is_none_or(|links| links == 0) && links(to).is_some_and(|links| links > 0)
}
