//! What a fix is about to write, on disk before it writes in place: a fix that is cut off can be finished, and no file is
//! mistaken for one that a client has changed.
//!
//! The journal is a hidden file in the root of the branch. It has a head of three lines: what it is; the checksum that the file
//! is to have; its inode number, path and handle, the last two in hexadecimal digits. Blocks follow, and at the end its own
//! digest. Without that it is incomplete, and nothing has been written to the file yet. The fix that is at work holds a lock
//! on it.

use crate::held::checksum::Checksum;
use crate::held::{read_exactly, write_exactly};
use crate::pool_link::{BranchLink, UNDER_CONSTRUCTION};
use blake3::{Hash, Hasher};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Content is compared and written in blocks of this size; the last one of a file may be shorter.
pub(super) const BLOCK: usize = 4096;
/// Follows [`UNDER_CONSTRUCTION`] in the name; an inode number follows it.
const VERIFY: &[u8] = b"verify.";
const FIRST_LINE: &str = "canopy-verify 1";
const LONGEST_HEAD: usize = 16 << 10;
/// Offset, length, and whether the block could be read. What it is to hold follows, and what it holds.
const BLOCK_HEAD: usize = 8 + 4 + 1;
const LAST: u64 = u64::MAX;

/// The file that is fixed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) checksum: Checksum,
    pub(super) ino: u64,
    pub(super) path: PathBuf,
    /// Empty where the filesystem has none.
    pub(super) handle: Vec<u8>,
}

/// A block of the file that is to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) length: usize,
    /// It could be read, damaged as it was.
    pub(super) was_readable: bool,
    /// Where in the journal the right content is.
    at: u64,
}

/// A journal of which this process holds the lock.
#[derive(Debug)]
pub(super) struct Journal {
    root: OwnedFd,
    name: OsString,
    file: File,
    digest: Hasher,
    length: u64,
    pub(super) blocks: Vec<Block>,
}

impl Journal {
    /// Begins a journal.
    ///
    /// # Errors
    /// `EXIST` if there is one already.
    pub(super) fn create(branch: &BranchLink, head: &Head) -> Result<Journal, Errno> {
        let root = branch.dir(Path::new(""))?;
        let name = [UNDER_CONSTRUCTION, VERIFY, head.ino.to_string().as_bytes()].concat();
        let name = OsString::from_vec(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&root, &name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let digest = Hasher::new();
        let mut journal = Journal { root, name, file: file.into(), digest, length: 0, blocks: Vec::new() };
        match journal.append(head.to_text().as_bytes()) {
            Ok(()) => Ok(journal),
            Err(errno) => journal.remove().and(Err(errno)),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.digest.update(bytes);
        write_exactly(&self.file, bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Adds a block. `damaged` is `None` if it cannot be read.
    pub(super) fn add(&mut self, offset: u64, damaged: Option<&[u8]>, right: &[u8]) -> Result<(), Errno> {
        let mut bytes = Vec::with_capacity(BLOCK_HEAD + 2 * BLOCK);
        bytes.extend(offset.to_le_bytes());
        bytes.extend((right.len() as u32).to_le_bytes());
        bytes.push(u8::from(damaged.is_some()));
        bytes.extend(right);
        bytes.extend(damaged.unwrap_or_default());
        let at = self.length + BLOCK_HEAD as u64;
        self.append(&bytes)?;
        self.blocks.push(Block { offset, length: right.len(), was_readable: damaged.is_some(), at });
        Ok(())
    }

    /// Ends the journal, and writes it to disk.
    pub(super) fn complete(&mut self) -> Result<(), Errno> {
        self.append(&LAST.to_le_bytes())?;
        let digest = *self.digest.finalize().as_bytes();
        write_exactly(&self.file, &digest, self.length)?;
        rustix::fs::fsync(&self.file)?;
        // Another command may have met it before it was locked.
        if rustix::fs::fstat(&self.file)?.st_nlink == 0 {
            return Err(Errno::AGAIN);
        }
        rustix::fs::fsync(&self.root)
    }

    /// Reads what a block is to hold.
    pub(super) fn right(&self, block: &Block, buffer: &mut [u8]) -> Result<(), Errno> {
        read_exactly(&self.file, buffer, block.at)
    }

    /// Reads what a block has held that could be read.
    pub(super) fn damaged(&self, block: &Block, buffer: &mut [u8]) -> Result<(), Errno> {
        read_exactly(&self.file, buffer, block.at + block.length as u64)
    }

    pub(super) fn remove(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.root, &self.name, AtFlags::empty())
    }

    /// Finds the journals of fixes that were cut off, of which nobody holds the lock. Those that are incomplete have no head.
    /// Only those of the own user count: others may be able to create files in the root of a branch.
    pub(super) fn cut_off(branch: &BranchLink) -> Result<Vec<(Journal, Option<Head>)>, Errno> {
        let prefix = [UNDER_CONSTRUCTION, VERIFY].concat();
        let mut names = Vec::new();
        for entry in Dir::read_from(&branch.dir(Path::new(""))?)? {
            let entry = entry?;
            if entry.file_name().to_bytes().starts_with(&prefix) {
                names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
            }
        }
        Ok(names.into_iter().filter_map(|name| Journal::claim(branch, name).ok()).collect())
    }

    fn claim(branch: &BranchLink, name: OsString) -> Result<(Journal, Option<Head>), Errno> {
        let root = branch.dir(Path::new(""))?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&root, &name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own || stat.st_nlink != 1 {
            return Err(Errno::PERM);
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let digest = Hasher::new();
        let mut journal = Journal { root, name, file: file.into(), digest, length: 0, blocks: Vec::new() };
        match journal.read(stat.st_size as u64) {
            // Something is missing or wrong.
            Err(Errno::STALE) => Ok((journal, None)),
            Err(errno) => Err(errno),
            Ok(head) => Ok((journal, Some(head))),
        }
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<(), Errno> {
        read_exactly(&self.file, bytes, self.length)?;
        self.digest.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Reads the head and the places of the blocks. `STALE` is for what is incomplete.
    fn read(&mut self, size: u64) -> Result<Head, Errno> {
        let mut start = vec![0; LONGEST_HEAD.min(size as usize)];
        read_exactly(&self.file, &mut start, 0)?;
        let (head, length) = Head::parse(&start).ok_or(Errno::STALE)?;
        self.take(&mut start[..length])?;
        loop {
            let mut offset = [0; 8];
            self.take(&mut offset)?;
            let offset = u64::from_le_bytes(offset);
            if offset == LAST {
                break;
            }
            let (mut length, mut was_readable) = ([0; 4], [0; 1]);
            self.take(&mut length)?;
            self.take(&mut was_readable)?;
            let (length, was_readable) = (u32::from_le_bytes(length) as usize, was_readable != [0]);
            self.blocks.push(Block { offset, length, was_readable, at: self.length });
            let mut content = [0; BLOCK];
            let content = content.get_mut(..length).ok_or(Errno::STALE)?;
            self.take(content)?;
            if was_readable {
                self.take(content)?;
            }
        }
        let mut digest = [0; 32];
        read_exactly(&self.file, &mut digest, self.length)?;
        let is_whole = self.digest.finalize() == Hash::from_bytes(digest);
        if is_whole { Ok(head) } else { Err(Errno::STALE) }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Head {
    fn to_text(&self) -> String {
        let (path, handle) = (hex(self.path.as_os_str().as_bytes()), hex(&self.handle));
        format!("{FIRST_LINE}\n{}\n{} {path} {handle}\n", self.checksum, self.ino)
    }

    /// Returns the head, and its length.
    fn parse(bytes: &[u8]) -> Option<(Head, usize)> {
        let end = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(2)?.0;
        let text = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = text.split('\n');
        lines.next().filter(|line| *line == FIRST_LINE)?;
        let checksum = Checksum::parse(lines.next()?.as_bytes())?;
        let mut words = lines.next()?.split(' ');
        let ino = words.next()?.parse().ok()?;
        let path = PathBuf::from(OsString::from_vec(unhex(words.next()?)?));
        Some((Head { checksum, ino, path, handle: unhex(words.next()?)? }, end + 1))
    }
}

/// The head of a journal: what is read is written in the same way. See [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some((head, length)) = Head::parse(bytes) {
        let text = head.to_text();
        let again = Head::parse(text.as_bytes()).expect("what was read can be written");
        assert_eq!((again.0.to_text(), again.1), (text.clone(), text.len()));
        assert!(length <= bytes.len());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?)).collect()
}
