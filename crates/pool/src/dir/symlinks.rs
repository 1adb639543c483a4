//! What the pool shows names as: the options `symlinkify` and `follow-symlinks`.
//!
//! `symlinkify` shows files as symlinks to themselves on their branch, so that reading them bypasses the pool.
//!
//! `follow-symlinks` says which symlinks of a branch the pool shows as their targets. Without it no symlink is ever
//! followed (`beneath` enforces that). With it, a symlink to a target of the right kind is that target to clients,
//! even outside of the branch: the option is for branches that hold links to other disks. Its limits:
//!
//! * The daemon has access where clients do not. So it follows a link only if the daemon's user owns the link, or the
//!   link's owner owns the target: nobody can use a link to get at the files of others. Any other link stays a
//!   symlink, which the kernel follows with the client's permissions.
//! * Links are followed as text, one step at a time, and never through magic links such as `/proc/PID/fd`.
//! * Links never lead into the pool itself: a request that waits for another one could deadlock.

use crate::config::FollowSymlinks;
use crate::node::Node;
use canopy_branch::fs::beneath::{self, Dir};
use canopy_branch::fs::stat::{self, Attr, Time};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

/// The kernel's limit (MAXSYMLINKS in include/linux/namei.h).
const LINKS: u32 = 40;

/// Which files are shown as symlinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Symlinkify {
    None,
    /// Those without write permission for anybody that have not changed for so many seconds.
    After(i64),
    All,
}

/// How an operation treats files and symlinks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symlinks {
    pub(crate) mode: FollowSymlinks,
    pub(crate) symlinkify: Symlinkify,
    /// The device number of the pool's own mount.
    pub(crate) pool: Option<u64>,
}

impl Symlinks {
    /// Shows everything as what it is.
    pub(crate) const NEVER: Symlinks =
        Symlinks { mode: FollowSymlinks::Never, symlinkify: Symlinkify::None, pool: None };

    /// Returns the same settings for a file of this node: the kernel does not accept another type for a node.
    pub(crate) fn as_node(self, node: &Node) -> Symlinks {
        let symlinkify = if node.is_symlinkified() { Symlinkify::All } else { Symlinkify::None };
        Symlinks { symlinkify, ..self }
    }

    /// Returns true if everything is shown as what it is.
    pub(crate) fn is_plain(self) -> bool {
        self.mode == FollowSymlinks::Never && self.symlinkify == Symlinkify::None
    }

    /// Returns true if some files are shown as symlinks.
    pub(crate) fn may_show_symlinks(self) -> bool {
        self.symlinkify != Symlinkify::None
    }

    /// Returns true if a file with these attributes is shown as a symlink.
    pub(crate) fn shows_as_symlink(self, attr: &Attr) -> bool {
        const ANYBODY_WRITES: u32 = 0o222;
        match self.symlinkify {
            Symlinkify::None => false,
            Symlinkify::All => !attr.is_dir(),
            Symlinkify::After(seconds) => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
                let old = |time: Time| now.saturating_sub(time.sec) > seconds;
                !attr.is_dir() && attr.mode & ANYBODY_WRITES == 0 && old(attr.mtime) && old(attr.ctime)
            }
        }
    }

    /// Returns true if the option shows links to a target with these attributes as the target.
    fn wants(self, attr: &Attr) -> bool {
        match self.mode {
            FollowSymlinks::Never => false,
            FollowSymlinks::Directory => attr.is_dir(),
            FollowSymlinks::Regular => attr.is_regular(),
            FollowSymlinks::All => true,
        }
    }

    /// Returns the attributes of a name in a directory.
    pub(crate) fn at(self, dir: impl AsFd, name: &[u8]) -> Result<Attr, Errno> {
        let attr = stat::at(&dir, name)?;
        if attr.is_symlink() && self.mode != FollowSymlinks::Never {
            stat::of(self.pin(dir, name)?.as_fd())
        } else {
            Ok(attr)
        }
    }

    /// Opens a descriptor that pins the file under a name.
    pub(crate) fn pin(self, dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
        let found = beneath::pin(&dir, name)?;
        if self.mode == FollowSymlinks::Never {
            return Ok(found);
        }
        let link = stat::of(found.as_fd())?;
        if !link.is_symlink() {
            return Ok(found);
        }
        let Ok((target, attr)) = self.target(dir.as_fd(), &found) else { return Ok(found) };
        let trusted = link.uid == rustix::process::geteuid().as_raw() || link.uid == attr.uid;
        Ok(if trusted && self.wants(&attr) { target } else { found })
    }

    /// Opens a directory of a branch. Also returns whether a symlink is on the way to it.
    pub(crate) fn dir<'b>(self, root: BorrowedFd<'b>, path: &[u8]) -> Result<(Dir<'b>, bool), Errno> {
        match beneath::dir(root, path) {
            Err(errno @ (Errno::LOOP | Errno::NOTDIR)) if self.mode != FollowSymlinks::Never => {
                let mut at: Option<OwnedFd> = None;
                for part in path.split(|&byte| byte == b'/') {
                    let next = self.pin(at.as_ref().map_or(root, |fd| fd.as_fd()), part)?;
                    if !stat::of(next.as_fd())?.is_dir() {
                        return Err(errno);
                    }
                    at = Some(next);
                }
                at.map(|fd| (Dir::Opened(fd), true)).ok_or(errno)
            }
            other => other.map(|dir| (dir, false)),
        }
    }

    /// Follows a symlink in `dir` to its final target.
    fn target(self, dir: BorrowedFd<'_>, link: &OwnedFd) -> Result<(OwnedFd, Attr), Errno> {
        let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from_root = || rustix::fs::open(c"/", step, Mode::empty());
        let mut at = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        // Components still to walk, the next one last.
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        let mut read = |link: &OwnedFd, at: &mut OwnedFd, parts: &mut Vec<Vec<u8>>| {
            links += 1;
            let text = rustix::fs::readlinkat(link, c"", Vec::new())?.into_bytes();
            if links > LINKS || text.is_empty() {
                return Err(Errno::LOOP);
            }
            if text[0] == b'/' {
                *at = from_root()?;
            }
            parts
                .extend(text.split(|&byte| byte == b'/').rev().filter(|p| !p.is_empty()).map(<[u8]>::to_vec));
            Ok(())
        };
        read(link, &mut at, &mut parts)?;
        while let Some(part) = parts.pop() {
            let next = rustix::fs::openat(&at, part.as_slice(), step, Mode::empty())?;
            // Asks for the device only, which needs no request to a pool.
            if self.pool.is_some() && device(&next, c"").ok() == self.pool {
                return Err(Errno::LOOP);
            }
            if stat::of(next.as_fd())?.is_symlink() { read(&next, &mut at, &mut parts)? } else { at = next }
        }
        let attr = stat::of(at.as_fd())?;
        Ok((at, attr))
    }
}

/// Returns the device of a file, from what the kernel has cached.
pub(crate) fn device(dir: impl AsFd, path: impl rustix::path::Arg) -> Result<u64, Errno> {
    // AT_STATX_DONT_SYNC in include/uapi/linux/fcntl.h.
    let known = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::from_bits_retain(0x4000);
    let stat = rustix::fs::statx(dir, path, known, StatxFlags::TYPE)?;
    Ok(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor))
}
