//! The pool's branches change, or what is on them.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{PATIENCE, Rng};

use super::Driver;
use crate::compare;
use crate::script::Directly;
use crate::weather::Weather;

/// The one that fails at times.
pub(super) const DISK: usize = 2;
/// Longer than the pool takes to judge a check of a disk, which may have begun before the disk was well.
const CHECKED: Duration = Duration::from_millis(1500);
/// How many disks there are at most.
const DISKS: usize = 6;

impl Driver {
    pub(super) fn reorder(&mut self, seed: u64) -> Result<(), String> {
        let (order, mut rng) = (&mut self.world.order, Rng::new(seed));
        for last in (1..order.len()).rev() {
            order.swap(last, rng.index(last + 1));
        }
        // A drain that runs has set a mode.
        self.calm()?;
        self.world.set_branches()
    }

    pub(super) fn grow(&mut self) -> Result<(), String> {
        if self.world.disks.len() >= DISKS {
            return Ok(());
        }
        self.calm()?;
        self.world.grow();
        self.world.set_branches()
    }

    /// Empties a disk, takes it out of the pool, and adds it again.
    pub(super) fn drain(&mut self, disk: usize) -> Result<(), String> {
        let disk = disk % self.world.disks.len();
        if self.gone.is_some() || !self.world.can_drain(disk) || self.now.cannot_change() {
            return Ok(());
        }
        self.calm()?;
        let path = self.world.disks[disk].path().display().to_string();
        let done = self.world.run(&format!("drain POOL {path} --remove"))?;
        if done.success() {
            let left = compare::on_disk(&self.world, disk);
            let files: Vec<_> = left.entries.iter().filter(|(_, entry)| entry.hash.is_some()).collect();
            if !files.is_empty() {
                return Err(format!("drained, and yet there are {files:?}\n{}", done.describe()));
            }
            self.world.order.retain(|known| *known != disk);
            self.compare().map_err(|what| format!("after a drain: {what}"))?;
            self.world.order.push(disk);
        }
        self.world.set_sign(disk)?;
        self.world.set_branches()
    }

    pub(super) fn full(&mut self, full: bool) -> Result<(), String> {
        if let Some(small) = self.world.plan.small.filter(|small| self.world.present().contains(small)) {
            self.world.disks[small].fill(full && !self.world.disks[small].read_only);
        }
        Ok(())
    }

    pub(super) fn read_only(&mut self, disk: usize, on: bool) -> Result<(), String> {
        let disk = disk % self.world.disks.len();
        if on {
            if self.gone.is_some() || self.now.read_only || self.now.refusing || !self.world.can_spare(disk) {
                return Ok(());
            }
            self.calm()?;
            self.close();
            self.now.read_only = self.world.disks[disk].set_read_only(true);
            return Ok(());
        }
        let Some(disk) = self.world.disks.iter().position(|disk| disk.read_only) else { return Ok(()) };
        self.calm()?;
        self.world.disks[disk].set_read_only(false);
        self.wait_until_healthy(disk)?;
        self.now.read_only = false;
        self.compare().map_err(|what| format!("disk{disk} is writable again: {what}"))
    }

    /// Waits until the pool changes something on a disk again, unless it is read-only for another reason.
    pub(super) fn wait_until_healthy(&self, disk: usize) -> Result<(), String> {
        if self.world.disks[disk].read_only {
            return Ok(());
        }
        let sign = self.world.pool().path().join(&self.world.disks[disk].sign);
        let changes = || fs::set_permissions(&sign, Permissions::from_mode(0o755)).is_ok();
        let healthy = || {
            changes() && {
                sleep(CHECKED);
                changes()
            }
        };
        if wait_until(PATIENCE, healthy) { Ok(()) } else { Err(format!("disk{disk} is not used again")) }
    }

    /// Attributes of the files on a disk cannot be read any more. No old content may be shown, and nothing be removed.
    pub(super) fn unreadable(&mut self, on: bool) -> Result<(), String> {
        if on == self.now.unreadable
            || self.now.failing
            || self.now.refusing
            || self.gone.is_some()
            || self.world.disks[DISK].kind() != "faulty"
        {
            return Ok(());
        }
        self.calm()?;
        self.close();
        if !on {
            self.world.disks[DISK].heal();
            self.wait_until_healthy(DISK)?;
            self.now.unreadable = false;
            return self.compare().map_err(|what| format!("the attributes can be read again: {what}"));
        }
        self.world.disks[DISK].lose_attributes();
        self.now.unreadable = true;
        let tree = compare::expected(&mut self.world)?;
        for (path, _) in tree.entries.iter().filter(|(_, entry)| entry.hash.is_some()) {
            let (name, right) = (compare::text(path), fs::read(self.world.beside(compare::text(path))));
            if let Ok(shown) = fs::read(self.world.at(name))
                && right.is_ok_and(|right| right != shown)
            {
                return Err(format!("{} shows {} bytes that are not its own", name.display(), shown.len()));
            }
        }
        self.dedup()
    }

    /// What files on a disk hold cannot be read any more. What another disk holds is read from there.
    pub(super) fn failing(&mut self, on: bool) -> Result<(), String> {
        let busy =
            on && (self.gone.is_some() || self.now.unreadable || self.now.read_only || self.now.refusing);
        if on == self.now.failing || busy || self.world.disks[DISK].kind() != "faulty" {
            return Ok(());
        }
        self.calm()?;
        self.close();
        if on {
            self.settle()?;
            self.world.disks[DISK].lose_contents();
            self.now.failing = true;
            return self.read_from_others();
        }
        self.read_from_others()?;
        self.world.disks[DISK].heal();
        self.wait_until_healthy(DISK)?;
        self.now.failing = false;
        self.compare().map_err(|what| format!("files can be read again: {what}"))
    }

    /// Reads each file of which another disk than the failing one has a current copy.
    fn read_from_others(&mut self) -> Result<(), String> {
        let alone = compare::only_on(&mut self.world, DISK)?;
        let tree = compare::expected(&mut self.world)?;
        let files =
            tree.entries.iter().filter(|(path, entry)| entry.hash.is_some() && !alone.contains(*path));
        // The kernel gives the errors of what it reads past the pool to the program (docs/copies.md).
        let is_asked = self.world.plan.options.iter().any(|option| option.contains("passthrough.io=off"));
        for (path, _) in files {
            let name = compare::text(path);
            let right =
                fs::read(self.world.beside(name)).map_err(|error| format!("{}: {error}", name.display()))?;
            match fs::read(self.world.at(name)) {
                Ok(shown) if shown == right => {}
                Ok(shown) => {
                    return Err(format!(
                        "{} shows {} bytes that are not its own",
                        name.display(),
                        shown.len()
                    ));
                }
                Err(_) if !is_asked => {}
                Err(error) => {
                    return Err(format!(
                        "{} is on {:?}, and cannot be read: {error}",
                        name.display(),
                        self.world.holders(name)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Changes a file that no rule copies on its branch.
    pub(super) fn directly(&mut self, what: Directly, choice: usize) -> Result<(), String> {
        let plan = &self.world.plan;
        let copied = plan.rules.starts_with("**=copies") && plan.weathers.has(Weather::Copies);
        // What a disk does not tell of a file is no reason for the pool to show it.
        if copied || self.now.cannot_change() {
            return Ok(());
        }
        self.calm()?;
        if what == Directly::Make {
            self.direct += 1;
            let present = self.world.holders("");
            let name = PathBuf::from(format!("direct{}", self.direct));
            let disk = present[choice % present.len()];
            if Some(disk) == self.world.plan.small {
                return Ok(());
            }
            let made = fs::write(self.world.on(disk, &name), b"made on the branch");
            made.and_then(|()| fs::write(self.world.beside(&name), b"made on the branch"))
                .map_err(|error| error.to_string())?;
            return self.wait_until_shown(&name);
        }
        let tree = compare::expected(&mut self.world)?;
        let files = tree.entries.iter().filter(|(path, entry)| {
            entry.hash.is_some() && entry.nlink == 1 && !self.world.plan.copies(path)
        });
        let alone: Vec<PathBuf> = files.map(|(path, _)| compare::text(path).to_owned()).collect();
        let Some(name) = alone.get(choice % alone.len().max(1)) else { return Ok(()) };
        let [disk] = self.world.holders(name)[..] else { return Ok(()) };
        // A command that was killed may have left a copy, which would be old when its disk is back.
        let mut others = (0..self.world.disks.len()).filter(|other| *other != disk);
        if others.any(|other| self.world.on(other, name).symlink_metadata().is_ok()) {
            return Ok(());
        }
        if Some(disk) == self.world.plan.small || !self.can_touch(&name.to_string_lossy()) {
            return Ok(());
        }
        self.close();
        for path in [self.world.on(disk, name), self.world.beside(name)] {
            change(&path, what).map_err(|error| format!("{what:?} {}: {error}", path.display()))?;
        }
        self.wait_until_shown(name)
    }

    /// Waits until the pool shows a file as it is.
    fn wait_until_shown(&self, name: &Path) -> Result<(), String> {
        let look = |path: PathBuf| {
            (
                fs::read(&path).ok(),
                path.symlink_metadata().ok().map(|meta| (meta.permissions().mode(), meta.len())),
            )
        };
        let right = look(self.world.beside(name));
        if wait_until(PATIENCE, || look(self.world.at(name)) == right) {
            return Ok(());
        }
        Err(format!("{} was changed on its branch, and the pool does not show it", name.display()))
    }
}

fn change(path: &Path, what: Directly) -> std::io::Result<()> {
    match what {
        Directly::Make => Ok(()),
        Directly::Append => OpenOptions::new().append(true).open(path)?.write_all(b" and more"),
        Directly::Mode => fs::set_permissions(path, Permissions::from_mode(0o604)),
        Directly::Remove => fs::remove_file(path),
    }
}
