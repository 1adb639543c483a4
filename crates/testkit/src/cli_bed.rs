//! A directory to run the program in: branches, a mountpoint, and the daemons that are started there.

use std::ffi::OsString;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cmd::{Finished, PATIENCE, run_unless_busy, run_within, wait_until};
use crate::{ScratchDir, proc, program_under_test};

/// A [`ScratchDir`] in which a test runs the program. In command lines `@name` is the path of `name` in the directory,
/// which is also the working directory.
#[derive(Debug)]
pub struct CliBed {
    scratch: ScratchDir,
    program: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl CliBed {
    /// Makes a directory whose name starts with `prefix`, and directories of these names in it. `built` is the program,
    /// usually `env!("CARGO_BIN_EXE_canopy")`, unless `CANOPY_BIN` overrides it.
    ///
    /// # Panics
    /// Without root.
    #[track_caller]
    pub fn new(built: &str, prefix: &str, dirs: &[&str]) -> Self {
        CliBed {
            scratch: ScratchDir::new(prefix, dirs),
            program: program_under_test(built),
            environment: Vec::new(),
        }
    }

    /// Lets commands look for configuration files in the directory `name`.
    #[must_use]
    pub fn with_config_dir(mut self, name: &str) -> Self {
        let dir = self.path(name).into_os_string();
        self.environment.push(("CANOPY_CONFIG_DIR", dir));
        self
    }

    /// Links the program under these names in the directory `sbin`.
    #[must_use]
    #[track_caller]
    pub fn with_names(self, names: &[&str]) -> Self {
        for name in names {
            symlink(&self.program, self.path("sbin").join(name)).expect("a link to the program");
        }
        self
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the command `canopy LINE`.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.words(line));
        self.prepare(&mut command);
        command
    }

    /// Returns the command of a line whose first word is one of the [names](CliBed::with_names) of the program.
    pub fn command_as(&self, line: &str) -> Command {
        let mut words = self.words(line).into_iter();
        let mut command = Command::new(self.path("sbin").join(words.next().expect("the name of a program")));
        command.args(words);
        self.prepare(&mut command);
        command
    }

    /// Runs a line whose first word is one of the [names](CliBed::with_names) of the program. Tries again for a while if
    /// that fails because a mount is busy.
    #[track_caller]
    pub fn run_as(&self, line: &str) -> Finished {
        run_unless_busy(&mut self.command_as(line), PATIENCE)
    }

    fn prepare(&self, command: &mut Command) {
        command.current_dir(self.dir()).env_remove("CANOPY_LOG").env_remove("RUST_LOG");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }

    /// Runs `canopy LINE`.
    #[track_caller]
    pub fn run(&self, line: &str) -> Finished {
        run_within(&mut self.command(line), PATIENCE)
    }

    /// Runs `canopy LINE`, which must succeed. Tries again for a while if that fails because a mount is busy.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ok(&self, line: &str) -> Finished {
        let done = run_unless_busy(&mut self.command(line), PATIENCE);
        assert!(done.success(), "canopy {line}: {}", done.describe());
        done
    }

    /// Runs `canopy LINE`, which must succeed and write nothing to stderr. Returns what it writes to stdout, with paths
    /// [shortened](ScratchDir::shorten).
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn stdout(&self, line: &str) -> String {
        let done = self.ok(line);
        assert!(done.stderr.is_empty(), "canopy {line}: {}", done.describe());
        self.shorten(done.stdout.trim_end())
    }

    /// Runs `canopy LINE`, which must fail and write nothing to stdout. Returns what it writes to stderr, with paths
    /// [shortened](ScratchDir::shorten).
    ///
    /// # Panics
    /// If it succeeds.
    #[track_caller]
    pub fn error(&self, line: &str) -> String {
        let done = self.run(line);
        assert!(matches!(done.code(), Some(1 | 2)) && done.stdout.is_empty(), "{line}: {}", done.describe());
        self.shorten(done.stderr.trim_end())
    }

    /// Returns the daemons that were started here, without the keepers of those that serve (`survive`). A keeper whose
    /// daemon has ended is among them until it has ended, too.
    pub fn daemons(&self) -> Vec<proc::Process> {
        let mut found = proc::daemons(&self.dir());
        let parents: Vec<_> = found.iter().filter_map(|process| proc::parent(process.pid)).collect();
        found.retain(|process| !parents.contains(&process.pid));
        found
    }

    /// Waits until this many daemons run.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn wait_for_daemons(&self, count: usize) {
        assert!(wait_until(PATIENCE, || self.daemons().len() == count), "{:?}", self.daemons());
    }

    /// Unmounts the only pool, given by a mountpoint `@name` or by its own name, and waits until its daemon has ended.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn umount(&self, pool: &str) {
        self.ok(&format!("umount {pool}"));
        self.wait_for_daemons(0);
    }
}

impl Deref for CliBed {
    type Target = ScratchDir;
    fn deref(&self) -> &ScratchDir {
        &self.scratch
    }
}
