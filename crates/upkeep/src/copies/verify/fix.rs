//! Fixing a damaged file from a copy whose content has the checksum that the damaged one should have.
//!
//! The damaged blocks are written in place: inode, names, owner, mode, attributes and ACL stay as they are, and the time of the
//! last change is set back. Nobody else has the file open meanwhile, and a [journal](super::journal) comes first.

use super::collect::Item;
use super::journal::{BLOCK, Block, Head, Journal};
use crate::held::checksum::Checksum;
use crate::held::{CHUNK, HeldCopy, Lease, NotTouched, read_exactly, write_exactly};
use crate::pace::Pace;
use crate::pool_link::{BranchLink, PoolLink};
use crate::stop::Stop;
use crate::survey::FileCopy;
use blake3::Hasher;
use canopy_sys::{file_handle, lease};
use rustix::fs::{Advice, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// How many blocks are written between two looks at the lease.
const BLOCKS: usize = 256;
const SECTOR: usize = 512;

/// A file that this process alone has open.
#[derive(Debug)]
struct Alone {
    file: File,
    stat: Stat,
}

impl Alone {
    fn of(file: OwnedFd) -> Result<Alone, Errno> {
        lease::take_alone(file.as_fd())?;
        let stat = rustix::fs::fstat(&file)?;
        Ok(Alone { file: file.into(), stat })
    }

    fn check(&self) -> Result<(), Errno> {
        if lease::holds_alone(self.file.as_fd()) { Ok(()) } else { Err(Errno::BUSY) }
    }

    /// Reads a block. Returns whether the disk has it.
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<bool, Errno> {
        match read_exactly(&self.file, buffer, at) {
            Err(Errno::IO) => Ok(false),
            read => read.map(|()| true),
        }
    }

    /// Sets the time of the last change.
    fn set_modified(&self, checksum: &Checksum) -> Result<(), Errno> {
        let (seconds, rest) =
            (checksum.modified.div_euclid(1_000_000_000), checksum.modified.rem_euclid(1_000_000_000));
        rustix::fs::futimens(
            &self.file,
            &Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ },
                last_modification: Timespec { tv_sec: seconds as _, tv_nsec: rest as _ },
            },
        )
    }
}

/// Fixes a file.
pub(super) fn fix(
    pool: &PoolLink,
    [damaged, good]: [&Item; 2],
    checksum: &Checksum,
    pace: &mut Pace,
    stop: &Stop,
) -> Result<(), NotTouched> {
    let because = |why: &str| Err(NotTouched::Because(why.into()));
    let [to, from] = [damaged, good].map(|item| &pool.branches[item.copy.branch]);
    match to {
        branch if branch.gives() => {}
        branch if branch.mode == "RO" => return because("its branch has the mode RO"),
        _ => return because("its branch is gone or failing"),
    }
    let path = &damaged.names[0];
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    let alone = Alone::of(to.open(path, flags)?)?;
    let now = FileCopy { branch: damaged.copy.branch, stat: alone.stat };
    let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
    if now.key() != damaged.copy.key() || changed(&now.stat) != changed(&damaged.copy.stat) {
        return because("it changed in the meantime");
    }
    let good = HeldCopy::open(from, &good.names[0], &good.copy, Lease::Unwritten)?;
    let handle = file_handle::from_fd(alone.file.as_fd()).unwrap_or_default();
    let head = Head { checksum: *checksum, ino: alone.stat.st_ino, path: path.clone(), handle };
    let mut journal = match Journal::create(to, &head) {
        Err(Errno::EXIST) => return because("an earlier fix was interrupted and is not finished yet"),
        Err(Errno::NOSPC | Errno::DQUOT) => return because("its branch has no room for the blocks"),
        other => other?,
    };
    let noted = note_blocks(&mut journal, &alone, &good, checksum, pace, stop);
    let done = noted.and_then(|()| Ok(write_blocks(&journal, &alone, checksum)?));
    journal.remove()?;
    done
}

/// Writes the blocks that differ to the journal.
fn note_blocks(
    journal: &mut Journal,
    alone: &Alone,
    good: &HeldCopy<'_>,
    checksum: &Checksum,
    pace: &mut Pace,
    stop: &Stop,
) -> Result<(), NotTouched> {
    let (mut right, mut hasher, mut at) = (vec![0; CHUNK], Hasher::new(), 0);
    while at < checksum.size {
        let length = usize::try_from(checksum.size - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        read_exactly(good.file(), &mut right[..length], at)?;
        hasher.update(&right[..length]);
        let mut offset = at;
        for block in right[..length].chunks(BLOCK) {
            let mut found = [0; BLOCK];
            let found = &mut found[..block.len()];
            let is_readable = alone.read(found, offset)?;
            if !is_readable || found != block {
                journal.add(offset, is_readable.then_some(&*found), block).map_err(full)?;
            }
            offset += block.len() as u64;
        }
        at += length as u64;
        pace.keep(length as u64, &mut || {
            if stop.is_set() {
                Err(NotTouched::Stopped)
            } else {
                alone.check().and_then(|()| good.check()).map_err(NotTouched::from)
            }
        })?;
    }
    good.check()?;
    if hasher.finalize() != checksum.digest {
        return Err(NotTouched::Because("the other copy has changed".into()));
    }
    journal.complete().map_err(full)
}

fn full(errno: Errno) -> NotTouched {
    match errno {
        Errno::NOSPC | Errno::DQUOT => NotTouched::Because("its branch has no room for the blocks".into()),
        errno => errno.into(),
    }
}

/// Writes the blocks of a journal to the file, and reads it back. However this ends, the file has its time back: then what is
/// still damaged shows as such.
fn write_blocks(journal: &Journal, alone: &Alone, checksum: &Checksum) -> Result<(), Errno> {
    let mut written = Ok(());
    for blocks in journal.blocks.chunks(BLOCKS) {
        written =
            alone.check().and_then(|()| blocks.iter().try_for_each(|block| write(journal, alone, block)));
        if written.is_err() {
            break;
        }
    }
    alone.set_modified(checksum)?;
    rustix::fs::fsync(&alone.file)?;
    written?;
    // From the disk, not from memory.
    let _ = rustix::fs::fadvise(&alone.file, 0, None, Advice::DontNeed);
    let (mut buffer, mut hasher, mut at) = (vec![0; CHUNK], Hasher::new(), 0);
    while at < checksum.size {
        let length = usize::try_from(checksum.size - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        read_exactly(&alone.file, &mut buffer[..length], at)?;
        hasher.update(&buffer[..length]);
        at += length as u64;
    }
    if hasher.finalize() == checksum.digest { Ok(()) } else { Err(Errno::IO) }
}

fn write(journal: &Journal, alone: &Alone, block: &Block) -> Result<(), Errno> {
    let mut right = [0; BLOCK];
    journal.right(block, &mut right[..block.length])?;
    write_exactly(&alone.file, &right[..block.length], block.offset)
}

/// What has become of a fix that was cut off.
#[derive(Debug)]
pub(super) enum Resumed {
    /// Nothing had been written, or the file is gone, or a client has changed it since.
    Dropped,
    Fixed,
}

/// Finishes a fix that was cut off. A file that a client has changed since is left alone.
///
/// # Errors
/// If that cannot be decided now: the journal stays.
pub(super) fn resume(branch: &BranchLink, journal: &Journal, head: &Head) -> Result<Resumed, NotTouched> {
    let file = match open(branch, head) {
        Err(Errno::NOENT | Errno::STALE) => {
            journal.remove()?;
            return Ok(Resumed::Dropped);
        }
        other => other?,
    };
    let alone = Alone::of(file)?;
    let done = if is_untouched(journal, &alone, head)? {
        write_blocks(journal, &alone, &head.checksum).map(|()| Resumed::Fixed)
    } else {
        Ok(Resumed::Dropped)
    };
    if done.is_ok() {
        journal.remove()?;
    }
    Ok(done?)
}

/// Opens the file of a journal, also under another name.
fn open(branch: &BranchLink, head: &Head) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    let by_name = branch.open(&head.path, flags | OFlags::NOFOLLOW);
    if let Ok(file) = by_name
        && rustix::fs::fstat(&file)?.st_ino == head.ino
    {
        return Ok(file);
    }
    file_handle::open_as(branch.dir(Path::new(""))?.as_fd(), &head.handle, flags)
}

/// Returns whether each sector is from one block or from the other: a disk that loses power may have written only some.
fn is_mixture(found: &[u8], one: &[u8], other: &[u8]) -> bool {
    let mut sectors = found.chunks(SECTOR).zip(one.chunks(SECTOR)).zip(other.chunks(SECTOR));
    found.len() == one.len() && sectors.all(|((found, one), other)| found == one || found == other)
}

/// Returns whether only the fix has written to a file: each block of the journal is as it was or as it is to be, and with
/// these blocks the file has its checksum.
fn is_untouched(journal: &Journal, alone: &Alone, head: &Head) -> Result<bool, Errno> {
    if u64::try_from(alone.stat.st_size) != Ok(head.checksum.size) {
        return Ok(false);
    }
    let (mut next, mut right, mut damaged) = (0, [0; BLOCK], [0; BLOCK]);
    let mut at = 0;
    let (mut hasher, mut buffer) = (Hasher::new(), [0; BLOCK]);
    while at < head.checksum.size {
        let length = usize::try_from(head.checksum.size - at).map_or(BLOCK, |rest| rest.min(BLOCK));
        let is_readable = alone.read(&mut buffer[..length], at)?;
        match journal.blocks.get(next) {
            Some(block) if block.offset == at => {
                let (right, damaged) = (&mut right[..block.length], &mut damaged[..block.length]);
                journal.right(block, right)?;
                if block.was_readable {
                    journal.damaged(block, damaged)?;
                } else {
                    damaged.copy_from_slice(right);
                }
                if is_readable && !is_mixture(&buffer[..length], right, damaged) {
                    return Ok(false);
                }
                hasher.update(right);
                next += 1;
            }
            _ if !is_readable => return Ok(false),
            _ => {
                hasher.update(&buffer[..length]);
            }
        }
        at += length as u64;
    }
    Ok(hasher.finalize() == head.checksum.digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::PathBuf;
    use std::time::{Duration, UNIX_EPOCH};

    const SIZE: usize = 5 * BLOCK + 100;
    const MODIFIED: Duration = Duration::from_nanos(1_000_000_000_000_000_007);

    fn right() -> Vec<u8> {
        (0..SIZE).map(|at| (at / 7) as u8).collect()
    }

    /// The blocks that are damaged.
    const BLOCKS_WRONG: [usize; 3] = [1, 2, 5];

    fn damaged() -> Vec<u8> {
        let mut content = right();
        for block in BLOCKS_WRONG {
            let end = (block + 1) * BLOCK;
            content[block * BLOCK..end.min(SIZE)].fill(0xee);
        }
        content
    }

    /// A damaged file, and the complete journal of its fix.
    struct Bed {
        dir: tempfile::TempDir,
        branch: BranchLink,
    }

    impl Bed {
        fn new() -> Bed {
            let dir = tempfile::tempdir().unwrap();
            let branch = BranchLink::at(dir.path());
            let bed = Bed { dir, branch };
            fs::write(bed.path("f"), damaged()).unwrap();
            File::open(bed.path("f")).unwrap().set_modified(UNIX_EPOCH + MODIFIED).unwrap();
            bed
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// Makes the journal, as a fix that is cut off leaves it.
        fn note(&self, is_complete: bool) {
            let file = File::open(self.path("f")).unwrap();
            let modified = MODIFIED.as_nanos() as i128;
            let checksum = Checksum { digest: blake3::hash(&right()), size: SIZE as u64, modified };
            let head = Head {
                checksum,
                ino: file.metadata().unwrap().ino(),
                path: "f".into(),
                handle: file_handle::from_fd(file.as_fd()).unwrap(),
            };
            let mut journal = Journal::create(&self.branch, &head).unwrap();
            for block in BLOCKS_WRONG {
                let range = block * BLOCK..((block + 1) * BLOCK).min(SIZE);
                let found = &damaged()[range.clone()];
                journal.add(range.start as u64, Some(found), &right()[range]).unwrap();
            }
            if is_complete {
                journal.complete().unwrap();
            }
        }

        fn overwrite(&self, at: usize, bytes: &[u8]) {
            let file = OpenOptions::new().write(true).open(self.path("f")).unwrap();
            file.write_all_at(bytes, at as u64).unwrap();
        }

        fn resume(&self) -> Vec<Option<Result<Resumed, NotTouched>>> {
            let found = Journal::cut_off(&self.branch).unwrap();
            found
                .into_iter()
                .map(|(journal, head)| head.map(|head| resume(&self.branch, &journal, &head)))
                .collect()
        }

        #[track_caller]
        fn assert_mended(&self, name: &str) {
            let resumed = self.resume();
            assert!(matches!(resumed.as_slice(), [Some(Ok(Resumed::Fixed))]), "{resumed:?}");
            assert!(fs::read(self.path(name)).unwrap() == right());
            let modified = fs::metadata(self.path(name)).unwrap().modified().unwrap();
            assert_eq!(modified, UNIX_EPOCH + MODIFIED);
            assert_eq!(fs::read_dir(self.dir.path()).unwrap().count(), 1);
        }

        #[track_caller]
        fn assert_dropped(&self) {
            let before = fs::read(self.path("f")).unwrap();
            let resumed = self.resume();
            assert!(matches!(resumed.as_slice(), [Some(Ok(Resumed::Dropped))]), "{resumed:?}");
            assert!(fs::read(self.path("f")).unwrap() == before);
            assert_eq!(fs::read_dir(self.dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_mend_that_was_cut_off_is_finished() {
        for written in [0, BLOCK, 2 * BLOCK, BLOCK + 512, SIZE - BLOCK] {
            let bed = Bed::new();
            bed.note(true);
            bed.overwrite(BLOCK, &right()[BLOCK..BLOCK + written]);
            bed.assert_mended("f");
        }
        let bed = Bed::new();
        bed.note(true);
        fs::rename(bed.path("f"), bed.path("g")).unwrap();
        bed.assert_mended("g");
    }

    #[test]
    fn a_file_that_a_client_has_changed_is_left_alone() {
        for at in [3 * BLOCK, BLOCK, 2 * BLOCK - 1, SIZE - 1, SIZE] {
            let bed = Bed::new();
            bed.note(true);
            bed.overwrite(at, b"!");
            bed.assert_dropped();
        }
        let bed = Bed::new();
        bed.note(true);
        bed.overwrite(0, &vec![1; SIZE]);
        bed.assert_dropped();
    }

    #[test]
    fn a_file_that_is_open_waits() {
        let bed = Bed::new();
        bed.note(true);
        let reader = File::open(bed.path("f")).unwrap();
        let resumed = bed.resume();
        assert!(matches!(resumed.as_slice(), [Some(Err(NotTouched::Because(_)))]), "{resumed:?}");
        drop(reader);
        bed.assert_mended("f");
        fs::write(bed.path("f"), damaged()).unwrap();
        bed.note(true);
        fs::remove_file(bed.path("f")).unwrap();
        let resumed = bed.resume();
        assert!(matches!(resumed.as_slice(), [Some(Ok(Resumed::Dropped))]), "{resumed:?}");
    }

    #[test]
    fn an_incomplete_journal_counts_for_nothing() {
        let bed = Bed::new();
        bed.note(false);
        assert!(matches!(bed.resume().as_slice(), [None]));
        let name = fs::read_dir(bed.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let journal = name.into_iter().find(|path| *path != bed.path("f")).unwrap();
        fs::remove_file(&journal).unwrap();
        bed.note(true);
        let mut content = fs::read(&journal).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        fs::write(&journal, &content).unwrap();
        assert!(matches!(bed.resume().as_slice(), [None]), "it is damaged itself");
        content[middle] ^= 1;
        fs::write(&journal, &content).unwrap();
        // Others could have made it.
        fs::hard_link(&journal, bed.path("link")).unwrap();
        assert!(bed.resume().is_empty());
        fs::remove_file(bed.path("link")).unwrap();
        bed.assert_mended("f");
    }
}
