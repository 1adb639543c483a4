//! A mount that this process owns.

use canopy_sys::shown::Show as _;
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
use super::unmount::{is_dead, unmount_dead, unmount_path, unmount_served};
use super::{fusermount, replace};

/// A mount that this process owns. Dropping it unmounts lazily, if it is still mounted.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    id: Option<MountId>,
    /// Before it is attached: the detached mount, and the identity of the mount it will replace.
    detached: Option<(OwnedFd, MountId)>,
    armed: bool,
}

/// How a mount that should replace another has been attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The other mount is detached. It ends once no process uses it.
    Replaced,
    /// It covers the other mount, because the kernel cannot replace that (before Linux 6.5, or a mount of another user),
    /// or because another filesystem has been mounted there in the meantime.
    OnTop,
}

/// Mounts, and returns the device for [`Session::negotiate`](crate::Session::negotiate).
///
/// The process must not access the mounted filesystem before the session is served. A dead FUSE mount at the mount point
/// is unmounted first. If the spec says `replaces` and the kernel can do it, the mount becomes visible only with
/// [`Mounted::attach`].
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
        && let Ok((device, tree)) = replace::mount_detached(spec, mode)
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
        // The kernel has no subtypes.
        result = attempt(&format!("{}#{}", spec.subtype, spec.fsname), "fuse");
    }
    match result {
        Ok(()) => Ok(device),
        Err(errno) => Err(MountError::Mount { path: path.into(), error: errno.into() }),
    }
}

impl Mounted {
    /// The mount of another process, whose device this process has taken over. `path` has no symbolic links.
    #[must_use]
    pub fn adopt(path: &Path) -> Mounted {
        let id = MountId::of(path).inspect_err(|errno| tracing::warn!(%errno, "own mount not found")).ok();
        Mounted { path: path.into(), id, detached: None, armed: true }
    }

    /// Returns the path of the mount point, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its unique id (Linux 6.8), which is never reused, once it is attached.
    #[must_use]
    pub fn unique_id(&self) -> Option<u64> {
        self.id?.unique
    }

    /// Attaches the mount at its mount point, if it is not attached yet.
    ///
    /// # Errors
    /// [`MountError::Mount`].
    pub fn attach(&mut self) -> Result<Placement, MountError> {
        let Some((tree, over)) = self.detached.take() else { return Ok(Placement::OnTop) };
        let failed = |error: io::Error| MountError::Mount { path: self.path.clone(), error };
        let is_there = || MountId::of(&self.path).is_ok_and(|there| there.is(over));
        let placement = if is_there() && replace::put_beneath(&tree, &self.path).is_ok() {
            // Another process may just have unmounted it.
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

    /// Returns whether this mount is still there and on top.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        match (self.id, MountId::of(&self.path)) {
            (Some(ours), Ok(there)) => ours.is(there),
            _ => false,
        }
    }

    /// Unmounts. With `lazy`, the mount is detached at once, and open files stay usable. It is not an error if the mount
    /// has already been unmounted.
    ///
    /// # Errors
    /// `EBUSY` when it is in use and `lazy` is not set, `EPERM`.
    pub fn unmount(mut self, lazy: bool) -> io::Result<()> {
        self.take_down(lazy)?;
        self.armed = false;
        Ok(())
    }

    /// Gives up ownership without unmounting.
    pub fn release(mut self) {
        self.armed = false;
    }

    fn take_down(&self, lazy: bool) -> io::Result<()> {
        if self.is_mounted() { unmount_served(&self.path, lazy) } else { Ok(()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Err(error) = self.take_down(true) {
            tracing::error!(%error, path = %self.path.shown(), "cannot unmount");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_is_gone_is_not_unmounted() {
        let other = MountId::of(Path::new("/proc")).unwrap();
        let gone = Mounted { path: "/".into(), id: Some(other), detached: None, armed: true };
        assert!(!gone.is_mounted());
        gone.unmount(false).unwrap();
    }
}
