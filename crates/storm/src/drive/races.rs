//! A file with copies is changed by name while another client opens it for writing. Either order is right.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, XattrFlags, setxattr, utimensat};

use super::Driver;
use crate::script::Beside;

const DIR: &str = "a/race";
const OLD: &[u8] = b"old old";
const NEW: &[u8] = b"NEW NEW NEW";

impl Driver {
    pub(super) fn race(&mut self, how: Beside, files: usize) -> Result<(), String> {
        let free = self.world.beside("a").symlink_metadata().is_ok_and(|meta| meta.is_dir());
        // It may have come back from the trash.
        let free = free && self.world.beside(DIR).symlink_metadata().is_err();
        if !free || self.gone.is_some() || self.now.cannot_change() {
            return Ok(());
        }
        let (pool, plain) = (self.world.at(DIR), self.world.beside(DIR));
        for dir in [&pool, &plain] {
            fs::create_dir(dir).map_err(|error| format!("mkdir: {error}"))?;
            for number in 0..files {
                let path = dir.join(number.to_string());
                fs::write(&path, OLD).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        self.settle()?;
        let together = Barrier::new(2);
        let (changed, written): (Vec<_>, Vec<_>) = thread::scope(|scope| {
            let (pool, together) = (&pool, &together);
            let changer = scope.spawn(move || {
                let changes = (0..files).map(|number| {
                    together.wait();
                    change(&pool.join(number.to_string()), how)
                });
                changes.collect()
            });
            let writes = (0..files).map(|number| {
                together.wait();
                write(&pool.join(number.to_string()))
            });
            let written = writes.collect();
            (changer.join().unwrap_or_default(), written)
        });
        for (number, result) in changed.into_iter().enumerate() {
            result.map_err(|error| format!("{DIR}/{number}: {how:?} beside a write: {error}"))?;
        }
        for (number, written) in written.into_iter().enumerate() {
            self.follow(&plain.join(number.to_string()), &pool.join(number.to_string()), how, written)?;
        }
        self.settle()?;
        for dir in [&pool, &plain] {
            fs::remove_dir_all(dir).map_err(|error| format!("removing {}: {error}", dir.display()))?;
        }
        self.compare()
    }

    /// Does in the plain directory what has come of both in the pool.
    fn follow(&self, plain: &Path, pool: &Path, how: Beside, written: bool) -> Result<(), String> {
        let done =
            |result: std::io::Result<()>| result.map_err(|error| format!("{}: {error}", plain.display()));
        let cut_last = how == Beside::Truncate && fs::metadata(pool).is_ok_and(|meta| meta.len() == 3);
        if cut_last || !matches!(how, Beside::Truncate | Beside::Times) {
            if written {
                let _ = write(plain);
            }
            return done(change(plain, how));
        }
        // A write sets the time anew, so whether that was set before cannot be told afterwards.
        done(change(plain, how))?;
        if written {
            let _ = write(plain);
        }
        let shown = fs::metadata(pool).and_then(|meta| meta.modified());
        if let (Beside::Times, Ok(time)) = (how, shown) {
            let file = OpenOptions::new().write(true).open(plain);
            return done(file.and_then(|file| file.set_modified(time)));
        }
        Ok(())
    }
}

fn write(path: &Path) -> bool {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.and_then(|file| file.write_all_at(NEW, 0)).is_ok()
}

fn change(path: &Path, how: Beside) -> std::io::Result<()> {
    match how {
        Beside::Mode => fs::set_permissions(path, Permissions::from_mode(0o640)),
        Beside::Attribute => Ok(setxattr(path, "user.race", b"1", XattrFlags::empty())?),
        Beside::Times => {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: 1_000_000, tv_nsec: 0 },
            };
            Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
        }
        Beside::Truncate => Ok(nix::unistd::truncate(path, 3)?),
        Beside::Rename => fs::rename(path, path.with_extension("new")),
    }
}
