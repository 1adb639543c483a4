//! File handles: open_by_handle_at(2) and name_to_handle_at(2), and handles made from inode numbers.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::errno::last_errno;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `MAX_HANDLE_SZ`
pub(crate) const HANDLE_MAX: usize = 128;

/// `struct file_handle` with room for the largest handle.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_MAX],
}

const _: () = assert!(size_of::<FileHandle>() == 8 + HANDLE_MAX);

/// Opens (`O_PATH`) the file that a handle identifies. The handle consists of its length, its type and its bytes.
/// `mount` is any directory on the mount through which the file is opened; it must not be an `O_PATH` descriptor.
///
/// # Errors
/// `ESTALE` when the file no longer exists, `EPERM` without `CAP_DAC_READ_SEARCH`, `EOPNOTSUPP` when the filesystem
/// cannot open handles, `EINVAL` for a malformed handle.
pub fn open(mount: BorrowedFd<'_>, handle: &[u8]) -> Result<OwnedFd, Errno> {
    open_as(mount, handle, OFlags::PATH | OFlags::NOFOLLOW)
}

/// Like [`open`], but with the given flags.
///
/// # Errors
/// Those of [`open`], and those of open(2).
pub fn open_as(mount: BorrowedFd<'_>, handle: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let (bytes, rest) = handle.split_first_chunk().ok_or(Errno::INVAL)?;
    let (kind, rest) = rest.split_first_chunk().ok_or(Errno::INVAL)?;
    let mut whole = FileHandle {
        bytes: u32::from_ne_bytes(*bytes),
        kind: i32::from_ne_bytes(*kind),
        handle: [0; HANDLE_MAX],
    };
    let given = rest.get(..whole.bytes as usize).ok_or(Errno::INVAL)?;
    whole.handle.get_mut(..given.len()).ok_or(Errno::INVAL)?.copy_from_slice(given);
    let flags = (flags | OFlags::CLOEXEC).bits();
    // SAFETY: the kernel reads `bytes` bytes of the handle, which have been checked to be there. The layout is asserted
    // above.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut whole, flags) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just opened this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Returns the handle of an open file (`O_PATH` is enough), in the form that [`open`] takes.
///
/// # Errors
/// `EOPNOTSUPP` when the filesystem has no file handles.
pub fn from_fd(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    of(file, c"", libc::AT_EMPTY_PATH)
}

/// Returns the handle of what a name in a directory leads to, in the form that [`open`] takes. A symlink is not followed.
///
/// # Errors
/// Those of [`from_fd`], and `ENOENT`.
pub fn at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    of(dir, &CString::new(name).map_err(|_| Errno::INVAL)?, 0)
}

fn of(file: BorrowedFd<'_>, path: &CStr, flags: i32) -> Result<Vec<u8>, Errno> {
    let mut whole = FileHandle { bytes: HANDLE_MAX as u32, kind: 0, handle: [0; HANDLE_MAX] };
    let mut mount_id = 0_i32;
    // SAFETY: the path is a C string; the kernel writes at most `bytes` bytes of the handle, and one int.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            path.as_ptr(),
            &raw mut whole,
            &raw mut mount_id,
            flags,
        )
    };
    if result < 0 {
        return Err(last_errno());
    }
    Ok(encode(whole.kind, &whole.handle[..whole.bytes as usize]))
}

fn encode(kind: i32, handle: &[u8]) -> Vec<u8> {
    [&(handle.len() as u32).to_ne_bytes(), &kind.to_ne_bytes(), handle].concat()
}

/// Opens files by inode number, on a filesystem where a handle can be made from the inode number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeOpener {
    form: Form,
    /// Whether the directory it was made for is the root of its filesystem or btrfs subvolume. Then every linked file
    /// with an inode number on that filesystem is below this directory.
    pub at_root: bool,
}

/// What a filesystem's handles contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Inode number and generation of 32 bits each. Generation 0 matches any.
    Ext,
    /// Inode number, of 64 bits if `wide`, and generation. The generation must match; bulkstat returns it.
    Xfs { wide: bool },
    /// Inode number, subvolume and generation. Generation 0 matches any.
    Btrfs { subvolume: u64 },
}

/// Handle types of include/linux/exportfs.h and fs/xfs/xfs_export.h.
const INO32_GEN: i32 = 1;
const XFS_INO64_GEN: i32 = 0x81;
const BTRFS_WITHOUT_PARENT: i32 = 0x4d;

/// `f_type` of statfs(2) for ext2 to ext4, XFS and btrfs.
const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683E;

impl InodeOpener {
    /// Returns an opener for the filesystem of a directory (`O_PATH` is enough). `kind` is the filesystem's type
    /// (`f_type`), `ino` the directory's inode number. Returns `None` for a filesystem that cannot open files this way.
    pub fn new(dir: BorrowedFd<'_>, kind: u64, ino: u64) -> Option<InodeOpener> {
        if ![EXT, XFS, BTRFS].contains(&kind) {
            return None;
        }
        let handle = from_fd(dir).ok()?;
        let (_, rest) = handle.split_first_chunk::<4>()?;
        let (handle_kind, id) = rest.split_first_chunk()?;
        let short = |id: &[u8]| Some(u64::from(u32::from_ne_bytes(*id.first_chunk()?)));
        let long = |id: &[u8]| Some(u64::from_ne_bytes(*id.first_chunk()?));
        let (form, found) = match (kind, i32::from_ne_bytes(*handle_kind), id.len()) {
            (EXT, INO32_GEN, 8) => (Form::Ext, short(id)?),
            (XFS, INO32_GEN, 8) => (Form::Xfs { wide: false }, short(id)?),
            (XFS, XFS_INO64_GEN, 12) => (Form::Xfs { wide: true }, long(id)?),
            (BTRFS, BTRFS_WITHOUT_PARENT, 20) => (Form::Btrfs { subvolume: long(&id[8..])? }, long(id)?),
            _ => return None,
        };
        // A stacked filesystem may report another one's magic number; its handles are unknown.
        if found != ino {
            return None;
        }
        /// `EXT2_ROOT_INO`, `BTRFS_FIRST_FREE_OBJECTID`
        const ROOTS: (u64, u64) = (2, 256);
        let at_root = match form {
            Form::Ext => ino == ROOTS.0,
            Form::Xfs { .. } => {
                reopen(dir).and_then(|dir| bulkstat(&dir, None)).is_ok_and(|(root, _)| root == ino)
            }
            Form::Btrfs { .. } => ino == ROOTS.1,
        };
        Some(InodeOpener { form, at_root })
    }

    /// Opens (`O_PATH`) the file with an inode number. `dir` is any directory on the mount through which it is opened.
    ///
    /// # Errors
    /// `ESTALE` when there is no such file, `EPERM` without `CAP_DAC_READ_SEARCH`.
    pub fn open(&self, dir: BorrowedFd<'_>, ino: u64) -> Result<OwnedFd, Errno> {
        let dir = reopen(dir)?;
        let narrow = || u32::try_from(ino).map_err(|_| Errno::STALE);
        let handle = match self.form {
            Form::Ext => encode(INO32_GEN, &[narrow()?.to_ne_bytes(), [0; 4]].concat()),
            Form::Xfs { wide } => {
                let (found, generation) = bulkstat(&dir, Some(ino))?;
                if found != ino {
                    return Err(Errno::STALE);
                }
                let generation = generation.to_ne_bytes();
                if wide {
                    encode(XFS_INO64_GEN, &[&ino.to_ne_bytes()[..], &generation].concat())
                } else {
                    encode(INO32_GEN, &[narrow()?.to_ne_bytes(), generation].concat())
                }
            }
            Form::Btrfs { subvolume } => {
                let id = [&ino.to_ne_bytes()[..], &subvolume.to_ne_bytes(), &[0; 4]].concat();
                encode(BTRFS_WITHOUT_PARENT, &id)
            }
        };
        open(std::os::fd::AsFd::as_fd(&dir), &handle)
    }
}

/// Opens (`O_RDONLY`) the root of the top-level subvolume of the btrfs that contains `within`, whether or not it is
/// mounted anywhere. Only directories of this subvolume accept fanotify marks, and events carry its id.
///
/// # Errors
/// Those of [`open`].
pub fn open_btrfs_toplevel(within: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // BTRFS_FIRST_FREE_OBJECTID in BTRFS_FS_TREE_OBJECTID, any generation (include/uapi/linux/btrfs_tree.h,
    // fs/btrfs/export.c).
    const ROOT: u64 = 256;
    const FS_TREE: u64 = 5;
    let id = [&ROOT.to_ne_bytes()[..], &FS_TREE.to_ne_bytes(), &[0; 4]].concat();
    open_as(within, &encode(BTRFS_WITHOUT_PARENT, &id), OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a directory for reading: open_by_handle_at(2) takes no `O_PATH` descriptor.
fn reopen(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, c".", flags, Mode::empty())
}

/// `struct xfs_bulkstat_req` for one inode (fs/xfs/libxfs/xfs_fs.h): the request and one `struct xfs_bulkstat`.
#[repr(C)]
struct Bulkstat {
    ino: u64,
    flags: u32,
    icount: u32,
    ocount: u32,
    agno: u32,
    reserved: [u64; 5],
    found: [u64; 24],
}

const _: () = assert!(size_of::<Bulkstat>() == 64 + 192);

/// Returns inode number and generation of the first inode of an XFS whose number is at least `ino`, or of the root
/// without a number.
fn bulkstat(dir: &OwnedFd, ino: Option<u64>) -> Result<(u64, u32), Errno> {
    /// `XFS_IOC_BULKSTAT` (Linux 5.3)
    const BULKSTAT: u32 = 0x8040_587F;
    /// `XFS_BULK_IREQ_SPECIAL`, `XFS_BULK_IREQ_SPECIAL_ROOT`
    const SPECIAL: (u32, u64) = (1 << 1, 1);
    let mut request = Bulkstat {
        ino: ino.unwrap_or(SPECIAL.1),
        flags: if ino.is_none() { SPECIAL.0 } else { 0 },
        icount: 1,
        ocount: 0,
        agno: 0,
        reserved: [0; 5],
        found: [0; 24],
    };
    // SAFETY: the kernel reads the request, and writes it and `icount` records after it. The layout is asserted above.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), BULKSTAT as _, &raw mut request) };
    if result < 0 {
        return Err(match last_errno() {
            // There is no such inode.
            Errno::INVAL | Errno::NOENT => Errno::STALE,
            other => other,
        });
    }
    if request.ocount == 0 {
        return Err(Errno::STALE);
    }
    let generation = request.found[8].to_ne_bytes();
    Ok((request.found[0], u32::from_ne_bytes([generation[0], generation[1], generation[2], generation[3]])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_truncated_handle_is_refused() {
        let dir = std::fs::File::open("/").unwrap();
        for handle in [&b""[..], &[0; 7], &[200, 0, 0, 0, 1, 0, 0, 0]] {
            assert_eq!(open(dir.as_fd(), handle).err(), Some(Errno::INVAL));
        }
    }
}
