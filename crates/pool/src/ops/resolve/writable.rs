//! Opening files for writing, also those whose mode keeps the daemon from it (`nfsopenhack`). Whatever opens a file to write or to
//! truncate it comes here: an open with O_TRUNC arrives as an open and a truncation.

use crate::config::NfsOpenHack;
use crate::node::{Node, open_file};
use crate::pool::Op;
use canopy_base::path::join;
use canopy_branch::branch::Branch;
use canopy_branch::fs::beneath::{self, ProcPath};
use canopy_branch::fs::stat;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;

/// Opens a file again, for other purposes. With `nfsopenhack`, this includes writing a file that its mode keeps the daemon from.
pub(crate) fn reopen(
    op: &Op<'_>,
    node: &Node,
    branch: &Branch,
    fd: &impl AsFd,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let refused = match beneath::reopen(fd, flags) {
        Err(Errno::ACCESS) if open_file::writes(flags) => Err(Errno::ACCESS),
        other => return other,
    };
    let chosen = match op.config.nfs_open_hack {
        NfsOpenHack::Off => false,
        NfsOpenHack::All => true,
        NfsOpenHack::Git => op.nodes.names(node.id).any(|(dir, name)| {
            let path = [branch.path.as_os_str().as_bytes(), b"/", &join(&dir, &name)].concat();
            path.windows(b"/.git/".len()).any(|part| part == b"/.git/")
        }),
    };
    if chosen {
        open_made_writable(fd, flags).map_err(|errno| match errno {
            Errno::AGAIN => errno,
            _ => Errno::ACCESS,
        })
    } else {
        refused
    }
}

/// Opens a file without any write permission for writing, by granting it to owner and group during the open.
fn open_made_writable(fd: &impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    const ANY_WRITE: u32 = 0o222;
    const OWNER_AND_GROUP_WRITE: u32 = 0o220;
    let mode = stat::of(fd.as_fd())?.mode & 0o7777;
    if mode & ANY_WRITE != 0 {
        // The mode is not what denied the open.
        return Err(Errno::ACCESS);
    }
    let path = ProcPath::of(fd);
    rustix::fs::chmod(path.as_bytes(), Mode::from_raw_mode(mode | OWNER_AND_GROUP_WRITE))?;
    let opened = beneath::reopen(fd, flags);
    rustix::fs::chmod(path.as_bytes(), Mode::from_raw_mode(mode))?;
    opened
}
