//! Where everything happens: the branches, the places for mounts, and the promise that nothing of it stays.

use crate::error::{Fault, Tried};
use crate::interrupt::Interrupt;
use canopy_fuse::mount::unmount_path;
use canopy_sys::mountinfo;
use rustix::mount::MountFlags;
use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What the directories are called, wherever they are made.
const PREFIX: &str = "canopy-bench-";
const MIB: u64 = 1 << 20;

/// Bytes that pools with branches of their own may need: they are for metadata.
const APART: u64 = 256 * MIB;

/// Where the branches are to lie.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    pub dir: Option<PathBuf>,
    pub branches: Vec<PathBuf>,
    pub against: Option<PathBuf>,
    /// Bytes of data that the tables write.
    pub need: u64,
    /// How many branches to make, where none are given.
    pub count: usize,
}

pub(crate) struct Stage {
    // Dropped in this order: mounts go before the directories beneath them.
    tmpfs: RefCell<Vec<Tmpfs>>,
    branches: Vec<PathBuf>,
    against: Option<TempDir>,
    _dirs: Vec<TempDir>,
    home: TempDir,
    pub interrupt: Interrupt,
}

impl Stage {
    /// Nothing is made before it is known that there is room.
    pub(crate) fn new(ground: &Ground) -> Result<Stage, Fault> {
        let interrupt = Interrupt::watch()?;
        let home = directory_in(&std::env::temp_dir())?;
        let mut stage = Stage {
            tmpfs: RefCell::default(),
            branches: Vec::new(),
            against: None,
            _dirs: Vec::new(),
            home,
            interrupt,
        };
        fs::create_dir(stage.home().join("mounts")).tried("make a directory in", stage.home())?;
        match (&ground.dir, ground.branches.as_slice()) {
            (_, [_, ..]) => {
                for branch in &ground.branches {
                    room_on(branch, ground.need)?;
                    let dir = directory_in(branch)?;
                    stage.branches.push(dir.path().to_owned());
                    stage._dirs.push(dir);
                }
            }
            (Some(dir), []) => {
                room_on(dir, ground.need)?;
                let dir = directory_in(dir)?;
                stage.branches = numbered(dir.path(), ground.count)?;
                stage._dirs.push(dir);
            }
            (None, []) if rustix::process::geteuid().is_root() => {
                room_in_memory(ground.need)?;
                let root = stage.home().join("branches");
                fs::create_dir(&root).tried("make", &root)?;
                stage.tmpfs.get_mut().push(Tmpfs::mount(&root, ground.need)?);
                stage.branches = numbered(&root, ground.count)?;
            }
            (None, []) => {
                room_on(stage.home(), ground.need)?;
                let root = stage.home().join("branches");
                fs::create_dir(&root).tried("make", &root)?;
                stage.branches = numbered(&root, ground.count)?;
            }
        }
        if let Some(path) = &ground.against {
            room_on(path, ground.need)?;
            stage.against = Some(directory_in(path)?);
        }
        Ok(stage)
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn branches(&self) -> &[PathBuf] {
        &self.branches
    }

    /// So many branches on which nothing happens but what is done through one pool: a pool is told of all that happens
    /// on the filesystems of its branches, and those that stand idle would cost the others time. Where the branches are
    /// not in a memory of our own, it is those that all work on.
    pub(crate) fn apart(&self, count: usize) -> Result<Vec<PathBuf>, Fault> {
        let mut mounted = self.tmpfs.borrow_mut();
        if mounted.is_empty() {
            return Ok(self.branches[..count].to_vec());
        }
        let root = self.home().join(format!("branches{}", mounted.len()));
        fs::create_dir(&root).tried("make", &root)?;
        mounted.push(Tmpfs::mount(&root, APART)?);
        numbered(&root, count)
    }

    pub(crate) fn against(&self) -> Option<&Path> {
        self.against.as_ref().map(TempDir::path)
    }

    /// Type and device of what lies beneath the branches, for the report.
    pub(crate) fn beneath(&self) -> String {
        let Ok(mut all) = mountinfo::list() else { return String::new() };
        all.retain(|mounted| self.branches[0].starts_with(&mounted.mountpoint));
        let nearest = all.into_iter().max_by_key(|mounted| mounted.mountpoint.as_os_str().len());
        nearest.map(|mounted| mounted.fstype).unwrap_or_default()
    }

    /// An empty directory to mount on.
    pub(crate) fn mountpoint(&self, name: &str) -> Result<PathBuf, Fault> {
        let point = self.home().join("mounts").join(name);
        match fs::create_dir(&point) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(point),
            made => made.map(|()| point.clone()).tried("make", &point),
        }
    }
}

fn directory_in(parent: &Path) -> Result<TempDir, Fault> {
    let unusable = |why: std::io::Error| Fault::Unusable { path: parent.to_owned(), why: why.to_string() };
    let parent = parent.canonicalize().map_err(unusable)?;
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(&parent)
        .map_err(|why| Fault::Unusable { path: parent, why: why.to_string() })
}

fn numbered(root: &Path, count: usize) -> Result<Vec<PathBuf>, Fault> {
    let paths: Vec<PathBuf> = (1..=count).map(|number| root.join(format!("{number:02}"))).collect();
    for path in &paths {
        fs::create_dir(path).tried("make", path)?;
    }
    Ok(paths)
}

fn room_on(path: &Path, need: u64) -> Result<(), Fault> {
    let unusable = |errno: rustix::io::Errno| Fault::Unusable { path: path.into(), why: errno.to_string() };
    let space = rustix::fs::statvfs(path).map_err(unusable)?;
    enough(path.display().to_string(), space.f_bavail.saturating_mul(space.f_frsize), need)
}

fn room_in_memory(need: u64) -> Result<(), Fault> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let have = kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(u64::MAX, |kib| kib * 1024);
    // What is read through a pool without passthrough lies in the page cache a second time.
    enough("this machine's memory".into(), have, need * 2)
}

fn enough(place: String, have: u64, need: u64) -> Result<(), Fault> {
    if have >= need {
        Ok(())
    } else {
        Err(Fault::Space { place, have: have / MIB, need: need.div_ceil(MIB) })
    }
}

/// A tmpfs of our own, away from others' files and limits.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: &Path, size: u64) -> Result<Tmpfs, Fault> {
        let options = std::ffi::CString::new(format!("size={size},nr_inodes=0,mode=755")).unwrap_or_default();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("canopy-bench", path, "tmpfs", flags, options.as_c_str())
            .tried("mount a tmpfs on", path)?;
        Ok(Tmpfs(path.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if let Err(error) = unmount_path(&self.0, true) {
            eprintln!("canopy: {} cannot be unmounted: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_too_small_is_refused_with_its_name() {
        let fault = room_on(Path::new("/"), u64::MAX).unwrap_err().to_string();
        assert!(fault.starts_with("/ has ") && fault.contains("--quick"), "{fault}");
        assert!(room_on(Path::new("/"), 1).is_ok());
        assert!(room_in_memory(u64::MAX / 4).unwrap_err().to_string().contains("memory"));
    }

    #[test]
    fn nothing_is_left_of_directories() {
        let dir = tempfile::tempdir().unwrap();
        let ground = Ground {
            dir: Some(dir.path().to_owned()),
            against: Some(dir.path().to_owned()),
            need: 1,
            count: 3,
            ..Ground::default()
        };
        let stage = Stage::new(&ground).unwrap();
        assert_eq!(stage.branches().len(), 3);
        assert!(stage.branches()[2].ends_with("03") && stage.against().is_some());
        let home = stage.home().to_owned();
        drop(stage);
        assert!(!home.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
