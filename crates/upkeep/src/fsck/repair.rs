//! Repairs the copies of one file.

use super::{FileCopy, FixSource, FsckArgs, open};
use crate::output::{print, shown};
use crate::pace::Pace;
use crate::stop::Stop;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Bytes that are copied between two looks at signals.
const AT_ONCE: u64 = 1 << 20;

/// Changes the other copies to match the selected one. Returns the index of that copy, or `None` if nothing is to be
/// repaired. An error says why the copies still differ.
pub(super) fn repair(
    args: &FsckArgs,
    copies: &[FileCopy],
    stop: &Stop,
    pace: &mut Pace,
) -> Result<Option<usize>, String> {
    if args.source() == FixSource::None {
        return Ok(None);
    }
    if copies.iter().any(|copy| copy.kind() != copies[0].kind()) {
        return Err("the copies have different types: remove or rename all but one".into());
    }
    let Some(from) = choose(args.source(), copies, stop) else { return Err("no copy was selected".into()) };
    let source = &copies[from];
    let data = args.copy_file && source.kind() == FileType::RegularFile;
    for other in copies {
        if (other.stat.st_dev, other.stat.st_ino) == (source.stat.st_dev, source.stat.st_ino) {
            continue;
        }
        let done = if data { copy_file(other, source, stop, pace) } else { copy_metadata(other, source) };
        done.map_err(|why| format!("{}: {why}", shown(&other.path)))?;
    }
    let size_left =
        args.check_size && !data && copies.iter().any(|copy| copy.stat.st_size != source.stat.st_size);
    if size_left && source.kind() == FileType::RegularFile {
        return Err("sizes still differ: --copy-file=true copies the data as well".into());
    }
    Ok(Some(from))
}

/// Selects the copy to repair from. If several are equal, the first.
fn choose(by: FixSource, copies: &[FileCopy], stop: &Stop) -> Option<usize> {
    let first_max = |key: &dyn Fn(&FileCopy) -> (i64, i64)| {
        let mut best = 0;
        for (index, copy) in copies.iter().enumerate() {
            if key(copy) > key(&copies[best]) {
                best = index;
            }
        }
        best
    };
    let newest = || first_max(&|copy| (copy.stat.st_mtime, copy.stat.st_mtime_nsec as i64));
    match by {
        FixSource::None => None,
        FixSource::Newest => Some(newest()),
        FixSource::Largest => Some(first_max(&|copy| (copy.stat.st_size, 0))),
        FixSource::Nonroot => {
            Some(copies.iter().position(|copy| copy.stat.st_uid != 0).unwrap_or_else(newest))
        }
        FixSource::Manual => ask(copies.len(), stop),
    }
}

fn ask(count: usize, stop: &Stop) -> Option<usize> {
    print("Select correct file: ");
    let answer = stop.line()?;
    answer.trim().parse().ok().filter(|&index| index < count)
}

/// Copies owner and mode. The owner comes first, because changing it clears the set-id bits.
fn copy_metadata(other: &FileCopy, source: &FileCopy) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(source.stat.st_uid), Gid::from_raw(source.stat.st_gid));
    rustix::fs::chownat(&other.fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    if other.kind() != FileType::Symlink {
        // fchmod does not accept an O_PATH descriptor.
        let path = format!("/proc/self/fd/{}", other.fd.as_raw_fd());
        rustix::fs::chmod(path, Mode::from_raw_mode(source.stat.st_mode & 0o7777))?;
    }
    Ok(())
}

/// Atomically replaces a copy by a new copy of the source.
fn copy_file(other: &FileCopy, source: &FileCopy, stop: &Stop, pace: &mut Pace) -> io::Result<()> {
    if other.stat.st_nlink > 1 {
        return Err(io::Error::other(
            "it has other hard links, which would keep the old data: copy it by hand",
        ));
    }
    let (Some(parent), Some(name)) = (other.path.parent(), other.path.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    let dir = open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    // The pool does not show this name.
    let temporary = canopy_branch::fs::reserved::temporary_name();
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let target = rustix::fs::openat(&dir, temporary.as_slice(), flags, Mode::from_raw_mode(0o600))?;
    let done = fill(&mut File::from(target), source, stop, pace)
        .and_then(|()| Ok(rustix::fs::renameat(&dir, temporary.as_slice(), &dir, name)?));
    if done.is_err() {
        let _ = rustix::fs::unlinkat(&dir, temporary.as_slice(), AtFlags::empty());
    }
    done
}

/// Copies data, attributes, owner, mode and times.
fn fill(target: &mut File, source: &FileCopy, stop: &Stop, pace: &mut Pace) -> io::Result<()> {
    let mut from = File::open(Path::new(&format!("/proc/self/fd/{}", source.fd.as_raw_fd())))?;
    let mut watch = || if stop.is_set() { Err(io::Error::other("stopped")) } else { Ok(()) };
    loop {
        let copied = io::copy(&mut (&mut from).take(AT_ONCE), target)?;
        if copied == 0 {
            break;
        }
        pace.keep(copied, &mut watch)?;
    }
    copy_attributes(&from, target)?;
    let stat = rustix::fs::fstat(&from)?;
    let stamp = |stat: &rustix::fs::Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime);
    if stamp(&stat) != stamp(&source.stat) {
        return Err(io::Error::other("the source was changed while it was copied"));
    }
    rustix::fs::fchown(&*target, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    rustix::fs::fchmod(&*target, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let time = |sec, nsec| Timespec { tv_sec: sec, tv_nsec: nsec };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as _),
    };
    rustix::fs::futimens(&*target, &times)?;
    target.sync_all()
}

/// Copies extended attributes, including ACLs. Skips those that the other filesystem does not support.
fn copy_attributes(from: &File, to: &File) -> io::Result<()> {
    let mut names = vec![0; 65_536];
    let length = match rustix::fs::flistxattr(from, names.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    };
    let mut value = vec![0; 65_536];
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let size = rustix::fs::fgetxattr(from, name, value.as_mut_slice())?;
        match rustix::fs::fsetxattr(to, name, &value[..size], XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
