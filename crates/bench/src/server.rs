//! A process that serves a mount for as long as it is measured: a pool, or the floor.

use crate::error::Error;
use crate::interrupt::KillGuard;
use crate::testbed::Testbed;
use canopy_fuse::mount::unmount_path;
use canopy_sys::mountinfo;
use rustix::process::Pid;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server has to come up, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Server {
    child: Child,
    point: PathBuf,
    log: PathBuf,
    _kill_guard: Option<KillGuard>,
}

impl Server {
    /// This very program, mounting a pool as users do.
    pub(crate) fn pool(
        testbed: &Testbed,
        name: &str,
        branches: &[PathBuf],
        options: &str,
    ) -> Result<Server, Error> {
        let list: Vec<&OsStr> = branches.iter().map(|branch| branch.as_os_str()).collect();
        let args = ["mount", "-f", "-o", options].map(OsString::from).into_iter();
        let args = args.chain([list.join(OsStr::new(":"))]);
        Server::start(testbed, name, args).map_err(|why| Error::NoPool { options: options.into(), why })?
    }

    /// `existing`: the directory whose files it passes through, and copies.
    pub(crate) fn floor(
        testbed: &Testbed,
        name: &str,
        io_uring: bool,
        existing: &Path,
    ) -> Result<Server, Error> {
        let args = ["bench-floor".into(), "--existing".into(), existing.into()].into_iter();
        let args = args.chain(io_uring.then(|| "--io-uring".into()));
        Server::start(testbed, name, args).map_err(|why| Error::NoFloor { why })?
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.point
    }

    /// The outer error is of making the place, the inner one what the server itself has to say.
    fn start(
        testbed: &Testbed,
        name: &str,
        args: impl IntoIterator<Item = OsString>,
    ) -> Result<Result<Server, Error>, String> {
        let point = match testbed.mountpoint(name) {
            Ok(point) => point,
            Err(error) => return Ok(Err(error)),
        };
        let log = testbed.home().join(format!("{name}.log"));
        let output = File::create(&log).map_err(|error| error.to_string())?;
        // By its name, so that it is known as what it is; unless the file has been replaced since.
        let program = std::env::current_exe().ok().filter(|path| path.exists());
        let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
        command.arg0("canopy").args(args).arg(&point);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        // A Ctrl-C at the terminal is for us; what we started is ended in order.
        command.process_group(0);
        let child = command.spawn().map_err(|error| error.to_string())?;
        let _kill_guard = testbed.interrupt.guard(Pid::from_child(&child)).ok();
        let mut server = Server { child, point, log, _kill_guard };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if server.is_up() {
                return Ok(Ok(server));
            }
            if server.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Err(server.last_log_line());
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

    /// Mounted, and the first request answered.
    fn is_up(&self) -> bool {
        let mounted = mountinfo::at(&self.point).ok().flatten().is_some_and(|mounted| mounted.is_fuse());
        mounted && fs::metadata(&self.point).is_ok()
    }

    /// An error when it has ended by itself, which explains any other.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let why = match self.last_log_line() {
                    words if words.is_empty() => status.to_string(),
                    words => format!("{status}; {words}"),
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

impl Drop for Server {
    fn drop(&mut self) {
        if mountinfo::at(&self.point).ok().flatten().is_some_and(|mounted| mounted.is_fuse())
            && let Err(error) = unmount_path(&self.point, true)
        {
            eprintln!("canopy: {} cannot be unmounted: {error}", self.point.display());
        }
        if !self.exits_within(PATIENCE / 4) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
