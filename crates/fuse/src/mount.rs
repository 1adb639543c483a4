//! Putting a connection into the tree, and taking it out again.
//!
//! A mount in the tree is known by its mount id, not by its path: something else can be mounted at the same place
//! later, and that is not ours to unmount.

mod fusermount;
mod remount;
mod replace;

pub use remount::{TIMES, remount};

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bitflags::bitflags;
use canopy_sys::fuse_dev;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags as Ms, UnmountFlags};

bitflags! {
    /// Flags of the mount, by their names in mount(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MountFlags: u32 {
        /// Nothing can be changed.
        const RDONLY = 1 << 0;
        /// Set-id programs run as their caller.
        const NOSUID = 1 << 1;
        /// Device files cannot be opened.
        const NODEV = 1 << 2;
        /// Programs cannot be run.
        const NOEXEC = 1 << 3;
        /// Every write is synchronous.
        const SYNCHRONOUS = 1 << 4;
        /// Every change of a directory is synchronous.
        const DIRSYNC = 1 << 5;
        /// Access times stay.
        const NOATIME = 1 << 6;
        /// Access times of directories stay.
        const NODIRATIME = 1 << 7;
        /// Access times change once after each change of the file, and once a day.
        const RELATIME = 1 << 8;
        /// Access times change with every read.
        const STRICTATIME = 1 << 9;
        /// Times reach the disk late.
        const LAZYTIME = 1 << 10;
    }
}

/// For each flag: mount(2)'s bit and the word that a helper takes.
const FLAGS: [(MountFlags, Ms, &str); 11] = [
    (MountFlags::RDONLY, Ms::RDONLY, "ro"),
    (MountFlags::NOSUID, Ms::NOSUID, "nosuid"),
    (MountFlags::NODEV, Ms::NODEV, "nodev"),
    (MountFlags::NOEXEC, Ms::NOEXEC, "noexec"),
    (MountFlags::SYNCHRONOUS, Ms::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, Ms::DIRSYNC, "dirsync"),
    (MountFlags::NOATIME, Ms::NOATIME, "noatime"),
    (MountFlags::NODIRATIME, Ms::NODIRATIME, "nodiratime"),
    (MountFlags::RELATIME, Ms::RELATIME, "relatime"),
    (MountFlags::STRICTATIME, Ms::STRICTATIME, "strictatime"),
    (MountFlags::LAZYTIME, Ms::LAZYTIME, "lazytime"),
];

/// What to mount, where.
#[derive(Clone, Debug)]
pub struct MountSpec {
    /// A directory or a regular file; the root of the mount has to be of the same kind.
    pub mountpoint: PathBuf,
    /// Shown as the source of the mount.
    pub fsname: String,
    /// The filesystem's type is `fuse.` and this.
    pub subtype: String,
    /// Flags of mount(2) that hold for the whole mount.
    pub flags: MountFlags,
    /// The kernel checks permissions by mode (and ACL).
    pub default_permissions: bool,
    /// Others than the mounting user may use the mount. Not root: only if `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
    /// Largest READ, in bytes; `None` leaves it to what INIT agrees upon.
    pub max_read: Option<u32>,
    /// Further options in the kernel's form, `name` or `name=value`.
    pub extra: Vec<String>,
    /// It takes the place of what is mounted there, which is detached: [`Mounted::show`].
    pub replaces: bool,
}

impl MountSpec {
    /// A mount with nothing special about it.
    pub fn new(
        mountpoint: impl Into<PathBuf>,
        fsname: impl Into<String>,
        subtype: impl Into<String>,
    ) -> MountSpec {
        MountSpec {
            mountpoint: mountpoint.into(),
            fsname: fsname.into(),
            subtype: subtype.into(),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            default_permissions: false,
            allow_other: false,
            max_read: None,
            extra: Vec::new(),
            replaces: false,
        }
    }
}

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mountpoint {path}: {error}")]
    Mountpoint {
        /// As it was given.
        path: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// /dev/fuse cannot be opened.
    #[error("cannot open /dev/fuse: {0}")]
    Device(io::Error),
    /// An option cannot be handed to the kernel.
    #[error("an option contains a NUL byte")]
    Option,
    /// mount(2) failed.
    #[error("mounting on {path}: {error}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Neither permitted to mount nor a `fusermount3` to ask.
    #[error("not permitted to mount, and no fusermount3 or fusermount was found")]
    NoHelper,
    /// fusermount3 failed.
    #[error("{program} failed: {message}")]
    Helper {
        /// Which program was run.
        program: String,
        /// What it printed, or how it ended.
        message: String,
    },
}

impl MountError {
    /// Whether a set-uid helper may succeed where we did not. `/dev/fuse` is for root alone on some systems.
    fn is_refusal(&self) -> bool {
        let (MountError::Device(error) | MountError::Mount { error, .. }) = self else { return false };
        error.kind() == io::ErrorKind::PermissionDenied
    }

    /// The errno to report.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            MountError::Mountpoint { error, .. }
            | MountError::Device(error)
            | MountError::Mount { error, .. } => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            MountError::Option => Errno::INVAL.raw_os_error(),
            MountError::NoHelper | MountError::Helper { .. } => Errno::PERM.raw_os_error(),
        }
    }
}

/// Which mount is meant.
///
/// The unique id (Linux 6.8) is never used again. The plain id may be, so it only counts where the other is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    unique: Option<u64>,
    plain: Option<u64>,
}

/// `STATX_MNT_ID_UNIQUE`, include/uapi/linux/stat.h.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

impl Identity {
    /// What is mounted at `path` now, topmost. No request is sent to a FUSE server for it.
    fn of(path: &Path) -> Result<Identity, Errno> {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
        let unique = rustix::fs::statx(CWD, path, flags, MNT_ID_UNIQUE).ok();
        let unique =
            unique.filter(|stat| stat.stx_mask & MNT_ID_UNIQUE.bits() != 0).map(|stat| stat.stx_mnt_id);
        let identity = Identity { unique, plain: plain_id(path) };
        if identity.plain.is_none() && identity.unique.is_none() { Err(Errno::NOENT) } else { Ok(identity) }
    }

    fn is(self, other: Identity) -> bool {
        match (self.unique, other.unique) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.plain.is_some() && self.plain == other.plain,
        }
    }
}

/// The number of the topmost mount at `path` that is never used again (Linux 6.8). No request is sent for it.
#[must_use]
pub fn unique_id(path: &Path) -> Option<u64> {
    Identity::of(path).ok()?.unique
}

/// The mount id as mountinfo has it. Found without asking for attributes: the kernel refuses those once a server has
/// given nonsense about the root, and the mount must be known even then.
fn plain_id(path: &Path) -> Option<u64> {
    let named =
        rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", named.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// A mount that is ours. Dropping it unmounts lazily, unless it has gone already.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    identity: Option<Identity>,
    /// While it is not in the tree: the mount, and what it is to replace.
    aside: Option<(OwnedFd, Identity)>,
    armed: bool,
}

/// How a mount that was to replace another came into the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The other is detached. It ends when nobody uses it any more.
    Instead,
    /// It hides the other: this kernel cannot replace it (before Linux 6.5, or a mount of another user), or it is
    /// not what was there at the beginning.
    OnTop,
}

/// Mounts, and returns the device to negotiate on ([`crate::Session::negotiate`]).
///
/// Nothing may touch the mountpoint's content before the session is served. A dead FUSE mount in the way is removed
/// first. Where `replaces` is asked for and possible, the mount is in the tree only after [`Mounted::show`].
///
/// # Errors
/// See [`MountError`].
pub fn mount(spec: &MountSpec) -> Result<(OwnedFd, Mounted), MountError> {
    if is_dead(&spec.mountpoint) {
        let _ = clear_dead(&spec.mountpoint);
    }
    let at_mountpoint = |error| MountError::Mountpoint { path: spec.mountpoint.clone(), error };
    let path = spec.mountpoint.canonicalize().map_err(at_mountpoint)?;
    let mode = path.metadata().map_err(at_mountpoint)?.mode();

    if spec.replaces
        && let Ok(over) = Identity::of(&path)
        && let Ok((device, tree)) = replace::make(spec, mode)
    {
        return Ok((device, Mounted { path, identity: None, aside: Some((tree, over)), armed: true }));
    }
    let device = match direct(spec, &path, mode) {
        Err(error) if error.is_refusal() => fusermount::mount(spec, &path)?,
        other => other?,
    };
    let identity =
        Identity::of(&path).inspect_err(|errno| tracing::warn!(%errno, "own mount not found")).ok();
    Ok((device, Mounted { path, identity, aside: None, armed: true }))
}

fn direct(spec: &MountSpec, path: &Path, mode: u32) -> Result<OwnedFd, MountError> {
    let device = fuse_dev::open().map_err(MountError::Device)?;
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

/// As mount(2) takes them.
fn bits(flags: MountFlags) -> Ms {
    let flags = FLAGS.iter().filter(|(flag, ..)| flags.contains(*flag));
    flags.fold(Ms::empty(), |all, (_, bit, _)| all | *bit)
}

/// What the kernel is told of the filesystem (Documentation/filesystems/fuse).
fn kernel_options(spec: &MountSpec, fd: i32, mode: u32) -> Vec<String> {
    const S_IFMT: u32 = 0o170_000;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut options = vec![
        format!("fd={fd}"),
        format!("rootmode={:o}", mode & S_IFMT),
        format!("user_id={uid}"),
        format!("group_id={gid}"),
    ];
    options.extend(common_options(spec));
    options
}

/// The options that kernel and helper both take.
fn common_options(spec: &MountSpec) -> Vec<String> {
    let mut options = Vec::new();
    if spec.default_permissions {
        options.push("default_permissions".into());
    }
    if spec.allow_other {
        options.push("allow_other".into());
    }
    if let Some(max_read) = spec.max_read {
        options.push(format!("max_read={max_read}"));
    }
    options.extend(spec.extra.iter().cloned());
    options
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
        self.identity?.unique
    }

    /// Puts it into the tree, if it is not there yet.
    ///
    /// # Errors
    /// When it cannot be put there.
    pub fn show(&mut self) -> Result<Shown, MountError> {
        let Some((tree, over)) = self.aside.take() else { return Ok(Shown::OnTop) };
        let failed = |error: io::Error| MountError::Mount { path: self.path.clone(), error };
        let is_there = || Identity::of(&self.path).is_ok_and(|there| there.is(over));
        let shown = if is_there() && replace::put_beneath(&tree, &self.path).is_ok() {
            // Somebody else may just have taken it away.
            if is_there() {
                unmount_path(&self.path, true).map_err(failed)?;
            }
            Shown::Instead
        } else {
            replace::put_over(&tree, &self.path).map_err(|errno| failed(errno.into()))?;
            Shown::OnTop
        };
        self.identity = Identity::of(&self.path).ok();
        Ok(shown)
    }

    /// Whether this mount is still there, and on top.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        match (self.identity, Identity::of(&self.path)) {
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

/// Unmounts whatever is on top at `path`: by umount2(2), and through fusermount where that is not permitted.
///
/// # Errors
/// `EINVAL` when nothing is mounted there, `EBUSY` when it is in use and `lazy` is not set, `EPERM`.
pub fn unmount_path(path: &Path, lazy: bool) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => fusermount::unmount(path, lazy),
        other => Ok(other?),
    }
}

/// Whether a FUSE mount at `path` has lost its server: `ENOTCONN`, and for the moment that the kernel takes to close the
/// rings of one that was killed, `ECANCELED`.
#[must_use]
pub fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::stat(path), Err(Errno::NOTCONN | Errno::CANCELED))
}

/// Unmounts a FUSE mount that has lost its server; true when there was one.
///
/// # Errors
/// As [`unmount_path`].
pub fn clear_dead(path: &Path) -> io::Result<bool> {
    if !is_dead(path) {
        return Ok(false);
    }
    // The last component cannot be resolved while it is dead; what leads to it can.
    unmount_path(&absolute(path)?, true)?;
    Ok(true)
}

fn absolute(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => std::path::absolute(path),
    }
}

/// Every mountpoint below (or at) `path`, from `/proc/self/mountinfo`.
///
/// # Errors
/// When `/proc` is not there.
pub fn mounts_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let field = |line: &[u8]| line.split(|&b| b == b' ').nth(4).map(unescape);
    let points = table.split(|&b| b == b'\n').filter_map(field);
    Ok(points
        .map(|point| PathBuf::from(std::ffi::OsString::from_vec(point)))
        .filter(|p| p.starts_with(path))
        .collect())
}

/// Undoes the octal escapes of mountinfo (space, tab, newline, backslash).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code =
            tail.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

/// Puts a backslash before what the helper's option parser would take as a separator.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, ',' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// The options for fusermount's `-o`.
fn helper_options(spec: &MountSpec) -> String {
    let mut options: Vec<String> = Vec::new();
    if !spec.flags.contains(MountFlags::RDONLY) {
        options.push("rw".into());
    }
    options.extend(
        FLAGS.iter().filter(|(flag, ..)| spec.flags.contains(*flag)).map(|(_, _, word)| (*word).into()),
    );
    options.push(format!("fsname={}", escape(&spec.fsname)));
    options.push(format!("subtype={}", escape(&spec.subtype)));
    options.extend(common_options(spec));
    options.join(",")
}

/// The path as an argument that no option parser can mistake.
fn as_argument(path: &Path) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_kernel_and_helper() {
        let mut spec = MountSpec::new("/mnt", "a,b\\c", "canopy");
        spec.default_permissions = true;
        spec.allow_other = true;
        spec.max_read = Some(131_072);
        spec.extra.push("group_id=7".into());
        let data = kernel_options(&spec, 5, 0o40_755).join(",");
        assert!(data.starts_with("fd=5,rootmode=40000,user_id="), "{data}");
        assert!(data.ends_with(",default_permissions,allow_other,max_read=131072,group_id=7"), "{data}");
        assert_eq!(
            helper_options(&spec),
            "rw,nosuid,nodev,fsname=a\\,b\\\\c,subtype=canopy,default_permissions,allow_other,max_read=131072,group_id=7"
        );
        spec.flags = MountFlags::RDONLY | MountFlags::NOATIME;
        assert!(helper_options(&spec).starts_with("ro,noatime,fsname="));
    }

    #[test]
    fn mountinfo_escapes() {
        assert_eq!(unescape(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescape(b"/a\\04"), b"/a\\04");
        assert_eq!(unescape(b"/a\\zzz"), b"/a\\zzz");
    }

    #[test]
    fn what_is_no_mount_is_left_alone() {
        let identity = Identity::of(Path::new("/proc")).unwrap();
        assert!(!identity.is(Identity::of(Path::new("/")).unwrap()));
        assert!(identity.is(Identity { unique: None, ..Identity::of(Path::new("/proc")).unwrap() }));
        let gone = Mounted { path: "/".into(), identity: Some(identity), aside: None, armed: true };
        assert!(!gone.is_mounted());
        gone.unmount(false).unwrap();
        assert!(!is_dead(Path::new("/")));
        assert!(!clear_dead(Path::new("/proc")).unwrap());
        assert!(mounts_below(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
