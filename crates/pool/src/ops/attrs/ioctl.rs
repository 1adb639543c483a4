//! The ioctls that are safe to forward: the flags and attributes of chattr(1), and fstrim(8) of the whole pool. One is the
//! pool's own: `RELOCATE`.
//!
//! Any other ioctl would reach the branch with the daemon's rights and unchecked arguments: a shutdown ioctl on the
//! pool would shut the branch down.

use crate::config::Func;
use crate::door::Act;
use crate::door::Caller;
use crate::ops::moves;
use crate::ops::resolve;
use crate::ops::resolve::Place;
use crate::ops::resolve::opened_copies::OpenedCopies;
use crate::ops::resolve::places::Purpose;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_branch::fs::beneath;
use canopy_sys::ioctl::fitrim::{self, FITRIM, TrimRange};
use canopy_sys::ioctl::inode_flags::{FS_APPEND_FL, FS_IMMUTABLE_FL, FlagIoctl, flag_ioctl};
use canopy_sys::ioctl::relocate::{RELOCATE, Relocation};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// The data that an ioctl returns to its caller.
#[derive(Clone, Copy, Debug)]
pub struct IoctlAnswer {
    buffer: [u8; 28],
    len: usize,
}

impl IoctlAnswer {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// Runs an ioctl on the file or directory of a node. `input` is the caller's argument.
///
/// Errors: `ENOTTY` for an ioctl that is not forwarded. `EPERM` for a change by a caller other than the owner and
/// root, and for a change of immutable or append-only without CAP_LINUX_IMMUTABLE, which ioctl_fs_setflags(2)
/// requires and the kernel leaves to the filesystem.
pub fn ioctl(pool: &Pool, caller: &Caller, id: NodeId, command: u32, input: &[u8]) -> Result<IoctlAnswer> {
    let _changes = pool.figures.changes();
    if command == FITRIM {
        return trim(&Op::begin(pool), caller, input);
    }
    if command == RELOCATE {
        let relocation = Relocation::from_bytes(input).ok_or(Error::Invalid)?;
        moves::relocate::relocate(pool, caller, id, &relocation)?;
        return Ok(IoctlAnswer { buffer: [0; 28], len: 0 });
    }
    let ioctl = FlagIoctl::from_command(command).ok_or(Error::UnknownIoctl)?;
    let mut buffer = [0; 28];
    if ioctl.writes() {
        buffer[..ioctl.size()].copy_from_slice(input.get(..ioctl.size()).ok_or(Error::Invalid)?);
    }
    let op = &mut Op::begin(pool);
    let node = op.nodes.get(id)?;
    let trust = if ioctl.writes() {
        resolve::places::trust_to_change(op, &node)
    } else {
        resolve::places::trust_to_read(op, &node)
    };
    let _held = op.using(Uses::node(id));
    let func = if ioctl.writes() { Func::Chmod } else { Func::Getattr };
    let kind = if node.is_dir() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
    if !ioctl.writes() {
        let mut read = |fd: BorrowedFd<'_>| {
            flag_ioctl(beneath::reopen(fd, OFlags::RDONLY | kind)?.as_fd(), ioctl, &mut buffer)
        };
        if node.is_dir() {
            resolve::places::ask_dir(op, &node, trust, func, read)?
        } else {
            let own = resolve::places::primary(op, &node)?;
            let failed = |errno| node.waits_for_lease(errno, false);
            own.branch.reads(|| read(own.fd.as_fd())).map_err(failed)?;
        }
        return Ok(IoctlAnswer { buffer, len: ioctl.size() });
    }
    let _not_cloning = resolve::locks::keep_from_cloning(op, &node)?;
    let places = resolve::places::places(op, &node, trust, Purpose::Attributes)?;
    let chosen = resolve::places::chosen_places(op, func, &places, false)?;
    let opened = OpenedCopies::open(op, &node, &chosen, OFlags::RDONLY | kind)?;
    let change = |place: &Place| {
        let file = opened.of(place)?;
        // The kernel does not check SetVersion. It has checked the others itself since Linux 5.13.
        let checked = ioctl != FlagIoctl::SetVersion && caller.is_checked();
        if !checked && !caller.owner_or_capable(&place.attr) {
            return Err(Errno::PERM);
        }
        let changed = guarded_bits(ioctl, &buffer) != current_guarded_bits(file, ioctl)?;
        if changed {
            op.admits(caller, Act::GuardFlags)?;
        }
        flag_ioctl(file, ioctl, &mut buffer.clone())
    };
    let changed = resolve::places::change_each(op, &places, &chosen, change, resolve::places::no_undo);
    node.copies_changed();
    changed?;
    // chattr(1) changes ctime, which the kernel does not expect from an ioctl.
    op.kernel.load().invalidate_attr(id);
    Ok(IoctlAnswer { buffer, len: 0 })
}

/// Discards the free space of all branches, once per filesystem, and skips filesystems that cannot. `input` is a
/// range that applies to each of them, and the answer is the number of bytes discarded in total. Holds no lock, as
/// this may take minutes.
///
/// Errors: `EOPNOTSUPP` when no filesystem can. Any other error is returned after all have been tried.
fn trim(op: &Op<'_>, caller: &Caller, input: &[u8]) -> Result<IoctlAnswer> {
    let input = input.first_chunk::<{ TrimRange::SIZE }>().ok_or(Error::Invalid)?;
    // The branches would check the daemon's rights.
    op.admits(caller, Act::Trim)?;
    let range = TrimRange::from_bytes(*input);
    let (mut trimmed, mut failed): (Option<u64>, _) = (None, Ok(()));
    for (index, branch) in op.branches.iter().enumerate() {
        if op.branches.iter().take(index).any(|before| before.dev == branch.dev) {
            continue;
        }
        let trim = || {
            let root = beneath::open(branch.root(), b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
            fitrim::trim(root.as_fd(), range)
        };
        match branch.reads(trim) {
            Ok(bytes) => trimmed = Some(trimmed.unwrap_or(0).saturating_add(bytes)),
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => {}
            Err(errno) => failed = failed.and(Err(errno)),
        }
    }
    failed?;
    let len = trimmed.ok_or(Errno::OPNOTSUPP)?;
    let mut buffer = [0; 28];
    buffer[..TrimRange::SIZE].copy_from_slice(&TrimRange { len, ..range }.to_bytes());
    Ok(IoctlAnswer { buffer, len: TrimRange::SIZE })
}

/// Returns the immutable and append-only bits in the ioctl's encoding.
fn guarded_bits(ioctl: FlagIoctl, buffer: &[u8; 28]) -> u32 {
    let word = u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    match ioctl {
        FlagIoctl::SetFlags | FlagIoctl::GetFlags => word & (FS_IMMUTABLE_FL | FS_APPEND_FL),
        // FS_XFLAG_IMMUTABLE and FS_XFLAG_APPEND in include/uapi/linux/fs.h.
        FlagIoctl::SetXattr | FlagIoctl::GetXattr => word & (0x8 | 0x10),
        FlagIoctl::SetVersion | FlagIoctl::GetVersion => 0,
    }
}

fn current_guarded_bits(fd: BorrowedFd<'_>, ioctl: FlagIoctl) -> Result<u32, Errno> {
    let get = match ioctl {
        FlagIoctl::SetFlags => FlagIoctl::GetFlags,
        FlagIoctl::SetXattr => FlagIoctl::GetXattr,
        _ => return Ok(0),
    };
    let mut buffer = [0; 28];
    flag_ioctl(fd, get, &mut buffer)?;
    Ok(guarded_bits(get, &buffer))
}
