//! Commands of upkeep, beside the clients.

use canopy_testkit::cmd::wait_within;
use std::time::Duration;

use super::Driver;
use crate::script::COMMANDS;

const LONG: Duration = Duration::from_secs(180);

impl Driver {
    pub(super) fn start(&mut self, command: usize, disk: usize) -> Result<(), String> {
        self.end_command(false)?;
        let line = COMMANDS[command % COMMANDS.len()];
        let present = self.world.present();
        let disk = present[disk % present.len()];
        if line.starts_with("drain") && !self.world.can_drain(disk) {
            return Ok(());
        }
        self.now.upkeep = true;
        self.refusals.forget();
        self.command = Some((line.to_owned(), self.world.start(line, disk)));
        Ok(())
    }

    pub(super) fn end_command(&mut self, kill: bool) -> Result<(), String> {
        let Some((line, mut child)) = self.command.take() else { return Ok(()) };
        self.now.upkeep = false;
        if kill {
            let _ = child.kill();
        }
        let Some(status) = wait_within(&mut child, LONG) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("canopy {line} does not end"));
        };
        if status.code() == Some(101) || (status.code().is_none() && !kill) {
            return Err(format!("canopy {line}: {status}"));
        }
        // Killed, the command leaves the branch in a mode without creation.
        if kill && line.starts_with("drain") {
            self.end_kill()?;
            self.world.set_branches()?;
        }
        Ok(())
    }
}
