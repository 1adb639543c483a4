//! The ioctls that are known and safe to forward: the flags and attributes of chattr(1).
//!
//! Anything else would reach the branch with the daemon's rights and with arguments that nobody has
//! checked (a shutdown ioctl through the pool would shut the branch down).

use crate::beneath;
use crate::config::Func;
use crate::stat;
use crate::{Caller, Error, NodeId, Pool, Result};
use canopy_sys::inode_flags::{FS_APPEND_FL, FS_IMMUTABLE_FL, FlagIoctl, flag_ioctl};
use rustix::fd::AsFd;
use rustix::fs::OFlags;

/// What an ioctl hands back to its caller.
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

impl Pool {
    /// Runs an ioctl on the file or directory of a node. `input` is what the caller handed in.
    ///
    /// Errors: `ENOTTY` for an ioctl that is not forwarded, `EPERM` for a change by anyone but owner and root,
    /// and of immutable and append-only by anyone but root (ioctl_fs_setflags(2) asks for CAP_LINUX_IMMUTABLE;
    /// the kernel leaves that to us).
    pub fn ioctl(&self, caller: &Caller, id: NodeId, command: u32, input: &[u8]) -> Result<IoctlAnswer> {
        let ioctl = FlagIoctl::from_command(command).ok_or(Error::UnknownIoctl)?;
        let mut buffer = [0; 28];
        if ioctl.writes() {
            buffer[..ioctl.size()].copy_from_slice(input.get(..ioctl.size()).ok_or(Error::Invalid)?);
        }
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let node = self.nodes.get(id)?;
        let func = if ioctl.writes() { Func::Chmod } else { Func::Getattr };
        let kind = if node.is_dir() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        if !ioctl.writes() {
            self.ask(&branches, &node, func, |fd| {
                flag_ioctl(beneath::reopen(fd, OFlags::RDONLY | kind)?.as_fd(), ioctl, &mut buffer)
            })?;
            return Ok(IoctlAnswer { buffer, len: ioctl.size() });
        }
        self.on_copies(&branches, &node, func, None, None, |fd| {
            let file = beneath::reopen(fd, OFlags::RDONLY | kind)?;
            // The version the kernel hands on unseen; the others it checks itself, since Linux 5.13.
            let seen = ioctl != FlagIoctl::SetVersion && caller.is_checked();
            if !seen && !caller.owns(&stat::of(fd)?) {
                return Err(rustix::io::Errno::PERM);
            }
            let changed = guarded_bits(ioctl, &buffer) != current_guarded_bits(file.as_fd(), ioctl)?;
            if changed && !caller.may_guard_files() {
                return Err(rustix::io::Errno::PERM);
            }
            flag_ioctl(file.as_fd(), ioctl, &mut buffer.clone())
        })?;
        // chattr(1) moves ctime; the kernel does not expect that of an ioctl.
        self.kernel.load().invalidate_attr(id);
        Ok(IoctlAnswer { buffer, len: 0 })
    }
}

/// Immutable and append-only, in whichever encoding the ioctl has.
fn guarded_bits(ioctl: FlagIoctl, buffer: &[u8; 28]) -> u32 {
    let word = u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    match ioctl {
        FlagIoctl::SetFlags | FlagIoctl::GetFlags => word & (FS_IMMUTABLE_FL | FS_APPEND_FL),
        // FS_XFLAG_IMMUTABLE and FS_XFLAG_APPEND in include/uapi/linux/fs.h.
        FlagIoctl::SetXattr | FlagIoctl::GetXattr => word & (0x8 | 0x10),
        FlagIoctl::SetVersion | FlagIoctl::GetVersion => 0,
    }
}

fn current_guarded_bits(fd: rustix::fd::BorrowedFd<'_>, ioctl: FlagIoctl) -> Result<u32, rustix::io::Errno> {
    let get = match ioctl {
        FlagIoctl::SetFlags => FlagIoctl::GetFlags,
        FlagIoctl::SetXattr => FlagIoctl::GetXattr,
        _ => return Ok(0),
    };
    let mut buffer = [0; 28];
    flag_ioctl(fd, get, &mut buffer)?;
    Ok(guarded_bits(get, &buffer))
}
