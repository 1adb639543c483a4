//! Putting files into the trash.

use super::batch::{Batch, LASTS, Who};
use super::mirror::{is_alike, keep_times, open_batch, open_dir, open_mirror, stand_for, unmake};
use super::{OnBranch, Trash};
use crate::branch::Branch;
use crate::branch::space::Space;
use crate::fs::stat::{self, Attr};
use canopy_base::error::is_full;
use canopy_base::hash::HashMap;
use canopy_base::path::{PoolPath, join};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Where files go now: the batches that are in use.
#[derive(Default)]
pub(super) struct Places(HashMap<Who, UsedBatch>);

/// More than so many users and programs at once are rare.
const MOST: usize = 64;

#[derive(Clone)]
struct UsedBatch {
    batch: Batch,
    /// What of it is open; nothing after a moment in which nothing came.
    open: Option<Opened>,
    used: Instant,
}

#[derive(Clone)]
struct Opened {
    batch: Arc<OwnedFd>,
    /// The directory that was used last.
    last: Option<(PoolPath, Arc<OwnedFd>)>,
}

/// What was made for a name that is about to come, and goes again if it does not.
#[derive(Default)]
struct Made {
    batch: Option<Arc<OwnedFd>>,
    dirs: usize,
}

/// How long directories stay open that nobody uses: a disk is to be unmounted while the pool is without it.
const STAYS_OPEN: Duration = Duration::from_secs(1);

/// What has become of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// Its file is in the trash.
    Kept,
    /// It was removed.
    Removed,
}

/// Where a replaced file has a second name, until the rename that replaces it is done.
pub struct Linked {
    dir: Arc<OwnedFd>,
    name: Vec<u8>,
    blocks: u64,
}

/// How often a step is tried again that others, or a sweep, have made in vain.
const TRIES: usize = 16;

/// How long the path of a directory may be, in bytes, and how deep it may be, for files in it to be kept: whoever brings them
/// back needs the path in one piece, and each level has a descriptor and a part of the stack when the trash is looked through.
const LONGEST: usize = 3584;
const DEEPEST: usize = 128;

fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// Returns whether a file has contents, or at least a target, that somebody could want back. A whiteout of overlayfs is a device.
fn is_worth_keeping(attr: &Attr) -> bool {
    attr.is_regular() || attr.is_symlink()
}

impl Trash {
    /// Moves a file from its directory, open on the branch and `path` in the pool, into the trash; or removes it, if it has other
    /// names, or cannot be kept.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove(
        &self,
        branch: &Branch,
        (dir, path, name): (BorrowedFd<'_>, &[u8], &[u8]),
        attr: &Attr,
        who: &Who,
    ) -> Result<Gone, Errno> {
        let plainly = || rustix::fs::unlinkat(dir, name, AtFlags::empty()).map(|()| Gone::Removed);
        if !is_worth_keeping(attr) {
            return plainly();
        }
        let known = self.of(branch.id);
        if attr.nlink > 1 {
            // Two that remove two names at once must not both take theirs for one of several.
            let _alone = known.last_name.lock();
            return if stat::at(dir, name)?.nlink > 1 {
                plainly()
            } else {
                self.put(&known, branch, (dir, path, name), attr, who)
            };
        }
        self.put(&known, branch, (dir, path, name), attr, who)
    }

    fn put(
        &self,
        known: &OnBranch,
        branch: &Branch,
        (dir, path, name): (BorrowedFd<'_>, &[u8], &[u8]),
        attr: &Attr,
        who: &Who,
    ) -> Result<Gone, Errno> {
        let put = known.at_place(self, branch, path, who, |to| {
            let rename = || rustix::fs::renameat_with(dir, name, to, name, RenameFlags::NOREPLACE);
            match rename() {
                // The filesystem lacks the flag. Only the daemon makes names there, one at a time for each batch.
                Err(Errno::INVAL) if stat::at(to, name) == Err(Errno::NOENT) => {
                    rustix::fs::renameat(dir, name, to, name)
                }
                Err(Errno::INVAL) => Err(Errno::EXIST),
                // The place was swept away; or the file is gone.
                Err(Errno::NOENT) if stat::at(dir, name).is_ok() => Err(Errno::AGAIN),
                other => other,
            }
        });
        match put {
            Ok(_) => {
                self.count(known, attr.blocks);
                Ok(Gone::Kept)
            }
            Err(Errno::NOENT) => Err(Errno::NOENT),
            Err(errno) => {
                let removed = rustix::fs::unlinkat(dir, name, AtFlags::empty());
                if removed.is_ok() {
                    not_kept(branch, &join(path, name), errno);
                }
                removed.map(|()| Gone::Removed)
            }
        }
    }

    /// Gives a file that is about to be replaced a second name in the trash, that of `path`. It is in `dir`, open on the branch,
    /// under the name `now`. `None` if it cannot be kept.
    pub fn link(
        &self,
        branch: &Branch,
        (dir, now): (BorrowedFd<'_>, &[u8]),
        (path, name): (&[u8], &[u8]),
        attr: &Attr,
        who: &Who,
    ) -> Option<Linked> {
        if !is_worth_keeping(attr) {
            return None;
        }
        let known = self.of(branch.id);
        let linked = known.at_place(self, branch, path, who, |to| {
            match rustix::fs::linkat(dir, now, to, name, AtFlags::empty()) {
                Err(Errno::NOENT) if stat::at(dir, now).is_ok() => Err(Errno::AGAIN),
                other => other,
            }
        });
        match linked {
            Ok(dir) => Some(Linked { dir, name: name.to_vec(), blocks: attr.blocks }),
            Err(Errno::NOENT) => None,
            Err(errno) => {
                not_kept(branch, &join(path, name), errno);
                None
            }
        }
    }

    /// Completes [`Trash::link`] after the rename. The second name goes if the file still has another: the rename has failed, or
    /// it has replaced only one of several names.
    pub fn settle_link(&self, branch: &Branch, linked: &Linked) {
        let known = self.of(branch.id);
        let _alone = known.last_name.lock();
        let settled = branch.changes(|| {
            let attr = stat::at(&*linked.dir, &linked.name)?;
            if attr.nlink > 1 {
                return rustix::fs::unlinkat(&*linked.dir, linked.name.as_slice(), AtFlags::empty());
            }
            self.count(&known, linked.blocks);
            Ok(())
        });
        if let Err(errno) = settled.or_else(|errno| if errno == Errno::NOENT { Ok(()) } else { Err(errno) }) {
            tracing::warn!(
                "{:?}: what has replaced a file may share it with the trash: {errno}",
                branch.path
            );
        }
    }

    /// Makes a directory in the trash that stands for one that was removed, empty. It is still open as `dir`, and was `name` in
    /// that of `path`.
    pub fn keep_dir(&self, branch: &Branch, (path, name): (&[u8], &[u8]), dir: &RemovedDir<'_>, who: &Who) {
        let known = self.of(branch.id);
        let stand = |above: BorrowedFd<'_>| match stand_for(above, name, dir.fd.as_fd(), &dir.attr) {
            // The place was swept away.
            Err(Errno::NOENT) => Err(Errno::AGAIN),
            other => other,
        };
        let kept = branch.changes(|| known.at_place(self, branch, path, who, stand));
        match kept {
            // The directory above has changed by the removal. If it has come to the trash by that, it comes as it was before.
            Ok(above) => {
                let shown = stat::of(above.as_fd()).ok().zip(dir.above_now().ok());
                if shown.is_some_and(|(mirror, now)| mirror.mtime == now.mtime) {
                    keep_times(above.as_fd(), &dir.above);
                }
            }
            Err(errno) => not_kept(branch, &join(path, name), errno),
        }
    }
}

/// A directory that is about to be removed, as it is before that.
pub struct RemovedDir<'d> {
    fd: OwnedFd,
    attr: Attr,
    /// The directory that it is in, and its attributes.
    dir: BorrowedFd<'d>,
    above: Attr,
}

impl RemovedDir<'_> {
    /// Opens a directory of the branch, in one that is open. `None` where there is none.
    pub fn of<'d>(branch: &Branch, above: BorrowedFd<'d>, name: &[u8]) -> Option<RemovedDir<'d>> {
        let opened = branch.reads(|| {
            let fd = open_dir(above, name)?;
            let attr = stat::of(fd.as_fd())?;
            Ok::<_, Errno>(RemovedDir { fd, attr, dir: above, above: stat::of(above)? })
        });
        opened.ok()
    }

    fn above_now(&self) -> Result<Attr, Errno> {
        stat::of(self.dir)
    }
}

/// Says that something went without being kept. A client that frees a disk must not fail because that is full, nor one that
/// removes what is on a filesystem below the branch.
pub(super) fn not_kept(branch: &Branch, path: &[u8], errno: Errno) {
    use canopy_sys::shown::Show as _;
    tracing::warn!(
        "{}: removed without being kept in the trash of {}: {errno}",
        path.shown(),
        branch.path.shown()
    );
}

impl OnBranch {
    /// Closes what nobody has used for a moment.
    pub(super) fn close_idle(&self) {
        let mut idle = Vec::new();
        for place in self.places.lock().0.values_mut().filter(|place| place.used.elapsed() > STAYS_OPEN) {
            idle.extend(place.open.take());
        }
        drop(idle);
    }

    /// Calls `act` with the directory of the trash for a path, until it succeeds. It says `EXIST` where its name is taken, and
    /// `AGAIN` where the directory is gone. Returns the directory.
    pub(super) fn at_place(
        &self,
        trash: &Trash,
        branch: &Branch,
        path: &[u8],
        who: &Who,
        act: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        if path.len() > LONGEST || path.iter().filter(|&&byte| byte == b'/').count() >= DEEPEST {
            return Err(Errno::NAMETOOLONG);
        }
        let (mut least, mut room_made) = (0, false);
        for _ in 0..TRIES {
            let mut made = Made::default();
            let (number, done) = match self.place(branch, path, who, least, &mut made) {
                Ok((dir, number)) => {
                    let before = stat::of(dir.as_fd())?;
                    let done = act(dir.as_fd());
                    keep_times(dir.as_fd(), &before);
                    (number, done.map(|()| dir))
                }
                // What was kept open has been swept away.
                Err((number, Errno::NOENT)) => (number, Err(Errno::AGAIN)),
                Err((number, errno)) => (number, Err(errno)),
            };
            if let (Err(_), Some(batch)) = (&done, made.batch) {
                drop(self.places.lock().0.remove(who));
                unmake(batch.as_fd(), path, made.dirs);
            }
            match done {
                // A file of the batch has the name; or a file, or symlink, has that of a directory of the path.
                Err(Errno::EXIST | Errno::NOTDIR | Errno::LOOP) => least = number + 1,
                Err(Errno::AGAIN) => drop(self.places.lock().0.remove(who)),
                Err(errno) if is_full(errno) && !room_made => {
                    room_made = true;
                    let wanted = Space::of(branch.root())?.avail.saturating_add(FOR_DIRS);
                    trash.make_room(branch, wanted)?;
                }
                other => return other,
            }
        }
        Err(Errno::EXIST)
    }

    /// Returns the directory of the trash for a path, and the number of its batch, which is `least` or more.
    ///
    /// Errors: with the number of the batch that was tried.
    fn place(
        &self,
        branch: &Branch,
        path: &[u8],
        who: &Who,
        least: u32,
        made: &mut Made,
    ) -> Result<(Arc<OwnedFd>, u32), (u32, Errno)> {
        let now = now();
        let known = self.places.lock().0.get(who).cloned();
        let known = known.filter(|place| (place.batch.began..place.batch.began + LASTS).contains(&now));
        let began = known.as_ref().map_or(now, |place| place.batch.began);
        let number = known.as_ref().map_or(0, |place| place.batch.number).max(least);
        let failed = |errno| (number, errno);
        let known = known.filter(|place| place.batch.number == number);
        let batch = known.as_ref().map(|place| place.batch.clone());
        let batch = batch.unwrap_or_else(|| Batch { began, who: who.clone(), number });
        let mut open = match known.and_then(|place| place.open) {
            Some(open) => open,
            None => {
                let dir = open_batch(branch.root(), &batch.name());
                self.note_use(dir.as_ref().err().copied());
                Opened { batch: Arc::new(dir.map_err(failed)?), last: None }
            }
        };
        let used = Instant::now();
        let dir = match open.last.as_ref().filter(|(last, _)| last.as_slice() == path) {
            Some((_, dir)) => Arc::clone(dir),
            None => {
                let mut dirs = 0;
                let dir = open_mirror(branch.root(), open.batch.as_fd(), path, &mut dirs);
                if dirs > 0 {
                    *made = Made { batch: Some(Arc::clone(&open.batch)), dirs };
                }
                let dir = Arc::new(dir.map_err(failed)?);
                open.last = Some((PoolPath::from_slice(path), Arc::clone(&dir)));
                dir
            }
        };
        // A batch of its own for what is in a directory that has changed.
        if !is_alike(branch.root(), open.batch.as_fd(), path).map_err(failed)? {
            return Err((number, Errno::EXIST));
        }
        let place = UsedBatch { batch, open: Some(open), used };
        let mut places = self.places.lock();
        let is_full = places.0.len() >= MOST && !places.0.contains_key(who);
        let before = if is_full { std::mem::take(&mut places.0) } else { HashMap::default() };
        let old = places.0.insert(who.clone(), place);
        drop(places);
        drop((before, old));
        Ok((dir, number))
    }
}

/// What directories of the trash may need, in bytes.
const FOR_DIRS: u64 = 1 << 20;
