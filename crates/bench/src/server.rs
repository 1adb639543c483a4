//! A process that serves a mount for as long as it is measured: a pool, or the floor.

use crate::error::Fault;
use crate::interrupt::Guarded;
use crate::testbed::Stage;
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
    _guarded: Option<Guarded>,
}

impl Server {
    /// This very program, mounting a pool as users do.
    pub(crate) fn pool(
        stage: &Stage,
        name: &str,
        branches: &[PathBuf],
        options: &str,
    ) -> Result<Server, Fault> {
        let list: Vec<&OsStr> = branches.iter().map(|branch| branch.as_os_str()).collect();
        let args = ["mount", "-f", "-o", options].map(OsString::from).into_iter();
        let args = args.chain([list.join(OsStr::new(":"))]);
        Server::start(stage, name, args).map_err(|why| Fault::NoPool { options: options.into(), why })?
    }

    /// `existing`: the directory whose files it passes through, and copies.
    pub(crate) fn floor(stage: &Stage, name: &str, io_uring: bool, existing: &Path) -> Result<Server, Fault> {
        let args = ["bench-floor".into(), "--existing".into(), existing.into()].into_iter();
        let args = args.chain(io_uring.then(|| "--io-uring".into()));
        Server::start(stage, name, args).map_err(|why| Fault::NoFloor { why })?
    }

    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// The outer error is of making the place, the inner one what the server itself has to say.
    fn start(
        stage: &Stage,
        name: &str,
        args: impl IntoIterator<Item = OsString>,
    ) -> Result<Result<Server, Fault>, String> {
        let point = match stage.mountpoint(name) {
            Ok(point) => point,
            Err(fault) => return Ok(Err(fault)),
        };
        let log = stage.home().join(format!("{name}.log"));
        let output = File::create(&log).map_err(|error| error.to_string())?;
        // By its name, so that it is known as what it is; unless the file has been replaced since.
        let program = std::env::current_exe().ok().filter(|path| path.exists());
        let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
        command.arg0("canopy").args(args).arg(&point);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        // A Ctrl-C at the terminal is for us; what we started is ended in order.
        command.process_group(0);
        let child = command.spawn().map_err(|error| error.to_string())?;
        let _guarded = stage.interrupt.guard(Pid::from_child(&child)).ok();
        let mut server = Server { child, point, log, _guarded };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if server.is_up() {
                return Ok(Ok(server));
            }
            if server.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Err(server.last_words());
            }
            if let Err(fault) = stage.interrupt.check() {
                return Ok(Err(fault));
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
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let why = match self.last_words() {
                    words if words.is_empty() => status.to_string(),
                    words => format!("{status}; {words}"),
                };
                Err(Fault::ServerEnded { point: self.point.clone(), why })
            }
            _ => Ok(()),
        }
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().last().unwrap_or_default().trim_start_matches("canopy: ").to_owned()
    }

    fn ends_within(&mut self, patience: Duration) -> bool {
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
        if !self.ends_within(PATIENCE / 4) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
