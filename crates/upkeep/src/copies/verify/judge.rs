//! Reading a file and judging it by its checksum.
//!
//! A read lease is held meanwhile, so nobody writes the file, and who wants to write it waits for at most a megabyte. On a
//! filesystem without leases, a file is judged that has the same times afterwards, and gets no checksum.

use super::collect::Item;
use crate::held::checksum::Checksum;
use crate::held::{CHUNK, HeldCopy, LEASED, Lease, read_exactly};
use crate::pace::Pace;
use crate::pool_link::PoolLink;
use crate::progress::Progress;
use crate::stop::Stop;
use blake3::{Hash, Hasher};
use canopy_base::text::os_error;
use rustix::fs::Advice;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// So long after its last change, a file may get a checksum: later changes get another time. Clocks of filesystems tick
/// every 10 ms; those of filesystems that other systems have made, every two seconds.
const SETTLED: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Verdict {
    Sound,
    /// It has no checksum.
    Missing,
    /// Its checksum is that of an earlier content.
    Stale,
    /// Its content, but neither size nor time, is other than when the checksum was taken.
    Damaged,
    /// A program writes it.
    InUse,
    Unread,
}

#[derive(Debug)]
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) why: String,
    /// Of the content as it is, if it can be read.
    pub(super) digest: Option<Hash>,
    pub(super) checksum: Option<Checksum>,
    /// Whether it has got a new checksum, and why not; `None` if it needs none or if nothing is to be written.
    pub(super) stored: Option<Result<(), String>>,
}

/// Why the content of a file has not been read to its end.
#[derive(Debug)]
enum Cut {
    Stopped,
    By(Errno),
}

impl From<Errno> for Cut {
    fn from(errno: Errno) -> Cut {
        Cut::By(errno)
    }
}

/// Reads files one after the other.
#[derive(Debug)]
pub(super) struct Reader<'r> {
    pub(super) pool: &'r PoolLink,
    /// Files get checksums.
    pub(super) writes: bool,
    pub(super) stop: &'r Stop,
    pub(super) pace: Pace,
    pub(super) progress: Progress,
    /// Branches whose filesystems lack such attributes.
    pub(super) without_attributes: BTreeSet<usize>,
}

impl Reader<'_> {
    /// Reads and judges a file, and gives it a checksum if need be. Returns `None` if a signal arrives. A file whose fix was
    /// cut off counts as damaged, for its time may have changed.
    pub(super) fn judge(&mut self, item: &mut Item, was_cut_off: bool) -> Option<Judged> {
        let before = self.progress.position();
        self.progress.show(&self.pool.mountpoint.join(&item.names[0]));
        let judged = match self.read(item, was_cut_off) {
            Ok(judged) => judged,
            Err(Cut::Stopped) => return None,
            Err(Cut::By(errno)) => {
                let (verdict, why) = refusal(errno);
                Judged { verdict, why, digest: None, checksum: None, stored: None }
            }
        };
        self.progress.set_position(before + item.copy.size());
        Some(judged)
    }

    fn read(&mut self, item: &mut Item, was_cut_off: bool) -> Result<Judged, Cut> {
        let branch = &self.pool.branches[item.copy.branch];
        let name = item.names[0].clone();
        let open = |lease| HeldCopy::open(branch, &name, &item.copy, lease);
        let (held, has_lease) = match open(Lease::Unwritten) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (open(Lease::None)?, false),
            held => (held?, true),
        };
        let (checksum, takes_checksums) = match Checksum::read(held.file().as_fd()) {
            Err(Errno::OPNOTSUPP) => (None, false),
            read => (read?, true),
        };
        if !takes_checksums {
            self.without_attributes.insert(item.copy.branch);
        }
        let current = checksum.filter(|checksum| checksum.is_current(&item.copy));
        let (mut why, mut stored) = (String::new(), None);
        let digest = match self.digest(&held, item.copy.size()) {
            Ok(digest) => Some(digest),
            // The disk has lost it.
            Err(Cut::By(errno @ Errno::IO)) if current.is_some() => {
                why = os_error(errno);
                None
            }
            Err(cut) => return Err(cut),
        };
        let verdict = match (checksum, digest) {
            (Some(checksum), Some(digest)) if current.is_some() && checksum.digest == digest => {
                Verdict::Sound
            }
            (Some(_), _) if current.is_some() => Verdict::Damaged,
            _ if was_cut_off => {
                why = "an earlier fix was interrupted".into();
                Verdict::Damaged
            }
            (Some(_), _) => Verdict::Stale,
            (None, _) => Verdict::Missing,
        };
        if let (Verdict::Missing | Verdict::Stale, true, Some(digest)) = (verdict, self.writes, digest) {
            stored = Some(match (takes_checksums, has_lease) {
                (false, _) => Err("its filesystem has no user attributes".into()),
                (true, false) => Err("its filesystem has no leases".into()),
                (true, true) => self.store(&held, item, digest)?,
            });
        }
        Ok(Judged { verdict, why, digest, checksum, stored })
    }

    fn digest(&mut self, held: &HeldCopy<'_>, size: u64) -> Result<Hash, Cut> {
        // What is in memory says nothing of the disk. And other programs need the memory more.
        let _ = rustix::fs::fadvise(held.file(), 0, None, Advice::DontNeed);
        let length = usize::try_from(size).map_or(CHUNK, |size| size.min(CHUNK));
        let (mut buffer, mut hasher, mut at) = (vec![0; length], Hasher::new(), 0);
        while at < size {
            let length = usize::try_from(size - at).map_or(CHUNK, |rest| rest.min(CHUNK));
            read_exactly(held.file(), &mut buffer[..length], at)?;
            hasher.update(&buffer[..length]);
            at += length as u64;
            self.progress.inc(length as u64);
            let stop = self.stop;
            self.pace.keep(length as u64, &mut || watch(held, stop))?;
        }
        held.check()?;
        let _ = rustix::fs::fadvise(held.file(), 0, None, Advice::DontNeed);
        Ok(hasher.finalize())
    }

    /// Gives a file the checksum of its content.
    fn store(
        &mut self,
        held: &HeldCopy<'_>,
        item: &mut Item,
        digest: Hash,
    ) -> Result<Result<(), String>, Cut> {
        let branch = &self.pool.branches[item.copy.branch];
        if !branch.gives() {
            let why = match branch.mode.as_str() {
                "RO" => "its branch has the mode RO",
                _ => "its branch is gone or failing",
            };
            return Ok(Err(why.into()));
        }
        let written = self.settle(held, item).and_then(|()| {
            Checksum::of(digest, &item.copy).store(held.file().as_fd())?;
            item.copy.stat = rustix::fs::fstat(held.file())?;
            Ok(())
        });
        match written {
            Ok(()) => Ok(Ok(())),
            Err(Cut::Stopped) => Err(Cut::Stopped),
            Err(Cut::By(errno)) => Ok(Err(match errno {
                Errno::PERM => "immutable or append-only".into(),
                Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG => "no room for another attribute".into(),
                errno => refusal(errno).1,
            })),
        }
    }

    /// Waits until a change would get a later time than the last one.
    fn settle(&self, held: &HeldCopy<'_>, item: &Item) -> Result<(), Cut> {
        let seconds = u64::try_from(item.copy.stat.st_mtime).unwrap_or(0);
        let since = Duration::new(seconds, item.copy.stat.st_mtime_nsec as u32);
        let modified = UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH);
        loop {
            watch(held, self.stop)?;
            match SystemTime::now().duration_since(modified) {
                Ok(age) if age < SETTLED => std::thread::sleep((SETTLED - age).min(NAP)),
                // A time to come is none that a change gives.
                _ => return Ok(()),
            }
        }
    }
}

fn watch(held: &HeldCopy<'_>, stop: &Stop) -> Result<(), Cut> {
    if stop.is_set() { Err(Cut::Stopped) } else { Ok(held.check()?) }
}

/// What an error says of a file.
fn refusal(errno: Errno) -> (Verdict, String) {
    match errno {
        Errno::NOLCK => (Verdict::InUse, LEASED.into()),
        Errno::AGAIN | Errno::BUSY => (Verdict::InUse, "open for writing".into()),
        Errno::STALE | Errno::NOENT | Errno::NOTDIR | Errno::LOOP => {
            (Verdict::InUse, "it changed in the meantime".into())
        }
        Errno::ACCESS | Errno::PERM => (Verdict::Unread, "not permitted (sudo canopy ...)".into()),
        errno => (Verdict::Unread, os_error(errno)),
    }
}
