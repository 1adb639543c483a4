//! What clients do, in the pool and in the plain directory.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;
use canopy_testkit::model::{Change, DIR_SLOTS, FILE_SLOTS, On, Op, Outcome, Subject, XattrHow};
use rustix::fs::{XattrFlags, lsetxattr};
use rustix::io::Errno;

use super::Driver;
use super::refusing::is_refusal;
use crate::allowed::{self, Then};
use crate::compare::is_within;

/// How long the daemon may take to end what a killed command has asked of it.
const LEASED_ON: Duration = Duration::from_secs(2);

impl Driver {
    pub(super) fn client(&mut self, op: &Op) -> Result<(), String> {
        if self.is_out_of_reach(op) {
            self.idle = true;
            return Ok(());
        }
        let (going, before) = (self.going(op), self.before_open(op));
        let pool = self.apply_unless_leased(op);
        let plain = match allowed::then(op, &pool, self.now) {
            Then::Same => self.world.reference.apply(op),
            Then::Part(op) => self.world.reference.apply(&op),
            Then::Nothing => {
                let wrong = self.must_not_fail(op, before.as_ref());
                if let Some(why) = wrong.filter(|_| is_refusal(&pool) && self.now.refusing) {
                    return Err(format!("{pool:?}: {why}"));
                }
                // An open that fails has closed what was in its slot.
                if let Op::Open { slot, .. } | Op::Tmpfile { slot, .. } = op {
                    self.world.reference.apply(&Op::Close { slot: *slot });
                }
                if let Op::OpenDir { slot, .. } = op {
                    self.world.reference.apply(&Op::CloseDir { slot: *slot });
                }
                return Ok(());
            }
        };
        if plain.allows(&pool) {
            if plain == Outcome::Done {
                self.opened(op, before.as_ref());
                self.synced(op)?;
            }
            // An open that fails has closed what was open.
            let opens = matches!(op, Op::Open { .. } | Op::OpenDir { .. } | Op::Tmpfile { .. });
            self.idle = !opens && !matches!(plain, Outcome::Done | Outcome::Number(_));
            self.settle_time(op, &plain);
            return match going.filter(|_| plain == Outcome::Done) {
                Some(going) => self.gone(&going),
                None => Ok(()),
            };
        }
        if !allowed::differ(op, &plain, &pool, self.now) {
            return Err(format!("\n  plain directory: {plain:?}\n  pool:            {pool:?}"));
        }
        if let (Op::Open { slot, .. }, Outcome::Done) = (op, &pool) {
            for side in [&mut self.world.client, &mut self.world.reference] {
                side.apply(&Op::Close { slot: *slot });
            }
        }
        Ok(())
    }

    /// Does an operation in the pool. The daemon may hold a lease for a moment more on behalf of a command that was killed.
    fn apply_unless_leased(&mut self, op: &Op) -> Outcome {
        let waits = matches!(op, Op::Open { .. } | Op::Change { change: Change::Size(_), .. });
        let until = Instant::now() + LEASED_ON;
        loop {
            let pool = self.world.client.apply(op);
            let is_leased = pool == Outcome::Failed(Errno::AGAIN) && waits && !self.now.upkeep;
            if !is_leased || Instant::now() > until {
                return pool;
            }
            std::thread::sleep(LEASED_ON / 100);
        }
    }

    /// Whether an allocation that changes nothing sets the time of its file depends on the filesystem.
    fn settle_time(&mut self, op: &Op, outcome: &Outcome) {
        if let (Op::Allocate { slot, .. }, Outcome::Done) = (op, outcome) {
            let set = Op::Change { on: On::File(*slot), change: Change::Mtime(1_000_000) };
            // The pool refuses it while it cannot tell which copy is newer.
            if let Outcome::Done = self.world.client.apply(&set) {
                self.world.reference.apply(&set);
            }
        }
    }

    /// Closes everything.
    pub(super) fn close(&mut self) {
        for side in [&mut self.world.client, &mut self.world.reference] {
            for slot in 0..FILE_SLOTS {
                side.apply(&Op::Close { slot });
            }
            for slot in 0..DIR_SLOTS {
                side.apply(&Op::CloseDir { slot });
            }
        }
    }

    /// Whether an operation is about something that is only on the disk that is away.
    fn is_out_of_reach(&mut self, op: &Op) -> bool {
        let paths = paths(op);
        if paths.iter().any(|path| !self.can_touch(path)) {
            return true;
        }
        if (self.now.read_only || self.now.refusing) && self.changes_read_only(op) {
            return true;
        }
        let Some(gone) = &self.gone else { return false };
        !gone.types_may_change && gone.changes_type(op, &self.world)
    }

    /// Whether an operation changes attributes of something that the read-only disk holds. They change on the others, and the
    /// pool shows those of the first.
    fn changes_read_only(&self, op: &Op) -> bool {
        let on = match *op {
            Op::Change { on, .. } => on,
            Op::Xattr { on, how } if !matches!(how, XattrHow::Get(_) | XattrHow::List) => on,
            _ => return false,
        };
        let On::Path(path) = on else {
            // What is written at once is cut at once.
            return self.now.read_only || !matches!(op, Op::Change { change: Change::Size(_), .. });
        };
        self.is_read_only(path)
    }

    fn is_read_only(&self, path: &str) -> bool {
        self.world.holders(path).into_iter().any(|disk| self.world.disks[disk].read_only)
            || self.is_refused(path)
    }

    /// Whether everything of this path, above and below it, can be reached.
    pub(super) fn can_touch(&self, path: &str) -> bool {
        let path = path.as_bytes();
        let hidden = |gone: &super::Gone| {
            gone.hidden.iter().any(|hidden| is_within(hidden, path) || is_within(path, hidden))
        };
        !self.gone.as_ref().is_some_and(hidden)
    }

    /// truncate(2), by name.
    pub(super) fn truncate(&mut self, path: &str, size: u64) -> Result<(), String> {
        if !self.can_touch(path) || self.is_symlink(path) || self.is_read_only(path) {
            return Ok(());
        }
        let cut = |path: &Path| {
            nix::unistd::truncate(path, size.cast_signed())
                .map_err(|errno| Errno::from_io_error(&errno.into()))
        };
        self.both(path, cut)
    }

    pub(super) fn big_attribute(&mut self, path: &str, byte: u8) -> Result<(), String> {
        if !self.can_touch(path) || self.is_symlink(path) || self.is_read_only(path) {
            return Ok(());
        }
        let value = vec![b'a' + byte; 700];
        self.both(path, |path| lsetxattr(path, "user.big", &value, XattrFlags::empty()).map_err(Some))
    }

    fn is_symlink(&self, path: &str) -> bool {
        self.world.beside(path).symlink_metadata().is_ok_and(|meta| meta.is_symlink())
    }

    /// Does something in the pool, and then in the plain directory unless the pool may refuse it.
    fn both(&mut self, path: &str, work: impl Fn(&Path) -> Result<(), Option<Errno>>) -> Result<(), String> {
        let pool = work(&self.world.at(path));
        let outcome = |result: &Result<(), Option<Errno>>| match result {
            Ok(()) => Outcome::Done,
            Err(errno) => Outcome::Failed(errno.unwrap_or(Errno::IO)),
        };
        // Stands for any operation.
        let op = Op::Xattr { on: On::Path(""), how: XattrHow::List };
        if allowed::then(&op, &outcome(&pool), self.now) == Then::Nothing {
            return Ok(());
        }
        let plain = work(&self.world.beside(path));
        let (pool, plain) = (outcome(&pool), outcome(&plain));
        if plain == pool || allowed::differ(&op, &plain, &pool, self.now) {
            return Ok(());
        }
        Err(format!("plain directory: {plain:?}, pool: {pool:?}"))
    }

    /// Stores bytes through a shared mapping, and syncs them. The part of the file must be there.
    pub(super) fn map(&mut self, path: &str, offset: u64, len: u64, byte: u8) -> Result<(), String> {
        let meta = self.world.beside(path).symlink_metadata();
        // A page that cannot be read kills who maps it.
        if self.now.failing {
            return Ok(());
        }
        let fits = meta.is_ok_and(|meta| meta.is_file() && meta.len() >= offset + len);
        // A page keeps what it could not write.
        if !fits || !self.can_touch(path) || self.is_refused(path) {
            return Ok(());
        }
        let end = offset + len;
        let (open, store) = (format!("mmap -rw 0 {end}"), format!("mwrite -S {byte} {offset} {len}"));
        let stored = |path: &Path| {
            let mut command = Command::new("xfs_io");
            for words in [open.as_str(), &store, "msync -s"] {
                command.args(["-c", words]);
            }
            let done = run_within(command.arg(path), PATIENCE);
            if done.success() && done.stderr.is_empty() { Ok(()) } else { Err(done.describe()) }
        };
        match stored(&self.world.at(path)) {
            Ok(()) => stored(&self.world.beside(path)),
            // The holes of the file, and copies, need room. What cannot say whether it is old is not written.
            Err(_) if self.now.small || self.now.cannot_change() => Ok(()),
            Err(why) => Err(why),
        }
    }
}

/// The paths that an operation names.
fn paths(op: &Op) -> Vec<&'static str> {
    let on = |on: On| match on {
        On::Path(path) => vec![path],
        On::File(_) | On::Dir(_) => vec![],
    };
    match *op {
        Op::Mkdir { path, .. }
        | Op::Mknod { path, .. }
        | Op::Symlink { path, .. }
        | Op::Open { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::Readlink { path }
        | Op::OpenDir { path, .. }
        | Op::Statfs { path } => vec![path],
        Op::Tmpfile { dir, .. } => vec![dir],
        Op::Rename { from, to, .. } | Op::Link { from, to } => vec![from, to],
        Op::LinkOpen { to, .. } => vec![to],
        Op::Change { on: target, .. } | Op::Xattr { on: target, .. } | Op::Stat { on: target } => on(target),
        Op::List { on: target } => on(target),
        Op::Same { on: target, path } => [vec![path], on(target)].concat(),
        _ => vec![],
    }
}
