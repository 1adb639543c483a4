//! A mount of this process: made, put into the tree, and taken out again.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use canopy_sys::fuse::dev;
use rustix::io::Errno;

use super::error::MountError;
use super::flags::bits;
use super::id::MountId;
use super::spec::{MountSpec, kernel_options};
use super::unmount::{is_dead, unmount_dead, unmount_path};
use super::{fusermount, replace};

/// A mount that is ours. Dropping it unmounts lazily, unless it has gone already.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    id: Option<MountId>,
    /// While it is not in the tree: the mount, and what it is to replace.
    detached: Option<(OwnedFd, MountId)>,
    armed: bool,
}

/// How a mount that was to replace another came into the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The other is detached. It ends when nobody uses it any more.
    Replaced,
    /// It hides the other: this kernel cannot replace it (before Linux 6.5, or a mount of another user), or it is
    /// not what was there at the beginning.
    OnTop,
}

/// Mounts, and returns the device to negotiate on ([`crate::Session::negotiate`]).
///
/// Nothing may touch the mountpoint's content before the session is served. A dead FUSE mount in the way is removed
/// first. Where `replaces` is asked for and possible, the mount is in the tree only after [`Mounted::attach`].
///
/// # Errors
/// See [`MountError`].
pub fn mount(spec: &MountSpec) -> Result<(OwnedFd, Mounted), MountError> {
    if is_dead(&spec.mountpoint) {
        let _ = unmount_dead(&spec.mountpoint);
    }
    let at_mountpoint = |error| MountError::Mountpoint { path: spec.mountpoint.clone(), error };
    let path = spec.mountpoint.canonicalize().map_err(at_mountpoint)?;
    let mode = path.metadata().map_err(at_mountpoint)?.mode();

    if spec.replaces
        && let Ok(over) = MountId::of(&path)
        && let Ok((device, tree)) = replace::make(spec, mode)
    {
        return Ok((device, Mounted { path, id: None, detached: Some((tree, over)), armed: true }));
    }
    let device = match direct(spec, &path, mode) {
        Err(error) if error.is_refusal() => fusermount::mount(spec, &path)?,
        other => other?,
    };
    let id = MountId::of(&path).inspect_err(|errno| tracing::warn!(%errno, "own mount not found")).ok();
    Ok((device, Mounted { path, id, detached: None, armed: true }))
}

fn direct(spec: &MountSpec, path: &Path, mode: u32) -> Result<OwnedFd, MountError> {
    let device = dev::open().map_err(MountError::Device)?;
    let data = CString::new(kernel_options(spec, device.as_raw_fd(), mode).join(","))
        .map_err(|_| MountError::Option)?;
    let flags = bits(spec.flags);
    let attempt = |source: &str, kind: &str| rustix::mount::mount(source, path, kind, flags, data.as_c_str());
    let mut result = attempt(&spec.fsname, &format!("fuse.{}", spec.subtype));
    if result == Err(Errno::NODEV) {
        // A kernel without subtypes.
        result = attempt(&format!("{}#{}", spec.subtype, spec.fsname), "fuse");
    }
    match result {
        Ok(()) => Ok(device),
        Err(errno) => Err(MountError::Mount { path: path.into(), error: errno.into() }),
    }
}

impl Mounted {
    /// Where it was mounted, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its number that is never used again (Linux 6.8), once it is in the tree.
    #[must_use]
    pub fn unique_id(&self) -> Option<u64> {
        self.id?.unique
    }

    /// Puts it into the tree, if it is not there yet.
    ///
    /// # Errors
    /// When it cannot be put there.
    pub fn attach(&mut self) -> Result<Placement, MountError> {
        let Some((tree, over)) = self.detached.take() else { return Ok(Placement::OnTop) };
        let failed = |error: io::Error| MountError::Mount { path: self.path.clone(), error };
        let is_there = || MountId::of(&self.path).is_ok_and(|there| there.is(over));
        let placement = if is_there() && replace::put_beneath(&tree, &self.path).is_ok() {
            // Somebody else may just have taken it away.
            if is_there() {
                unmount_path(&self.path, true).map_err(failed)?;
            }
            Placement::Replaced
        } else {
            replace::put_over(&tree, &self.path).map_err(|errno| failed(errno.into()))?;
            Placement::OnTop
        };
        self.id = MountId::of(&self.path).ok();
        Ok(placement)
    }

    /// Whether this mount is still there, and on top.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        match (self.id, MountId::of(&self.path)) {
            (Some(ours), Ok(there)) => ours.is(there),
            _ => false,
        }
    }

    /// Unmounts it; `lazy` detaches it from the tree at once and lets open files live on. A mount that has gone
    /// already is no error.
    ///
    /// # Errors
    /// `EBUSY` when it is in use and `lazy` is not set, `EPERM`.
    pub fn unmount(mut self, lazy: bool) -> io::Result<()> {
        self.take_down(lazy)?;
        self.armed = false;
        Ok(())
    }

    /// Leaves the mount where it is.
    pub fn release(mut self) {
        self.armed = false;
    }

    fn take_down(&self, lazy: bool) -> io::Result<()> {
        if self.is_mounted() { unmount_path(&self.path, lazy) } else { Ok(()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Err(error) = self.take_down(true) {
            tracing::error!(%error, path = %self.path.display(), "cannot unmount");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_has_gone_is_not_unmounted() {
        let other = MountId::of(Path::new("/proc")).unwrap();
        let gone = Mounted { path: "/".into(), id: Some(other), detached: None, armed: true };
        assert!(!gone.is_mounted());
        gone.unmount(false).unwrap();
    }
}
