//! Processes that are not waited for longer than one wants to wait.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A process whose output is wanted.
pub struct RunningCommand {
    child: Child,
    output: Receiver<Vec<u8>>,
}

/// Starts a command in the root directory, without input, and with its errors thrown away.
pub fn start(command: &mut Command) -> io::Result<RunningCommand> {
    // A child that is left behind must not hold open what our caller waits for. Before Linux 5.11 it may.
    let _ = canopy_sys::fd::set_cloexec_from(3);
    let mut child =
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (sender, output) = channel();
    if let Some(mut stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stdout.read_to_end(&mut bytes);
            let _ = sender.send(bytes);
        });
    }
    Ok(RunningCommand { child, output })
}

impl RunningCommand {
    /// All that it wrote; None when it has not come to its end in time. Then it is killed, and left behind: one
    /// that waits for a disk ends when the system lets it, which may be never.
    pub fn output_before(mut self, deadline: Instant) -> Option<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(bytes) = self.output.recv_timeout(left) else {
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
    fn who_takes_too_long_is_left() {
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(start(Command::new("sleep").arg("600")).unwrap().output_before(soon()), None);
        let later = Instant::now() + Duration::from_secs(60);
        let output =
            start(Command::new("sh").args(["-c", "echo out; echo err >&2"])).unwrap().output_before(later);
        assert_eq!(output, Some(b"out\n".to_vec()));
        assert!(start(&mut Command::new("/no/such/program")).is_err());
    }
}
