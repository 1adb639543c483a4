//! The single operations that rows are about.

use super::{Error, ErrorContext, Target};
use canopy_sys::truncate::truncate;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatxFlags, Timespec, Timestamps, XattrFlags, chmod, chown, fchmod, getxattr,
    link, listxattr, mkdir, readlinkat_raw, removexattr, rename, rmdir, setxattr, stat, statvfs, statx,
    symlink, unlink, utimensat,
};
use rustix::io::Errno;
use rustix::process::{getgid, getuid};
use std::ffi::{CStr, CString, OsStr};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The size of files that are read or written.
pub(super) const BYTES: usize = 4096;

/// The attribute that is set, read and removed.
const XATTR: &CStr = c"user.canopy-bench";

/// An operation that several threads can run at the same time; see [`super::concurrent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileOp {
    /// fstat(2) that the server must answer (`AT_STATX_FORCE_SYNC`).
    Fstat,
    OpenReadClose,
    CreateWriteClose,
    Rename,
    Unlink,
    Chmod,
    Fchmod,
    Chown,
    Utimensat,
    Truncate,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Readlink,
    Link,
    RenameDir,
    Mkdir,
    Rmdir,
    Statvfs,
}

impl FileOp {
    /// How many existing files are used in turn. There are enough that none is still being closed.
    const FILES: usize = 200;

    /// Returns how many files the directory must have for `count` operations.
    pub(super) fn files(self, count: usize) -> usize {
        match self {
            FileOp::Fstat | FileOp::Fchmod => 1,
            FileOp::OpenReadClose
            | FileOp::Chmod
            | FileOp::Chown
            | FileOp::Utimensat
            | FileOp::Truncate
            | FileOp::Setxattr
            | FileOp::Getxattr
            | FileOp::Listxattr
            | FileOp::Link => FileOp::FILES,
            // Each file's attribute can be removed once.
            FileOp::Removexattr => count,
            FileOp::CreateWriteClose
            | FileOp::Rename
            | FileOp::Unlink
            | FileOp::Readlink
            | FileOp::RenameDir
            | FileOp::Mkdir
            | FileOp::Rmdir
            | FileOp::Statvfs => 0,
        }
    }

    /// Returns whether the operation needs a filesystem with `user.` attributes.
    pub(crate) fn needs_user_xattrs(self) -> bool {
        matches!(self, FileOp::Setxattr | FileOp::Getxattr | FileOp::Listxattr | FileOp::Removexattr)
    }

    /// Prepares the directory through the server, before the clock runs.
    pub(super) fn prepare(self, target: &Target, dir: &str, count: usize) -> Result<(), Error> {
        let path = target.root.join(dir);
        stat(&path).context("stat", &path)?;
        for path in target.paths(dir, "f", self.files(count)) {
            // The kernel caches the names.
            stat(&path).context("stat", as_path(&path))?;
            if matches!(self, FileOp::Getxattr | FileOp::Listxattr | FileOp::Removexattr) {
                set_xattr(&path, 0)?;
            }
        }
        match self {
            FileOp::Rename | FileOp::Unlink => {
                target.paths(dir, "n", count).iter().try_for_each(|path| create(path))
            }
            FileOp::RenameDir | FileOp::Rmdir => {
                target.paths(dir, "n", count).iter().try_for_each(|path| make_dir(path))
            }
            FileOp::Readlink => target
                .paths(dir, "s", FileOp::FILES)
                .iter()
                .try_for_each(|path| symlink(c"target", path).context("make", as_path(path))),
            _ => Ok(()),
        }
    }

    /// Returns all operations with their paths.
    pub(super) fn prepared_ops(
        self,
        target: &Target,
        dir: &str,
        count: usize,
    ) -> Result<Vec<PreparedOp>, Error> {
        let in_turn = |prefix, files| {
            let paths = target.paths(dir, prefix, files);
            paths.into_iter().cycle().take(count).collect::<Vec<_>>()
        };
        let paths = match self {
            FileOp::Fstat | FileOp::Fchmod => {
                let file = Arc::new(open(&target.path(dir, "f0"), OFlags::RDONLY)?);
                let one = |number| PreparedOp { op: self, number, on: On::File(Arc::clone(&file)) };
                return Ok((0..count).map(one).collect());
            }
            FileOp::Statvfs => vec![target.path(dir, "."); count],
            FileOp::Readlink => in_turn("s", FileOp::FILES),
            _ if self.files(count) > 0 => in_turn("f", self.files(count)),
            _ => target.paths(dir, "n", count),
        };
        let new_names = match self {
            FileOp::Rename | FileOp::RenameDir | FileOp::Link => target.paths(dir, "r", count),
            _ => vec![CString::default(); count],
        };
        let ops = paths.into_iter().zip(new_names).enumerate();
        Ok(ops
            .map(|(number, (path, new))| PreparedOp { op: self, number, on: On::Path { path, new } })
            .collect())
    }
}

/// An operation with its arguments.
pub(super) struct PreparedOp {
    op: FileOp,
    /// Its number in the round. The values that are set depend on it, so that each operation changes something.
    number: usize,
    on: On,
}

enum On {
    File(Arc<OwnedFd>),
    Path { path: CString, new: CString },
}

impl PreparedOp {
    pub(super) fn run(&self) -> Result<(), Error> {
        match &self.on {
            On::File(file) => self.run_on_file(file).context("use", "an open file"),
            On::Path { path, new } => self.run_on_path(path, new),
        }
    }

    /// Returns whether this is an operation of an odd pass over the files.
    fn is_odd_pass(&self) -> bool {
        (self.number / FileOp::FILES) % 2 == 1
    }

    fn run_on_file(&self, file: &OwnedFd) -> Result<(), Errno> {
        if self.op == FileOp::Fchmod {
            return fchmod(
                file,
                Mode::from_raw_mode(if self.number.is_multiple_of(2) { 0o600 } else { 0o644 }),
            );
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        black_box(statx(file, c"", flags, StatxFlags::BASIC_STATS)?);
        Ok(())
    }

    fn run_on_path(&self, path: &CStr, new: &CStr) -> Result<(), Error> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 256];
        let (what, done) = match self.op {
            FileOp::OpenReadClose => return open_read_close(path),
            FileOp::CreateWriteClose => return create(path),
            FileOp::Mkdir => return make_dir(path),
            FileOp::Setxattr => return set_xattr(path, self.number),
            FileOp::Rename | FileOp::RenameDir => ("rename", rename(path, new)),
            FileOp::Unlink => ("unlink", unlink(path)),
            FileOp::Rmdir => ("remove", rmdir(path)),
            FileOp::Link => ("link", link(path, new)),
            FileOp::Chmod => {
                let mode = if self.is_odd_pass() { 0o644 } else { 0o600 };
                ("change the mode of", chmod(path, Mode::from_raw_mode(mode)))
            }
            FileOp::Chown => ("change the owner of", chown(path, Some(getuid()), Some(getgid()))),
            FileOp::Utimensat => {
                let time = Timespec { tv_sec: 1_000_000_000 + self.number as i64, tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                ("set the times of", utimensat(CWD, path, &times, AtFlags::empty()))
            }
            FileOp::Truncate => {
                let size = if self.is_odd_pass() { BYTES } else { BYTES / 2 };
                ("truncate", truncate(path, size as u64))
            }
            FileOp::Getxattr => {
                ("read the attribute of", getxattr(path, XATTR, &mut buffer).map(|(value, _)| keep(value)))
            }
            FileOp::Listxattr => {
                ("list the attributes of", listxattr(path, &mut buffer).map(|(names, _)| keep(names)))
            }
            FileOp::Removexattr => ("remove the attribute of", removexattr(path, XATTR)),
            FileOp::Readlink => {
                let target = readlinkat_raw(CWD, path, &mut buffer);
                ("read the link", target.map(|(target, _)| keep(target)))
            }
            FileOp::Statvfs => ("statvfs", statvfs(path).map(keep)),
            // They need an open file.
            FileOp::Fstat | FileOp::Fchmod => ("use", Err(Errno::INVAL)),
        };
        done.context(what, as_path(path))
    }
}

/// Makes the compiler believe that a result is used.
fn keep<T>(result: T) {
    black_box(result);
}

fn open_read_close(path: &CStr) -> Result<(), Error> {
    let mut buffer = [MaybeUninit::uninit(); BYTES];
    let file = open(path, OFlags::RDONLY)?;
    black_box(rustix::io::read(&file, &mut buffer).context("read", as_path(path))?);
    Ok(())
}

fn create(path: &CStr) -> Result<(), Error> {
    let file = super::create(as_path(path))?;
    rustix::io::write(&file, &[3; BYTES]).context("write", as_path(path)).map(|_| ())
}

fn make_dir(path: &CStr) -> Result<(), Error> {
    mkdir(path, Mode::from_raw_mode(0o755)).context("make", as_path(path))
}

fn set_xattr(path: &CStr, number: usize) -> Result<(), Error> {
    let value = number.to_le_bytes();
    setxattr(path, XATTR, &value, XattrFlags::empty()).context("set an attribute of", as_path(path))
}

pub(super) fn open(path: &CStr, flags: OFlags) -> Result<OwnedFd, Error> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).context("open", as_path(path))
}

pub(super) fn as_path(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

impl Target {
    /// Returns whether programs can set `user.` attributes of files here.
    pub(crate) fn has_user_xattrs(&self) -> Result<bool, Error> {
        let path = self.path(".", "attributes");
        super::create(as_path(&path))?;
        let set = set_xattr(&path, 0);
        unlink(&path).context("remove", as_path(&path))?;
        match set {
            Ok(()) => Ok(true),
            Err(Error::Failed { errno: Errno::OPNOTSUPP, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
