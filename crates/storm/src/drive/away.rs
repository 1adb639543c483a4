//! A disk leaves the pool and comes back.
//!
//! What only this disk holds is *hidden* meanwhile: clients leave it alone, and it is not compared. Everything else must be
//! there, as it was acknowledged. When the disk is back, everything is compared, the hidden too.

use std::collections::BTreeMap;
use std::fs;

use canopy_testkit::cmd::wait_until;
use canopy_testkit::model::{Create, Op};
use canopy_testkit::tree::Kind;
use canopy_testkit::{PATIENCE, Tree};

use super::Driver;
use super::branches::DISK;

use crate::compare::{self, Paths, is_within};
use crate::script::How;
use crate::weather::Weather;
use crate::world::World;

/// How often a disk's mount may disappear: the pool waits longer each time before it uses the disk again.
const PULLS: usize = 3;

pub(super) struct Gone {
    disk: usize,
    how: How,
    pub(super) hidden: Paths,
    /// What the disk holds.
    names: BTreeMap<Vec<u8>, Kind>,
    older: bool,
    pub(super) types_may_change: bool,
}

impl Gone {
    /// Whether an operation gives a name that the disk holds to something of another type.
    pub(super) fn changes_type(&self, op: &Op, world: &World) -> bool {
        let differs =
            |path: &str, kind: Kind| self.names.get(path.as_bytes()).is_some_and(|known| *known != kind);
        let moved = |from: &str, to: &str| {
            let tree =
                Tree::try_capture(&world.beside(""), canopy_testkit::Fields::default()).unwrap_or_default();
            let below: Vec<_> =
                tree.entries.iter().filter(|(path, _)| is_within(path, from.as_bytes())).collect();
            below.into_iter().any(|(path, entry)| {
                let rest = String::from_utf8_lossy(&path[from.len()..]).into_owned();
                differs(&format!("{to}{rest}"), entry.kind)
            })
        };
        match *op {
            Op::Mkdir { path, .. } => differs(path, Kind::Dir),
            Op::Symlink { path, .. } => differs(path, Kind::Symlink),
            Op::Mknod { path, fifo, .. } => differs(path, if fifo { Kind::Fifo } else { Kind::File }),
            Op::Open { path, create, .. } => create != Create::No && differs(path, Kind::File),
            Op::LinkOpen { to, .. } => differs(to, Kind::File),
            Op::Link { from, to } => moved(from, to),
            Op::Rename { from, to, .. } => moved(from, to) || moved(to, from),
            _ => false,
        }
    }
}

impl Driver {
    pub(super) fn away(&mut self, disk: usize, how: How, settled: bool) -> Result<(), String> {
        let disk = disk % self.world.disks.len();
        let unwell = self.now.read_only || self.now.is_sick() || (self.now.refusing && disk != DISK);
        let busy = self.gone.is_some() || unwell;
        if busy || !self.world.present().contains(&disk) || !self.world.can_spare(disk) {
            return Ok(());
        }
        if how == How::Pull && self.world.disks[disk].pulls >= PULLS {
            return Ok(());
        }
        self.calm()?;
        self.close();
        if settled {
            self.settle()?;
        }
        self.end_refusal();
        self.world.set_sign(disk)?;
        let hidden = compare::only_on(&mut self.world, disk)?;
        let names = names(&self.world, disk);
        match how {
            How::Set => {
                self.world.order.retain(|known| *known != disk);
                self.world.set(&format!("branches=-{}", self.world.disks[disk].path().display()))?;
            }
            How::Pull => self.world.disks[disk].pull(),
        }
        let types_may_change = self.world.plan.weathers.has(Weather::Types);
        self.gone = Some(Gone { disk, how, hidden, names, older: false, types_may_change });
        self.wait_for_sign(disk, false)?;
        self.compare().map_err(|what| format!("disk{disk} is away: {what}"))
    }

    pub(super) fn back(&mut self, front: bool) -> Result<(), String> {
        self.calm()?;
        let Some(gone) = self.gone.take() else { return Ok(()) };
        let disk = gone.disk;
        match gone.how {
            How::Set => {
                let (at, sign) = if front { (0, "<") } else { (self.world.order.len(), ">") };
                self.world.order.insert(at, disk);
                self.world.set(&format!("branches=+{sign}{}", self.world.disks[disk].path().display()))?;
            }
            How::Pull => self.world.disks[disk].put_back(),
        }
        self.wait_for_sign(disk, true)?;
        self.forgive(&gone)?;
        self.compare().map_err(|what| format!("disk{disk} is back: {what}"))
    }

    /// Removes from the pool what was removed while the disk was away and has come back with it, where that is allowed.
    fn forgive(&mut self, gone: &Gone) -> Result<(), String> {
        if gone.older {
            // Only the disk had it, and does not any more.
            for path in &gone.hidden {
                for path in [self.world.at(compare::text(path)), self.world.beside(compare::text(path))] {
                    let _ = fs::remove_file(&path);
                    let _ = fs::remove_dir_all(&path);
                }
            }
        } else if self.world.plan.weathers.has(Weather::Removals) {
            return Ok(());
        }
        let expected = compare::expected(&mut self.world)?;
        let returned = gone.names.iter().rev().filter(|(path, _)| expected.get(path).is_none());
        for (path, kind) in returned {
            let path = self.world.at(compare::text(path));
            let removed = if *kind == Kind::Dir { fs::remove_dir(&path) } else { fs::remove_file(&path) };
            match removed {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(format!("removing {}, which has come back: {error}", path.display()));
                }
            }
        }
        Ok(())
    }

    /// Waits until the pool shows, or does not show, what only this disk has.
    fn wait_for_sign(&self, disk: usize, shown: bool) -> Result<(), String> {
        let sign = self.world.pool().path().join(&self.world.disks[disk].sign);
        if wait_until(PATIENCE, || sign.symlink_metadata().is_ok() == shown) {
            return Ok(());
        }
        Err(format!("disk{disk} is {}, and the pool does not notice", if shown { "back" } else { "away" }))
    }

    pub(super) fn picture(&mut self, disk: usize) -> Result<(), String> {
        let disk = disk % self.world.disks.len();
        if !self.world.disks[disk].is_pulled() && !self.world.disks[disk].read_only {
            self.world.disks[disk].take_picture();
        }
        Ok(())
    }

    pub(super) fn older(&mut self) -> Result<(), String> {
        let Some(gone) = self.gone.as_mut().filter(|gone| gone.how == How::Set) else { return Ok(()) };
        if !self.world.disks[gone.disk].become_older() {
            return Ok(());
        }
        gone.older = true;
        let disk = gone.disk;
        self.kept.forget(|known| known.disk == disk);
        gone.names = names(&self.world, gone.disk);
        Ok(())
    }
}

fn names(world: &World, disk: usize) -> BTreeMap<Vec<u8>, Kind> {
    let held = compare::on_disk(world, disk);
    held.entries
        .into_iter()
        .filter(|(path, _)| !path.is_empty())
        .map(|(path, entry)| (path, entry.kind))
        .collect()
}
