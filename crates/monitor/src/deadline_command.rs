//! Child processes with a deadline.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A child process whose output is read.
pub struct RunningCommand {
    child: Child,
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
    let (sender, output) = channel();
    if let Some(mut stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stdout.read_to_end(&mut bytes);
            let _ = sender.send((bytes, Instant::now()));
        });
    }
    Ok(RunningCommand { child, output, ended: None })
}

impl RunningCommand {
    /// Waits for the process until the deadline. Returns when it ended, or `None` if it still runs.
    pub fn ended_before(&mut self, deadline: Instant) -> Option<Instant> {
        if self.ended.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            self.ended = self.output.recv_timeout(left).ok();
        }
        self.ended.as_ref().map(|(_, at)| *at)
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
    use std::time::Duration;

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
}
