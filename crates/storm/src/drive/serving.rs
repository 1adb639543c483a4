//! The processes that serve the pool end, and others go on.

use std::time::Duration;

use super::Driver;
use crate::server::Kill;

impl Driver {
    pub(super) fn kill(&mut self, after: u64) -> Result<(), String> {
        if !self.world.survives() {
            return Ok(());
        }
        self.end_kill()?;
        self.kill = Some(Kill::after(self.world.pool(), Duration::from_micros(after))?);
        self.now.dying = true;
        self.refusals.forget();
        Ok(())
    }

    pub(super) fn end_kill(&mut self) -> Result<(), String> {
        let Some(kill) = self.kill.take() else { return Ok(()) };
        kill.wait(self.world.pool())?;
        self.now.dying = false;
        Ok(())
    }

    pub(super) fn upgrade(&mut self) -> Result<(), String> {
        if !self.world.survives() {
            return Ok(());
        }
        self.end_kill()?;
        self.refusals.forget();
        self.world.upgrade()
    }

    pub(super) fn remount(&mut self) -> Result<(), String> {
        // A pool that is mounted later knows nothing of a mount that was lost.
        if self.world.disks.iter().any(|disk| disk.is_pulled()) || self.now.is_sick() {
            return Ok(());
        }
        self.calm()?;
        self.close();
        self.world.remount();
        self.compare().map_err(|what| format!("after another mount: {what}"))
    }
}
