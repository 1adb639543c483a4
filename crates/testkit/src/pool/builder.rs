//! Describing a pool and mounting it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Pool;
use crate::cmd::{PATIENCE, spawn, wait_until, wait_within};

/// This environment variable, `on` or `off`, is the option `io-uring` of every pool.
const TRANSPORT: &str = "CANOPY_TEST_IO_URING";

/// This one, a directory, is the option `catalogue` of every pool.
const CATALOGUE: &str = "CANOPY_TEST_CATALOGUE";

/// Returns the program to test: `CANOPY_BIN`, or `built`, which cargo built along with the tests.
pub fn program_under_test(built: impl Into<PathBuf>) -> PathBuf {
    std::env::var_os("CANOPY_BIN").map_or_else(|| built.into(), PathBuf::from)
}

/// Describes a pool to be mounted.
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    binary: PathBuf,
    branches: Vec<OsString>,
    options: Vec<String>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    point: Option<PathBuf>,
    control_group: Option<PathBuf>,
    daemon: bool,
    strict: bool,
}

/// Why a pool could not be mounted.
#[derive(Debug)]
pub struct MountFailed {
    pub code: Option<i32>,
    pub log: String,
}

impl PoolBuilder {
    /// Describes a pool that exactly this program serves.
    pub(super) fn new(binary: PathBuf) -> Self {
        PoolBuilder {
            binary,
            branches: Vec::new(),
            options: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            point: None,
            control_group: None,
            daemon: false,
            strict: true,
        }
    }

    /// Has exactly this program serve, whatever `CANOPY_BIN` says.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.binary = program.into();
        self
    }

    /// Adds a writable branch.
    pub fn branch(mut self, path: impl AsRef<Path>) -> Self {
        self.branches.push(path.as_ref().as_os_str().to_owned());
        self
    }

    /// Adds writable branches.
    pub fn branches<P: AsRef<Path>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        paths.into_iter().fold(self, PoolBuilder::branch)
    }

    /// Adds a branch with its mode, such as `/mnt/a=RO` or `/mnt/a=NC,1G`.
    pub fn branch_spec(mut self, spec: impl Into<OsString>) -> Self {
        self.branches.push(spec.into());
        self
    }

    /// Adds `-o` options, separated by commas.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        let option = option.into();
        if !option.is_empty() {
            self.options.push(option);
        }
        self
    }

    /// Adds an argument before the branches.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an environment variable of the program.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Mounts at `point` instead of a new directory.
    pub fn at(mut self, point: impl Into<PathBuf>) -> Self {
        self.point = Some(point.into());
        self
    }

    /// Starts the program in a control group, given by its directory.
    pub fn in_control_group(mut self, group: impl Into<PathBuf>) -> Self {
        self.control_group = Some(group.into());
        self
    }

    /// Lets the program go into the background, as users run it, instead of keeping it in the foreground.
    pub fn daemon(mut self) -> Self {
        self.daemon = true;
        self
    }

    /// Skips the check for descriptors that stay open on the branches.
    pub fn forgive_descriptors(mut self) -> Self {
        self.strict = false;
        self
    }

    /// Mounts the pool.
    ///
    /// # Panics
    /// If that fails. The message contains the program's output.
    #[track_caller]
    pub fn mount(self) -> Pool {
        let shown = format!("{self:?}");
        self.try_mount().unwrap_or_else(|failed| {
            panic!("no pool (exit code {:?})\n{shown}\n--- log\n{}", failed.code, failed.log)
        })
    }

    /// Mounts the pool, or returns why the program failed. Nothing stays mounted or running then.
    pub fn try_mount(self) -> Result<Pool, MountFailed> {
        crate::require_root();
        let home = tempfile::Builder::new()
            .prefix("canopy-pool-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .expect("a temporary directory");
        let root = home.path().canonicalize().expect("a path");
        let point = self.point.clone().unwrap_or_else(|| {
            let point = root.join("pool");
            fs::create_dir(&point).expect("a mount point");
            point
        });
        let point = point.canonicalize().expect("the mount point");
        let log = root.join("log");
        let mut child = self.spawn(&point, &log);
        let branches = self.branches.iter().map(|spec| branch_path(spec)).collect();
        let mut pool = Pool {
            binary: self.binary.clone(),
            home: Some(home),
            point,
            log,
            branches,
            child: None,
            pids: Vec::new(),
            baseline: Vec::new(),
            strict: self.strict,
            ended: false,
        };
        if self.daemon {
            let status = wait_within(&mut child, PATIENCE);
            pool.pids = pool.find_pids();
            if !status.is_some_and(|status| status.success()) || !pool.mounted() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(pool.abandon(status.and_then(|status| status.code())));
            }
        } else {
            let first = i32::try_from(child.id()).expect("a pid");
            pool.pids = vec![first];
            let mut code = None;
            let up = wait_until(PATIENCE, || {
                code = child.try_wait().ok().flatten();
                code.is_some() || pool.mounted()
            });
            pool.child = Some(child);
            if !up || code.is_some() {
                return Err(pool.abandon(code.and_then(|status| status.code())));
            }
            // The one that it has started to serve.
            pool.pids.extend(pool.find_pids().into_iter().filter(|&pid| pid != first));
        }
        // Once this returns, INIT is done.
        if fs::metadata(&pool.point).is_err() {
            return Err(pool.abandon(None));
        }
        pool.baseline = pool.branch_descriptors();
        Ok(pool)
    }

    fn spawn(&self, point: &Path, log: &Path) -> Child {
        let output = File::create(log).expect("a log file");
        let mut command = match &self.control_group {
            Some(group) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
                command.arg(group.join("cgroup.procs")).arg(&self.binary);
                command
            }
            None => Command::new(&self.binary),
        };
        command.arg("mount").args(&self.arguments).envs(self.environment.iter().cloned());
        if !self.daemon {
            command.arg("-f");
        }
        let mut options = self.options.clone();
        let chosen = std::env::var(TRANSPORT).ok().filter(|mode| !mode.is_empty());
        // First, so that a test that sets the option itself overrides it.
        let catalogue = std::env::var(CATALOGUE).ok().filter(|dir| !dir.is_empty());
        let chosen = chosen.map(|mode| format!("io-uring={mode}"));
        options.splice(0..0, chosen.into_iter().chain(catalogue.map(|dir| format!("catalogue={dir}"))));
        if !options.is_empty() {
            command.arg("-o").arg(options.join(","));
        }
        command.arg(self.branches.join(OsStr::new(":"))).arg(point);
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("dup")).stderr(output);
        spawn(&mut command).unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
    }
}

/// Returns the directory of a branch argument: `PATH`, `PATH=MODE` or `PATH=MODE,SIZE`.
pub(super) fn branch_path(spec: &OsStr) -> PathBuf {
    let text = spec.to_string_lossy();
    let path = match text.rsplit_once('=') {
        Some((path, _)) if !Path::new(spec).exists() => PathBuf::from(path),
        _ => PathBuf::from(spec),
    };
    path.canonicalize().unwrap_or(path)
}
