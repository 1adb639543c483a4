//! The branches and mountpoints of a run, which are all removed at its end.

use crate::error::{Error, ErrorContext};
use crate::interrupt::Interrupt;
use canopy_fuse::mount::unmount_path;
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use rustix::mount::MountFlags;
use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The prefix of all directories that are made.
const PREFIX: &str = "canopy-bench-";
const MIB: u64 = 1 << 20;

/// The size of the tmpfs for isolated branches, which hold metadata and small files only.
const ISOLATED_BYTES: u64 = 256 * MIB;

/// The size of a tmpfs if another program uses it. By default such programs create nothing on branches that have less
/// than 4 GiB free. What nobody writes occupies no memory.
const ROOMY_BYTES: u64 = 16 << 30;

/// The filesystem of `--against`.
#[derive(Clone, Debug)]
pub(crate) enum Against {
    /// A directory of one that is mounted.
    Mounted(PathBuf),
    /// A command that mounts one. The branches, separated by colons, and the mountpoint are added to it.
    Command(String),
}

impl Against {
    /// Interprets the value of the option: what is a directory is mounted already.
    pub(crate) fn new(value: &str) -> Result<Against, Error> {
        if Path::new(value).is_dir() {
            return Ok(Against::Mounted(value.into()));
        }
        let program = Path::new(value.split_whitespace().next().unwrap_or_default());
        let unusable = |why: &str| Error::Unusable { path: value.into(), why: why.into() };
        match program.components().count() {
            0 => Err(unusable("neither a directory nor a command")),
            // The shell looks it up.
            1 => Ok(Against::Command(value.into())),
            _ if program.exists() => Ok(Against::Command(value.into())),
            _ => Err(unusable("No such file or directory")),
        }
    }
}

/// Where to make the branches.
#[derive(Debug, Default)]
pub(crate) struct TestbedSpec {
    pub dir: Option<PathBuf>,
    pub branches: Vec<PathBuf>,
    pub against: Option<Against>,
    /// Bytes of data that the tables write.
    pub need: u64,
    /// How many branches to make if none are given.
    pub count: usize,
}

pub(crate) struct Testbed {
    // Fields drop in this order: the mounts before the directories below them.
    tmpfs: RefCell<Vec<Tmpfs>>,
    branches: Vec<PathBuf>,
    against: Option<Against>,
    _dirs: Vec<TempDir>,
    home: TempDir,
    pub interrupt: Interrupt,
}

impl Testbed {
    /// Checks the free space, then makes the directories.
    pub(crate) fn new(spec: &TestbedSpec) -> Result<Testbed, Error> {
        let interrupt = Interrupt::watch()?;
        let home = temp_dir_in(&std::env::temp_dir())?;
        let mut testbed = Testbed {
            tmpfs: RefCell::default(),
            branches: Vec::new(),
            against: spec.against.clone(),
            _dirs: Vec::new(),
            home,
            interrupt,
        };
        fs::create_dir(testbed.home().join("mounts")).context("make a directory in", testbed.home())?;
        match (&spec.dir, spec.branches.as_slice()) {
            (_, [_, ..]) => {
                for branch in &spec.branches {
                    require_space_on(branch, spec.need)?;
                    let dir = temp_dir_in(branch)?;
                    testbed.branches.push(dir.path().to_owned());
                    testbed._dirs.push(dir);
                }
            }
            (Some(dir), []) => {
                require_space_on(dir, spec.need)?;
                let dir = temp_dir_in(dir)?;
                testbed.branches = create_numbered(dir.path(), spec.count)?;
                testbed._dirs.push(dir);
            }
            (None, []) if rustix::process::geteuid().is_root() => {
                require_memory(spec.need)?;
                let root = testbed.home().join("branches");
                fs::create_dir(&root).context("make", &root)?;
                let mounted = Tmpfs::mount(&root, testbed.tmpfs_size(spec.need))?;
                testbed.tmpfs.get_mut().push(mounted);
                testbed.branches = create_numbered(&root, spec.count)?;
            }
            (None, []) => {
                require_space_on(testbed.home(), spec.need)?;
                let root = testbed.home().join("branches");
                fs::create_dir(&root).context("make", &root)?;
                testbed.branches = create_numbered(&root, spec.count)?;
            }
        }
        if let Some(Against::Mounted(path)) = &mut testbed.against {
            require_space_on(path, spec.need)?;
            let dir = temp_dir_in(path)?;
            *path = dir.path().to_owned();
            testbed._dirs.push(dir);
        }
        Ok(testbed)
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn branches(&self) -> &[PathBuf] {
        &self.branches
    }

    /// Returns branches that only one pool uses. A pool is notified of every change on the filesystems of its branches,
    /// so idle pools on a shared filesystem would slow the others down. If the branches are not on a tmpfs of the
    /// benchmark, these are the common ones.
    pub(crate) fn isolated_branches(&self, count: usize) -> Result<Vec<PathBuf>, Error> {
        let mut mounted = self.tmpfs.borrow_mut();
        if mounted.is_empty() {
            return Ok(self.branches[..count].to_vec());
        }
        let root = self.home().join(format!("branches{}", mounted.len()));
        fs::create_dir(&root).context("make", &root)?;
        mounted.push(Tmpfs::mount(&root, self.tmpfs_size(ISOLATED_BYTES))?);
        create_numbered(&root, count)
    }

    /// Returns the size of a tmpfs for `need` bytes.
    fn tmpfs_size(&self, need: u64) -> u64 {
        if matches!(self.against, Some(Against::Command(_))) { need.max(ROOMY_BYTES) } else { need }
    }

    /// Returns the filesystem of `--against`; of a mounted one a directory made there.
    pub(crate) fn against(&self) -> Option<&Against> {
        self.against.as_ref()
    }

    /// Returns the filesystem type of the branches, for the report.
    pub(crate) fn branch_fstype(&self) -> String {
        let Ok(mut all) = mountinfo::list() else { return String::new() };
        all.retain(|mounted| self.branches[0].starts_with(&mounted.mountpoint));
        let nearest = all.into_iter().max_by_key(|mounted| mounted.mountpoint.as_os_str().len());
        nearest.map(|mounted| mounted.fstype).unwrap_or_default()
    }

    /// Returns an empty directory to mount on.
    pub(crate) fn mountpoint(&self, name: &str) -> Result<PathBuf, Error> {
        let point = self.home().join("mounts").join(name);
        match fs::create_dir(&point) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(point),
            made => made.map(|()| point.clone()).context("make", &point),
        }
    }
}

fn temp_dir_in(parent: &Path) -> Result<TempDir, Error> {
    let unusable = |why: std::io::Error| Error::Unusable { path: parent.to_owned(), why: why.to_string() };
    let parent = parent.canonicalize().map_err(unusable)?;
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(&parent)
        .map_err(|why| Error::Unusable { path: parent, why: why.to_string() })
}

fn create_numbered(root: &Path, count: usize) -> Result<Vec<PathBuf>, Error> {
    let paths: Vec<PathBuf> = (1..=count).map(|number| root.join(format!("{number:02}"))).collect();
    for path in &paths {
        fs::create_dir(path).context("make", path)?;
    }
    Ok(paths)
}

fn require_space_on(path: &Path, need: u64) -> Result<(), Error> {
    let unusable = |errno: rustix::io::Errno| Error::Unusable { path: path.into(), why: errno.to_string() };
    let space = rustix::fs::statvfs(path).map_err(unusable)?;
    require(path.shown().to_string(), space.f_bavail.saturating_mul(space.f_frsize), need)
}

fn require_memory(need: u64) -> Result<(), Error> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let have = kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(u64::MAX, |kib| kib * 1024);
    // Data that a pool reads without passthrough is in the page cache twice.
    require("this machine's memory".into(), have, need * 2)
}

fn require(place: String, have: u64, need: u64) -> Result<(), Error> {
    if have >= need {
        Ok(())
    } else {
        Err(Error::Space { place, have: have / MIB, need: need.div_ceil(MIB) })
    }
}

/// A tmpfs that only the benchmark uses, unmounted on drop.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: &Path, size: u64) -> Result<Tmpfs, Error> {
        let options = std::ffi::CString::new(format!("size={size},nr_inodes=0,mode=755")).unwrap_or_default();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("canopy-bench", path, "tmpfs", flags, options.as_c_str())
            .context("mount a tmpfs on", path)?;
        Ok(Tmpfs(path.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if let Err(error) = unmount_path(&self.0, true) {
            eprintln!("canopy: {} cannot be unmounted: {error}", self.0.shown());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_place_without_space() {
        let error = require_space_on(Path::new("/"), u64::MAX).unwrap_err().to_string();
        assert!(error.starts_with("/ has ") && error.contains("--quick"), "{error}");
        assert!(require_space_on(Path::new("/"), 1).is_ok());
        assert!(require_memory(u64::MAX / 4).unwrap_err().to_string().contains("memory"));
    }

    #[test]
    fn all_directories_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let spec = TestbedSpec {
            dir: Some(dir.path().to_owned()),
            against: Some(Against::new(dir.path().to_str().unwrap()).unwrap()),
            need: 1,
            count: 3,
            ..TestbedSpec::default()
        };
        let testbed = Testbed::new(&spec).unwrap();
        assert_eq!(testbed.branches().len(), 3);
        assert!(testbed.branches()[2].ends_with("03"));
        assert!(
            matches!(testbed.against(), Some(Against::Mounted(made)) if made.parent() == Some(dir.path()))
        );
        let home = testbed.home().to_owned();
        drop(testbed);
        assert!(!home.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn against_takes_a_directory_or_a_command() {
        assert!(matches!(Against::new("/"), Ok(Against::Mounted(_))));
        for command in ["mergerfs -f", "/bin/sh -c x"] {
            assert!(matches!(Against::new(command), Ok(Against::Command(same)) if same == command));
        }
        for (value, why) in [("/missing/program -f", "No such file"), (" ", "neither"), ("", "neither")] {
            let error = Against::new(value).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
