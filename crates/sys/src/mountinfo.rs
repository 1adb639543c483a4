//! The mount table, /proc/self/mountinfo (proc_pid_mountinfo(5)).

use rustix::fd::{AsRawFd as _, BorrowedFd, RawFd};
use rustix::fs::StatxFlags;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// `STATX_MNT_ID_UNIQUE`, include/uapi/linux/stat.h: the id of a mount that is not given again before a reboot (Linux 6.8).
pub const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// One mount: a line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    pub id: u32,
    /// The id of the mount that contains the mountpoint.
    pub parent: u32,
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// The directory of the filesystem that is the root of this mount. Not `/` for a bind mount of another directory.
    pub root: PathBuf,
    pub mountpoint: PathBuf,
    /// The peer group (`shared:N`), to which mounts below this one propagate.
    pub peers: Option<u32>,
    /// The peer group (`master:N`) from which mounts propagate to this one.
    pub master: Option<u32>,
    pub fstype: String,
    pub source: OsString,
    /// The options of this mount, separated by commas.
    pub options: String,
    /// The options of its filesystem, separated by commas.
    pub super_options: String,
}

fn has_word(options: &str, word: &str) -> bool {
    options.split(',').any(|option| option == word)
}

impl MountEntry {
    /// Returns whether this mount is read-only, whatever its filesystem is. Each mount namespace has such options of its own.
    pub fn is_read_only(&self) -> bool {
        has_word(&self.options, "ro")
    }

    /// Returns whether its filesystem is read-only, through whatever mount.
    pub fn has_read_only_filesystem(&self) -> bool {
        has_word(&self.super_options, "ro")
    }

    /// Returns whether this is a pool, under any of the names a pool is mounted with.
    pub fn is_pool(&self) -> bool {
        matches!(self.fstype.as_str(), "fuse.canopy" | "fuse.mergerfs")
    }

    /// Converts a path below the mountpoint to a path within the filesystem.
    pub fn inside(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.mountpoint).map(|rest| self.root.join(rest)).unwrap_or_default()
    }

    /// Returns whether this is a FUSE filesystem.
    pub fn is_fuse(&self) -> bool {
        self.fstype == "fuse" || self.fstype.starts_with("fuse.")
    }
}

/// Returns the mounts of this process' mount namespace, in the kernel's order: of several mounts at one place, the last
/// is on top.
pub fn list() -> io::Result<Vec<MountEntry>> {
    // Files in /proc have no size, without which fs::read begins with 32 bytes.
    let mut table = Vec::with_capacity(64 << 10);
    fs::File::open("/proc/self/mountinfo")?.read_to_end(&mut table)?;
    Ok(parse(&table))
}

/// Returns the mount on top at exactly this mountpoint.
pub fn at(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    Ok(list()?.into_iter().rev().find(|mounted| mounted.mountpoint == mountpoint))
}

/// Returns the mount that contains a path, among `listed`. The path must be resolved.
pub fn holding_in<'a>(listed: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    let holds = listed.iter().filter(|mounted| path.starts_with(&mounted.mountpoint));
    // Of several mounts at one place the last is on top, and `max_by_key` returns the last of equal elements.
    holds.max_by_key(|mounted| mounted.mountpoint.components().count())
}

/// Returns the id of the mount on which a descriptor was opened. Does not access the filesystem.
pub fn id_of(fd: BorrowedFd<'_>) -> io::Result<u32> {
    id_of_number(fd.as_raw_fd())
}

/// Like [`id_of`], for a descriptor that another thread has open, or had a moment ago.
pub fn id_of_number(fd: RawFd) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses the mount table of a process.
pub fn parse(mountinfo: &[u8]) -> Vec<MountEntry> {
    mountinfo.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = PathBuf::from(unescape(fields.next()?));
    let mountpoint = PathBuf::from(unescape(fields.next()?));
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    // Any number of optional fields, up to a single dash.
    let (mut peers, mut master) = (None, None);
    for field in fields.by_ref().take_while(|field| *field != b"-") {
        let field = std::str::from_utf8(field).unwrap_or_default();
        if let Some(group) = field.strip_prefix("shared:") {
            peers = group.parse().ok();
        } else if let Some(group) = field.strip_prefix("master:") {
            master = group.parse().ok();
        }
    }
    let fstype = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let super_options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    Some(MountEntry {
        id,
        parent,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        mountpoint,
        peers,
        master,
        fstype,
        source,
        options,
        super_options,
    })
}

/// Decodes blanks and backslashes, which the kernel writes as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Resolves a path to the form in which the kernel lists it. If it is a mountpoint, its last component is not accessed,
/// because the server of a FUSE mount there may be dead or hang. Otherwise symlinks are followed there too.
pub fn listed_path(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    // A path in the list is a mountpoint; only other paths may be symlinks or contain `..`.
    if at(&path)?.is_some() {
        return Ok(path);
    }
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        let under = parent.canonicalize()?.join(name);
        if at(&under)?.is_some() {
            return Ok(under);
        }
    }
    path.canonicalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_parsed() {
        let lines = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue\n\
            57 29 0:52 / /mnt/a\\040pool\\134x rw,nosuid,nodev - fuse.canopy 1:2\\040x rw,user_id=0\n\
            broken line\n";
        let mounts = parse(lines);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].mountpoint, Path::new("/mnt2"));
        assert_eq!((mounts[0].id, mounts[0].parent), (36, 35));
        assert_eq!(
            (mounts[0].root.as_path(), mounts[0].peers, mounts[0].master),
            (Path::new("/mnt1"), None, Some(1))
        );
        assert_eq!(mounts[0].inside(Path::new("/mnt2/x")), Path::new("/mnt1/x"));
        assert_eq!(mounts[0].fstype, "ext3");
        assert!(!mounts[0].is_fuse());
        assert!(!mounts[0].is_read_only() && !mounts[0].has_read_only_filesystem());
        let bound = parse(b"36 35 98:0 / /mnt2 ro,noatime - ext3 /dev/root rw,errors=remount-ro\n");
        assert!(bound[0].is_read_only() && !bound[0].has_read_only_filesystem());
        assert_eq!(mounts[1].device, (0, 52));
        assert_eq!(mounts[1].mountpoint, Path::new("/mnt/a pool\\x"));
        assert_eq!(mounts[1].source, "1:2 x");
        assert!(mounts[1].is_pool() && mounts[1].is_fuse());
    }

    #[test]
    fn a_malformed_escape_is_kept() {
        for (field, path) in [("/a\\040b\\134c", "/a b\\c"), ("/a\\04", "/a\\04"), ("/a\\zzz", "/a\\zzz")] {
            assert_eq!(unescape(field.as_bytes()), path);
        }
    }

    #[test]
    fn proc_is_found_in_the_mount_table() {
        assert!(at(Path::new("/proc")).unwrap().is_some_and(|mounted| mounted.fstype == "proc"));
        assert!(at(Path::new("/proc/self")).unwrap().is_none());
        assert_eq!(listed_path(Path::new("/proc/../proc")).unwrap(), Path::new("/proc"));
    }
}
