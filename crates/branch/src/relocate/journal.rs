//! The journal of moves: an entry in a branch's root says what is being brought to the branch, until it is done.
//!
//! An entry is locked while its writer lives, so an unlocked entry is one that a crash has left. It is on disk before
//! anything that it describes is made.

use super::kept_times::with_times_kept;
use crate::fs::reserved::{UNDER_CONSTRUCTION, unique};
use crate::fs::{beneath, stat};
use canopy_base::path::PoolPath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// Follows `UNDER_CONSTRUCTION` in the name of an entry, where the names of things under construction have a number.
const NOTE: &[u8] = b"move.";
/// The first field of an entry about a move, and of one about a copy. An entry with another one comes from an unknown
/// version.
const FORMAT: &[u8] = b"canopy move 1";
const FORMAT_OF_COPIES: &[u8] = b"canopy copy 1";
/// The most bytes of an entry that are read: tens of thousands of long names.
const LONGEST: usize = 16 << 20;

/// What becomes of a file that another branch gets a copy of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Original {
    /// It loses its names: the file moves.
    Goes,
    Stays,
}

/// What an entry says. Paths are relative to the root of their branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The root of the branch that the file leaves, as in the branch list; empty if it leaves none.
    pub source: Vec<u8>,
    pub original: Original,
    /// The names that the copy gets and the source then loses, unless the original stays. The copy is made in the
    /// directory of the first.
    pub names: Vec<PoolPath>,
}

impl Plan {
    pub fn to_bytes(&self) -> Vec<u8> {
        let format = match self.original {
            Original::Goes => FORMAT,
            Original::Stays => FORMAT_OF_COPIES,
        };
        let mut fields: Vec<&[u8]> = vec![format, &self.source];
        fields.extend(self.names.iter().map(|name| name.as_slice()));
        let mut bytes = fields.join(&0);
        // A final NUL shows that the entry is complete.
        bytes.push(0);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Option<Plan> {
        let mut fields = bytes.strip_suffix(&[0])?.split(|&byte| byte == 0);
        let original = match fields.next()? {
            FORMAT => Original::Goes,
            FORMAT_OF_COPIES => Original::Stays,
            _ => return None,
        };
        let source = fields.next()?.to_vec();
        Some(Plan { source, original, names: fields.map(PoolPath::from_slice).collect() })
    }
}

/// A journal entry on a branch. It stays until it is erased.
pub struct JournalEntry {
    root: OwnedFd,
    name: Vec<u8>,
    /// Holds the lock.
    file: OwnedFd,
}

impl JournalEntry {
    /// Writes an entry to the root of a branch. It is on disk when this returns.
    pub fn write(root: BorrowedFd<'_>, plan: &Plan) -> Result<JournalEntry, Errno> {
        canopy_sys::creds::as_daemon()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let name = [UNDER_CONSTRUCTION, NOTE, unique().as_bytes()].concat();
            let dir = beneath::open(root, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
            let file = with_times_kept(dir.as_fd(), || {
                rustix::fs::openat(&dir, name.as_slice(), flags, Mode::RUSR | Mode::WUSR)
            })?;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            let entry = JournalEntry { root: dir, name, file };
            match locked {
                Ok(()) if stat::of(entry.file.as_fd())?.nlink > 0 => {}
                // Another daemon that looks for leftovers has found the entry before it was locked.
                Ok(()) | Err(Errno::WOULDBLOCK) => {
                    entry.unlink()?;
                    continue;
                }
                Err(errno) => {
                    entry.unlink()?;
                    return Err(errno);
                }
            }
            let bytes = plan.to_bytes();
            let written = (|| {
                let mut done = 0;
                while done < bytes.len() {
                    done += rustix::io::retry_on_intr(|| rustix::io::write(&entry.file, &bytes[done..]))?;
                }
                rustix::fs::fsync(&entry.file)?;
                rustix::fs::fsync(&entry.root)
            })();
            return match written {
                Ok(()) => Ok(entry),
                Err(errno) => {
                    let _ = entry.unlink();
                    Err(errno)
                }
            };
        }
    }

    fn unlink(&self) -> Result<(), Errno> {
        let unlink = || rustix::fs::unlinkat(&self.root, self.name.as_slice(), AtFlags::empty());
        match with_times_kept(self.root.as_fd(), unlink) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Returns the prefix of the names of whatever the entry's writer has under construction.
    pub fn writer(&self) -> Vec<u8> {
        let prefix_len = [UNDER_CONSTRUCTION, NOTE].concat().len();
        let end = self.name.iter().rposition(|&byte| byte == b'.').map_or(prefix_len, |dot| dot + 1);
        [UNDER_CONSTRUCTION, &self.name[prefix_len.min(end)..end]].concat()
    }

    /// Returns when the entry was written: before anything that it describes.
    pub(crate) fn written_at(&self) -> Result<stat::Time, Errno> {
        Ok(stat::of(self.file.as_fd())?.mtime)
    }

    /// Erases the entry, since its work is done or undone. If this fails, the next mount finds nothing left to do.
    pub fn erase(self) {
        if let Err(errno) = self.unlink() {
            tracing::debug!("cannot remove a journal entry; the next mount will: {errno}");
        }
    }
}

impl Drop for JournalEntry {
    /// Unlocks explicitly: a forked child holds the file open, and with it the lock, until it calls execve.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// An entry that a crash has left.
pub enum Leftover {
    /// Locked. Without a plan it was cut off itself.
    Entry(JournalEntry, Option<Plan>),
    /// One that stays as it is, and why.
    Unreadable(String),
}

/// How long a root may take to be listed. A disk that spins up, or a million names on it, take less.
const LISTED_WITHIN: Duration = Duration::from_secs(20);

/// Finds the entries that a crash has left on a branch, and locks them.
///
/// Errors: `ETIMEDOUT` for a root that does not answer, or lists without end.
pub fn leftovers(root: BorrowedFd<'_>) -> Result<Vec<Leftover>, Errno> {
    // Only listing is left to a thread that may be late: what it finds is then of no use to anybody.
    let (dir, (found, names)) = (root.try_clone_to_owned().map_err(|_| Errno::NFILE)?, sync_channel(1));
    let list = move || {
        let prefix = [UNDER_CONSTRUCTION, NOTE].concat();
        let _ = found.send(list_until(dir.as_fd(), &prefix, Some(Instant::now() + LISTED_WITHIN)));
    };
    thread::Builder::new().name("canopy-recover".into()).spawn(list).map_err(|_| Errno::AGAIN)?;
    let names = names.recv_timeout(LISTED_WITHIN + Duration::from_secs(1)).map_err(|_| Errno::TIMEDOUT)??;
    let claimed = |name: Vec<u8>| {
        let shown = String::from_utf8_lossy(&name).into_owned();
        claim(root, name).unwrap_or_else(|why| Some(Leftover::Unreadable(format!("{shown}: {why}"))))
    };
    Ok(names.into_iter().filter_map(claimed).collect())
}

/// Locks an entry whose writer is gone; `None` if there is none. Only entries of the daemon's own user count, because other
/// users may be able to create files in the root of a branch.
///
/// Errors: why the entry cannot be used.
fn claim(root: BorrowedFd<'_>, name: Vec<u8>) -> Result<Option<Leftover>, String> {
    let is_ours = |attr: &stat::Attr| attr.is_regular() && attr.uid == rustix::process::geteuid().as_raw();
    match stat::at(root, &name) {
        Ok(attr) if is_ours(&attr) => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.to_string()),
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(root, name.as_slice(), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(|errno| errno.to_string())?,
    };
    let attr = stat::of(file.as_fd()).map_err(|errno| errno.to_string())?;
    if !is_ours(&attr) || attr.nlink == 0 {
        return Ok(None);
    }
    if attr.nlink != 1 || !attr.is_daemons_alone() {
        return Err("other users can change it".into());
    }
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 65536];
    loop {
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, buffer.as_mut_slice()));
        match read.map_err(|errno| errno.to_string())? {
            0 => break,
            read if bytes.len() + read > LONGEST => return Err("it is too long".into()),
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
    let plan = Plan::parse(&bytes);
    if plan.is_none() && bytes.ends_with(&[0]) {
        return Err("another version has written it, or the disk has damaged it".into());
    }
    let root =
        beneath::open(root, b"", OFlags::RDONLY | OFlags::DIRECTORY).map_err(|errno| errno.to_string())?;
    Ok(Some(Leftover::Entry(JournalEntry { root, name, file }, plan)))
}

/// Returns the names in a directory that begin with `prefix`.
pub(crate) fn names_with_prefix(dir: BorrowedFd<'_>, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    list_until(dir, prefix, None)
}

fn list_until(dir: BorrowedFd<'_>, prefix: &[u8], latest: Option<Instant>) -> Result<Vec<Vec<u8>>, Errno> {
    let dir = beneath::open(dir, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut seen = 0_u32;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        seen = seen.wrapping_add(1);
        if seen.is_multiple_of(1024) && latest.is_some_and(|latest| Instant::now() > latest) {
            return Err(Errno::TIMEDOUT);
        }
        let name = entry.file_name().to_bytes();
        if name.starts_with(prefix) {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_takes_too_long_ends() {
        let tmp = tempfile::tempdir().unwrap();
        for number in 0..3000 {
            std::fs::write(tmp.path().join(format!("n{number}")), "").unwrap();
        }
        let dir = std::fs::File::open(tmp.path()).unwrap();
        let list = |latest| list_until(dir.as_fd(), b"n", latest).map(|names| names.len());
        assert_eq!(list(None), Ok(3000));
        assert_eq!(list(Some(Instant::now() + LISTED_WITHIN)), Ok(3000));
        assert_eq!(list(Some(Instant::now())), Err(Errno::TIMEDOUT));
    }

    #[test]
    fn an_entry_parses_back() {
        for original in [Original::Goes, Original::Stays] {
            let plan = Plan {
                source: b"/mnt/a b".to_vec(),
                original,
                names: [&b"d/f"[..], b"e/\xff\n"].map(PoolPath::from_slice).to_vec(),
            };
            let bytes = plan.to_bytes();
            assert_eq!(Plan::parse(&bytes), Some(plan.clone()));
            for cut in 0..bytes.len() {
                // An entry that is cut after a whole field has fewer names, but is never taken for complete.
                assert_ne!(Plan::parse(&bytes[..cut]), Some(plan.clone()), "{cut}");
            }
        }
        assert_eq!(Plan::parse(b"canopy move 2\0/a\0b\0"), None);
        assert_eq!(Plan::parse(b"canopy move 1\0"), None);
    }

    #[test]
    fn only_entries_of_dead_writers_are_claimed() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path| rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let root = open(dir.path());
        let plan = Plan { source: b"/mnt/a".to_vec(), original: Original::Goes, names: Vec::new() };
        let entry = JournalEntry::write(root.as_fd(), &plan).unwrap();
        assert!(leftovers(root.as_fd()).unwrap().is_empty());
        // As in a forked child.
        let inherited = entry.file.try_clone().unwrap();
        // Releases the lock, as a crash does.
        drop(entry);
        let mut found = leftovers(root.as_fd()).unwrap();
        assert_eq!(found.len(), 1);
        let Leftover::Entry(entry, read) = found.remove(0) else { panic!("it can be read") };
        assert!(crate::fs::reserved::temporary_name().starts_with(&entry.writer()));
        assert_eq!(read, Some(plan));
        drop(inherited);
        entry.erase();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
