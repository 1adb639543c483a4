//! Creating and opening a file in one request: create and tmpfile.

use super::open::Opened;
use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::door::Caller;
use crate::node::Node;
use crate::node::open_file::{self, FileLocation, FileUse, OpenFile};
use crate::node::passthrough::Sharing;
use crate::ops::data;
use crate::ops::freed;
use crate::ops::names;
use crate::ops::names::create::mode_in;
use crate::ops::names::lookup::Entry;
use crate::ops::owed;
use crate::ops::resolve;
use crate::ops::resolve::acl::At;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::join;
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::{self, Attr};
use canopy_branch::journal::Change;
use canopy_policy::Choice;
use canopy_sys::creds;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// Creates a file and opens it.
///
/// Errors: `EEXIST` if there is something of that name, also without `O_EXCL`: the kernel has checked nobody's rights to that. If the
/// kernel has sent this again, because it found the name missing again, what comes and goes there may go first.
pub fn create(
    pool: &Pool,
    caller: &Caller,
    parent: NodeId,
    name: &[u8],
    mode: u32,
    flags: u32,
) -> Result<(Entry, Opened)> {
    let opens = !OFlags::from_bits_retain(flags as _).contains(OFlags::EXCL);
    for tries in 0.. {
        let made = freed::make(pool, || create_new(pool, caller, parent, name, mode, flags));
        // It may have come after the pool has looked.
        let made = made.map_err(|error| if error.errno() == Errno::EXIST { Error::Exists } else { error });
        match made {
            Err(Error::Exists) if opens && pool.replaced.outlasts(caller.pid, parent, name, tries) => {}
            made => return made,
        }
        if pool.kernel.load().caller_is_killed() {
            break;
        }
    }
    Err(Error::Exists)
}

fn create_new(
    pool: &Pool,
    caller: &Caller,
    parent: NodeId,
    name: &[u8],
    mode: u32,
    flags: u32,
) -> Result<(Entry, Opened)> {
    let op = &mut Op::begin(pool);
    let _changes = pool.figures.changes();
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::name(parent, name));
    let (path, mut dirs) = resolve::dirs::dirs(op, parent, trust)?;
    let chosen = names::create::room_for(op, Func::Create, &path, &dirs, name, &[])?;
    let flags = data::open::branch_flags(op, flags) - OFlags::TRUNC;
    let create = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = |dir: BorrowedFd<'_>| rustix::fs::openat(dir, name, create, mode_in(caller, dir, mode)?);
    // A disk that does not take the number is not the file's.
    let begin = |dir: BorrowedFd<'_>, fd: BorrowedFd<'_>| {
        resolve::generations::begin_generation(op, fd, &path, name).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        })
    };
    let (index, fd) = open_new(op, caller, &mut dirs, (&path, name), &chosen, make, begin)?;
    op.dir_cache.admit(fd.as_fd()).inspect_err(|_| {
        // The file is new, and the kernel does not know it yet.
        let _ = dirs.unlink(index, name, AtFlags::empty());
    })?;
    let branch = &op.branches.as_slice()[index];
    dirs.name_created(name, index);
    let attr = branch.reads(|| stat::of(fd.as_fd()))?;
    let mirrors = if open_file::writes(flags) {
        data::mirrors::create(op, caller, &mut dirs, (&path, name), (index, &fd, attr.key()), mode)
    } else {
        None
    };
    let on = mirrors.iter().flat_map(|(_, on)| on).copied().chain([index]);
    owed::note(op, on, || Change::Clear(join(&path, name)));
    let node = op.nodes.hand_out_file(parent, name, branch, attr.key(), false)?;
    names::lookup::forget_surplus(op);
    if let Some((mirrors, _)) = mirrors {
        data::mirrors::attach(&node, mirrors);
        op.last_opens.put(attr.key(), 0);
    }
    let path = || join(&path, name);
    finish_create(op, caller, branch, node, fd, flags, attr, path)
}

/// Creates a file without a name in a directory (`O_TMPFILE`); link(2) may give it one.
pub fn tmpfile(
    pool: &Pool,
    caller: &Caller,
    parent: NodeId,
    mode: u32,
    flags: u32,
) -> Result<(Entry, Opened)> {
    freed::make(pool, || make_nameless(pool, caller, parent, mode, flags))
}

fn make_nameless(
    pool: &Pool,
    caller: &Caller,
    parent: NodeId,
    mode: u32,
    flags: u32,
) -> Result<(Entry, Opened)> {
    let op = &mut Op::begin(pool);
    let _changes = pool.figures.changes();
    let trust = resolve::dirs::cache_trust(op);
    let _held = op.using(Uses::node(parent));
    let (path, mut dirs) = resolve::dirs::dirs(op, parent, trust)?;
    dirs.first()?;
    let chosen = resolve::choose::choose_for_create(op, Func::Create, &dirs, (&path, b""), &[])?;
    let exclusive = OFlags::from_bits_retain(flags as _) & OFlags::EXCL;
    let flags = data::open::branch_flags(op, flags) - OFlags::TRUNC;
    let create = flags | exclusive | OFlags::TMPFILE | OFlags::CLOEXEC;
    let make = |dir: BorrowedFd<'_>| rustix::fs::openat(dir, c".", create, mode_in(caller, dir, mode)?);
    let (index, fd) = open_new(op, caller, &mut dirs, (&path, b""), &chosen, make, |_, _| Ok(()))?;
    op.dir_cache.admit(fd.as_fd())?;
    let branch = &op.branches.as_slice()[index];
    let attr = branch.reads(|| stat::of(fd.as_fd()))?;
    let node = op.nodes.hand_out_nameless(branch, attr.key());
    finish_create(op, caller, branch, node, fd, flags, attr, Default::default)
}

/// Creates a file on the first chosen branch or, if that is full or fails, on the next one the policy picks. `begin` is what
/// is done with a new file in its directory, as the daemon; one for which it fails is not there any more.
fn open_new<'b>(
    op: &'b Op<'_>,
    caller: &Caller,
    dirs: &mut MergedDir<'b>,
    (path, name): (&[u8], &[u8]),
    chosen: &Choice,
    make: impl Fn(BorrowedFd<'_>) -> Result<OwnedFd, Errno>,
    begin: impl Fn(BorrowedFd<'_>, BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<(usize, OwnedFd)> {
    let mut index = *chosen.first().ok_or(Error::Absent)?;
    let mut full = SmallVec::new();
    loop {
        let made = op.branches[index].changes(|| {
            names::create::bring_dir(op, dirs, index, path)?;
            let dir = dirs.get(index).ok_or(Errno::NOENT)?;
            let fd = {
                let _as_caller = creds::assume(caller.uid, caller.gid, caller.umask)?;
                make(dir)?
            };
            begin(dir, fd.as_fd())?;
            Ok(fd)
        });
        match made {
            Ok(fd) => return Ok((index, fd)),
            Err(errno)
                if names::create::tries_elsewhere(
                    op,
                    errno,
                    Func::Create,
                    dirs,
                    (path, name),
                    &[index],
                    &mut full,
                ) =>
            {
                let next = resolve::choose::choose_for_create(op, Func::Create, dirs, (path, name), &full)?;
                index = *next.first().ok_or(Error::Absent)?;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn finish_create(
    op: &Op<'_>,
    caller: &Caller,
    branch: &Arc<Branch>,
    node: Arc<Node>,
    fd: OwnedFd,
    flags: OFlags,
    attr: Attr,
    path: impl FnOnce() -> canopy_base::path::PoolPath,
) -> Result<(Entry, Opened)> {
    let fd = Arc::new(fd);
    let (open, sharing, room) = {
        let mut slot = node.open().lock();
        let (backing, room) = data::open::register(op, &node, branch, &fd, flags, &attr);
        let sharing = Sharing::First { backing: backing.as_ref().map(|file| file.id()) };
        let place = FileLocation::new(branch.clone(), fd.clone(), None);
        let open =
            FileUse::new(Arc::new(OpenFile::new(&node, place, backing, op.dir_cache.idle_files.begin())));
        *slot = Arc::downgrade(&open);
        (open, sharing, room)
    };
    let shown = if op.config.inode.uses_path(false) {
        resolve::show(op, &node, branch, &path(), attr, At::Opened(fd.as_fd()))
    } else {
        resolve::show(op, &node, branch, b"", attr, At::Opened(fd.as_fd()))
    };
    let entry = Entry::new(&node, shown);
    let opened =
        data::open::opened(op, caller, &node, (fd, branch.traffic), flags, open, sharing, room, false)?;
    Ok((entry, opened))
}
