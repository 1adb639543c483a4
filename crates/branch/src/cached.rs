//! Copies of files on a faster disk, which may be lost at any time: one directory of them.
//!
//! The name of a copy says of which file it is one, and in which state that was. So a copy is complete and right if it has its
//! name, whatever happened to the process that made it: it gets the name after its data is on disk and the original is found
//! unchanged, and it is of use only while the original is in that state. No record beside it can go wrong.

use crate::branch::space::Space;
use crate::fs::reserved::{CACHED, UNDER_CONSTRUCTION, temporary_name};
use crate::fs::stat::{self, Attr, Time};
use crate::relocate::copy::copy_data;
use crate::relocate::lease::LeasedFile;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

/// A file that has not rested for so long gets no copy: what changes it next might leave the same times, on filesystems that store
/// every other second.
pub const RESTS: Duration = Duration::from_secs(3);

/// A file, as distinct from all others of the pool, also after a restart of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId {
    /// The seed of its branch.
    pub branch: u64,
    pub ino: u64,
    pub birth: (i64, u32),
}

/// The state of a file, which every change of its data changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    pub size: u64,
    pub mtime: Time,
    pub ctime: Time,
}

impl FileId {
    #[must_use]
    pub fn of(branch: u64, attr: &Attr) -> FileId {
        FileId { branch, ino: attr.ino, birth: (attr.btime.sec, attr.btime.nsec) }
    }
}

impl Version {
    #[must_use]
    pub fn of(attr: &Attr) -> Version {
        Version { size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }

    /// Returns whether the file has not changed for so long.
    #[must_use]
    pub fn rests(&self, now: SystemTime, long: Duration) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_sub(long);
        let since = (i64::try_from(now.as_secs()).unwrap_or(i64::MAX), now.subsec_nanos());
        [self.ctime, self.mtime].iter().all(|time| (time.sec, time.nsec) < since)
    }
}

fn name_of(id: &FileId, version: &Version) -> String {
    let (birth, mtime, ctime) = (id.birth, version.mtime, version.ctime);
    format!(
        "{:016x}-{:x}-{:x}.{:x}-{:x}-{:x}.{:x}-{:x}.{:x}",
        id.branch, id.ino, birth.0, birth.1, version.size, mtime.sec, mtime.nsec, ctime.sec, ctime.nsec
    )
}

fn parse_name(name: &[u8]) -> Option<(FileId, Version)> {
    let text = std::str::from_utf8(name).ok()?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let time = |text: &str| {
        let (sec, nsec) = text.split_once('.')?;
        Some(Time { sec: number(sec)?.cast_signed(), nsec: u32::from_str_radix(nsec, 16).ok()? })
    };
    let mut parts = text.split('-');
    let mut next = || parts.next();
    let (branch, ino, birth) = (number(next()?)?, number(next()?)?, time(next()?)?);
    let (size, mtime, ctime) = (number(next()?)?, time(next()?)?, time(next()?)?);
    let found = (FileId { branch, ino, birth: (birth.sec, birth.nsec) }, Version { size, mtime, ctime });
    (name_of(&found.0, &found.1) == text).then_some(found)
}

/// A directory of copies.
#[derive(Debug)]
pub struct Store {
    dir: OwnedFd,
    /// The device of its filesystem.
    pub dev: u64,
    /// What whoever uses it knows to be there.
    pub held: Held,
}

/// How many copies there are, and the bytes that they take.
#[derive(Debug, Default)]
pub struct Held {
    pub files: AtomicU64,
    pub bytes: AtomicU64,
}

/// A copy that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub id: FileId,
    pub version: Version,
    /// Bytes that it takes.
    pub bytes: u64,
}

impl Store {
    /// Opens the copies below a directory, which may have none yet. Removes what was under construction.
    ///
    /// # Errors
    /// `EPERM` if somebody else could have put something there.
    pub fn open(at: &Path) -> Result<(Store, Vec<Found>), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::open(at, flags, Mode::empty())?;
        match rustix::fs::mkdirat(&above, CACHED, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let dir = rustix::fs::openat(&above, CACHED, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let attr = stat::of(dir.as_fd())?;
        if !attr.is_daemons_alone() {
            return Err(Errno::PERM);
        }
        let store = Store { dir, dev: attr.dev, held: Held::default() };
        let mut found = Vec::new();
        for name in store.names()? {
            if name.starts_with(UNDER_CONSTRUCTION) {
                store.unlink(&name)?;
            } else if let Some((id, version)) = parse_name(&name) {
                let attr = stat::at(&store.dir, &name)?;
                // A power cut may have kept the name of what was never written.
                if attr.is_regular() && attr.size == version.size {
                    found.push(Found { id, version, bytes: attr.blocks * 512 });
                } else {
                    store.unlink(&name)?;
                }
            }
        }
        Ok((store, found))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, c".", flags, Mode::empty())?;
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            names.push(entry?.file_name().to_bytes().to_vec());
        }
        Ok(names)
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the bytes of the filesystem, and those of them that are available.
    ///
    /// # Errors
    /// That of the filesystem.
    pub fn space(&self) -> Result<(u64, u64), Errno> {
        let space = Space::of(self.dir.as_fd())?;
        Ok((space.size(), space.avail))
    }

    /// Opens the copy of a file in a state.
    ///
    /// # Errors
    /// `ENOENT` if there is none, or one that is not whole.
    pub fn get(&self, id: &FileId, version: &Version) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name_of(id, version), flags, Mode::empty())?;
        let attr = stat::of(file.as_fd())?;
        if attr.is_regular() && attr.size == version.size { Ok(file) } else { Err(Errno::NOENT) }
    }

    /// Copies a file in the state `attr`, from its beginning on. Returns the bytes that the copy takes. `wanted` is asked again and
    /// again, and given what is there.
    ///
    /// # Errors
    /// `EBUSY` if the file is being written, `EAGAIN` if it has changed meanwhile, `EINTR` as soon as the copy is not `wanted`;
    /// those of reading and writing, such as `ENOSPC`. Nothing is left then.
    pub fn put(
        &self,
        source: &LeasedFile,
        branch: u64,
        attr: &Attr,
        wanted: &dyn Fn(BorrowedFd<'_>) -> bool,
    ) -> Result<u64, Errno> {
        let temporary = temporary_name();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = rustix::fs::openat(&self.dir, temporary.as_slice(), flags, Mode::RUSR | Mode::WUSR)?;
        let made = self.fill(source, target.as_fd(), attr, wanted).and_then(|bytes| {
            let name = name_of(&FileId::of(branch, attr), &Version::of(attr));
            rustix::fs::renameat(&self.dir, temporary.as_slice(), &self.dir, name)?;
            Ok(bytes)
        });
        made.inspect_err(|_| {
            let _ = self.unlink(&temporary);
        })
    }

    fn fill(
        &self,
        source: &LeasedFile,
        target: BorrowedFd<'_>,
        attr: &Attr,
        wanted: &dyn Fn(BorrowedFd<'_>) -> bool,
    ) -> Result<u64, Errno> {
        copy_data(source, target, attr.size, &|| wanted(target))?;
        wanted(target);
        rustix::fs::fsync(target)?;
        source.check()?;
        let now = stat::of(source.as_fd())?;
        if now.key() != attr.key() || Version::of(&now) != Version::of(attr) {
            return Err(Errno::AGAIN);
        }
        Ok(stat::of(target)?.blocks * 512)
    }

    /// Makes a copy one of another state of its file, which has changed in other ways than its data.
    ///
    /// # Errors
    /// That of rename(2).
    pub fn restamp(&self, id: &FileId, before: &Version, now: &Version) -> Result<(), Errno> {
        rustix::fs::renameat(&self.dir, name_of(id, before), &self.dir, name_of(id, now))
    }

    /// Removes a copy.
    ///
    /// # Errors
    /// That of unlink(2), unless there is none.
    pub fn remove(&self, id: &FileId, version: &Version) -> Result<(), Errno> {
        self.unlink(name_of(id, version).as_bytes())
    }

    /// Reads a file of notes that is kept with the copies.
    ///
    /// # Errors
    /// That of reading it; `ENOENT` if there is none.
    pub fn read_notes(&self) -> Result<Vec<u8>, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, NOTES, flags, Mode::empty())?;
        let mut all = Vec::new();
        let read = std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut all);
        read.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
        Ok(all)
    }

    /// Replaces the file of notes.
    ///
    /// # Errors
    /// That of writing it.
    pub fn write_notes(&self, notes: &[u8]) -> Result<(), Errno> {
        let temporary = temporary_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, temporary.as_slice(), flags, Mode::RUSR | Mode::WUSR)?;
        let written = std::io::Write::write_all(&mut std::fs::File::from(file), notes)
            .map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))
            .and_then(|()| rustix::fs::renameat(&self.dir, temporary.as_slice(), &self.dir, NOTES));
        written.inspect_err(|_| {
            let _ = self.unlink(&temporary);
        })
    }
}

/// The name of the notes.
const NOTES: &[u8] = b"reads";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    fn attr(path: &Path) -> Attr {
        stat::of(File::open(path).unwrap().as_fd()).unwrap()
    }

    fn leased(path: &Path) -> LeasedFile {
        LeasedFile::hold_if_possible(File::open(path).unwrap().into()).unwrap()
    }

    fn put(store: &Store, path: &Path) -> Result<u64, Errno> {
        store.put(&leased(path), 7, &attr(path), &|_| true)
    }

    #[test]
    fn a_copy_is_found_again_by_its_name_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("f");
        fs::write(&file, "text").unwrap();
        let (store, found) = Store::open(home.path()).unwrap();
        assert!(found.is_empty());
        put(&store, &file).unwrap();
        let (id, version) = (FileId::of(7, &attr(&file)), Version::of(&attr(&file)));
        let text = std::io::read_to_string(File::from(store.get(&id, &version).unwrap())).unwrap();
        assert_eq!(text, "text");
        let (again, found) = Store::open(home.path()).unwrap();
        assert_eq!(found.iter().map(|found| (found.id, found.version)).collect::<Vec<_>>(), [(id, version)]);
        fs::write(&file, "TEXT").unwrap();
        assert_eq!(again.get(&id, &Version::of(&attr(&file))).unwrap_err(), Errno::NOENT);
        again.remove(&id, &version).unwrap();
        assert!(Store::open(home.path()).unwrap().1.is_empty());
    }

    #[test]
    fn what_a_crash_leaves_goes() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("f");
        fs::write(&file, "text").unwrap();
        let (store, _) = Store::open(home.path()).unwrap();
        put(&store, &file).unwrap();
        let dir = home.path().join(".canopy-cache");
        let name = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
        fs::write(&name, "te").unwrap();
        fs::write(dir.join(".canopy-clone.1"), "half").unwrap();
        fs::write(dir.join("of somebody"), "x").unwrap();
        assert!(Store::open(home.path()).unwrap().1.is_empty());
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["of somebody"]);
    }

    #[test]
    fn a_file_that_changes_meanwhile_gets_no_copy() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("f");
        fs::write(&file, "text").unwrap();
        let (store, _) = Store::open(home.path()).unwrap();
        let before = attr(&file);
        fs::write(&file, "longer text").unwrap();
        assert_eq!(store.put(&leased(&file), 7, &before, &|_| true), Err(Errno::AGAIN));
        assert_eq!(store.put(&leased(&file), 7, &attr(&file), &|_| false), Err(Errno::INTR));
        assert_eq!(fs::read_dir(home.path().join(".canopy-cache")).unwrap().count(), 0);
    }

    /// As far as its disk is concerned, a panic ends the making of a copy as SIGKILL does.
    #[test]
    fn wherever_making_a_copy_ends_there_is_none_or_a_right_one() {
        let home = tempfile::tempdir().unwrap();
        let source = tempfile::tempdir_in("/dev/shm").unwrap();
        let original = source.path().join("f");
        fs::write(&original, vec![7; 3 * (4 << 20) + 5]).unwrap();
        let of = attr(&original);
        let (mut step, mut ended) = (0_u32, false);
        while !ended {
            let (store, _) = Store::open(home.path()).unwrap();
            let left = std::cell::Cell::new(step);
            let dies = |_: BorrowedFd<'_>| {
                left.set(
                    left.get().checked_sub(1).unwrap_or_else(|| std::panic::resume_unwind(Box::new(()))),
                );
                true
            };
            let make = || store.put(&leased(&original), 7, &of, &dies);
            ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).is_ok();
            let (again, found) = Store::open(home.path()).unwrap();
            assert_eq!(found.len(), usize::from(ended), "after {step} steps");
            let got = again.get(&FileId::of(7, &of), &Version::of(&of));
            assert_eq!(got.is_ok(), ended);
            let left = fs::read_dir(home.path().join(".canopy-cache")).unwrap().count();
            assert_eq!(left, usize::from(ended), "nothing is left that was under construction");
            step += 1;
        }
        // The beginning, each step, and when all is there.
        assert_eq!(step, 6);
    }

    #[test]
    fn a_copy_follows_another_state() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("f");
        fs::write(&file, "text").unwrap();
        let (store, _) = Store::open(home.path()).unwrap();
        put(&store, &file).unwrap();
        let (id, before) = (FileId::of(7, &attr(&file)), Version::of(&attr(&file)));
        let now = Version { ctime: Time { sec: before.ctime.sec + 9, ..before.ctime }, ..before };
        store.restamp(&id, &before, &now).unwrap();
        assert_eq!(store.get(&id, &before).unwrap_err(), Errno::NOENT);
        assert!(store.get(&id, &now).is_ok());
        assert!(before.rests(SystemTime::now() + RESTS, RESTS) && !before.rests(SystemTime::now(), RESTS));
    }

    #[test]
    fn names_say_all() {
        let id = FileId { branch: 1 << 60, ino: 12, birth: (-5, 999_999_999) };
        let time = Time { sec: -1, nsec: 7 };
        let version = Version { size: u64::MAX, mtime: time, ctime: Time { sec: i64::MAX, nsec: 0 } };
        let name = name_of(&id, &version);
        assert_eq!(parse_name(name.as_bytes()), Some((id, version)));
        for wrong in
            ["", "reads", &name[1..], &name.to_uppercase(), &format!("{name}-1"), &format!("0{name}")]
        {
            assert_eq!(parse_name(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join(".canopy-cache");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(Store::open(home.path()).unwrap_err(), Errno::PERM);
    }

    #[test]
    fn notes_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(home.path()).unwrap();
        assert_eq!(store.read_notes(), Err(Errno::NOENT));
        store.write_notes(b"a").unwrap();
        store.write_notes(b"bc").unwrap();
        assert_eq!(store.read_notes().unwrap(), b"bc");
    }
}
