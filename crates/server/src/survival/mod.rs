//! What a pool needs to outlive the process that serves it.
//!
//! The process that mounts forks the one that serves, with the same table of descriptors, and forks another when that one
//! dies (`crates/canopy/src/daemon/keeper.rs`). So the device, the open files and what the kernel has registered stay
//! open. What they are for is in a [`Ledger`], memory that all of these processes share. The kernel sends again what was
//! not answered; `in_flight` tells what of it was begun.
//!
//! Another program takes over in the same way, after no request is under way (`upgrade`).

mod fault;
#[cfg(test)]
mod form;
pub(crate) mod in_flight;
mod ledger;
mod upgrade;

pub(crate) use fault::watch_for_faults;
#[cfg(any(test, fuzzing))]
pub(crate) use ledger::fuzz;
pub use ledger::{Death, FORM, Ledger};
pub use upgrade::Refusal;
pub(crate) use upgrade::hand_over;

use crate::lock_rank as rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::tend;
use canopy_sys::fd::KnownFd;
use canopy_sys::{fanotify, fd};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{Pid, getppid};
use std::io;
use std::sync::OnceLock;

/// The process that has started this one to serve, and is to start the next.
static KEEPER: OnceLock<Pid> = OnceLock::new();

/// Remembers the parent of this process as its keeper.
pub fn remember_keeper() {
    if let Some(parent) = getppid() {
        let _ = KEEPER.set(parent);
    }
}

/// Returns whether the keeper has not ended. Then a process has another parent.
fn has_keeper() -> bool {
    KEEPER.get().is_none_or(|&keeper| getppid() == Some(keeper))
}

/// What a process needs to serve a pool that is to outlive it.
#[derive(Debug)]
pub struct Survival {
    pub ledger: Ledger,
    /// The descriptors that belong to all processes. One that any of them has closed, such as what tells that the pool is
    /// ready, leaves its number to files that clients have open.
    inherited: Vec<KnownFd>,
    /// The program that served before, while it may have to serve again.
    before: Option<OwnedFd>,
    /// The groups of events (fanotify) of a process that has ended.
    groups: Mutex<Vec<OwnedFd>, rank::Leaf>,
}

impl Survival {
    /// For a process that has opened nothing yet that belongs to one of the processes that it will start.
    ///
    /// # Errors
    /// `ENOMEM`; `ENOENT` without /proc.
    pub fn new() -> io::Result<Survival> {
        Ok(Survival {
            ledger: Ledger::new()?,
            inherited: held(fd::numbers()?),
            before: None,
            groups: Mutex::default(),
        })
    }

    /// Takes over what the program before has left in this process: the descriptors of its ledger, and of itself if it may
    /// have to serve again.
    ///
    /// # Errors
    /// `EINVAL` if its records have another form; `ENOMEM`; `ENOENT` without /proc.
    pub fn resume(records: RawFd, before: Option<RawFd>) -> io::Result<Survival> {
        // The descriptors were to stay open for this program alone. Without this they are open in commands that it runs.
        let _ = fd::set_cloexec_from(3);
        let ledger = Ledger::map(fd::take_over(records).ok_or(Errno::BADF)?)?;
        let served = served(&ledger);
        let is_own = |number: &RawFd| {
            served.binary_search(number).is_err() && before != Some(*number) && !fanotify::is_group(*number)
        };
        let inherited = held(fd::numbers()?.into_iter().filter(is_own));
        Ok(Survival { ledger, inherited, before: before.and_then(fd::take_over), groups: Mutex::default() })
    }

    /// Sets the program that served before, which may have to serve again, or closes it if it need not.
    pub fn set_program_before(&mut self, program: Option<OwnedFd>) {
        self.before = program;
    }

    /// Returns its descriptor.
    #[must_use]
    pub fn program_before(&self) -> Option<RawFd> {
        self.before.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Returns the descriptor of the ledger's memory.
    #[must_use]
    pub fn records(&self) -> Option<RawFd> {
        self.ledger.file().map(|file| file.as_raw_fd())
    }

    /// Closes what the process before had open and nobody takes over, but for groups of events.
    pub(crate) fn close_strays(&self) -> io::Result<()> {
        let (served, before) = (served(&self.ledger), self.program_before());
        let stays = |number: &RawFd| {
            KnownFd::now(*number).is_some_and(|now| self.inherited.contains(&now))
                || before == Some(*number)
                || served.binary_search(number).is_ok()
        };
        let strays = fd::numbers()?.into_iter().filter(|number| !stays(number)).filter_map(fd::take_over);
        *self.groups.lock() = strays.filter(|stray| fanotify::is_group(stray.as_raw_fd())).collect();
        Ok(())
    }

    /// Closes the groups of events in another thread. That takes 10 ms each, for which clients would wait if it was done
    /// before the pool is served: the kernel waits until no processor looks at the marks (fsnotify_destroy_group).
    pub(crate) fn close_groups(&self) {
        let groups = std::mem::take(&mut *self.groups.lock());
        tend::apart((c"canopy-close", 0), move || drop(groups));
    }

    /// Keeps open what the next program needs when this process executes it, besides what it has inherited itself.
    pub(crate) fn pass_on(&self) -> Result<(), Errno> {
        let keep_open = |number| match fd::set_cloexec(number, false) {
            // Of a handle that was being closed.
            Err(Errno::BADF) => Ok(()),
            other => other,
        };
        served(&self.ledger)
            .into_iter()
            .chain(self.records())
            .chain(self.program_before())
            .chain(self.groups.lock().drain(..).map(IntoRawFd::into_raw_fd))
            .try_for_each(keep_open)
    }
}

fn held(numbers: impl IntoIterator<Item = RawFd>) -> Vec<KnownFd> {
    numbers.into_iter().filter_map(KnownFd::now).collect()
}

/// The descriptors that each process that serves has to have: the device, the open files, and the directories that were removed
/// and are in use, sorted.
fn served(ledger: &Ledger) -> Vec<RawFd> {
    let mut numbers = ledger.handles().descriptors();
    numbers.extend(ledger.removed_dirs());
    numbers.push(ledger.session().0);
    numbers.sort_unstable();
    numbers
}
