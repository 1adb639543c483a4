//! The log of one branch: records at the end of a file, each with a checksum.

use crate::fs::reserved::{JOURNAL, temporary_name};
use crate::fs::stat;
use crate::relocate::with_times_kept;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_base::path::PoolPath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};

/// The identity of a log.
pub(super) type Id = [u8; 16];

/// In place of the number since when a branch is away: what has changed since then was too much to be kept.
pub(super) const LOST: u64 = u64::MAX;

/// The most bytes of a log: some hundred thousand changes. One that is longer loses them.
const MOST: u64 = 32 << 20;
/// A log without anybody away is written anew beyond so many bytes.
const SHORT: u64 = 64 << 10;
/// The first bytes of the file. Another version would have others.
const FORMAT: &[u8] = b"canopy journal 1\n";
/// Before each record: its length, and its checksum.
const HEAD: usize = 12;

/// A change of names. Paths are relative to the root of each branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// What had the name has it no longer: it was removed, or something was made there.
    Clear(PoolPath),
    /// A directory was made: whatever else has the name gives way.
    MakeDir(PoolPath),
    Rename(PoolPath, PoolPath),
    /// A file has got another name, the second.
    Link(PoolPath, PoolPath),
    Exchange(PoolPath, PoolPath),
    /// A directory has got other attributes.
    Attributes(PoolPath),
}

impl Change {
    /// Returns about how many bytes it takes in a log.
    fn len(&self) -> usize {
        let paths = match self {
            Change::Clear(path) | Change::MakeDir(path) | Change::Attributes(path) => path.len(),
            Change::Rename(old, new) | Change::Link(old, new) | Change::Exchange(old, new) => {
                old.len() + new.len()
            }
        };
        paths + 25
    }
}

/// A change that a branch gets which was away: it has all that were before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Step {
    pub at: u64,
    /// The inode that gets a name by it, or another one. 0 if nothing was begun.
    pub ino: u64,
    /// It has the second of the change's names before.
    pub backwards: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The log's own identity: the first record.
    Own([u8; 16]),
    /// Another branch of the pool.
    Knows([u8; 16]),
    /// One is away, and has all changes up to this number.
    Away([u8; 16], u64),
    /// It is there again, and has all.
    Back([u8; 16]),
    Change(u64, Box<Change>),
    /// This branch, which was away, is about to get a change.
    Step(Step),
}

impl Record {
    fn payload(&self) -> Vec<u8> {
        let paths = |kind: u8, at: &u64, one: &[u8], other: &[u8]| {
            let length = u32::try_from(one.len()).unwrap_or(u32::MAX).to_le_bytes();
            [&[kind], &at.to_le_bytes()[..], &length, one, other].concat()
        };
        match self {
            Record::Own(id) => [&b"I"[..], id].concat(),
            Record::Knows(id) => [&b"K"[..], id].concat(),
            Record::Away(id, at) => [&b"A"[..], id, &at.to_le_bytes()].concat(),
            Record::Back(id) => [&b"B"[..], id].concat(),
            Record::Step(Step { at, ino, backwards }) => {
                [&b"S"[..], &at.to_le_bytes(), &ino.to_le_bytes(), &[u8::from(*backwards)]].concat()
            }
            Record::Change(at, change) => match &**change {
                Change::Clear(path) => paths(b'c', at, path, b""),
                Change::MakeDir(path) => paths(b'd', at, path, b""),
                Change::Rename(old, new) => paths(b'r', at, old, new),
                Change::Link(old, new) => paths(b'l', at, old, new),
                Change::Exchange(old, new) => paths(b'x', at, old, new),
                Change::Attributes(path) => paths(b'a', at, path, b""),
            },
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let payload = self.payload();
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        [&length.to_le_bytes(), &checksum(&payload).to_le_bytes()[..], &payload].concat()
    }

    fn parse(payload: &[u8]) -> Option<Record> {
        let (kind, rest) = payload.split_first()?;
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        Some(match kind {
            b'I' => Record::Own(rest.try_into().ok()?),
            b'K' => Record::Knows(rest.try_into().ok()?),
            b'B' => Record::Back(rest.try_into().ok()?),
            b'A' => {
                let (id, at) = rest.split_at_checked(16)?;
                Record::Away(id.try_into().ok()?, number(at)?)
            }
            b'S' => {
                let (at, rest) = rest.split_at_checked(8)?;
                let (ino, backwards) = rest.split_at_checked(8)?;
                Record::Step(Step { at: number(at)?, ino: number(ino)?, backwards: backwards == [1] })
            }
            _ => {
                let (at, rest) = rest.split_at_checked(8)?;
                let (length, rest) = rest.split_at_checked(4)?;
                let length = usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()?;
                let (one, other) = rest.split_at_checked(length)?;
                let (one, other) = (PoolPath::from_slice(one), PoolPath::from_slice(other));
                let change = match kind {
                    b'c' if other.is_empty() => Change::Clear(one),
                    b'd' if other.is_empty() => Change::MakeDir(one),
                    b'r' => Change::Rename(one, other),
                    b'l' => Change::Link(one, other),
                    b'x' => Change::Exchange(one, other),
                    b'a' if other.is_empty() => Change::Attributes(one),
                    _ => return None,
                };
                Record::Change(number(at)?, Box::new(change))
            }
        })
    }
}

/// FNV-1a: it tells a record from what a power cut has left of one.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the records of a log, and how many bytes they take. What follows the last whole one was cut off.
pub fn parse(bytes: &[u8]) -> (Vec<Record>, usize) {
    let (mut records, mut at) = (Vec::new(), FORMAT.len());
    if !bytes.starts_with(FORMAT) {
        return (records, 0);
    }
    let next = |at: usize| {
        let (head, rest) = bytes.get(at..)?.split_at_checked(HEAD)?;
        let (length, sum) = head.split_at_checked(4)?;
        let length = usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()?;
        let payload = rest.get(..length)?;
        (sum == checksum(payload).to_le_bytes()).then(|| Record::parse(payload)).flatten().zip(Some(length))
    };
    while let Some((record, length)) = next(at) {
        records.push(record);
        at += HEAD + length;
    }
    (records, at)
}

/// What a log says, but for the changes.
#[derive(Default)]
struct State {
    knows: BTreeSet<Id>,
    away: BTreeMap<Id, u64>,
    step: Option<Step>,
    last: u64,
    bytes: u64,
    /// Replaced when the log is written anew.
    file: Option<OwnedFd>,
}

pub(super) struct Log {
    root: OwnedFd,
    id: Id,
    state: Mutex<State, rank::Journal>,
}

impl Log {
    /// Opens the log of a branch, or begins one.
    pub(super) fn open(root: BorrowedFd<'_>) -> Result<Log, Errno> {
        canopy_sys::creds::as_daemon()?;
        let dir = crate::fs::beneath::open(root, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&dir, JOURNAL, flags, Mode::empty()) {
            Ok(file) => Some(file),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        let bytes = file.as_ref().map_or(Ok(Vec::new()), |file| read(file.as_fd()))?;
        let (records, whole) = parse(&bytes);
        let mut state = State { bytes: whole as u64, file, ..State::default() };
        records.iter().for_each(|record| state.take(record));
        let Some(Record::Own(id)) = records.first().cloned() else {
            if !bytes.is_empty() {
                // Somebody else's, or of another version.
                return Err(Errno::EXIST);
            }
            let id = new_id();
            let log = Log { root: dir, id, state: Mutex::new(State::default()) };
            log.rewrite(&mut log.state.lock())?;
            return Ok(log);
        };
        if whole < bytes.len()
            && let Some(file) = &state.file
        {
            rustix::fs::ftruncate(file, whole as u64)?;
        }
        Ok(Log { root: dir, id, state: Mutex::new(state) })
    }

    /// Returns the identity of a branch whose log need not be writable; `None` if it has none.
    pub(super) fn id_on(root: BorrowedFd<'_>) -> Option<Id> {
        Log::look(root).map(|(id, ..)| id)
    }

    /// As `id_on`, with who is away since which change, and the numbers of all changes.
    pub(super) fn look(root: BorrowedFd<'_>) -> Option<(Id, BTreeMap<Id, u64>, Vec<u64>)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(root, JOURNAL, flags, Mode::empty()).ok()?;
        let records = parse(&read(file.as_fd()).ok()?).0;
        let Some(Record::Own(id)) = records.first() else { return None };
        let mut state = State::default();
        records.iter().for_each(|record| state.take(record));
        let number = |record: &Record| match record {
            Record::Change(at, _) => Some(*at),
            _ => None,
        };
        Some((*id, state.away, records.iter().filter_map(number).collect()))
    }

    /// Removes the log of a branch, if it has one.
    pub(super) fn remove(root: BorrowedFd<'_>) {
        if stat::at(root, JOURNAL).is_ok()
            && let Err(errno) =
                with_times_kept(root, || rustix::fs::unlinkat(root, JOURNAL, AtFlags::empty()))
        {
            tracing::warn!("the journal of a branch cannot be removed: {errno}");
        }
    }

    pub(super) fn id(&self) -> Id {
        self.id
    }

    pub(super) fn last(&self) -> u64 {
        self.state.lock().last
    }

    pub(super) fn knows(&self) -> Vec<Id> {
        self.state.lock().knows.iter().copied().collect()
    }

    pub(super) fn away(&self) -> BTreeMap<Id, u64> {
        self.state.lock().away.clone()
    }

    pub(super) fn step(&self) -> Option<Step> {
        self.state.lock().step
    }

    /// Notes who else is there, and who is away since `now` at the latest. On disk when it returns.
    pub(super) fn meet(
        &self,
        others: impl Iterator<Item = Id>,
        away: impl Iterator<Item = Id>,
        now: u64,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let mut records: Vec<Record> =
            others.filter(|id| !state.knows.contains(id)).map(Record::Knows).collect();
        for id in away.filter(|id| *id != self.id && !state.away.contains_key(id)) {
            records.extend([Record::Knows(id), Record::Away(id, now)]);
        }
        self.append(&mut state, &records)?;
        if records.is_empty() { Ok(()) } else { state.sync() }
    }

    /// Notes a change. It reaches the disk with others.
    pub(super) fn note(&self, at: u64, change: &Change) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.bytes > MOST {
            state.away.values_mut().for_each(|since| *since = LOST);
            return self.rewrite(&mut state);
        }
        self.append(&mut state, &[Record::Change(at, Box::new(change.clone()))])
    }

    /// Notes what is about to be done here.
    pub(super) fn begin_step(&self, step: Step) -> Result<(), Errno> {
        self.append(&mut self.state.lock(), &[Record::Step(step)])
    }

    /// Notes that a branch is there again, and has all changes. On disk when it returns.
    pub(super) fn welcome(&self, id: Id) -> Result<(), Errno> {
        let mut state = self.state.lock();
        self.append(&mut state, &[Record::Back(id)])?;
        state.sync()
    }

    /// Notes who is away, and since when, the changes that these are owed, and the last step of this branch. On disk when it
    /// returns.
    pub(super) fn take_over(
        &self,
        away: &BTreeMap<Id, u64>,
        changes: BTreeMap<u64, Change>,
        step: Option<Step>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let lost = changes.values().map(Change::len).sum::<usize>() as u64 + state.bytes > MOST;
        let mut records: Vec<Record> = step.map(Record::Step).into_iter().collect();
        for (id, since) in away.iter().filter(|(id, _)| **id != self.id) {
            let (since, known) = (if lost { LOST } else { *since }, state.away.get(id).copied());
            if known.is_none_or(|known| known != LOST && (since == LOST || since < known)) {
                records.extend([Record::Knows(*id), Record::Away(*id, since)]);
            }
        }
        if !lost {
            records.extend(changes.into_iter().map(|(at, change)| Record::Change(at, Box::new(change))));
        }
        self.append(&mut state, &records)?;
        if records.is_empty() { Ok(()) } else { state.sync() }
    }

    /// Writes it anew, without changes, if it is long. For one that says that nobody is away.
    pub(super) fn compact(&self) {
        let mut state = self.state.lock();
        if state.bytes > SHORT
            && let Err(errno) = self.rewrite(&mut state)
        {
            tracing::debug!("a journal stays long: {errno}");
        }
    }

    /// Returns all changes with their numbers.
    pub(super) fn changes(&self) -> Result<Vec<(u64, Change)>, Errno> {
        let bytes = read(self.state.lock().file.as_ref().ok_or(Errno::BADF)?.as_fd())?;
        let change = |record| match record {
            Record::Change(at, change) => Some((at, *change)),
            _ => None,
        };
        Ok(parse(&bytes).0.into_iter().filter_map(change).collect())
    }

    fn append(&self, state: &mut State, records: &[Record]) -> Result<(), Errno> {
        let bytes: Vec<u8> = records.iter().flat_map(Record::to_bytes).collect();
        let file = state.file.as_ref().ok_or(Errno::BADF)?;
        if let Err(errno) = write_all(file.as_fd(), &bytes) {
            // Nothing that follows half a record would be read.
            let _ = rustix::fs::ftruncate(file, state.bytes);
            return Err(errno);
        }
        state.bytes += bytes.len() as u64;
        records.iter().for_each(|record| state.take(record));
        Ok(())
    }

    /// Puts a log in the place of this one that says the same, but for the changes.
    fn rewrite(&self, state: &mut State) -> Result<(), Errno> {
        let knows = state.knows.iter().copied().map(Record::Knows);
        let away = state.away.iter().map(|(id, since)| Record::Away(*id, *since));
        let steps = state.step.map(Record::Step);
        let all = [Record::Own(self.id)].into_iter().chain(knows).chain(away).chain(steps);
        let bytes = [FORMAT.to_vec(), all.flat_map(|record| record.to_bytes()).collect()].concat();
        let temporary = temporary_name();
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = with_times_kept(self.root.as_fd(), || {
            let file = rustix::fs::openat(&self.root, temporary.as_slice(), flags, Mode::RUSR | Mode::WUSR)?;
            let placed = write_all(file.as_fd(), &bytes)
                .and_then(|()| rustix::fs::fsync(&file))
                .and_then(|()| rustix::fs::renameat(&self.root, temporary.as_slice(), &self.root, JOURNAL));
            match placed {
                Ok(()) => Ok(file),
                Err(errno) => {
                    let _ = rustix::fs::unlinkat(&self.root, temporary.as_slice(), AtFlags::empty());
                    Err(errno)
                }
            }
        })?;
        rustix::fs::fsync(&self.root)?;
        (state.file, state.bytes) = (Some(made), bytes.len() as u64);
        Ok(())
    }
}

impl State {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Own(_) => {}
            Record::Knows(id) => _ = self.knows.insert(*id),
            Record::Away(id, at) => {
                self.away.insert(*id, *at);
                self.last = self.last.max(if *at == LOST { 0 } else { *at });
            }
            Record::Back(id) => _ = self.away.remove(id),
            Record::Change(at, _) => self.last = self.last.max(*at),
            Record::Step(step) => {
                self.step = Some(*step);
                self.last = self.last.max(step.at);
            }
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        match rustix::fs::fdatasync(self.file.as_ref().ok_or(Errno::BADF)?) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
            other => other,
        }
    }
}

/// 128 bits that no other log has: two outputs of a hash with random keys.
fn new_id() -> Id {
    let [one, other] = [0, 1].map(|number: u8| RandomState::new().hash_one(number).to_le_bytes());
    let mut id = Id::default();
    id[..8].copy_from_slice(&one);
    id[8..].copy_from_slice(&other);
    id
}

fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Reads a log. Errors: `EPERM` for a file of somebody else, who may be able to make files in the root of a branch.
/// Reads a log.
///
/// Errors: `EPERM` for one that others can change, or could have put there: users may write in the root of a branch, and what a log
/// says is done with the daemon's rights.
fn read(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let attr = stat::of(file)?;
    if !attr.is_regular() || !attr.is_daemons_alone() || attr.nlink != 1 {
        return Err(Errno::PERM);
    }
    let (mut bytes, mut chunk, mut at) = (Vec::new(), vec![0; 1 << 16], 0);
    loop {
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut chunk, at))?;
        if read == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
        at += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PoolPath {
        PoolPath::from_slice(text.as_bytes())
    }

    fn all() -> Vec<Record> {
        vec![
            Record::Own([7; 16]),
            Record::Knows([8; 16]),
            Record::Away([8; 16], 3),
            Record::Change(4, Box::new(Change::Clear(path("a/b")))),
            Record::Change(5, Box::new(Change::MakeDir(path("a")))),
            Record::Change(6, Box::new(Change::Rename(path("a"), path("c/d")))),
            Record::Change(7, Box::new(Change::Link(path("x"), path("y")))),
            Record::Change(8, Box::new(Change::Exchange(path("x"), path("z")))),
            Record::Step(Step { at: 8, ino: 77, backwards: true }),
            Record::Back([8; 16]),
        ]
    }

    /// A power cut may leave any beginning of what was written, or anything in its last record.
    #[test]
    fn a_log_that_was_cut_off_says_what_is_whole() {
        let records = all();
        let mut ends = vec![FORMAT.len()];
        let mut bytes = FORMAT.to_vec();
        for record in &records {
            bytes.extend(record.to_bytes());
            ends.push(bytes.len());
        }
        assert_eq!(parse(&bytes), (records.clone(), bytes.len()));
        for cut in 0..bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let expected = if cut < FORMAT.len() {
                (Vec::new(), 0)
            } else {
                (records[..whole - 1].to_vec(), ends[whole - 1])
            };
            assert_eq!(parse(&bytes[..cut]), expected, "{cut}");
        }
        for at in ends[ends.len() - 2]..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert_eq!(parse(&torn).0, records[..records.len() - 1], "{at}");
        }
    }

    #[test]
    fn a_log_goes_on_after_what_was_cut_off() {
        let home = tempfile::tempdir().unwrap();
        let root = rustix::fs::open(home.path(), OFlags::PATH, Mode::empty()).unwrap();
        let log = Log::open(root.as_fd()).unwrap();
        let other: Id = [9; 16];
        log.meet([other].into_iter(), [other].into_iter(), 5).unwrap();
        log.note(6, &Change::Clear(path("f"))).unwrap();
        let file = home.path().join(String::from_utf8_lossy(JOURNAL).as_ref());
        let whole = std::fs::read(&file).unwrap();
        let half = Record::Change(7, Box::new(Change::Clear(path("g")))).to_bytes();
        std::fs::write(&file, [&whole[..], &half[..half.len() / 2]].concat()).unwrap();
        let again = Log::open(root.as_fd()).unwrap();
        assert_eq!((again.id(), again.last(), again.away()), (log.id(), 6, BTreeMap::from([(other, 5)])));
        again.note(8, &Change::Clear(path("h"))).unwrap();
        let said = [(6, Change::Clear(path("f"))), (8, Change::Clear(path("h")))];
        assert_eq!(Log::open(root.as_fd()).unwrap().changes().unwrap(), said);
        again.welcome(other).unwrap();
        assert!(Log::open(root.as_fd()).unwrap().away().is_empty());
        // Somebody else's file is no log, and stays.
        std::fs::write(&file, "text").unwrap();
        assert_eq!(Log::open(root.as_fd()).err(), Some(Errno::EXIST));
        assert_eq!(std::fs::read(&file).unwrap(), b"text");
    }

    /// Users may write in the root of a branch.
    #[test]
    fn what_others_could_have_put_there_is_not_acted_on() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = rustix::fs::open(home.path(), OFlags::PATH, Mode::empty()).unwrap();
        let id = Log::open(root.as_fd()).unwrap().id();
        let file = home.path().join(".canopy-journal");
        let set_mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let opened = || Log::open(root.as_fd()).map(|log| log.id());
        set_mode(0o620);
        assert_eq!((opened().err(), Log::id_on(root.as_fd())), (Some(Errno::PERM), None));
        set_mode(0o600);
        std::fs::hard_link(&file, home.path().join("other")).unwrap();
        assert_eq!(opened().err(), Some(Errno::PERM));
        std::fs::remove_file(home.path().join("other")).unwrap();
        assert_eq!(opened().ok(), Some(id));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(2000), None).unwrap();
            assert_eq!(opened().err(), Some(Errno::PERM));
        }
    }
}
