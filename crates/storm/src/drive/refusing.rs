//! A disk fails changes (EIO), and can be read.
//!
//! What is only there cannot be changed meanwhile; everything is still shown, and compared. Files that have a copy elsewhere can be
//! opened for writing, and those that are written at once can be written, whichever of their disks fails.

use canopy_testkit::model::{Access, Change, FILE_SLOTS, On, Op, Outcome, Subject};
use rustix::fs::lgetxattr;
use rustix::io::Errno;

use super::Driver;
use super::branches::DISK;
use crate::compare;
use crate::script::Refused;

/// How often a disk may refuse: the pool waits longer each time before it uses the disk again.
const TIMES: usize = 4;

/// What is known of the files that clients have open.
#[derive(Default)]
pub(super) struct Refusals {
    pub(super) times: usize,
    what: Option<Refused>,
    /// The files that are written on two disks at once, one of which never fails.
    mirrored: [bool; FILE_SLOTS],
}

/// What was so before an operation.
pub(super) struct Before {
    existed: bool,
    elsewhere: bool,
    /// A file is written by another client.
    shared: bool,
}

impl Refusals {
    /// Open files may be on one disk from now on.
    pub(super) fn forget(&mut self) {
        self.mirrored = [false; FILE_SLOTS];
    }
}

impl Driver {
    pub(super) fn refusing(&mut self, what: Option<Refused>) -> Result<(), String> {
        if self.world.disks[DISK.min(self.world.disks.len() - 1)].kind() != "faulty" {
            return Ok(());
        }
        let Some(what) = what else {
            if self.refusals.what.take().is_none() {
                return Ok(());
            }
            self.calm()?;
            self.world.disks[DISK].heal();
            self.wait_until_healthy(DISK)?;
            self.now.refusing = false;
            return self.compare().map_err(|what| format!("disk{DISK} takes changes again: {what}"));
        };
        let busy = self.gone.is_some() || self.now.refusing || self.now.read_only || self.now.is_sick();
        if busy || self.refusals.times >= TIMES || !self.world.can_spare(DISK) {
            return Ok(());
        }
        self.refusals.times += 1;
        self.refusals.what = Some(what);
        self.now.refusing = true;
        self.world.disks[DISK].refuse(what);
        self.compare().map_err(|what| format!("disk{DISK} refuses changes: {what}"))
    }

    /// The disk is well, or leaves the pool.
    pub(super) fn end_refusal(&mut self) {
        if self.refusals.what.take().is_some() {
            self.world.disks[DISK].heal();
            self.now.refusing = false;
        }
    }

    /// What is so before an operation that may open a file for writing.
    pub(super) fn before_open(&mut self, op: &Op) -> Option<Before> {
        let Op::Open { path, access: Access::Write | Access::Both, .. } = *op else { return None };
        let meta = self.world.beside(path).symlink_metadata();
        let same = |slot| Op::Same { on: On::File(slot), path };
        let shared =
            (0..FILE_SLOTS).any(|slot| self.world.reference.apply(&same(slot)) == Outcome::Yes(true));
        let elsewhere = meta.as_ref().is_ok_and(std::fs::Metadata::is_file) && self.is_safe(path);
        Some(Before { existed: meta.is_ok(), elsewhere, shared })
    }

    /// Notes whether a file that has been opened is written on two disks at once.
    pub(super) fn opened(&mut self, op: &Op, before: Option<&Before>) {
        let (Op::Open { slot, .. } | Op::Tmpfile { slot, .. }) = *op else { return };
        self.refusals.mirrored[slot] = false;
        let (Some(before), Op::Open { path, .. }) = (before, *op) else { return };
        if self.now.upkeep || self.now.dying || before.shared || !self.is_written_at_once(path) {
            return;
        }
        let is_new = || {
            let holders = self.world.holders(path);
            holders.len() > 1 && holders.iter().any(|disk| self.never_fails(*disk))
        };
        self.refusals.mirrored[slot] = if before.existed { before.elsewhere } else { is_new() };
    }

    fn is_written_at_once(&self, path: &str) -> bool {
        self.world.plan.rules.contains("when written") && self.world.plan.copies(path.as_bytes())
    }

    fn never_fails(&self, disk: usize) -> bool {
        disk != DISK && Some(disk) != self.world.plan.small
    }

    /// Whether a disk that never fails has an up-to-date copy of a file, and another disk has one.
    fn is_safe(&self, path: &str) -> bool {
        let mark = |disk: usize| {
            let mut value = [0; 32];
            let read = lgetxattr(self.world.on(disk, path), "user.canopy.generation", &mut value);
            let text = std::str::from_utf8(&value[..read.ok()?]).ok()?;
            let number: u64 = text.trim_end_matches('+').parse().ok()?;
            Some((number, text.ends_with('+'), disk))
        };
        let known: Vec<_> = self.world.holders(path).into_iter().filter_map(mark).collect();
        let Some(newest) = known.iter().map(|(number, ..)| *number).max() else { return false };
        let current: Vec<_> = known.iter().filter(|it| it.0 == newest && it.1).collect();
        current.len() > 1 && current.iter().any(|it| self.never_fails(it.2))
    }

    /// What is wrong with an error of the disk that an operation has met.
    pub(super) fn must_not_fail(&self, op: &Op, before: Option<&Before>) -> Option<String> {
        let slot = match *op {
            Op::Write { slot, .. } | Op::Allocate { slot, .. } | Op::Sync { slot } => Some(slot),
            Op::CopyRange { to, .. } => Some(to),
            Op::Change { on: On::File(slot), change: Change::Size(_) } => Some(slot),
            _ => None,
        };
        if slot.is_some_and(|slot| self.refusals.mirrored[slot]) {
            return Some("the file is on two disks, and one of them is well".into());
        }
        match *op {
            Op::Open { .. } if before.is_some_and(|before| before.elsewhere) => {
                Some("another disk has a copy, and is well".into())
            }
            Op::Open { path, .. } if before.is_some_and(|before| !before.existed) => {
                Some(format!("{path} can be made on another disk"))
            }
            Op::Mkdir { path, .. } | Op::Mknod { path, .. } | Op::Symlink { path, .. } => {
                Some(format!("{path} can be made on another disk"))
            }
            _ => None,
        }
    }

    /// Whether what has been synced is where it can be.
    pub(super) fn synced(&mut self, op: &Op) -> Result<(), String> {
        let Op::Sync { slot } = *op else { return Ok(()) };
        if !matches!(self.refusals.what, Some(Refused::Syncs | Refused::Writes | Refused::Changes)) {
            return Ok(());
        }
        let tree = compare::expected(&mut self.world)?;
        let names = tree.entries.iter().filter(|(_, entry)| entry.hash.is_some());
        let mut named = Vec::new();
        for (path, entry) in names {
            // Slots know paths that live as long as the program.
            let file = rustix::fs::stat(self.world.beside(compare::text(path)));
            if file.is_ok_and(|file| self.world.reference.is_open_as(slot, file.st_dev, file.st_ino)) {
                named.push((path, entry));
            }
        }
        let Some((path, entry)) = named.first() else { return Ok(()) };
        let is_on = |disk: &usize| {
            let held = compare::on_disk(&self.world, *disk);
            held.get(path).is_some_and(|found| (found.size, &found.hash) == (entry.size, &entry.hash))
        };
        let holders: Vec<usize> = self.world.present().into_iter().filter(is_on).collect();
        if holders.iter().any(|disk| *disk != DISK) {
            return Ok(());
        }
        Err(format!("{} was synced, and is on {holders:?} only", compare::text(path).display()))
    }

    /// Whether an operation may change something that the disk which refuses holds.
    pub(super) fn is_refused(&self, path: &str) -> bool {
        self.now.refusing && self.world.holders(path).contains(&DISK)
    }
}

/// Whether an error says that a disk has refused.
pub(super) fn is_refusal(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(Errno::IO | Errno::ROFS))
}
