//! A server process with its mount, for as long as it is measured: a pool or the floor.

use crate::error::Error;
use crate::interrupt::KillGuard;
use crate::testbed::Testbed;
use canopy_fuse::mount::unmount_path;
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use rustix::process::Pid;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to start, and to exit.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Server {
    child: Child,
    point: PathBuf,
    log: PathBuf,
    _kill_guard: Option<KillGuard>,
}

impl Server {
    /// Starts a pool with this program, as users do.
    pub(crate) fn pool(
        testbed: &Testbed,
        name: &str,
        branches: &[PathBuf],
        options: &str,
    ) -> Result<Server, Error> {
        let list: Vec<&OsStr> = branches.iter().map(|branch| branch.as_os_str()).collect();
        let args = ["mount", "-f", "-o", options].map(OsString::from).into_iter();
        let args = args.chain([list.join(OsStr::new(":"))]);
        let started = Server::start(testbed, name, own_program(args));
        started.map_err(|why| Error::NoPool { options: options.into(), why })?
    }

    /// Starts the filesystem of `--against`. The shell splits the command into words.
    pub(crate) fn against(
        testbed: &Testbed,
        name: &str,
        branches: &[PathBuf],
        command: &str,
    ) -> Result<Server, Error> {
        let list: Vec<&OsStr> = branches.iter().map(|branch| branch.as_os_str()).collect();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {command} \"$@\""), "sh"]).arg(list.join(OsStr::new(":")));
        let started = Server::start(testbed, name, shell);
        started.map_err(|why| Error::NoAgainst { command: command.into(), why })?
    }

    /// Starts the floor. `existing` is the real directory whose files it serves.
    pub(crate) fn floor(
        testbed: &Testbed,
        name: &str,
        io_uring: bool,
        existing: &Path,
    ) -> Result<Server, Error> {
        let args = ["bench-floor".into(), "--existing".into(), existing.into()].into_iter();
        let args = args.chain(io_uring.then(|| "--io-uring".into()));
        Server::start(testbed, name, own_program(args)).map_err(|why| Error::NoFloor { why })?
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.point
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Runs a command with the mountpoint as its last argument. It must stay in the foreground. The outer error is the
    /// server's own; the inner one concerns the testbed or an interruption.
    fn start(testbed: &Testbed, name: &str, mut command: Command) -> Result<Result<Server, Error>, String> {
        let point = match testbed.mountpoint(name) {
            Ok(point) => point,
            Err(error) => return Ok(Err(error)),
        };
        let log = testbed.home().join(format!("{name}.log"));
        let output = File::create(&log).map_err(|error| error.to_string())?;
        command.arg(&point);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        // A Ctrl-C at the terminal must only reach this process, which ends the servers itself.
        command.process_group(0);
        let child = command.spawn().map_err(|error| error.to_string())?;
        let _kill_guard = testbed.interrupt.guard(Pid::from_child(&child)).ok();
        let mut server = Server { child, point, log, _kill_guard };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if server.is_up() {
                return Ok(Ok(server));
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(match server.last_log_line() {
                    _ if status.success() => "it left the foreground".into(),
                    line if line.is_empty() => status.to_string(),
                    line => line,
                });
            }
            if let Err(error) = testbed.interrupt.check() {
                return Ok(Err(error));
            }
            if Instant::now() > deadline {
                return Err(format!("not mounted within {} s", PATIENCE.as_secs()));
            }
            sleep(PAUSE);
        }
    }

    /// Returns whether it is mounted and answers a request.
    fn is_up(&self) -> bool {
        let mounted = mountinfo::at(&self.point).ok().flatten().is_some_and(|mounted| mounted.is_fuse());
        mounted && fs::metadata(&self.point).is_ok()
    }

    /// Returns an error if the server has exited by itself.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let why = match self.last_log_line() {
                    line if line.is_empty() => status.to_string(),
                    line => format!("{status}; {line}"),
                };
                Err(Error::ServerEnded { point: self.point.clone(), why })
            }
            _ => Ok(()),
        }
    }

    fn last_log_line(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().last().unwrap_or_default().trim_start_matches("canopy: ").to_owned()
    }

    fn exits_within(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => sleep(PAUSE),
                _ => return true,
            }
        }
        false
    }
}

/// Returns a command that runs this program: by its path, so that it shows as canopy in ps(1), unless the file has been
/// replaced.
fn own_program(args: impl IntoIterator<Item = OsString>) -> Command {
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
    command.arg0("canopy").args(args);
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        if mountinfo::at(&self.point).ok().flatten().is_some_and(|mounted| mounted.is_fuse())
            && let Err(error) = unmount_path(&self.point, true)
        {
            eprintln!("canopy: {} cannot be unmounted: {error}", self.point.shown());
        }
        if !self.exits_within(PATIENCE / 4) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
