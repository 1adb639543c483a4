//! The file in which what is known of the branches is kept for the next process.
//!
//! It has a head, which says of which branches it is, a part for each directory, and an end: the state of each branch of which all
//! that holds ([`canopy_branch::branch::unchanged`]). Only the end is written again, in its place. Each part has a checksum, and a file
//! without its end is none: it may be cut anywhere, and is not flushed.

use canopy_base::hash;
use canopy_branch::fs::packed::{Packer, Unpacker};
use canopy_sys::own_dir;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// To be changed with what [`canopy_pool::coherence::catalogue`] packs.
const MAGIC: &[u8] = b"canopy catalogue 1\n";
/// With which checksums are made.
const KEY: u64 = 0x6361_7461_6c6f_6775;
/// The kind, length and checksum of a part.
const PREFIX: usize = 13;
/// The longest part.
const LARGEST: u32 = 1 << 30;

const HEAD: u8 = 1;
const DIRECTORY: u8 = 2;
const END: u8 = 3;

/// Of which pool it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// A hash of whatever else decides what is shown.
    pub(super) circumstances: u64,
    /// The paths of the branches.
    pub(super) branches: Vec<Box<[u8]>>,
}

/// A file that is being written. It has no place before [`NewFile::complete`].
pub(super) struct NewFile {
    out: BufWriter<File>,
    beside: PathBuf,
    length: u64,
    directories: u64,
}

/// A file with all its parts.
#[derive(Debug)]
pub(super) struct KeptFile {
    file: File,
    /// Where the end is.
    end: u64,
    directories: u64,
    pub(super) head: Head,
    pub(super) states: Vec<String>,
}

fn part(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(hash::keyed(KEY ^ u64::from(kind), payload).to_le_bytes());
    bytes.extend(payload);
    bytes
}

impl NewFile {
    /// Begins a file that takes the place of the one at `path`.
    ///
    /// # Errors
    /// Those of making it.
    pub(super) fn begin(path: &Path, head: &Head) -> io::Result<NewFile> {
        if let Some(dir) = path.parent() {
            own_dir::make_private(dir)?;
        }
        let beside = path.with_extension(format!("new.{}", std::process::id()));
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)?;
        let mut new = NewFile { out: BufWriter::new(options), beside, length: 0, directories: 0 };
        let mut payload = Packer::default();
        payload.0.extend(head.circumstances.to_le_bytes());
        payload.number(head.branches.len() as u64);
        head.branches.iter().for_each(|path| payload.bytes(path));
        new.write(MAGIC)?;
        new.write(&part(HEAD, &payload.0))?;
        Ok(new)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Adds a directory.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn add(&mut self, directory: &[u8]) -> io::Result<()> {
        self.directories += 1;
        self.write(&part(DIRECTORY, directory))
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Ends the file, and puts it in its place.
    ///
    /// # Errors
    /// Those of writing and renaming.
    pub(super) fn complete(mut self, path: &Path, head: Head, states: Vec<String>) -> io::Result<KeptFile> {
        self.out.flush()?;
        let file = self.out.get_ref().try_clone()?;
        let mut kept =
            KeptFile { file, end: self.length, directories: self.directories, head, states: Vec::new() };
        kept.set_states(states)?;
        fs::rename(&self.beside, path)?;
        Ok(kept)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Unless it has its place.
        let _ = fs::remove_file(&self.beside);
    }
}

impl KeptFile {
    /// Opens the file at a path; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidData` if it is none, or is damaged.
    pub(super) fn open(path: &Path) -> io::Result<Option<KeptFile>> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let (mut head, mut ended, mut directories) = (None, None, 0);
        scan(&file, |at, kind, payload| {
            match kind {
                HEAD if at == MAGIC.len() as u64 => head = Some(read_head(payload)?),
                DIRECTORY if ended.is_none() => directories += 1,
                END if ended.is_none() => ended = Some((at, read_end(payload)?)),
                _ => return None,
            }
            Some(())
        })?;
        let (end, (count, states)) = ended.ok_or(io::ErrorKind::InvalidData)?;
        let head = head.filter(|_| count == directories).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(KeptFile { file, end, directories, head, states }))
    }

    /// Passes each directory to `take`, which returns whether it is whole.
    ///
    /// # Errors
    /// `InvalidData` if the file is damaged by now.
    pub(super) fn each(&self, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        scan(&self.file, |_, kind, payload| (kind != DIRECTORY || take(payload)).then_some(()))
    }

    #[cfg(test)]
    fn directories(&self) -> u64 {
        self.directories
    }

    /// Replaces the states of the branches.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn set_states(&mut self, states: Vec<String>) -> io::Result<()> {
        let mut payload = Packer::default();
        payload.number(self.directories);
        payload.number(states.len() as u64);
        states.iter().for_each(|state| payload.bytes(state.as_bytes()));
        let bytes = part(END, &payload.0);
        self.file.write_all_at(&bytes, self.end)?;
        self.file.set_len(self.end + bytes.len() as u64)?;
        self.states = states;
        Ok(())
    }
}

fn read_head(payload: &[u8]) -> Option<Head> {
    let mut from = Unpacker(payload);
    let circumstances = u64::from_le_bytes(from.take()?);
    let count = from.number()?;
    let branches = (0..count).map(|_| from.bytes().map(Box::from)).collect::<Option<_>>()?;
    from.0.is_empty().then_some(Head { circumstances, branches })
}

/// Returns the number of directories, and the states.
fn read_end(payload: &[u8]) -> Option<(u64, Vec<String>)> {
    let mut from = Unpacker(payload);
    let (directories, count) = (from.number()?, from.number()?);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let states = (0..count).map(|_| from.bytes().and_then(text)).collect::<Option<_>>()?;
    from.0.is_empty().then_some((directories, states))
}

/// Passes each part to `take`, with its place: `None` ends it as damaged.
fn scan(file: &File, mut take: impl FnMut(u64, u8, &[u8]) -> Option<()>) -> io::Result<()> {
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    let mut from = BufReader::new(At { file, at: 0 });
    let mut magic = vec![0; MAGIC.len()];
    from.read_exact(&mut magic).map_err(|_| damaged())?;
    if magic != MAGIC {
        return Err(damaged());
    }
    let size = file.metadata()?.len();
    let (mut at, mut payload) = (MAGIC.len() as u64, Vec::new());
    while at < size {
        let mut prefix = [0; PREFIX];
        from.read_exact(&mut prefix).map_err(|_| damaged())?;
        let [kind, length @ .., _, _, _, _, _, _, _, _] = prefix;
        let length = u32::from_le_bytes(length);
        let next = at + PREFIX as u64 + u64::from(length);
        if length > LARGEST || next > size {
            return Err(damaged());
        }
        payload.resize(length as usize, 0);
        from.read_exact(&mut payload)?;
        let sum = hash::keyed(KEY ^ u64::from(kind), &payload);
        if prefix[5..] != sum.to_le_bytes() {
            return Err(damaged());
        }
        take(at, kind, &payload).ok_or_else(damaged)?;
        at = next;
    }
    Ok(())
}

/// Reads a file from the start, wherever else it is read or written.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head { circumstances: 7, branches: vec![b"/mnt/a".as_slice().into(), b"/mnt/b\n".as_slice().into()] }
    }

    fn write(path: &Path) -> KeptFile {
        let mut new = NewFile::begin(path, &head()).unwrap();
        for directory in [b"one".as_slice(), b"", b"three"] {
            new.add(directory).unwrap();
        }
        new.complete(path, head(), vec!["same".into(), "other".into()]).unwrap()
    }

    #[test]
    fn what_is_whole_is_read_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("below/catalogue");
        assert!(KeptFile::open(&path).unwrap().is_none());
        write(&path).set_states(vec!["a state that is longer".into()]).unwrap();
        let mut read = KeptFile::open(&path).unwrap().unwrap();
        assert_eq!((read.head.clone(), read.states.clone()), (head(), vec!["a state that is longer".into()]));
        let mut found = Vec::new();
        read.each(|bytes| {
            found.push(bytes.to_vec());
            true
        })
        .unwrap();
        assert_eq!(found, [b"one".to_vec(), Vec::new(), b"three".to_vec()]);
        assert!(read.each(|_| false).is_err());
        read.set_states(vec!["short".into()]).unwrap();
        assert_eq!(KeptFile::open(&path).unwrap().unwrap().states, ["short"]);
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(KeptFile::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData, "{end}");
        }
        for at in 0..whole.len() {
            let mut torn = whole.clone();
            torn[at] ^= 0x10;
            fs::write(&path, torn).unwrap();
            assert!(KeptFile::open(&path).is_err(), "{at}");
        }
        fs::write(&path, [whole.as_slice(), b"\0"].concat()).unwrap();
        assert!(KeptFile::open(&path).is_err());
    }

    #[test]
    fn what_is_not_completed_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("catalogue");
        drop(NewFile::begin(&path, &head()).unwrap());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        drop(write(&path));
        drop(NewFile::begin(&path, &head()).unwrap());
        assert_eq!(KeptFile::open(&path).unwrap().unwrap().directories(), 3);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }
}
