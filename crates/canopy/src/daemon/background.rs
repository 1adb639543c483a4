//! The start of a background process without fork(2): the program runs itself again in a new session, and waits until
//! the child reports.
//!
//! The child's standard output is a pipe to the parent. The child writes any number of lines `warning TEXT`, then one
//! line `ready TEXT` or `error TEXT`. The parent passes these on and exits. The child keeps nothing of the caller's
//! terminal.

use crate::error::Error;
use crate::terminal::eprint_line;
use canopy_base::text::one_line;
use canopy_config::program_name;
use canopy_server::systemd;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The environment variable that marks the child. Its value is the process id of the parent, so that a copy in another
/// process's environment has no effect.
const PARENT_VARIABLE: &str = "CANOPY_BACKGROUND_OF";

/// The time for the rest of the start, which is the default of systemd.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a child may take to end that has failed.
const ENDED_WITHIN: Duration = Duration::from_secs(5);

/// This process, or the keeper that has forked it, has entered the background.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Returns whether another process reports what this one says: the background child, or one of its own.
pub fn is_child() -> bool {
    if ENTERED.load(Ordering::Relaxed) {
        return true;
    }
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    std::env::var(PARENT_VARIABLE).is_ok_and(|value| value == parent.to_string())
}

/// Returns the process that has started this one, or its keeper, in the background.
pub fn starter() -> Option<u32> {
    std::env::var(PARENT_VARIABLE).ok()?.parse().ok()
}

/// Starts the background child, and returns when the pool is usable.
pub fn start() -> Result<(), Error> {
    let (reader, writer) = io::pipe().map_err(Error::system("cannot make a pipe"))?;
    let mut args = std::env::args_os();
    // current_exe would name a file that may have been replaced since.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(args.next().unwrap_or_else(|| "canopy".into())).args(args);
    command.env(PARENT_VARIABLE, std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(writer);
    // Descriptors of our caller (a lock, a pipe that is waited for) must not stay open as long as the pool. Before
    // Linux 5.11 this has no effect.
    let _ = canopy_sys::fd::set_cloexec_from(3);
    let mut child =
        command.spawn().map_err(Error::system("cannot start the background process from /proc/self/exe"))?;
    // Closes our copy of the write end, so that the pipe can reach its end.
    drop(command);
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(Error::system("cannot read from the background process"))?;
        let line = String::from_utf8_lossy(&line);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ready", status) => {
                // systemd only accepts MAINPID from the process that it started.
                let pid = format!("MAINPID={}", child.id());
                systemd::notify(&[&pid, "READY=1", &format!("STATUS={status}")]);
                return Ok(());
            }
            ("error", text) => {
                // So that the child is gone when this process exits, unless a branch keeps it from ending.
                let until = Instant::now() + ENDED_WITHIN;
                while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                    sleep(Duration::from_millis(5));
                }
                return Err(Error::Background(text.to_owned()));
            }
            ("warning", text) => eprint_line(text),
            _ => {}
        }
    }
    let status = child.wait().map_err(Error::system("cannot wait for the background process"))?;
    Err(Error::BackgroundDied(status))
}

/// Reports the progress of a start.
pub enum StartupReporter {
    /// To the log on stderr.
    Foreground,
    /// To the parent, through a pipe.
    Background(File),
}

impl StartupReporter {
    pub fn foreground() -> StartupReporter {
        StartupReporter::Foreground
    }

    /// Takes the pipe from standard output and leaves the caller's session, so that a Ctrl-C there does not end the pool.
    /// Standard error stays open until the pool is usable, for panics.
    pub fn background() -> Result<StartupReporter, Error> {
        let system = Error::system("cannot enter the background");
        let enter = || -> io::Result<File> {
            let pipe = io::stdout().as_fd().try_clone_to_owned()?;
            rustix::stdio::dup2_stdout(null()?)?;
            rustix::process::setsid()?;
            // The name would otherwise be "exe", from /proc/self/exe.
            rustix::thread::set_name(program_name::current().as_c_str())?;
            Ok(File::from(pipe))
        };
        let pipe = enter().map_err(system)?;
        ENTERED.store(true, Ordering::Relaxed);
        Ok(StartupReporter::Background(pipe))
    }

    /// Reports a warning.
    pub fn warn(&mut self, text: &str) {
        tracing::warn!("{text}");
        if let StartupReporter::Background(pipe) = self {
            let _ = writeln!(pipe, "warning {}", one_line(text));
        }
    }

    /// Reports that the start failed. In the foreground, `run` prints the error.
    pub fn fail(&mut self, error: &Error) {
        if let StartupReporter::Background(pipe) = self {
            tracing::error!("{}", error.line());
            let _ = writeln!(pipe, "error {}", error.line());
        }
    }

    /// Tells systemd that the start may take longer, because the pool waits for branches.
    pub fn extend_timeout(&self, longest: Duration) {
        if let StartupReporter::Foreground = self
            && !longest.is_zero()
        {
            let extension =
                format!("EXTEND_TIMEOUT_USEC={}", longest.saturating_add(START_TIMEOUT).as_micros());
            systemd::notify(&[&extension, "STATUS=waiting for branches"]);
        }
    }

    /// Reports that the pool is usable, and closes standard error. Fails if the parent has been killed.
    pub fn ready(self, status: &str) -> io::Result<()> {
        let status = one_line(status);
        match self {
            StartupReporter::Foreground => systemd::notify(&["READY=1", &format!("STATUS={status}")]),
            StartupReporter::Background(mut pipe) => {
                writeln!(pipe, "ready {status}")?;
                rustix::stdio::dup2_stderr(null()?)?;
            }
        }
        Ok(())
    }
}

fn null() -> io::Result<rustix::fd::OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}
