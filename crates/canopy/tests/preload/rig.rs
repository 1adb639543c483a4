//! A pool over two branches, the installed library, and C programs that load it.

use canopy_testkit::cmd::{Finished, run, run_within};
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed, ScratchDir};
use std::ffi::OsStr;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) struct Bed {
    // The fields drop in this order; the leak check must come last.
    bed: PoolBed,
    scratch: ScratchDir,
}

impl Deref for Bed {
    type Target = PoolBed;
    fn deref(&self) -> &PoolBed {
        &self.bed
    }
}

impl Bed {
    #[track_caller]
    pub(super) fn new(options: &str) -> Self {
        Self::over([LoopFs::tmpfs(256 << 20), LoopFs::tmpfs(256 << 20)], options)
    }

    #[track_caller]
    pub(super) fn over(disks: [LoopFs; 2], options: &str) -> Self {
        let scratch = ScratchDir::new("canopy-preload-", &[]);
        // Cargo builds the library next to the tests. Users other than root must be able to load it.
        let built = std::env::current_exe().expect("this test").with_file_name("libcanopy_preload.so");
        fs::copy(&built, scratch.path("preload.so"))
            .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        fs::set_permissions(scratch.path("preload.so"), PermissionsExt::from_mode(0o444)).expect("chmod");
        let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .option("minfreespace=0,category.create=ff")
            .option(options);
        Self { bed: PoolBed::mount(builder, disks), scratch }
    }

    /// Returns a path outside the pool and its branches.
    pub(super) fn outside(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// Returns the value for `LD_PRELOAD`.
    pub(super) fn library(&self) -> PathBuf {
        self.scratch.path("preload.so")
    }

    /// Compiles a C program of this directory.
    #[track_caller]
    pub(super) fn program(&self, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload").join(format!("{name}.c"));
        let program = self.scratch.path(name);
        let args = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"].map(OsStr::new);
        run("cc", args.into_iter().chain([program.as_os_str(), source.as_os_str()]));
        program
    }

    /// Runs a command with the library preloaded.
    pub(super) fn run(&self, command: &mut Command) -> Finished {
        run_within(command.env("LD_PRELOAD", self.library()), 5 * PATIENCE)
    }

    /// Runs a program with the library preloaded, which must succeed, and returns its stdout.
    #[track_caller]
    pub(super) fn run_ok<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> String {
        let mut command = Command::new(program);
        let done = self.run(command.args(args));
        assert!(done.success(), "{command:?}: {}", done.describe());
        done.stdout
    }

    /// Runs a shell script in the pool's root with the library preloaded. It must succeed.
    #[track_caller]
    pub(super) fn shell(&self, script: &str) -> String {
        let mut command = Command::new("sh");
        let done = self.run(command.current_dir(self.pool.path()).args(["-euc", script]));
        assert!(done.success(), "{script}\n{}", done.describe());
        done.stdout
    }

    /// Unmounts the pool, and runs its final checks.
    #[track_caller]
    pub(super) fn end(self) {
        self.bed.pool.umount();
    }
}
