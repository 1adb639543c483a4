//! Capturing a tree. Every step is relative to a directory descriptor, so paths may be longer than `PATH_MAX`.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fstat, lgetxattr, llistxattr, open, openat,
    readlinkat, seek, statat,
};
use rustix::io::Errno;

use super::{Entry, Fields, Kind, Tree};

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Tree {
    /// Captures the tree below `root`.
    ///
    /// # Panics
    /// If anything in the tree cannot be read.
    #[track_caller]
    pub fn capture(root: impl AsRef<Path>) -> Self {
        Self::capture_with(root, Fields::default())
    }

    /// Captures these fields of the tree below `root`.
    ///
    /// # Panics
    /// If anything in the tree cannot be read.
    #[track_caller]
    pub fn capture_with(root: impl AsRef<Path>, fields: Fields) -> Self {
        let root = root.as_ref();
        Self::try_capture(root, fields).unwrap_or_else(|error| panic!("reading {}: {error}", root.display()))
    }

    /// Captures these fields of the tree below `root`.
    ///
    /// # Errors
    /// If anything in the tree cannot be read.
    pub fn try_capture(root: &Path, fields: Fields) -> io::Result<Self> {
        let mut walk = Walk { fields, tree: Self::default(), links: HashMap::new() };
        let dir = open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        if fields.root {
            let stat = fstat(&dir)?;
            let entry = walk.entry(dir.as_fd(), c".", &stat)?;
            walk.tree.entries.insert(Vec::new(), entry);
        }
        walk.dir(&dir, &mut Vec::new())?;
        Ok(walk.finish())
    }
}

struct Walk {
    fields: Fields,
    tree: Tree,
    /// Names of each file with more than one link.
    links: HashMap<(u64, u64), Vec<Vec<u8>>>,
}

impl Walk {
    fn dir(&mut self, dir: &OwnedFd, path: &mut Vec<u8>) -> io::Result<()> {
        let mut names: Vec<CString> = Vec::new();
        for item in Dir::read_from(dir)? {
            let name = item?.file_name().to_owned();
            if !matches!(name.as_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        let length = path.len();
        for name in names {
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            self.name(dir, &name, path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.escape_ascii())))?;
            path.truncate(length);
        }
        Ok(())
    }

    fn name(&mut self, dir: &OwnedFd, name: &CStr, path: &mut Vec<u8>) -> io::Result<()> {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let entry = self.entry(dir.as_fd(), name, &stat)?;
        let kind = entry.kind;
        if self.fields.links && kind != Kind::Dir && stat.st_nlink > 1 {
            self.links.entry((stat.st_dev, stat.st_ino)).or_default().push(path.clone());
        }
        if self.tree.entries.insert(path.clone(), entry).is_some() {
            return Err(io::Error::other("listed twice"));
        }
        if kind == Kind::Dir {
            self.dir(&openat(dir, name, DIR, Mode::empty())?, path)?;
        }
        Ok(())
    }

    fn entry(&self, dir: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<Entry> {
        let fields = self.fields;
        let kind = kind(stat)?;
        let wants_time = if kind == Kind::Dir { fields.dir_mtime } else { fields.mtime };
        let mut entry = Entry {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: if fields.owner { stat.st_uid } else { 0 },
            gid: if fields.owner { stat.st_gid } else { 0 },
            size: if matches!(kind, Kind::File | Kind::Symlink) { stat.st_size.unsigned_abs() } else { 0 },
            hash: None,
            target: None,
            rdev: if matches!(kind, Kind::CharDevice | Kind::BlockDevice) { stat.st_rdev } else { 0 },
            xattrs: BTreeMap::new(),
            mtime: wants_time.then(|| (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(u32::MAX))),
            nlink: if fields.links && kind != Kind::Dir { stat.st_nlink } else { 0 },
            group: None,
            data: None,
        };
        if fields.xattrs {
            entry.xattrs = xattrs(dir, name)?;
        }
        if kind == Kind::Symlink {
            entry.target = Some(readlinkat(dir, name, Vec::new())?.into_bytes());
        }
        if kind == Kind::File && (fields.content || fields.sparse) {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(dir, name, flags, Mode::empty())?);
            if fields.content {
                entry.hash = Some(hash(&mut file)?);
            }
            if fields.sparse {
                entry.data = Some(data_map(&file)?);
            }
        }
        Ok(entry)
    }

    fn finish(mut self) -> Tree {
        for names in self.links.values_mut() {
            names.sort();
            if names.len() > 1 {
                for name in names.iter() {
                    if let Some(entry) = self.tree.entries.get_mut(name) {
                        entry.group = Some(names[0].clone());
                    }
                }
            }
        }
        self.tree
    }
}

fn kind(stat: &Stat) -> io::Result<Kind> {
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => return Err(io::Error::other(format!("file type {:o}", stat.st_mode))),
    })
}

/// Returns what [`Tree`] compares content by.
///
/// # Errors
/// Those of reading.
pub fn hash(file: &mut impl Read) -> io::Result<u64> {
    // SipHash without a key gives the same values in every process, and tests need no protection from collisions.
    #[allow(deprecated)]
    let mut hasher = std::hash::SipHasher::new();
    let (mut part, mut at) = (Vec::new(), 0_u64);
    while file.by_ref().take(128 << 10).read_to_end(&mut part)? > 0 {
        // Zeros count by the place of what follows them, which is fast in sparse files.
        for block in part.chunks(4096) {
            if block.iter().any(|&byte| byte != 0) {
                hasher.write_u64(at);
                hasher.write(block);
            }
            at += block.len() as u64;
        }
        part.clear();
    }
    hasher.write_u64(at);
    Ok(hasher.finish())
}

/// Returns the runs of data in a file, by `SEEK_DATA` and `SEEK_HOLE`.
pub(super) fn data_map(file: &File) -> io::Result<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    let mut at = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(runs),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?;
        runs.push((start, end));
        at = end;
    }
}

/// Returns all extended attributes, which include ACLs. Without support of the filesystem there are none.
fn xattrs(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    // lgetxattr(2) does not follow the last component of this path. There is no getxattrat(2) before Linux 6.13.
    let mut path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    path.push(OsStr::from_bytes(name.to_bytes()));
    let list = match with_buffer(|buffer| llistxattr(&path, buffer)) {
        Ok(list) => list,
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = BTreeMap::new();
    // XFS lists ACLs a second time, in its own format.
    let listed = |name: &&[u8]| !name.is_empty() && !name.starts_with(b"trusted.SGI_ACL_");
    for attribute in list.split(|&byte| byte == 0).filter(listed) {
        let value = with_buffer(|buffer| lgetxattr(&path, OsStr::from_bytes(attribute), buffer))?;
        found.insert(attribute.to_vec(), value);
    }
    Ok(found)
}

/// Makes a call again with a larger buffer if the first was too small.
fn with_buffer(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 1024];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 64 << 10 => buffer = vec![0; 64 << 10],
            Err(error) => return Err(error),
        }
    }
}
