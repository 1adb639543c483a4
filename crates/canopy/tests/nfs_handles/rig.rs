//! Pools over each filesystem type, and handles of their files.

use canopy_sys::file_handle;
use canopy_testkit::{Kind, LoopFs, Pool};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The filesystem type of the branches. `whole`: each branch is the root of its filesystem, not a directory in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    pub(super) whole: bool,
}

pub(super) fn layouts() -> Vec<Layout> {
    let kinds = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs];
    kinds.into_iter().flat_map(|kind| [true, false].map(|whole| Layout { kind, whole })).collect()
}

pub(super) struct Bed {
    /// Must be dropped before its branches.
    pool: Option<Pool>,
    pub(super) layout: Layout,
    _disks: Vec<LoopFs>,
    pub(super) branches: Vec<PathBuf>,
    options: String,
}

impl Bed {
    #[track_caller]
    pub(super) fn new(layout: Layout, branches: usize, options: &str) -> Bed {
        let size = if layout.kind == Kind::Tmpfs { 64 << 20 } else { 512 << 20 };
        let disks: Vec<LoopFs> = (0..branches).map(|_| LoopFs::new(layout.kind, size)).collect();
        let branches = disks.iter().map(|disk| {
            if layout.whole {
                let _ = fs::remove_dir(disk.path().join("lost+found"));
                disk.path().to_owned()
            } else {
                fs::create_dir_all(disk.path().join("some/branch")).expect("a branch");
                disk.path().join("some/branch")
            }
        });
        let branches = branches.collect();
        let mut bed = Bed { layout, _disks: disks, branches, options: options.into(), pool: None };
        bed.pool = Some(bed.mount(&bed.branches));
        bed
    }

    #[track_caller]
    fn mount(&self, branches: &[PathBuf]) -> Pool {
        let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .option("minfreespace=0,category.create=rand")
            .option(self.options.clone());
        builder.branches(branches).mount()
    }

    pub(super) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the pool is mounted")
    }

    /// Returns a path in the pool.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool().path().join(path)
    }

    /// Returns the path of a file on the branch that holds it.
    #[track_caller]
    pub(super) fn on_branch(&self, path: &str) -> PathBuf {
        let places = self.branches.iter().map(|branch| branch.join(path));
        places.into_iter().find(|place| fs::symlink_metadata(place).is_ok()).expect("a branch has the file")
    }

    /// Restarts the pool over the same branches in reverse order.
    #[track_caller]
    pub(super) fn restart(&mut self) {
        self.pool.take().expect("the pool is mounted").umount();
        self.branches.reverse();
        self.pool = Some(self.mount(&self.branches));
    }

    #[track_caller]
    pub(super) fn end(mut self) {
        self.pool.take().expect("the pool is mounted").umount();
    }

    /// Makes the kernel drop its unused dentries.
    pub(super) fn forget(&self) {
        self.pool().drop_dentries();
    }

    pub(super) fn open(&self, handle: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let root = File::open(self.pool().path()).expect("the pool");
        file_handle::open_as(root.as_fd(), handle, flags)
    }

    /// Returns the content of the file that a handle leads to.
    pub(super) fn read(&self, handle: &[u8]) -> Result<String, Errno> {
        let mut content = String::new();
        let mut file = File::from(self.open(handle, OFlags::RDONLY)?);
        file.read_to_string(&mut content).map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
        Ok(content)
    }

    /// Returns the inode number that clients see of the file that a handle leads to.
    pub(super) fn number(&self, handle: &[u8]) -> Result<u64, Errno> {
        Ok(rustix::fs::fstat(self.open(handle, OFlags::PATH)?)?.st_ino)
    }

    /// Lists the names in the directory that a handle leads to.
    pub(super) fn list(&self, handle: &[u8]) -> Result<Vec<String>, Errno> {
        let dir = self.open(handle, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let names = rustix::fs::Dir::read_from(&dir)?.map(|entry| {
            entry.map(|entry| String::from_utf8_lossy(entry.file_name().to_bytes()).into_owned())
        });
        let mut names = names.collect::<Result<Vec<_>, _>>()?;
        names.retain(|name| !matches!(name.as_str(), "." | ".."));
        names.sort();
        Ok(names)
    }
}

/// Returns the handle of a path, without following a symlink.
#[track_caller]
pub(super) fn handle(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    file_handle::from_fd(file.as_fd()).expect("a handle")
}

pub(super) fn number(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).expect("lstat").ino()
}
