//! What is being brought onto a branch, noted in the branch's root until it is done.
//!
//! A note is locked while its writer lives, so that whoever finds one unlocked knows that a crash has left it.
//! It is there, on disk, before the first thing that it tells of.

use super::metadata::with_times_kept;
use crate::fs::reserved::{UNDER_CONSTRUCTION, unique};
use crate::fs::{beneath, stat};
use crate::path::PoolPath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Behind `UNDER_CONSTRUCTION`; the names of things under construction have a number there.
const NOTE: &[u8] = b"move.";
/// The first field; another one is of a version that we do not know.
const FORMAT: &[u8] = b"canopy move 1";
/// Bytes of a note that are read: tens of thousands of long names.
const LONGEST: usize = 16 << 20;

/// What a note says. Paths are relative to the root of their branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// The root of the branch that the file leaves, as the branch list has it; empty where it leaves none.
    pub(crate) source: Vec<u8>,
    /// The names that the copy takes, and that the source then loses. The copy is made in the directory of the first.
    pub(crate) names: Vec<PoolPath>,
}

impl Plan {
    fn to_bytes(&self) -> Vec<u8> {
        let mut fields: Vec<&[u8]> = vec![FORMAT, &self.source];
        fields.extend(self.names.iter().map(|name| name.as_slice()));
        let mut bytes = fields.join(&0);
        // Ends with one, so that a note that was cut off is known for it.
        bytes.push(0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Plan> {
        let mut fields = bytes.strip_suffix(&[0])?.split(|&byte| byte == 0);
        if fields.next()? != FORMAT {
            return None;
        }
        let source = fields.next()?.to_vec();
        Some(Plan { source, names: fields.map(PoolPath::from_slice).collect() })
    }
}

/// A note on a branch. It stays until it is erased.
pub(crate) struct JournalEntry {
    root: OwnedFd,
    name: Vec<u8>,
    /// Keeps the lock.
    file: OwnedFd,
}

impl JournalEntry {
    /// Puts a note into the root of a branch; on disk when this returns.
    pub(crate) fn write(root: BorrowedFd<'_>, plan: &Plan) -> Result<JournalEntry, Errno> {
        canopy_sys::creds::as_daemon()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let name = [UNDER_CONSTRUCTION, NOTE, unique().as_bytes()].concat();
            let dir = beneath::open(root, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
            let file = with_times_kept(dir.as_fd(), || {
                rustix::fs::openat(&dir, name.as_slice(), flags, Mode::RUSR | Mode::WUSR)
            })?;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            let note = JournalEntry { root: dir, name, file };
            match locked {
                Ok(()) if stat::of(note.file.as_fd())?.nlink > 0 => {}
                // Somebody who looks for leftovers was faster than the lock.
                Ok(()) | Err(Errno::WOULDBLOCK) => {
                    note.unlink()?;
                    continue;
                }
                Err(errno) => {
                    note.unlink()?;
                    return Err(errno);
                }
            }
            let bytes = plan.to_bytes();
            let written = (|| {
                let mut done = 0;
                while done < bytes.len() {
                    done += rustix::io::retry_on_intr(|| rustix::io::write(&note.file, &bytes[done..]))?;
                }
                rustix::fs::fsync(&note.file)?;
                rustix::fs::fsync(&note.root)
            })();
            return match written {
                Ok(()) => Ok(note),
                Err(errno) => {
                    let _ = note.unlink();
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

    /// What the writer's things under construction have names that begin with.
    pub(crate) fn writer(&self) -> Vec<u8> {
        let number = [UNDER_CONSTRUCTION, NOTE].concat().len();
        let end = self.name.iter().rposition(|&byte| byte == b'.').map_or(number, |dot| dot + 1);
        [UNDER_CONSTRUCTION, &self.name[number.min(end)..end]].concat()
    }

    /// What it tells of is done, or undone. Should this fail, the next mount finds nothing to do.
    pub(crate) fn erase(self) {
        if let Err(errno) = self.unlink() {
            tracing::debug!("a note on a branch stays until the next mount: {errno}");
        }
    }
}

impl Drop for JournalEntry {
    /// Whoever has been forked meanwhile holds the file open, and with it the lock, until it executes something.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// The notes that a crash has left on a branch, now locked by us.
pub(crate) fn leftovers(root: BorrowedFd<'_>) -> Result<Vec<(JournalEntry, Option<Plan>)>, Errno> {
    let prefix = [UNDER_CONSTRUCTION, NOTE].concat();
    let names = names_with_prefix(root, &prefix)?;
    Ok(names.into_iter().filter_map(|name| claim(root, name)).collect())
}

/// A note whose writer is gone. Nobody but a daemon's user writes notes that are obeyed: users may be able to
/// make files in the root of a branch.
fn claim(root: BorrowedFd<'_>, name: Vec<u8>) -> Option<(JournalEntry, Option<Plan>)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, name.as_slice(), flags, Mode::empty()).ok()?;
    let attr = stat::of(file.as_fd()).ok()?;
    let own = attr.uid == rustix::process::geteuid().as_raw();
    if !attr.is_regular() || !own || attr.nlink != 1 || attr.mode & 0o022 != 0 {
        return None;
    }
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 65536];
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(&file, buffer.as_mut_slice())).ok()? {
            0 => break,
            read if bytes.len() + read > LONGEST => return None,
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
    let plan = Plan::parse(&bytes);
    if plan.is_none() && bytes.ends_with(&[0]) {
        // Complete, but of a version that we do not know.
        return None;
    }
    let root = beneath::open(root, b"", OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
    Some((JournalEntry { root, name, file }, plan))
}

/// The names in a directory that begin so.
pub(crate) fn names_with_prefix(dir: BorrowedFd<'_>, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let dir = beneath::open(dir, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
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
    fn a_journal_entry_is_parsed_as_it_was_written() {
        let plan = Plan {
            source: b"/mnt/a b".to_vec(),
            names: [&b"d/f"[..], b"e/\xff\n"].map(PoolPath::from_slice).to_vec(),
        };
        let bytes = plan.to_bytes();
        assert_eq!(Plan::parse(&bytes), Some(plan.clone()));
        for cut in 0..bytes.len() {
            // Cut behind a whole field it is shorter, but never without its last byte.
            assert_ne!(Plan::parse(&bytes[..cut]), Some(plan.clone()), "{cut}");
        }
        assert_eq!(Plan::parse(b"canopy move 2\0/a\0b\0"), None);
        assert_eq!(Plan::parse(b"canopy move 1\0"), None);
    }

    #[test]
    fn only_journal_entries_of_dead_processes_are_claimed() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path| rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let root = open(dir.path());
        let plan = Plan { source: b"/mnt/a".to_vec(), names: Vec::new() };
        let note = JournalEntry::write(root.as_fd(), &plan).unwrap();
        assert!(leftovers(root.as_fd()).unwrap().is_empty());
        // As a process has it that was forked from this one.
        let inherited = note.file.try_clone().unwrap();
        // Forgets the lock, as a crash does.
        drop(note);
        let mut found = leftovers(root.as_fd()).unwrap();
        assert_eq!(found.len(), 1);
        let (note, read) = found.remove(0);
        assert!(crate::fs::reserved::temporary_name().starts_with(&note.writer()));
        assert_eq!(read, Some(plan));
        drop(inherited);
        note.erase();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
