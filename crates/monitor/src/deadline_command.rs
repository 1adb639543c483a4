//! Child processes with a deadline.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How much longer a process may take that only waits for a processor.
const BUSY: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A child process whose output is read.
pub struct RunningCommand {
    child: Child,
    /// Disconnected once it has written something, or has closed its output.
    silent: Receiver<()>,
    /// What it wrote, and when it ended.
    output: Receiver<(Vec<u8>, Instant)>,
    ended: Option<(Vec<u8>, Instant)>,
}

/// Starts a command in the root directory, without input, and discards its standard error.
pub fn start(command: &mut Command) -> io::Result<RunningCommand> {
    // A child that is left behind must not keep descriptors of our caller open. Before Linux 5.11 this has no effect.
    let _ = canopy_sys::fd::set_cloexec_from(3);
    let mut child =
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let ((sender, output), (speaks, silent)) = (channel(), channel());
    if let Some(mut stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stdout.by_ref().take(1).read_to_end(&mut bytes);
            drop(speaks);
            let _ = stdout.read_to_end(&mut bytes);
            let _ = sender.send((bytes, Instant::now()));
        });
    }
    Ok(RunningCommand { child, silent, output, ended: None })
}

impl RunningCommand {
    /// Waits for the first output of the process, or for its end, but not longer than until the deadline.
    pub fn wait_for_output(&self, deadline: Instant) {
        let _ = self.silent.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }

    /// Waits for the process until the deadline. Returns when it ended, or `None` if it still runs.
    ///
    /// A process that waits for nothing but a processor is waited for a little longer: a busy machine is no reason to call
    /// what it asks unresponsive.
    pub fn ended_before(&mut self, deadline: Instant) -> Option<Instant> {
        let (mut until, latest) = (deadline, deadline + BUSY);
        while self.ended.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            self.ended = self.output.recv_timeout(left).ok();
            if self.ended.is_none() && (Instant::now() >= latest || !self.is_runnable()) {
                break;
            }
            until = Instant::now() + LOOK_AGAIN;
        }
        self.ended.as_ref().map(|(_, at)| *at)
    }

    /// Whether the process runs or waits for a processor (proc_pid_stat(5)), or has ended, so that its output is about to be
    /// read.
    fn is_runnable(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['R', 'Z']))
    }

    /// Returns everything that the process wrote, or `None` if it does not exit in time. Then it is killed but not
    /// waited for, because a process that waits for a disk may never exit.
    pub fn output_before(mut self, deadline: Instant) -> Option<Vec<u8>> {
        self.ended_before(deadline);
        let Some((bytes, _)) = self.ended else {
            let _ = self.child.kill();
            return None;
        };
        let _ = self.child.wait();
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_slow_process_has_no_output() {
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(start(Command::new("sleep").arg("600")).unwrap().output_before(soon()), None);
        let later = Instant::now() + Duration::from_secs(60);
        let mut command = start(Command::new("sh").args(["-c", "echo out; echo err >&2"])).unwrap();
        let ended = command.ended_before(later);
        assert!(ended.is_some() && command.ended_before(soon()) == ended);
        assert_eq!(command.output_before(later), Some(b"out\n".to_vec()));
        assert!(start(&mut Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn a_process_that_waits_for_a_processor_is_not_late() {
        let mut busy = start(
            Command::new("sh").args(["-c", "i=0; until [ $i -eq 200000 ]; do i=$((i+1)); done; echo x"]),
        )
        .unwrap();
        // At first it waits for the disk from which its program is read.
        while !busy.is_runnable() {
            std::thread::yield_now();
        }
        assert!(busy.ended_before(Instant::now()).is_some());
        assert_eq!(busy.output_before(Instant::now()), Some(b"x\n".to_vec()));
    }

    #[test]
    fn output_is_noticed_before_the_end() {
        let later = Instant::now() + Duration::from_secs(60);
        let mut command = start(Command::new("sh").args(["-c", "echo; exec sleep 600"])).unwrap();
        command.wait_for_output(later);
        assert!(Instant::now() < later && command.ended_before(Instant::now()).is_none());
        start(&mut Command::new("true")).unwrap().wait_for_output(later);
        assert!(Instant::now() < later);
        assert_eq!(command.output_before(Instant::now()), None);
    }
}
