//! A pool that is served in this process, behind a double of the kernel: what commands do is tested without a mount.
//!
//! Its mountpoint is an empty directory, by which commands find it. What they ask of the pool goes over the wire of FUSE; the
//! branches they look at themselves, as always.

use crate::pool_link::served_here;
use canopy_config::Config;
use canopy_config::resolve::resolve;
use canopy_config::source::command_line::{Arg, apply};
use canopy_config::state::name_of;
use canopy_control::mount::Mount;
use canopy_control::socket::directory;
use canopy_server::{Serving, serve_device};
use canopy_sys::ioctl::relocate::{RELOCATE, Relocation};
use canopy_testkit::kernel::{Kernel, OFFERS};
use canopy_testkit::{LoopFs, ScratchDir, require_root};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kernel's side.
#[derive(Debug)]
struct Double(Kernel);

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test")
}

impl Mount for Double {
    fn getxattr(&self, path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
        self.0.xattr(text(path), name)
    }
    fn setxattr(&self, path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
        self.0.set_xattr(text(path), name, value)
    }
    fn listxattr(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.0.xattrs(text(path))
    }
    fn look_up(&self, path: &Path) -> Result<(), Errno> {
        self.0.stat(text(path)).map(drop)
    }
    fn relocate(&self, dir: &Path, relocation: &Relocation<'_>) -> Result<(), Errno> {
        self.0.ioctl(text(dir), RELOCATE, &relocation.to_bytes()?).map(drop)
    }
}

/// A served pool over directories.
pub(crate) struct TestPool {
    double: Option<Arc<Double>>,
    serving: Option<Serving>,
    branches: Vec<PathBuf>,
    _disks: Vec<LoopFs>,
    scratch: ScratchDir,
}

impl TestPool {
    /// Serves a pool over directories of one filesystem.
    pub(crate) fn new(branches: usize, options: &str) -> TestPool {
        let scratch = ScratchDir::new("upkeep", &["pool"]);
        let paths: Vec<PathBuf> = (0..branches).map(|number| scratch.path(&format!("b{number}"))).collect();
        paths.iter().for_each(|path| fs::create_dir(path).unwrap());
        TestPool::over(paths, Vec::new(), scratch, options)
    }

    /// Serves a pool over disks of their own.
    pub(crate) fn on_disks(branches: usize, options: &str) -> TestPool {
        require_root();
        let disks: Vec<LoopFs> = (0..branches).map(|_| LoopFs::tmpfs(64 << 20)).collect();
        let paths = disks.iter().map(|disk| disk.path().to_owned()).collect();
        TestPool::over(paths, disks, ScratchDir::new("upkeep", &["pool"]), options)
    }

    fn over(paths: Vec<PathBuf>, disks: Vec<LoopFs>, scratch: ScratchDir, options: &str) -> TestPool {
        let list: Vec<&str> = paths.iter().map(|path| text(path)).collect();
        let options = format!("minfreespace=0,{options}");
        let args = [
            Arg::Options(options.trim_end_matches(',').into()),
            Arg::Path(list.join(":").into()),
            Arg::Path(scratch.path("pool").into()),
        ];
        let mut config = Config::default();
        apply(&mut config, args).unwrap();
        let plan = resolve(config).unwrap();
        let (kernel, device) = Kernel::new(OFFERS);
        let serving = serve_device(&plan, device).unwrap();
        let double = Arc::new(Double(kernel));
        let mount: Arc<dyn Mount> = double.clone();
        served_here::add(&scratch.path("pool"), &mount);
        TestPool { double: Some(double), serving: Some(serving), branches: paths, _disks: disks, scratch }
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.double.as_ref().unwrap().0
    }

    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.scratch.path("pool")
    }

    pub(crate) fn branch(&self, number: usize) -> &Path {
        &self.branches[number]
    }

    /// Puts a file on a branch, as if it had been there before the pool was made.
    pub(crate) fn put(&self, branch: usize, path: &str, content: &[u8]) {
        let at = self.branches[branch].join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, content).unwrap();
    }

    /// Returns the branches that hold a path.
    pub(crate) fn holders(&self, path: &str) -> Vec<usize> {
        let holds = |at: &usize| self.branches[*at].join(path).symlink_metadata().is_ok();
        (0..self.branches.len()).filter(holds).collect()
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        served_here::remove(&self.mountpoint());
        // What the mover has told of itself.
        let record = format!("tier{}.json", name_of(&self.mountpoint()));
        let _ = fs::remove_file(directory(rustix::process::geteuid().as_raw()).join(record));
        // The connection ends first, as by an unmount.
        drop(self.double.take());
        if let Some(serving) = self.serving.take() {
            serving.join();
        }
    }
}
