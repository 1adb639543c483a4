//! Life in the background without fork(2): the program runs itself again as a session of its own
//! and waits for its word.
//!
//! The child's standard output is a pipe to the parent. On it the child says, a line each:
//! `warning TEXT` any number of times, then `ready TEXT` or `error TEXT`. The parent passes this on and
//! ends; the child lives on with nothing of the caller's terminal.

use super::systemd;
use crate::error::Error;
use crate::terminal::eprint_line;
use canopy_config::program_name;
use canopy_config::text::one_line;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set for the child only: the process id of its parent, so that a copy of the variable that
/// strayed into somebody's environment means nothing.
const PARENT_VARIABLE: &str = "CANOPY_BACKGROUND_OF";

/// How long everything else may take: what systemd allows a start by itself.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Is this process the background half?
pub fn is_child() -> bool {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    std::env::var(PARENT_VARIABLE).is_ok_and(|value| value == parent.to_string())
}

/// The foreground half: starts the other, and returns when the pool is usable.
pub fn start() -> Result<(), Error> {
    let (reader, writer) = io::pipe().map_err(Error::system("cannot make a pipe"))?;
    let mut args = std::env::args_os();
    // Not current_exe: that names a file which may have been replaced since; this is the program that runs.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(args.next().unwrap_or_else(|| "canopy".into())).args(args);
    command.env(PARENT_VARIABLE, std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(writer);
    // What our caller left open (a lock, a pipe that somebody waits on) must not live as long as the pool.
    // Kernels before 5.11 cannot; there it lives.
    let _ = canopy_sys::fd::set_cloexec_from(3);
    let mut child =
        command.spawn().map_err(Error::system("cannot start the background process from /proc/self/exe"))?;
    // Else the pipe would never come to its end.
    drop(command);
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(Error::system("cannot hear from the background process"))?;
        let line = String::from_utf8_lossy(&line);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ready", status) => {
                // Only from the process that systemd has started does it take another one's number.
                let pid = format!("MAINPID={}", child.id());
                systemd::notify(&[&pid, "READY=1", &format!("STATUS={status}")]);
                return Ok(());
            }
            ("error", text) => {
                // It has nothing left to do; when we end, nothing of it is left either.
                let _ = child.wait();
                return Err(Error::Background(text.to_owned()));
            }
            ("warning", text) => eprint_line(text),
            _ => {}
        }
    }
    let status = child.wait().map_err(Error::system("cannot wait for the background process"))?;
    Err(Error::BackgroundDied(status))
}

/// Whom to tell how the start goes.
pub enum StartupReporter {
    /// The log on stderr is read by whoever started us.
    Foreground,
    Background(File),
}

impl StartupReporter {
    pub fn foreground() -> StartupReporter {
        StartupReporter::Foreground
    }

    /// Takes the pipe out of standard output's place, and leaves the caller's session: a Ctrl-C
    /// there is not meant for us. Standard error stays until the pool is usable, for what nobody foresaw.
    pub fn background() -> Result<StartupReporter, Error> {
        let system = Error::system("cannot enter the background");
        let enter = || -> io::Result<File> {
            let pipe = io::stdout().as_fd().try_clone_to_owned()?;
            rustix::stdio::dup2_stdout(null()?)?;
            rustix::process::setsid()?;
            // Else it would be known as "exe", after the link it was started through.
            rustix::thread::set_name(program_name::current().as_c_str())?;
            Ok(File::from(pipe))
        };
        enter().map(StartupReporter::Background).map_err(system)
    }

    /// Something is worth a line, though it stops nothing.
    pub fn warn(&mut self, text: &str) {
        tracing::warn!("{text}");
        if let StartupReporter::Background(pipe) = self {
            let _ = writeln!(pipe, "warning {}", one_line(text));
        }
    }

    /// Nothing comes of it. In the foreground `main` says so.
    pub fn fail(&mut self, error: &Error) {
        if let StartupReporter::Background(pipe) = self {
            tracing::error!("{}", error.line());
            let _ = writeln!(pipe, "error {}", error.line());
        }
    }

    /// Branches may take so long to come. systemd, which otherwise knows how long a start may last, waits for them.
    pub fn extend_timeout(&self, longest: Duration) {
        if let StartupReporter::Foreground = self
            && !longest.is_zero()
        {
            let patience =
                format!("EXTEND_TIMEOUT_USEC={}", longest.saturating_add(START_TIMEOUT).as_micros());
            systemd::notify(&[&patience, "STATUS=waiting for branches"]);
        }
    }

    /// The pool is usable: lets the parent go, and lets go of the terminal. An error means that the
    /// parent is gone, killed by somebody who does not want this pool any more.
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
