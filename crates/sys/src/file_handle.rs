//! Files found again by what their filesystem calls them: open_by_handle_at(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `MAX_HANDLE_SZ`
pub(crate) const HANDLE_MAX: usize = 128;

/// `struct file_handle` with room for any handle.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_MAX],
}

const _: () = assert!(size_of::<FileHandle>() == 8 + HANDLE_MAX);

/// Opens (`O_PATH`) what a handle stands for, given as its length, its type, its bytes. `mount` is any directory of the
/// mount to find it in, not an `O_PATH` descriptor.
///
/// # Errors
/// `ESTALE` when it is gone, `EPERM` without `CAP_DAC_READ_SEARCH`, `EOPNOTSUPP` where handles lead nowhere, `EINVAL`
/// for what is no handle.
pub fn open(mount: BorrowedFd<'_>, handle: &[u8]) -> Result<OwnedFd, Errno> {
    open_as(mount, handle, OFlags::PATH | OFlags::NOFOLLOW)
}

/// As [`open`], with flags of the caller's own.
///
/// # Errors
/// Also those of open(2).
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
    // SAFETY: the kernel reads `bytes` bytes of the handle, which were checked to be there; layout as asserted above.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut whole, flags) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: a descriptor that the kernel has just given to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The handle of the file behind a descriptor (`O_PATH` will do), in the form that [`open`] takes.
///
/// # Errors
/// `EOPNOTSUPP` where the filesystem has none.
pub fn of(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut whole = FileHandle { bytes: HANDLE_MAX as u32, kind: 0, handle: [0; HANDLE_MAX] };
    let mut mount_id = 0_i32;
    // SAFETY: the path is a C string; the kernel writes at most `bytes` bytes of handle, and one int.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut whole,
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if result < 0 {
        return Err(last());
    }
    Ok(encode(whole.kind, &whole.handle[..whole.bytes as usize]))
}

fn encode(kind: i32, handle: &[u8]) -> Vec<u8> {
    [&(handle.len() as u32).to_ne_bytes(), &kind.to_ne_bytes(), handle].concat()
}

/// Finds files by their inode numbers, on a filesystem whose handles can be made from these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inodes {
    form: Form,
    /// The directory it was made with is the root of its filesystem, or of its btrfs subvolume: whatever has a name
    /// and an inode number there lies below it.
    pub whole: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Inode number and generation in 32 bits each; generation 0 is taken for any.
    Ext,
    /// The generation must be right: the filesystem tells it by inode number. `wide`: 64 bits of inode number.
    Xfs { wide: bool },
    /// Of one subvolume; generation 0 is taken for any.
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

impl Inodes {
    /// For the filesystem of a directory (`O_PATH` will do), given its type and the directory's inode number. `None`
    /// where files cannot be found so.
    pub fn of(dir: BorrowedFd<'_>, kind: u64, ino: u64) -> Option<Inodes> {
        if ![EXT, XFS, BTRFS].contains(&kind) {
            return None;
        }
        let handle = of(dir).ok()?;
        let (_, rest) = handle.split_first_chunk::<4>()?;
        let (handle_kind, id) = rest.split_first_chunk()?;
        let short = |id: &[u8]| Some(u64::from(u32::from_ne_bytes(*id.first_chunk()?)));
        let long = |id: &[u8]| Some(u64::from_ne_bytes(*id.first_chunk()?));
        let (form, told) = match (kind, i32::from_ne_bytes(*handle_kind), id.len()) {
            (EXT, INO32_GEN, 8) => (Form::Ext, short(id)?),
            (XFS, INO32_GEN, 8) => (Form::Xfs { wide: false }, short(id)?),
            (XFS, XFS_INO64_GEN, 12) => (Form::Xfs { wide: true }, long(id)?),
            (BTRFS, BTRFS_WITHOUT_PARENT, 20) => (Form::Btrfs { subvolume: long(&id[8..])? }, long(id)?),
            _ => return None,
        };
        // Of a stacked filesystem that hands on the magic number of another one nothing is known.
        if told != ino {
            return None;
        }
        /// `EXT2_ROOT_INO`, `BTRFS_FIRST_FREE_OBJECTID`
        const ROOTS: (u64, u64) = (2, 256);
        let whole = match form {
            Form::Ext => ino == ROOTS.0,
            Form::Xfs { .. } => {
                reopen(dir).and_then(|dir| bulkstat(&dir, None)).is_ok_and(|(root, _)| root == ino)
            }
            Form::Btrfs { .. } => ino == ROOTS.1,
        };
        Some(Inodes { form, whole })
    }

    /// Opens (`O_PATH`) the file with an inode number; `dir` is any directory of the mount to find it in.
    ///
    /// # Errors
    /// `ESTALE` when there is none, `EPERM` where that is not permitted.
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
                match wide {
                    true => encode(XFS_INO64_GEN, &[&ino.to_ne_bytes()[..], &generation].concat()),
                    false => encode(INO32_GEN, &[narrow()?.to_ne_bytes(), generation].concat()),
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

/// Opens, to be read, the root of the whole btrfs that `within` lies on: of the subvolume that holds all others, whether it
/// is mounted anywhere or not. Marks are taken by its directories alone, and are told by its id.
///
/// # Errors
/// As [`open`].
pub fn btrfs_top(within: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // BTRFS_FIRST_FREE_OBJECTID in BTRFS_FS_TREE_OBJECTID, of any generation (include/uapi/linux/btrfs_tree.h, fs/btrfs/export.c).
    const ROOT: u64 = 256;
    const FS_TREE: u64 = 5;
    let id = [&ROOT.to_ne_bytes()[..], &FS_TREE.to_ne_bytes(), &[0; 4]].concat();
    open_as(within, &encode(BTRFS_WITHOUT_PARENT, &id), OFlags::RDONLY | OFlags::DIRECTORY)
}

/// What handles are looked up from cannot be `O_PATH`.
fn reopen(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, c".", flags, Mode::empty())
}

/// `struct xfs_bulkstat_req` for one inode (fs/xfs/libxfs/xfs_fs.h): the request, and a `struct xfs_bulkstat`.
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

/// Inode number and generation of the first inode of an XFS from this number on; of its root without a number.
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
    // SAFETY: the kernel reads the request, and writes it and `icount` records behind it: layout as asserted above.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), BULKSTAT as _, &raw mut request) };
    if result < 0 {
        return Err(match last() {
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

fn last() -> Errno {
    Errno::from_raw_os_error(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_cut_short_is_no_handle() {
        let dir = std::fs::File::open("/").unwrap();
        for handle in [&b""[..], &[0; 7], &[200, 0, 0, 0, 1, 0, 0, 0]] {
            assert_eq!(open(dir.as_fd(), handle).err(), Some(Errno::INVAL));
        }
    }
}
