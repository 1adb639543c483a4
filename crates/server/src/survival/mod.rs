//! What a pool needs to outlive the process that serves it.
//!
//! The process that mounts forks the one that serves, with the same table of descriptors, and forks another when that one
//! dies (`crates/canopy/src/daemon/keeper.rs`). So the device, the open files and what the kernel has registered stay
//! open. What they are for is in a [`Ledger`], memory that all of these processes share. The kernel sends again what was
//! not answered; `in_flight` tells what of it was begun.

pub(crate) mod in_flight;
mod ledger;

pub use ledger::{Death, Ledger};

use canopy_sys::fd;
use rustix::fd::RawFd;
use std::io;

/// What a process needs to serve a pool that is to outlive it.
#[derive(Debug)]
pub struct Survival {
    pub ledger: Ledger,
    /// The descriptors that belong to all processes.
    inherited: Vec<RawFd>,
}

impl Survival {
    /// For a process that has opened nothing yet that belongs to one of the processes that it will start.
    ///
    /// # Errors
    /// `ENOMEM`; `ENOENT` without /proc.
    pub fn new() -> io::Result<Survival> {
        Ok(Survival { ledger: Ledger::new()?, inherited: fd::numbers()? })
    }

    /// Closes what the process before had open and nobody takes over.
    pub(crate) fn close_strays(&self, device: RawFd) -> io::Result<()> {
        let handles = self.ledger.handles().descriptors();
        let stays = |number: &RawFd| {
            *number == device || self.inherited.contains(number) || handles.binary_search(number).is_ok()
        };
        let strays: Vec<_> = fd::numbers()?.into_iter().filter(|number| !stays(number)).collect();
        strays.into_iter().filter_map(fd::take_over).for_each(drop);
        Ok(())
    }
}
