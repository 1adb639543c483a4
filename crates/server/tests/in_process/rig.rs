//! A pool that is served in this process.

use canopy_config::Config;
use canopy_config::resolve::resolve;
use canopy_config::source::command_line::{Arg, apply};
use canopy_server::{Serving, serve_device};
use canopy_testkit::kernel::{Kernel, OFFERS};
use canopy_testkit::{LoopFs, PATIENCE, ScratchDir, cmd, require_root};
use rustix::io::Errno;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A served pool, and the kernel that asks it.
pub(crate) struct Rig {
    kernel: Option<Kernel>,
    serving: Option<Serving>,
    branches: Vec<PathBuf>,
    stranger: Option<Stranger>,
    _disks: Vec<LoopFs>,
    _scratch: ScratchDir,
}

impl Rig {
    /// Serves a pool over directories of the scratch directory. Without root their changes are not watched.
    pub(crate) fn new(branches: usize, options: &str) -> Rig {
        let scratch = ScratchDir::new("in-process", &["pool"]);
        let paths: Vec<PathBuf> = (0..branches).map(|number| scratch.path(&format!("b{number}"))).collect();
        paths.iter().for_each(|path| fs::create_dir(path).unwrap());
        Rig::over(paths, Vec::new(), scratch, options)
    }

    /// Serves a pool over filesystems of its own, whose changes are watched.
    pub(crate) fn watched(branches: usize, options: &str) -> Rig {
        require_root();
        let scratch = ScratchDir::new("in-process", &["pool"]);
        let disks: Vec<LoopFs> = (0..branches).map(|_| LoopFs::tmpfs(64 << 20)).collect();
        let paths = disks.iter().map(|disk| disk.path().to_owned()).collect();
        Rig::over(paths, disks, scratch, options)
    }

    fn over(branches: Vec<PathBuf>, disks: Vec<LoopFs>, scratch: ScratchDir, options: &str) -> Rig {
        let list: Vec<&str> = branches.iter().map(|path| path.to_str().unwrap()).collect();
        let all = format!("minfreespace=0,{options}");
        let args = [
            Arg::Options(all.trim_end_matches(',').into()),
            Arg::Path(list.join(":").into()),
            Arg::Path(scratch.path("pool").into()),
        ];
        let mut config = Config::default();
        apply(&mut config, args).unwrap();
        let plan = resolve(config).unwrap();
        let (kernel, device) = Kernel::new(OFFERS);
        let serving = serve_device(&plan, device).unwrap();
        let watches = !disks.is_empty();
        Rig {
            kernel: Some(kernel),
            serving: Some(serving),
            branches,
            stranger: watches.then(Stranger::start),
            _disks: disks,
            _scratch: scratch,
        }
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        self.kernel.as_ref().unwrap()
    }

    pub(crate) fn branch(&self, number: usize) -> &Path {
        &self.branches[number]
    }

    /// Runs a shell command in a branch, by another process: the pool takes its own process's changes for its own.
    pub(crate) fn outside(&mut self, branch: usize, command: &str) {
        let dir = self.branches[branch].clone();
        self.stranger.as_mut().expect("a watched pool").run(&dir, command);
    }

    /// Waits until the kernel believes what holds.
    pub(crate) fn comes_true(&self, what: &str, mut holds: impl FnMut(&Kernel) -> bool) {
        assert!(cmd::wait_until(PATIENCE, || holds(self.kernel())), "never: {what}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The connection ends first, as by an unmount.
        drop(self.kernel.take());
        if let Some(serving) = self.serving.take() {
            serving.join();
        }
    }
}

/// A shell that is told what to do.
struct Stranger {
    shell: Child,
    tells: ChildStdin,
    hears: BufReader<ChildStdout>,
}

impl Stranger {
    fn start() -> Stranger {
        let mut shell =
            Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let (tells, hears) = (shell.stdin.take().unwrap(), BufReader::new(shell.stdout.take().unwrap()));
        Stranger { shell, tells, hears }
    }

    fn run(&mut self, dir: &Path, command: &str) {
        writeln!(self.tells, "cd {} && {{ {command}; }} </dev/null >&2; echo $?", dir.display()).unwrap();
        let mut status = String::new();
        self.hears.read_line(&mut status).unwrap();
        assert_eq!(status, "0\n", "{command} in {}", dir.display());
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = writeln!(self.tells, "exit");
        let _ = self.shell.wait();
    }
}

/// Returns whether a call has failed with this error.
pub(crate) fn fails<T>(result: Result<T, Errno>, errno: Errno) -> bool {
    result.err() == Some(errno)
}
