//! Running programs with a deadline, and describing how they failed.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a test waits for something that has to happen: a program ends, a file appears, a message is logged.
///
/// It is long enough for a busy machine, because only a failing test waits to its end. A test that waits for a shorter time
/// is a test of that time, and says so.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How a program ended, and its output.
#[derive(Debug)]
pub struct Finished {
    /// `None` if the deadline passed.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Finished {
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Returns the exit code, or `None` if a signal or the deadline ended the program.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    pub fn timed_out(&self) -> bool {
        self.status.is_none()
    }

    /// Describes the end and the output, for the message of a failure.
    pub fn describe(&self) -> String {
        let mut text = match self.status {
            Some(status) => format!("{status} after {:.1?}", self.took),
            None => format!("killed at its deadline after {:.1?}", self.took),
        };
        for (name, output) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !output.trim().is_empty() {
                let _ = write!(text, "\n--- {name}\n{}", output.trim_end());
            }
        }
        text
    }
}

/// Returns what a command that must succeed prints, as JSON.
///
/// # Panics
/// If it has failed, or prints something else.
#[track_caller]
pub fn json(done: &Finished) -> serde_json::Value {
    assert!(done.success(), "{}", done.describe());
    serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()))
}

/// Runs a command to its end, or kills its process (but not the children of that) when the deadline passes.
///
/// The output goes to unnamed files, so that a grandchild that keeps the descriptors open cannot block the caller.
///
/// # Panics
/// If the program cannot be started.
#[track_caller]
pub fn run_within(command: &mut Command, deadline: Duration) -> Finished {
    let mut stdout = tempfile::tempfile().expect("a temporary file for stdout");
    let mut stderr = tempfile::tempfile().expect("a temporary file for stderr");
    let started = Instant::now();
    command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("dup"))
        .stderr(stderr.try_clone().expect("dup"));
    let mut child = spawn(command).unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let status = wait_within(&mut child, deadline);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let took = started.elapsed();
    Finished { status, stdout: read_back(&mut stdout), stderr: read_back(&mut stderr), took }
}

/// Runs a command that may unmount a pool, and repeats it for a while if the mount is busy.
///
/// Programs that inspect mounts keep them busy for a moment. So do programs that a test on another thread starts: they hold
/// copies of this process's descriptors between fork and exec.
///
/// # Panics
/// If the program cannot be started.
#[track_caller]
pub fn run_unless_busy(command: &mut Command, deadline: Duration) -> Finished {
    let mut done = run_within(command, deadline);
    wait_until(PATIENCE, || {
        let busy = !done.success()
            && [" is in use", "target is busy", "resource busy"]
                .iter()
                .any(|words| done.stderr.contains(words));
        if busy {
            done = run_within(command, deadline);
        }
        !busy
    });
    done
}

/// Starts a program that this process may just have written.
///
/// A program that a test on another thread starts holds copies of this process's descriptors between fork and exec. If it
/// has the file open for writing, starting that fails with ETXTBSY, so this retries for a while.
///
/// # Errors
/// Those of [`Command::spawn`].
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let started = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy && started.elapsed() < PATIENCE =>
            {
                sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// Returns a command that runs a shell script in a new mount namespace. Further arguments become `$1`, `$2` and so on.
pub fn in_mount_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", script, "sh"]);
    command
}

/// Waits for a child to end. Returns `None` if it still runs at the deadline.
pub fn wait_within(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < deadline => {}
            Ok(None) | Err(_) => return None,
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Runs a program that must succeed within [`PATIENCE`], and returns what it writes to stdout.
///
/// # Panics
/// If it fails. The message contains its output.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> String {
    let mut command = Command::new(program);
    command.args(args);
    let finished = run_within(&mut command, PATIENCE);
    assert!(finished.success(), "{command:?}: {}", finished.describe());
    finished.stdout
}

/// Returns the path of a program that `scripts/setup.sh test` installs.
///
/// # Panics
/// If the program is missing: a suite that cannot run must not pass.
#[track_caller]
pub fn tool(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let tools = std::env::var_os("CANOPY_TOOLS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    tools
        .into_iter()
        .chain([own])
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: run scripts/setup.sh test"))
}

/// Polls a condition until it is true. Returns false if the deadline passes first.
pub fn wait_until(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if condition() {
            return true;
        }
        if started.elapsed() >= deadline {
            return false;
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn read_back(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind();
    let _ = file.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_within_captures_output_and_exit_code() {
        let done = run_within(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]), PATIENCE);
        assert_eq!((done.code(), done.stdout.trim(), done.stderr.trim()), (Some(3), "out", "err"));
        assert!(done.describe().contains("err"));
    }

    #[test]
    fn a_deadline_ends_the_program() {
        let done = run_within(Command::new("sleep").arg("infinity"), Duration::from_millis(50));
        assert!(done.timed_out(), "{}", done.describe());
    }

    #[test]
    #[should_panic(expected = "exit status: 1")]
    fn run_panics_on_failure() {
        run("false", [""; 0]);
    }
}
